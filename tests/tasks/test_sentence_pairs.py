"""Training pairs from plain text: neighboring lines with hard negatives, titles, and lines by themselves."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks import TextSimilarity
from bertsmith.tasks.sentence_pairs import MIN_DISTANCE, pair_sentences
from bertsmith.tasks.similarity import SimilarityExample


def read(path: Path, kind: str) -> list[tuple[str | None, ...]]:
    return [(e.text, e.text_b, e.negative) for e in TextSimilarity(pairs=kind).read(path)]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("Rome\nRome is a city.\nIt is old.\n\nOne line\n\n\n" + "".join(f"line {i}\n" for i in range(9)))
    return path


def test_lines_alone(text):
    rows = read(text, "same")
    assert len(rows) == 13 and rows[0] == ("Rome", None, None) and all(row[1:] == (None, None) for row in rows)


def test_titles_with_the_line_after_them(text):
    assert read(text, "title") == [("Rome", "Rome is a city.", None), ("line 0", "line 1", None)]


def test_neighbors_with_a_negative_of_the_same_document(text):
    rows = read(text, "neighbors")
    assert [row[:2] for row in rows] == [(f"line {i}", f"line {i + 1}") for i in range(8)]  # the short documents have none
    assert rows == read(text, "neighbors") and len({row[2] for row in rows}) > 2
    assert TextSimilarity().fit([SimilarityExample(a, b, None, c) for a, b, c in rows])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_negatives_are_away_from_both_lines_of_the_pair(sizes):
    lines, number = [], 0
    for document, size in enumerate(sizes):
        for i in range(size):
            number += 1
            lines.append(SimilarityExample(f"{document} {i}", line=number))
        lines.append(SimilarityExample(""))
    pairs = list(pair_sentences(lines, "neighbors"))
    assert len({pair.text for pair in pairs}) == len(pairs)
    for pair in pairs:
        (doc, i), (doc_b, j), (doc_negative, k) = (map(int, t.split()) for t in (pair.text, pair.text_b, pair.negative))
        assert doc == doc_b == doc_negative and j == i + 1 and min(abs(k - i), abs(k - j)) >= MIN_DISTANCE
    # a pair is left out only where there is nothing to choose from
    assert len(pairs) == sum(
        any(min(abs(k - i), abs(k - i - 1)) >= MIN_DISTANCE for k in range(size)) for size in sizes for i in range(size - 1)
    )
