"""What a corpus holds: its data card as tables and pictures."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..corpus.card import LENGTH_BINS, count_unigrams
from ..corpus.store import Corpus
from .charts import bar_chart
from .html import Html, element, format_value, note, section, table, tiles

NUM_FREQUENT = 36  # pieces listed


def render_corpus(corpus: Corpus) -> Html:
    card = corpus.card
    facts = (
        ("documents", card["documents"], f"{card['sentences'] / max(card['documents'], 1):.1f} sentences each"),
        ("sentences", card["sentences"], f"{card['tokens'] / max(card['sentences'], 1):.1f} tokens each"),
        ("tokens", card["tokens"], f"of {card['vocabulary']:,} kinds"),
        ("unigram entropy", card["unigram entropy"], f"nats a token: perplexity {math.exp(card['unigram entropy']):,.0f}"),
    )
    pictures = (
        bar_chart("Sentences by length", histogram_bins(card["sentence lengths"]), "tokens, at least"),
        bar_chart("Documents by length", histogram_bins(card["document lengths in sentences"]), "sentences, at least"),
    )
    tables = (
        element("div", element("h3", "Data card"), table(_card_rows(card))),
        element("div", element("h3", "Sources"), table(_source_rows(card), ("file", "bytes"))),
    )
    warnings = [note(warning, "warning") for warning in card["warnings"]]
    pairs = [element("div", *two, class_="pair") for two in (pictures, tables, _frequent_tables(corpus))]
    return section("Corpus", *warnings, tiles(facts), *pairs[:2], element("h3", "Most frequent pieces"), pairs[2])


def histogram_bins(histogram: Mapping[str, int]) -> dict[str, int]:
    """The card's classes, each named by its least length, from the first that has any to the last."""
    found = [number for number, edge in enumerate(LENGTH_BINS) if histogram.get(f"{edge}+")]
    return {f"{edge:,}": histogram.get(f"{edge}+", 0) for edge in LENGTH_BINS[found[0] : found[-1] + 1]} if found else {}


def count_frequent_tokens(corpus: Corpus, limit: int = NUM_FREQUENT) -> list[tuple[str, int]]:
    """The pieces that occur most often with their counts; equal counts in order of ids."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    order = np.argsort(-counts, kind="stable")[:limit]
    return [(corpus.tokenizer.id_to_token[number], int(counts[number])) for number in order if counts[number]]


def fraction_bar(fraction: float) -> Html:
    """A share of 1 as the filled part of a line."""
    return element("div", element("span", style=f"width:{100 * min(max(fraction, 0.0), 1.0):.1f}%"), class_="track")


def _card_rows(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    repeats = card.get("duplicates", {})
    rows = [("longest sentence", f"{card['longest sentence']:,} tokens"), ("unknown tokens", f"{card['unknown rate']:.3%}")]
    rows += [
        ("sentences met before", format_value(repeats.get("sentences"))),
        ("documents met before", format_value(repeats.get("documents"))),
    ]
    rows += [("sentences dropped as repeats", format_value(repeats.get("sentences dropped")))]
    rows += [("word borders marked", format_value(card["words marked"])), ("an id is stored as", card["dtype"])]
    return [*rows, ("tokenizer", card["tokenizer"])]


def _source_rows(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sources = card.get("sources", [])
    listed = [(source["name"], source["bytes"]) for source in sources[:10]]
    rest = sources[10:]
    return listed + ([(f"and {len(rest):,} more", sum(source["bytes"] for source in rest))] if rest else [])


def _frequent_tables(corpus: Corpus) -> list[Html]:
    """In two tables side by side."""
    found = count_frequent_tokens(corpus)
    if not found:
        return []
    total, top = corpus.card["tokens"], found[0][1]
    rows = [(piece, count, f"{count / total:.2%}", fraction_bar(count / top)) for piece, count in found]
    size = -(-len(rows) // 2)
    return [table(rows[i : i + size], ("piece", "count", "share", "")) for i in range(0, len(rows), size)]
