"""Too few documents, or too little text: nothing to pair, nothing to hold out, nothing to learn from."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from .finding import Finding, format_number

MIN_DOCUMENTS = 8  # documents that a corpus needs for some of them to be held out
MIN_TOKENS_PER_SUBWORD = (
    20  # tokens for every piece of the vocabulary, on average; with fewer, most rows of the table hardly move
)


def check_documents(card: dict[str, Any], objective: str | None) -> Iterator[Finding]:
    """`objective` is the kind of a run; none, for a corpus that is not trained on yet."""
    if objective in (None, "pairs"):
        yield from _check_pairs(card)
    if 1 < card["documents"] < MIN_DOCUMENTS:
        yield Finding(
            "few documents", "note", f"{card['documents']} documents",
            "with so few, none is held out: nothing will tell learning from memorising",
            "put a blank line between documents and prepare again, or give `pretrain` another corpus to be judged on",
            "valid=FOLDER",
        )  # fmt: skip
    yield from _check_corpus_size(card)


def _check_pairs(card: dict[str, Any]) -> Iterator[Finding]:
    lone = card.get("document lengths in sentences", {}).get("1+", 0)
    if card["documents"] == 1:
        yield Finding(
            "no documents", "problem", f"one document of {card['sentences']:,} sentences",
            "next-sentence prediction has no other document to draw a wrong sentence from, and none can be held out",
            "put a blank line between documents and prepare again, or learn from masked words alone", "objective=masked",
        )  # fmt: skip
    elif lone == card["documents"]:
        yield Finding(
            "no documents", "problem", f"each of the {lone:,} documents is one sentence",
            "no sentence has a next one: there are no pairs to learn from",
            "give each document its sentences without blank lines between them, or learn from masked words alone",
            "objective=masked",
        )  # fmt: skip
    elif lone > 0.5 * card["documents"]:
        yield Finding(
            "short documents", "note", f"{lone:,} of {card['documents']:,} documents are one sentence",
            "sentence pairs read these only by chance, as a random second part",
            "learn from masked words alone, which reads everything", "objective=masked",
        )  # fmt: skip


def _check_corpus_size(card: dict[str, Any]) -> Iterator[Finding]:
    each = card["tokens"] / max(1, card["vocabulary"])
    if each < MIN_TOKENS_PER_SUBWORD:
        size = max(100, card["tokens"] // (5 * MIN_TOKENS_PER_SUBWORD))
        yield Finding(
            "too little text", "problem" if each < MIN_TOKENS_PER_SUBWORD / 4 else "note",
            f"{card['tokens']:,} tokens for a vocabulary of {card['vocabulary']:,}: {format_number(each)} for each piece",
            "most pieces are met too seldom to learn anything of them",
            "gather more text, train a smaller vocabulary on it, or go on from a model that has read more (init=FOLDER)",
            f"size={size}" if size < card["vocabulary"] else "init=FOLDER",
        )  # fmt: skip


DUPLICATES_NOTE, DUPLICATES_PROBLEM = 0.1, 0.3  # of the sentences; subtitles and forums are near the first by nature


def check_duplicates(card: dict[str, Any]) -> Iterator[Finding]:
    counted = card.get("duplicates", {})
    dropped = counted.get("sentences dropped", 0)
    again = max(0, counted.get("sentences", 0) - dropped)
    share = again / max(1, card["sentences"])
    documents = 0 if dropped else counted.get("documents", 0)
    whole = documents / max(1, card["documents"])
    if max(share, whole) < DUPLICATES_NOTE:
        return
    yield Finding(
        "duplicate lines",
        "problem" if max(share, whole) >= DUPLICATES_PROBLEM else "note",
        f"{again:,} of {card['sentences']:,} sentences ({share:.0%}) and {documents:,} of {card['documents']:,} documents "
        f"({whole:.0%}) came before, word for word",
        "repeated lines are learnt by heart: the loss falls on them and stays high elsewhere, and held-out text may have been "
        "read in training, so its scores flatter",
        "prepare the text again without its repeats; headers and footers that stand in every file are best cut out first",
        """drop='["lines"]'""" if share >= whole else """drop='["documents"]'""",
    )


WRONG_VOCABULARY = "wrong vocabulary: "  # and in which way
MAX_UNK_RATE = 0.02  # of the tokens, as the data card warns
FERTILITY_NOTE, FERTILITY_PROBLEM = 2.0, 3.0  # pieces a word; a vocabulary of its own text has 1.1 to 1.6
MAX_UNUSED_FRACTION = 0.5  # of the pieces
FERTILITY_SAMPLE_TOKENS = 1 << 22  # tokens that words are counted in
RETRAIN_TOKENIZER_ADVICE = "train a vocabulary on this text (`bertsmith tokenizer texts=...`) and prepare it again with that"


def check_unk_rate(card: dict[str, Any]) -> Iterator[Finding]:
    if card["unknown rate"] > MAX_UNK_RATE:
        yield Finding(
            WRONG_VOCABULARY + "unknown words", "problem", f"{card['unknown rate']:.1%} of the tokens are unknown",
            "the model sees [UNK] there: it cannot learn these words, nor ever guess them, and they are never asked for",
            f"{RETRAIN_TOKENIZER_ADVICE}; a cased vocabulary on text in capitals, or one of another language, does this too", "tokenizer=FOLDER",
        )  # fmt: skip


def check_corpus_tokenizer(corpus: Corpus) -> Iterator[Finding]:
    """The ids of a corpus and the tokenizer beside them are not of one another."""
    told, here, size = corpus.card["tokenizer"], corpus.tokenizer.fingerprint, len(corpus.tokenizer)
    largest = int(corpus.tokens.max()) if len(corpus.tokens) else 0
    if told != here or largest >= size:
        yield Finding(
            WRONG_VOCABULARY + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {told[:8]} and holds {here[:8]}; its largest id is {largest:,} of {size:,}",
            "ids stand for other pieces than the ones that were read: what is learnt from them is noise",
            "put nothing into a corpus folder by hand; prepare the text again with the tokenizer you mean", "tokenizer=FOLDER",
        )  # fmt: skip


def check_model_tokenizer(corpus: Corpus, fingerprint: str) -> Iterator[Finding]:
    """A corpus beside a model of another tokenizer."""
    if corpus.card["tokenizer"] != fingerprint:
        yield Finding(
            WRONG_VOCABULARY + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {corpus.card['tokenizer'][:8]}, the model with {fingerprint[:8]}",
            "the same ids are other pieces to the model: it would read this text as noise",
            "prepare the text with the tokenizer of the model", "tokenizer=FOLDER",
        )  # fmt: skip


def check_fertility(corpus: Corpus) -> Iterator[Finding]:
    found = compute_fertility(corpus)
    if found and found > FERTILITY_NOTE:
        yield Finding(
            WRONG_VOCABULARY + "words in crumbs", "problem" if found > FERTILITY_PROBLEM else "note",
            f"a word is cut into {found:.2f} pieces on average",
            "the vocabulary was made for other text: sequences hold few words, and what is hidden is mostly guessed from the "
            "other pieces of its own word", RETRAIN_TOKENIZER_ADVICE, "tokenizer=FOLDER",
        )  # fmt: skip


def check_unused_subwords(corpus: Corpus) -> Iterator[Finding]:
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    ordinary = corpus.tokenizer.non_special_ids
    never = int((counts[ordinary] == 0).sum())
    if never > MAX_UNUSED_FRACTION * len(ordinary):
        yield Finding(
            WRONG_VOCABULARY + "unused pieces", "note", f"{never:,} of {len(ordinary):,} pieces never occur in the text",
            "their rows of the table cost memory and time at every step and learn only not to be guessed",
            f"{RETRAIN_TOKENIZER_ADVICE}, of a size that the text fills", f"size={max(100, len(ordinary) - never + 5)}",
        )  # fmt: skip


def compute_fertility(corpus: Corpus) -> float | None:
    """Pieces a word; None where words are not to be told: single characters or bytes, text without spaces."""
    tokenizer, ids = corpus.tokenizer, np.asarray(corpus.tokens[:FERTILITY_SAMPLE_TOKENS])
    names = [tokenizer.id_to_token[number].removeprefix("##").lstrip("Ġ▁") for number in tokenizer.non_special_ids]
    letters = np.zeros(len(tokenizer), bool)
    letters[tokenizer.non_special_ids] = [any(c.isalnum() for c in name) for name in names]
    if tokenizer.is_hex or not names or np.mean([len(name) > 1 for name in names]) < 0.2:
        return None
    some = letters[ids]
    begins = int((some & ~tokenizer.is_continuation[ids]).sum())
    if tokenizer.word_start_prefix and begins < 0.1 * some.sum():
        return None
    return float(some.sum() / begins) if begins else None
