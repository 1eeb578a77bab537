"""Similarity: two texts, a vector each, the cosine between them; and the nearest among many."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tasks import TextSimilarity
from bertsmith.tasks.similarity import SimilarityExample, SimilarityPrediction, cosine_similarity, semantic_search
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)


def test_pairs_are_read_with_and_without_scores(tmp_path):
    (tmp_path / "a.tsv").write_text("text\ttext_b\tscore\na\tb\t4.5\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a", "text_b": "b"}\n')
    assert [(one.text, one.text_b, one.score) for one in TextSimilarity().read(tmp_path / "a.tsv")] == [("a", "b", 4.5)]
    assert next(TextSimilarity().read(tmp_path / "b.jsonl")).score is None
    (tmp_path / "c.tsv").write_text("text\tscore\na\t4.5\n")
    with pytest.raises(UserError, match="has no column 'text_b', only: text, score"):
        next(TextSimilarity().read(tmp_path / "c.tsv"))


def test_each_text_is_a_sequence_of_its_own():
    examples = [SimilarityExample("the people", "now", 5.0), SimilarityExample("she said", "of and " * 20, 1.0)]
    encoded = TextSimilarity().encode(examples, TOKENIZER, 10)
    assert [TOKENIZER.decode(one) for one in encoded.input_ids[:3]] == [
        "[CLS] the people [SEP]",
        "[CLS] now [SEP]",
        "[CLS] she said [SEP]",
    ]
    assert len(encoded.input_ids[3]) == 10 and not any(one.any() for one in encoded.token_type_ids)
    assert encoded.example_index.tolist() == [0, 0, 1, 1] and encoded.targets["texts"].tolist() == [[0, 1], [2, 3]]
    assert "score" not in TextSimilarity().encode([*examples, SimilarityExample("a", "b")], TOKENIZER, 10).targets


def test_scores_are_cosines_by_the_scale_of_the_training_file():
    examples = [SimilarityExample("the", "of", 5.0), SimilarityExample("of", "the", 1.0), SimilarityExample("and", "is", 2.0)]
    task = TextSimilarity().fit(examples)
    assert task.scale == (1.0, 5.0) and TextSimilarity(scale=(0.0, 10.0)).fit(examples).scale == (0.0, 10.0)
    assert task.encode(examples[2:], TOKENIZER, 10).targets["score"].tolist() == [0.25]
    with pytest.raises(UserError, match=r"every score is 5"):
        TextSimilarity().fit(examples[:1])


def test_a_single_text_comes_twice_and_a_negative_is_a_third_side():
    lone = TextSimilarity().encode([SimilarityExample("the people"), SimilarityExample("now")], TOKENIZER, 10)
    assert lone.targets["texts"].tolist() == [[0, 0], [1, 1]] and lone.example_index.tolist() == [0, 0, 1, 1]
    three = TextSimilarity().encode(
        [SimilarityExample("the", "of", None, "now"), SimilarityExample("of", "one", None, "the")], TOKENIZER, 10
    )
    assert three.targets["texts"].tolist() == [[0, 1, 2], [1, 3, 0]] and three.example_index.tolist() == [0, 0, 0, 1, 1, 1]


def test_what_is_learnt_from_is_of_one_kind():
    for odd, words in [
        (SimilarityExample("a"), "no text_b"),
        (SimilarityExample("a", "b", 3.0), "a score"),
        (SimilarityExample("a", "b", None, "c"), "a negative"),
    ]:
        with pytest.raises(UserError, match=f"has {words}, unlike those before"):
            TextSimilarity().fit([SimilarityExample("a", "b"), SimilarityExample("c", "d"), odd])


def test_single_texts_are_read_from_lines_and_tables(tmp_path):
    (tmp_path / "a.txt").write_text("one text\n\nanother\n")
    assert [(one.text, one.text_b, one.line) for one in TextSimilarity().read(tmp_path / "a.txt")] == [
        ("one text", None, 1),
        ("another", None, 3),
    ]
    (tmp_path / "b.tsv").write_text("text\tscore\nsame\t\n")
    assert [one.text for one in TextSimilarity(columns={"score": ""}).read(tmp_path / "b.tsv")] == ["same"]  # a hidden column
    (tmp_path / "c.jsonl").write_text('{"text": "a", "negative": "b"}\n')
    with pytest.raises(UserError, match="line 1: it has a negative, but no text_b"):
        next(TextSimilarity().read(tmp_path / "c.jsonl"))
    with pytest.raises(UserError, match="has no text_b to be compared with"):
        TextSimilarity().decode(
            np.ones((2, 2)), TextSimilarity().encode([SimilarityExample("a")], TOKENIZER, 10), [SimilarityExample("a")]
        )


def test_likeness_is_the_cosine_and_is_judged_by_rank():
    examples = [SimilarityExample("a", "b", 5.0), SimilarityExample("a", "b", 1.0), SimilarityExample("a", "b", 3.0)]
    vectors = np.array([[1.0, 0.0], [3.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 1.0]], np.float32)
    answers = TextSimilarity().decode(vectors, TextSimilarity().encode(examples, TOKENIZER, 10), examples)
    assert answers == [SimilarityPrediction(1.0), SimilarityPrediction(-1.0), SimilarityPrediction(0.0)]
    assert TextSimilarity().compute_metrics(answers, examples) == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    with pytest.raises(ValueError, match="two a pair"):
        TextSimilarity().decode(np.zeros((6, 0)), TextSimilarity().encode(examples, TOKENIZER, 10), examples)


@pytest.mark.parametrize("chunk", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("top", [1, 5, 50, 80])
def test_the_nearest_are_those_of_a_whole_sort_with_ties_in_order(chunk, top):
    rng = np.random.default_rng(0)
    documents, queries = rng.integers(-1, 2, (50, 3)).astype(np.float64), rng.normal(size=(9, 3))
    numbers, scores = semantic_search(queries, documents, top, chunk)
    full = np.array([[cosine_similarity(query[None], one[None])[0] for one in documents] for query in queries])
    assert scores.shape == numbers.shape == (9, min(top, 50))
    np.testing.assert_allclose(scores, np.sort(full, 1)[:, ::-1][:, :top], atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(full, numbers, 1), scores, atol=1e-12)
    assert all(len(set(row)) == len(row) for row in numbers.tolist())


def test_of_equal_documents_the_earlier_is_nearest():
    documents = np.tile([[1.0, 0.0], [0.0, 1.0]], (10, 1))
    numbers, _ = semantic_search(np.array([[2.0, 0.0]]), documents, top_k=4, chunk_size=6)
    assert numbers.tolist() == [[0, 2, 4, 6]]


def test_what_cannot_be_searched_is_refused():
    good = np.ones((2, 3))
    for queries, documents, top in [
        (good, np.ones((2, 4)), 1),
        (good, np.ones((0, 3)), 1),
        (good, good * np.nan, 1),
        (good, good, 0),
    ]:
        with pytest.raises(UserError):
            semantic_search(queries, documents, top)
    assert semantic_search(good[:0], good, 1)[0].shape == (0, 1)
