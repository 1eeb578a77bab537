"""Too few documents, or too little text: nothing to pair, nothing to hold out, nothing to learn from."""

from collections.abc import Iterator
from typing import Any

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
