"""Checks of a prepared corpus.

- documents: enough of them, with several sentences each, for sentence pairs and for a validation split.
- size: enough tokens for the vocabulary.
- duplicate sentences and documents.
- tokenizer: rate of unknown tokens, fertility (subwords per word), unused subwords, mismatched fingerprints.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from .finding import Finding, format_number

MIN_DOCUMENTS = 8  # below this no document is held out for validation
MIN_TOKENS_PER_SUBWORD = 20  # on average; with fewer, most rows of the embedding table are hardly trained
DUPLICATES_NOTE, DUPLICATES_PROBLEM = 0.1, 0.3  # fractions of sentences; subtitles and forum posts are naturally near the first
MAX_UNK_RATE = 0.02  # of the tokens; the data card warns at the same rate
FERTILITY_NOTE, FERTILITY_PROBLEM = 2.0, 3.0  # subwords per word; a vocabulary trained on the same text has 1.1 to 1.6
MAX_UNUSED_FRACTION = 0.5  # of the vocabulary
FERTILITY_SAMPLE_TOKENS = 1 << 22  # fertility is computed on the first so many tokens
WRONG_VOCABULARY = "wrong vocabulary: "  # prefix of the names of findings
RETRAIN_TOKENIZER_ADVICE = "train a vocabulary on this text (`bertsmith tokenizer texts=...`) and prepare it again with that"


def check_documents(card: dict[str, Any], objective: str | None) -> Iterator[Finding]:
    """`objective` is the kind of the objective; None for a corpus that has not been trained on yet."""
    if objective in (None, "mlm-nsp", "mlm-sop"):
        yield from _check_pairs(card)
    if 1 < card["documents"] < MIN_DOCUMENTS:
        yield Finding(
            "few documents", "note", f"{card['documents']} documents",
            "with so few, none is held out: nothing will tell learning from memorising",
            "put a blank line between documents and prepare again, or give `pretrain` another corpus to be judged on",
            "valid=FOLDER",
        )  # fmt: skip
    yield from _check_corpus_size(card)


def check_duplicates(card: dict[str, Any]) -> Iterator[Finding]:
    """Sentences or documents that occur more than once."""
    duplicates = card.get("duplicates", {})
    dropped = duplicates.get("dropped_sentences", 0)
    repeated = max(0, duplicates.get("sentences", 0) - dropped)
    sentence_fraction = repeated / max(1, card["sentences"])
    documents = 0 if dropped else duplicates.get("documents", 0)
    document_fraction = documents / max(1, card["documents"])
    if max(sentence_fraction, document_fraction) < DUPLICATES_NOTE:
        return
    yield Finding(
        "duplicate lines",
        "problem" if max(sentence_fraction, document_fraction) >= DUPLICATES_PROBLEM else "note",
        f"{repeated:,} of {card['sentences']:,} sentences ({sentence_fraction:.0%}) and {documents:,} of "
        f"{card['documents']:,} documents ({document_fraction:.0%}) came before, word for word",
        "repeated lines are learnt by heart: the loss falls on them and stays high elsewhere, and held-out text may have been "
        "read in training, so its scores flatter",
        "prepare the text again without its repeats; headers and footers that stand in every file are best cut out first",
        """drop='["lines"]'""" if sentence_fraction >= document_fraction else """drop='["documents"]'""",
    )


def check_unk_rate(card: dict[str, Any]) -> Iterator[Finding]:
    """Too many [UNK] tokens."""
    if card["unknown_rate"] > MAX_UNK_RATE:
        yield Finding(
            WRONG_VOCABULARY + "unknown words", "problem", f"{card['unknown_rate']:.1%} of the tokens are unknown",
            "the model sees [UNK] there: it cannot learn these words, nor ever guess them, and they are never asked for",
            f"{RETRAIN_TOKENIZER_ADVICE}; a cased vocabulary on text in capitals, or one of another language, does this too",
            "tokenizer=FOLDER",
        )  # fmt: skip


def check_corpus_tokenizer(corpus: Corpus) -> Iterator[Finding]:
    """The corpus was tokenized with another tokenizer than the one in its folder."""
    recorded, actual, vocab_size = corpus.card["tokenizer_fingerprint"], corpus.tokenizer.fingerprint, len(corpus.tokenizer)
    max_id = int(corpus.tokens.max()) if len(corpus.tokens) else 0
    if recorded != actual or max_id >= vocab_size:
        yield Finding(
            WRONG_VOCABULARY + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {recorded[:8]} and holds {actual[:8]}; "
            f"its largest id is {max_id:,} of {vocab_size:,}",
            "ids stand for other pieces than the ones that were read: what is learnt from them is noise",
            "put nothing into a corpus folder by hand; prepare the text again with the tokenizer you mean", "tokenizer=FOLDER",
        )  # fmt: skip


def check_model_tokenizer(corpus: Corpus, fingerprint: str) -> Iterator[Finding]:
    """The corpus was tokenized with another tokenizer than the model's."""
    if corpus.card["tokenizer_fingerprint"] != fingerprint:
        yield Finding(
            WRONG_VOCABULARY + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {corpus.card['tokenizer_fingerprint'][:8]}, "
            f"the model with {fingerprint[:8]}",
            "the same ids are other pieces to the model: it would read this text as noise",
            "prepare the text with the tokenizer of the model", "tokenizer=FOLDER",
        )  # fmt: skip


def check_fertility(corpus: Corpus) -> Iterator[Finding]:
    """Words are split into too many subwords."""
    fertility = compute_fertility(corpus)
    if fertility and fertility > FERTILITY_NOTE:
        yield Finding(
            WRONG_VOCABULARY + "words in crumbs", "problem" if fertility > FERTILITY_PROBLEM else "note",
            f"a word is cut into {fertility:.2f} pieces on average",
            "the vocabulary was made for other text: sequences hold few words, and what is hidden is mostly guessed from the "
            "other pieces of its own word", RETRAIN_TOKENIZER_ADVICE, "tokenizer=FOLDER",
        )  # fmt: skip


def check_unused_subwords(corpus: Corpus) -> Iterator[Finding]:
    """Most of the vocabulary never occurs in the text."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    non_special = corpus.tokenizer.non_special_ids
    num_unused = int((counts[non_special] == 0).sum())
    if num_unused > MAX_UNUSED_FRACTION * len(non_special):
        yield Finding(
            WRONG_VOCABULARY + "unused pieces", "note",
            f"{num_unused:,} of {len(non_special):,} pieces never occur in the text",
            "their rows of the table cost memory and time at every step and learn only not to be guessed",
            f"{RETRAIN_TOKENIZER_ADVICE}, of a size that the text fills",
            f"vocab_size={max(100, len(non_special) - num_unused + 5)}",
        )  # fmt: skip


def compute_fertility(corpus: Corpus) -> float | None:
    """Subwords per word; None where words cannot be identified: character or byte vocabularies, text without spaces."""
    tokenizer, ids = corpus.tokenizer, np.asarray(corpus.tokens[:FERTILITY_SAMPLE_TOKENS])
    subwords = [tokenizer.id_to_token[token_id].removeprefix("##").lstrip("Ġ▁") for token_id in tokenizer.non_special_ids]
    is_word_like = np.zeros(len(tokenizer), bool)
    is_word_like[tokenizer.non_special_ids] = [any(c.isalnum() for c in subword) for subword in subwords]
    if tokenizer.is_hex or not subwords or np.mean([len(subword) > 1 for subword in subwords]) < 0.2:
        return None
    in_word = is_word_like[ids]
    num_words = int((in_word & ~tokenizer.is_continuation[ids]).sum())
    if tokenizer.word_start_prefix and num_words < 0.1 * in_word.sum():
        return None
    return float(in_word.sum() / num_words) if num_words else None


def _check_pairs(card: dict[str, Any]) -> Iterator[Finding]:
    num_single = card.get("document_lengths", {}).get("1+", 0)
    if card["documents"] == 1:
        yield Finding(
            "no documents", "problem", f"one document of {card['sentences']:,} sentences",
            "next-sentence prediction has no other document to draw a wrong sentence from, and none can be held out",
            "put a blank line between documents and prepare again, or learn from masked words alone", "objective=mlm",
        )  # fmt: skip
    elif num_single == card["documents"]:
        yield Finding(
            "no documents", "problem", f"each of the {num_single:,} documents is one sentence",
            "no sentence has a next one: there are no pairs to learn from",
            "give each document its sentences without blank lines between them, or learn from masked words alone",
            "objective=mlm",
        )  # fmt: skip
    elif num_single > 0.5 * card["documents"]:
        yield Finding(
            "short documents", "note", f"{num_single:,} of {card['documents']:,} documents are one sentence",
            "sentence pairs read these only by chance, as a random second part",
            "learn from masked words alone, which reads everything", "objective=mlm",
        )  # fmt: skip


def _check_corpus_size(card: dict[str, Any]) -> Iterator[Finding]:
    tokens_per_subword = card["tokens"] / max(1, card["vocab_size"])
    if tokens_per_subword < MIN_TOKENS_PER_SUBWORD:
        suggested_size = max(100, card["tokens"] // (5 * MIN_TOKENS_PER_SUBWORD))
        yield Finding(
            "too little text", "problem" if tokens_per_subword < MIN_TOKENS_PER_SUBWORD / 4 else "note",
            f"{card['tokens']:,} tokens for a vocabulary of {card['vocab_size']:,}: "
            f"{format_number(tokens_per_subword)} for each piece",
            "most pieces are met too seldom to learn anything of them",
            "gather more text, train a smaller vocabulary on it, or go on from a model that has read more (init=FOLDER)",
            f"vocab_size={suggested_size}" if suggested_size < card["vocab_size"] else "init=FOLDER",
        )  # fmt: skip
