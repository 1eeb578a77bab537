"""The HTML section of a prepared corpus: its data card as tiles, histograms and tables."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..corpus.card import LENGTH_BINS, count_unigrams
from ..corpus.store import Corpus
from .charts import bar_chart
from .html import Section, format_value, render

NUM_FREQUENT = 36  # most frequent tokens listed


def render_corpus(corpus: Corpus) -> Section:
    """Sizes, length histograms, data card, source files and most frequent tokens."""
    card = corpus.card
    facts = (
        ("documents", card["documents"], f"{card['sentences'] / max(card['documents'], 1):.1f} sentences each"),
        ("sentences", card["sentences"], f"{card['tokens'] / max(card['sentences'], 1):.1f} tokens each"),
        ("tokens", card["tokens"], f"vocabulary of {card['vocab_size']:,}"),
        (
            "unigram entropy",
            card["unigram_entropy"],
            f"nats per token, a perplexity of {math.exp(card['unigram_entropy']):,.0f}",
        ),
    )
    histograms = [
        bar_chart("Sentences by length", histogram_bins(card["sentence_lengths"]), "tokens (lower edge of bin)"),
        bar_chart("Documents by length", histogram_bins(card["document_lengths"]), "sentences (lower edge of bin)"),
    ]
    body = render("corpus", "corpus", warnings=card["warnings"], facts=facts, histograms=histograms, card_rows=_card_rows(card),
                  source_rows=_source_rows(card), frequent=_frequent_token_rows(corpus))  # fmt: skip
    return Section("Corpus", body, tuple(histograms))


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


def _card_rows(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    duplicates = card.get("duplicates", {})
    return [
        ("longest sentence", f"{card['max_sentence_length']:,} tokens"),
        ("unknown-token rate", f"{card['unknown_rate']:.3%}"),
        ("duplicate sentences", format_value(duplicates.get("sentences"))),
        ("duplicate documents", format_value(duplicates.get("documents"))),
        ("duplicate sentences removed", format_value(duplicates.get("dropped_sentences"))),
        ("word boundaries stored", format_value(card["has_word_boundaries"])),
        ("token id dtype", card["dtype"]),
        ("tokenizer", card["tokenizer_fingerprint"]),
    ]


def _source_rows(card: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sources = card.get("sources", [])
    listed = [(source["name"], source["bytes"]) for source in sources[:10]]
    remaining = sources[10:]
    return listed + ([(f"and {len(remaining):,} more", sum(source["bytes"] for source in remaining))] if remaining else [])


def _frequent_token_rows(corpus: Corpus) -> list[list[tuple[str, int, str, float]]]:
    """(token, count, share, length of its bar) of the most frequent tokens, in two halves that are shown side by side."""
    frequent = count_frequent_tokens(corpus)
    if not frequent:
        return []
    total, max_count = corpus.card["tokens"], frequent[0][1]
    rows = [(token, count, f"{count / total:.2%}", count / max_count) for token, count in frequent]
    num_rows = -(-len(rows) // 2)
    return [rows[i : i + num_rows] for i in range(0, len(rows), num_rows)]
