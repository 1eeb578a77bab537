"""The HTML section of a prepared corpus: its data card as tiles, histograms and tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..corpus.card import LENGTH_BINS, count_unigrams
from ..corpus.store import Corpus
from .charts import bar_chart
from .html import Html, element, format_value, note, section, table, tiles

NUM_FREQUENT = 36  # most frequent tokens listed


def render_corpus(corpus: Corpus) -> Html:
    """Sizes, length histograms, data card, source files and most frequent tokens."""
    card = corpus.card
    facts = (
        ("documents", card["documents"], f"{card['sentences'] / max(card['documents'], 1):.1f} sentences each"),
        ("sentences", card["sentences"], f"{card['tokens'] / max(card['sentences'], 1):.1f} tokens each"),
        ("tokens", card["tokens"], f"of {card['vocabulary']:,} kinds"),
        ("unigram entropy", card["unigram entropy"], f"nats a token: perplexity {math.exp(card['unigram entropy']):,.0f}"),
    )
    histograms = (
        bar_chart("Sentences by length", histogram_bins(card["sentence lengths"]), "tokens, at least"),
        bar_chart("Documents by length", histogram_bins(card["document lengths in sentences"]), "sentences, at least"),
    )
    tables = (
        element("div", element("h3", "Data card"), table(_card_rows(card))),
        element("div", element("h3", "Sources"), table(_source_rows(card), ("file", "bytes"))),
    )
    warnings = [note(warning, "warning") for warning in card["warnings"]]
    pairs = [element("div", *columns, class_="pair") for columns in (histograms, tables, _frequent_tables(corpus))]
    return section("Corpus", *warnings, tiles(facts), *pairs[:2], element("h3", "Most frequent pieces"), pairs[2])


def histogram_bins(histogram: Mapping[str, int]) -> dict[str, int]:
    """Counts by lower edge of the length bins, from the first to the last bin that is not empty."""
    non_empty = [i for i, edge in enumerate(LENGTH_BINS) if histogram.get(f"{edge}+")]
    return (
        {f"{edge:,}": histogram.get(f"{edge}+", 0) for edge in LENGTH_BINS[non_empty[0] : non_empty[-1] + 1]}
        if non_empty
        else {}
    )


def count_frequent_tokens(corpus: Corpus, limit: int = NUM_FREQUENT) -> list[tuple[str, int]]:
    """(token, count) of the most frequent tokens; ties by id."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    order = np.argsort(-counts, kind="stable")[:limit]
    return [(corpus.tokenizer.id_to_token[token_id], int(counts[token_id])) for token_id in order if counts[token_id]]


def fraction_bar(fraction: float) -> Html:
    """A bar filled to `fraction` of its length."""
    return element("div", element("span", style=f"width:{100 * min(max(fraction, 0.0), 1.0):.1f}%"), class_="track")


def _card_rows(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    duplicates = card.get("duplicates", {})
    rows = [("longest sentence", f"{card['longest sentence']:,} tokens"), ("unknown tokens", f"{card['unknown rate']:.3%}")]
    rows += [
        ("sentences met before", format_value(duplicates.get("sentences"))),
        ("documents met before", format_value(duplicates.get("documents"))),
    ]
    rows += [("sentences dropped as repeats", format_value(duplicates.get("sentences dropped")))]
    rows += [("word borders marked", format_value(card["words marked"])), ("an id is stored as", card["dtype"])]
    return [*rows, ("tokenizer", card["tokenizer"])]


def _source_rows(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sources = card.get("sources", [])
    listed = [(source["name"], source["bytes"]) for source in sources[:10]]
    remaining = sources[10:]
    return listed + ([(f"and {len(remaining):,} more", sum(source["bytes"] for source in remaining))] if remaining else [])


def _frequent_tables(corpus: Corpus) -> list[Html]:
    """The most frequent tokens in two tables, to be shown side by side."""
    frequent = count_frequent_tokens(corpus)
    if not frequent:
        return []
    total, max_count = corpus.card["tokens"], frequent[0][1]
    rows = [(token, count, f"{count / total:.2%}", fraction_bar(count / max_count)) for token, count in frequent]
    num_rows = -(-len(rows) // 2)
    return [table(rows[i : i + num_rows], ("piece", "count", "share", "")) for i in range(0, len(rows), num_rows)]
