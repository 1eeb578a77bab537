"""`drop=lines`, `drop=documents`: the corpus that a loop over the text gives."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.corpus.store import Corpus
from tests.support.corpora import prepare_test_corpus

LINES = ["the one.", "in time.", "many people.", "his way."]
documents = st.lists(st.lists(st.sampled_from(LINES), min_size=1, max_size=4), min_size=2, max_size=6)


def drop_by_loop(texts, drop):
    """Documents and lines that occurred before, in the text as it was, are left out."""
    kept, seen_lines, seen_documents = [], set(), set()
    for lines in texts:
        is_known = tuple(lines) in seen_documents
        seen_documents.add(tuple(lines))
        left = []
        for line in lines:
            if not ("lines" in drop and line in seen_lines):
                left.append(line)
            seen_lines.add(line)
        if left and not ("documents" in drop and is_known):
            kept.append(left)
    return kept


@pytest.mark.parametrize("drop", [["lines"], ["documents"], ["lines", "documents"]])
def test_corpus_without_duplicates_matches_loop(drop, vocabulary):
    @settings(max_examples=15)
    @given(documents)
    def check(texts):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text.txt"
            text.write_text("\n\n".join("\n".join(lines) for lines in texts) + "\n", encoding="utf-8")
            corpus = Corpus.open(prepare_test_corpus(text, vocabulary, Path(folder) / "corpus", drop=drop))
            decode = corpus.tokenizer.backend_tokenizer.decode
            sentences = [
                decode(corpus.tokens[start:stop].tolist()).replace(" .", ".")
                for start, stop in itertools.pairwise(corpus.sentence_offsets)
            ]
            found = [sentences[start:stop] for start, stop in itertools.pairwise(corpus.document_offsets)]
            expected = drop_by_loop(texts, drop)
            assert found == expected
            assert corpus.card["documents"] == len(expected) and corpus.card["sentences"] == sum(map(len, expected))
            assert corpus.card["tokens"] == len(corpus.tokens) == np.diff(corpus.sentence_offsets).sum()
            num_dropped = sum(map(len, texts)) - sum(map(len, expected))
            assert corpus.card["duplicates"]["dropped_sentences"] == num_dropped

    check()
