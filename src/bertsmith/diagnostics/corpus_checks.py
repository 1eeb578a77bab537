"""Too few documents, or too little text: nothing to pair, nothing to hold out, nothing to learn from."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..corpus.card import unigrams
from ..corpus.store import Corpus
from .finding import Finding, number

HOLDS_OUT = 8  # documents that a corpus needs for some of them to be held out
EACH = 20  # tokens for every piece of the vocabulary, on average; with fewer, most rows of the table hardly move


def documents(card: dict[str, Any], objective: str | None) -> Iterator[Finding]:
    """`objective` is the kind of a run; none, for a corpus that is not trained on yet."""
    if objective in (None, "pairs"):
        yield from _pairs(card)
    if 1 < card["documents"] < HOLDS_OUT:
        yield Finding(
            "few documents", "note", f"{card['documents']} documents",
            "with so few, none is held out: nothing will tell learning from memorising",
            "put a blank line between documents and prepare again, or give `pretrain` another corpus to be judged on",
            "valid=FOLDER",
        )  # fmt: skip
    yield from _little(card)


def _pairs(card: dict[str, Any]) -> Iterator[Finding]:
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


def _little(card: dict[str, Any]) -> Iterator[Finding]:
    each = card["tokens"] / max(1, card["vocabulary"])
    if each < EACH:
        size = max(100, card["tokens"] // (5 * EACH))
        yield Finding(
            "too little text", "problem" if each < EACH / 4 else "note",
            f"{card['tokens']:,} tokens for a vocabulary of {card['vocabulary']:,}: {number(each)} for each piece",
            "most pieces are met too seldom to learn anything of them",
            "gather more text, train a smaller vocabulary on it, or go on from a model that has read more (init=FOLDER)",
            f"size={size}" if size < card["vocabulary"] else "init=FOLDER",
        )  # fmt: skip


SOME, MANY = 0.1, 0.3  # of the sentences; subtitles and forums are near the first by nature


def duplicates(card: dict[str, Any]) -> Iterator[Finding]:
    counted = card.get("duplicates", {})
    dropped = counted.get("sentences dropped", 0)
    again = max(0, counted.get("sentences", 0) - dropped)
    share = again / max(1, card["sentences"])
    documents = 0 if dropped else counted.get("documents", 0)
    whole = documents / max(1, card["documents"])
    if max(share, whole) < SOME:
        return
    yield Finding(
        "duplicate lines",
        "problem" if max(share, whole) >= MANY else "note",
        f"{again:,} of {card['sentences']:,} sentences ({share:.0%}) and {documents:,} of {card['documents']:,} documents "
        f"({whole:.0%}) came before, word for word",
        "repeated lines are learnt by heart: the loss falls on them and stays high elsewhere, and held-out text may have been "
        "read in training, so its scores flatter",
        "prepare the text again without its repeats; headers and footers that stand in every file are best cut out first",
        """drop='["lines"]'""" if share >= whole else """drop='["documents"]'""",
    )


NAME = "wrong vocabulary: "  # and in which way
UNKNOWN = 0.02  # of the tokens, as the data card warns
CRUMBS, FINE_CRUMBS = 2.0, 3.0  # pieces a word; a vocabulary of its own text has 1.1 to 1.6
UNUSED = 0.5  # of the pieces
SAMPLE = 1 << 22  # tokens that words are counted in
AGAIN = "train a vocabulary on this text (`bertsmith tokenizer texts=...`) and prepare it again with that"


def unknown(card: dict[str, Any]) -> Iterator[Finding]:
    if card["unknown rate"] > UNKNOWN:
        yield Finding(
            NAME + "unknown words", "problem", f"{card['unknown rate']:.1%} of the tokens are unknown",
            "the model sees [UNK] there: it cannot learn these words, nor ever guess them, and they are never asked for",
            f"{AGAIN}; a cased vocabulary on text in capitals, or one of another language, does this too", "tokenizer=FOLDER",
        )  # fmt: skip


def mixed_up(corpus: Corpus) -> Iterator[Finding]:
    """The ids of a corpus and the tokenizer beside them are not of one another."""
    told, here, size = corpus.card["tokenizer"], corpus.tokenizer.fingerprint, len(corpus.tokenizer)
    largest = int(corpus.tokens.max()) if len(corpus.tokens) else 0
    if told != here or largest >= size:
        yield Finding(
            NAME + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {told[:8]} and holds {here[:8]}; its largest id is {largest:,} of {size:,}",
            "ids stand for other pieces than the ones that were read: what is learnt from them is noise",
            "put nothing into a corpus folder by hand; prepare the text again with the tokenizer you mean", "tokenizer=FOLDER",
        )  # fmt: skip


def other(corpus: Corpus, fingerprint: str) -> Iterator[Finding]:
    """A corpus beside a model of another tokenizer."""
    if corpus.card["tokenizer"] != fingerprint:
        yield Finding(
            NAME + "another tokenizer", "problem",
            f"{corpus.path} was made with tokenizer {corpus.card['tokenizer'][:8]}, the model with {fingerprint[:8]}",
            "the same ids are other pieces to the model: it would read this text as noise",
            "prepare the text with the tokenizer of the model", "tokenizer=FOLDER",
        )  # fmt: skip


def crumbs(corpus: Corpus) -> Iterator[Finding]:
    found = fertility(corpus)
    if found and found > CRUMBS:
        yield Finding(
            NAME + "words in crumbs", "problem" if found > FINE_CRUMBS else "note",
            f"a word is cut into {found:.2f} pieces on average",
            "the vocabulary was made for other text: sequences hold few words, and what is hidden is mostly guessed from the "
            "other pieces of its own word", AGAIN, "tokenizer=FOLDER",
        )  # fmt: skip


def unused(corpus: Corpus) -> Iterator[Finding]:
    counts = unigrams(corpus.tokens, len(corpus.tokenizer))
    ordinary = corpus.tokenizer.ordinary
    never = int((counts[ordinary] == 0).sum())
    if never > UNUSED * len(ordinary):
        yield Finding(
            NAME + "unused pieces", "note", f"{never:,} of {len(ordinary):,} pieces never occur in the text",
            "their rows of the table cost memory and time at every step and learn only not to be guessed",
            f"{AGAIN}, of a size that the text fills", f"size={max(100, len(ordinary) - never + 5)}",
        )  # fmt: skip


def fertility(corpus: Corpus) -> float | None:
    """Pieces a word; None where words are not to be told: single characters or bytes, text without spaces."""
    tokenizer, ids = corpus.tokenizer, np.asarray(corpus.tokens[:SAMPLE])
    names = [tokenizer.pieces[number].removeprefix("##").lstrip("Ġ▁") for number in tokenizer.ordinary]
    letters = np.zeros(len(tokenizer), bool)
    letters[tokenizer.ordinary] = [any(c.isalnum() for c in name) for name in names]
    if tokenizer.hex or not names or np.mean([len(name) > 1 for name in names]) < 0.2:
        return None
    some = letters[ids]
    begins = int((some & ~tokenizer.continues[ids]).sum())
    if tokenizer.marks_starts and begins < 0.1 * some.sum():
        return None
    return float(some.sum() / begins) if begins else None
