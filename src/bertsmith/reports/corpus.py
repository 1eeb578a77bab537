"""What a corpus holds: its data card as tables and pictures."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..corpus.card import BINS, unigrams
from ..corpus.store import Corpus
from .charts import bars
from .html import Html, element, note, section, shown, table, tiles

FREQUENT = 36  # pieces listed


def data(corpus: Corpus) -> Html:
    card = corpus.card
    facts = (
        ("documents", card["documents"], f"{card['sentences'] / max(card['documents'], 1):.1f} sentences each"),
        ("sentences", card["sentences"], f"{card['tokens'] / max(card['sentences'], 1):.1f} tokens each"),
        ("tokens", card["tokens"], f"of {card['vocabulary']:,} kinds"),
        ("unigram entropy", card["unigram entropy"], f"nats a token: perplexity {math.exp(card['unigram entropy']):,.0f}"),
    )
    pictures = (
        bars("Sentences by length", classes(card["sentence lengths"]), "tokens, at least"),
        bars("Documents by length", classes(card["document lengths in sentences"]), "sentences, at least"),
    )
    tables = (
        element("div", element("h3", "Data card"), table(_card(card))),
        element("div", element("h3", "Sources"), table(_sources(card), ("file", "bytes"))),
    )
    warnings = [note(warning, "warning") for warning in card["warnings"]]
    pairs = [element("div", *two, class_="pair") for two in (pictures, tables, _frequent(corpus))]
    return section("Corpus", *warnings, tiles(facts), *pairs[:2], element("h3", "Most frequent pieces"), pairs[2])


def classes(histogram: Mapping[str, int]) -> dict[str, int]:
    """The card's classes, each named by its least length, from the first that has any to the last."""
    found = [number for number, edge in enumerate(BINS) if histogram.get(f"{edge}+")]
    return {f"{edge:,}": histogram.get(f"{edge}+", 0) for edge in BINS[found[0] : found[-1] + 1]} if found else {}


def frequent(corpus: Corpus, most: int = FREQUENT) -> list[tuple[str, int]]:
    """The pieces that occur most often with their counts; equal counts in order of ids."""
    counts = unigrams(corpus.tokens, len(corpus.tokenizer))
    order = np.argsort(-counts, kind="stable")[:most]
    return [(corpus.tokenizer.pieces[number], int(counts[number])) for number in order if counts[number]]


def share_bar(share: float) -> Html:
    """A share of 1 as the filled part of a line."""
    return element("div", element("span", style=f"width:{100 * min(max(share, 0.0), 1.0):.1f}%"), class_="track")


def _card(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    repeats = card.get("duplicates", {})
    rows = [("longest sentence", f"{card['longest sentence']:,} tokens"), ("unknown tokens", f"{card['unknown rate']:.3%}")]
    rows += [
        ("sentences met before", shown(repeats.get("sentences"))),
        ("documents met before", shown(repeats.get("documents"))),
    ]
    rows += [("sentences dropped as repeats", shown(repeats.get("sentences dropped")))]
    rows += [("word borders marked", shown(card["words marked"])), ("an id is stored as", card["dtype"])]
    return [*rows, ("tokenizer", card["tokenizer"])]


def _sources(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sources = card.get("sources", [])
    listed = [(source["name"], source["bytes"]) for source in sources[:10]]
    rest = sources[10:]
    return listed + ([(f"and {len(rest):,} more", sum(source["bytes"] for source in rest))] if rest else [])


def _frequent(corpus: Corpus) -> list[Html]:
    """In two tables side by side."""
    found = frequent(corpus)
    if not found:
        return []
    total, top = corpus.card["tokens"], found[0][1]
    rows = [(piece, count, f"{count / total:.2%}", share_bar(count / top)) for piece, count in found]
    size = -(-len(rows) // 2)
    return [table(rows[i : i + size], ("piece", "count", "share", "")) for i in range(0, len(rows), size)]
