"""Text similarity: cosine of the embeddings of two texts, and semantic search."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tasks import TextSimilarity
from bertsmith.tasks.similarity import SimilarityExample, SimilarityPrediction, cosine_similarity, semantic_search
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)


def test_similarity_reads_pairs_with_and_without_scores(tmp_path):
    (tmp_path / "a.tsv").write_text("text\ttext_b\tscore\na\tb\t4.5\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a", "text_b": "b"}\n')
    assert [(example.text, example.text_b, example.score) for example in TextSimilarity().read(tmp_path / "a.tsv")] == [
        ("a", "b", 4.5)
    ]
    assert next(TextSimilarity().read(tmp_path / "b.jsonl")).score is None
    (tmp_path / "c.tsv").write_text("text\tscore\na\t4.5\n")
    with pytest.raises(UserError, match="has no column 'text_b'; its columns: text, score"):
        next(TextSimilarity().read(tmp_path / "c.tsv"))


def test_similarity_encodes_each_text_as_a_sequence():
    examples = [SimilarityExample("the people", "now", 5.0), SimilarityExample("she said", "of and " * 20, 1.0)]
    encoded = TextSimilarity().encode(examples, TOKENIZER, 10)
    assert [TOKENIZER.decode(sequence) for sequence in encoded.input_ids[:3]] == [
        "[CLS] the people [SEP]",
        "[CLS] now [SEP]",
        "[CLS] she said [SEP]",
    ]
    assert len(encoded.input_ids[3]) == 10 and not any(sequence.any() for sequence in encoded.token_type_ids)
    assert encoded.example_index.tolist() == [0, 0, 1, 1] and encoded.targets["texts"].tolist() == [[0, 1], [2, 3]]
    assert "score" not in TextSimilarity().encode([*examples, SimilarityExample("a", "b")], TOKENIZER, 10).targets


def test_similarity_scales_scores_to_cosines():
    examples = [SimilarityExample("the", "of", 5.0), SimilarityExample("of", "the", 1.0), SimilarityExample("and", "is", 2.0)]
    task = TextSimilarity().fit(examples)
    assert task.scale == (1.0, 5.0) and TextSimilarity(scale=(0.0, 10.0)).fit(examples).scale == (0.0, 10.0)
    assert task.encode(examples[2:], TOKENIZER, 10).targets["score"].tolist() == [0.25]
    with pytest.raises(UserError, match=r"every score is 5"):
        TextSimilarity().fit(examples[:1])


def test_similarity_duplicates_single_texts_and_encodes_negatives():
    single = TextSimilarity().encode([SimilarityExample("the people"), SimilarityExample("now")], TOKENIZER, 10)
    assert single.targets["texts"].tolist() == [[0, 0], [1, 1]] and single.example_index.tolist() == [0, 0, 1, 1]
    triplet = TextSimilarity().encode(
        [SimilarityExample("the", "of", None, "now"), SimilarityExample("of", "one", None, "the")], TOKENIZER, 10
    )
    assert triplet.targets["texts"].tolist() == [[0, 1, 2], [1, 3, 0]] and triplet.example_index.tolist() == [0, 0, 0, 1, 1, 1]


def test_similarity_fit_rejects_mixed_examples():
    for mismatch, message in [
        (SimilarityExample("a"), "no text_b"),
        (SimilarityExample("a", "b", 3.0), "a score"),
        (SimilarityExample("a", "b", None, "c"), "a negative"),
    ]:
        with pytest.raises(UserError, match=f"has {message}, unlike the examples before it"):
            TextSimilarity().fit([SimilarityExample("a", "b"), SimilarityExample("c", "d"), mismatch])


def test_similarity_reads_single_texts(tmp_path):
    (tmp_path / "a.txt").write_text("one text\n\nanother\n")
    assert [(example.text, example.text_b, example.line) for example in TextSimilarity().read(tmp_path / "a.txt")] == [
        ("one text", None, 1),
        ("another", None, 3),
    ]
    (tmp_path / "b.tsv").write_text("text\tscore\nsame\t\n")
    assert [example.text for example in TextSimilarity(columns={"score": ""}).read(tmp_path / "b.tsv")] == [
        "same"
    ]  # a hidden column
    (tmp_path / "c.jsonl").write_text('{"text": "a", "negative": "b"}\n')
    with pytest.raises(UserError, match="line 1: it has a negative, but no text_b"):
        next(TextSimilarity().read(tmp_path / "c.jsonl"))
    with pytest.raises(UserError, match="has no text_b to compare with"):
        TextSimilarity().decode(
            np.ones((2, 2)), TextSimilarity().encode([SimilarityExample("a")], TOKENIZER, 10), [SimilarityExample("a")]
        )


def test_similarity_is_the_cosine_scored_by_rank_correlation():
    examples = [SimilarityExample("a", "b", 5.0), SimilarityExample("a", "b", 1.0), SimilarityExample("a", "b", 3.0)]
    vectors = np.array([[1.0, 0.0], [3.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [0.0, 0.0], [1.0, 1.0]], np.float32)
    predictions = TextSimilarity().decode(vectors, TextSimilarity().encode(examples, TOKENIZER, 10), examples)
    assert predictions == [SimilarityPrediction(1.0), SimilarityPrediction(-1.0), SimilarityPrediction(0.0)]
    assert TextSimilarity().compute_metrics(predictions, examples) == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    with pytest.raises(ValueError, match="2 texts each"):
        TextSimilarity().decode(np.zeros((6, 0)), TextSimilarity().encode(examples, TOKENIZER, 10), examples)


@pytest.mark.parametrize("chunk", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("top", [1, 5, 50, 80])
def test_semantic_search_matches_full_sort(chunk, top):
    rng = np.random.default_rng(0)
    documents, queries = rng.integers(-1, 2, (50, 3)).astype(np.float64), rng.normal(size=(9, 3))
    indices, scores = semantic_search(queries, documents, top, chunk)
    full = np.array([[cosine_similarity(query[None], document[None])[0] for document in documents] for query in queries])
    assert scores.shape == indices.shape == (9, min(top, 50))
    np.testing.assert_allclose(scores, np.sort(full, 1)[:, ::-1][:, :top], atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(full, indices, 1), scores, atol=1e-12)
    assert all(len(set(row)) == len(row) for row in indices.tolist())


def test_semantic_search_ties_go_to_the_earlier_document():
    documents = np.tile([[1.0, 0.0], [0.0, 1.0]], (10, 1))
    indices, _ = semantic_search(np.array([[2.0, 0.0]]), documents, top_k=4, chunk_size=6)
    assert indices.tolist() == [[0, 2, 4, 6]]


def test_semantic_search_rejects_invalid_input():
    vectors = np.ones((2, 3))
    for queries, documents, top in [
        (vectors, np.ones((2, 4)), 1),
        (vectors, np.ones((0, 3)), 1),
        (vectors, vectors * np.nan, 1),
        (vectors, vectors, 0),
    ]:
        with pytest.raises(UserError):
            semantic_search(queries, documents, top)
    assert semantic_search(vectors[:0], vectors, 1)[0].shape == (0, 1)


def test_similarity_uses_binary_labels_as_scores_and_refuses_others(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\ttext_b\tlabel\na\tb\t1\nc\td\t0\n")
    assert [example.score for example in TextSimilarity().read(path)] == [1.0, 0.0]
    path.write_text("text\ttext_b\tlabel\na\tb\t1\nc\td\tcontradiction\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 3: label is \"contradiction\", which task=similar cannot use"):
        list(TextSimilarity().read(path))
    path.write_text("text\ttext_b\tlabel\tscore\na\tb\tx\t3.5\n")
    assert [example.score for example in TextSimilarity().read(path)] == [3.5]
