"""Word senses: classifiers match loops over all pairs, and words are located in any script."""

import numpy as np
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.evaluation.word_senses.occurrences import Occurrence, read_occurrences
from bertsmith.evaluation.word_senses.vectors import compute_word_vectors, encode_occurrence, nearest_neighbors, score_senses
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.rows import write_coarse_wsd
from tests.support.texts import VOCAB


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def score_with_loops(train, senses, test, gold):
    """(nearest neighbour, centroid, majority) accuracies, one occurrence at a time."""
    nearest, centroid = [], []
    for vector in test:
        nearest.append(senses[max(range(len(train)), key=lambda i: cosine(vector, train[i]))])
        centroids = {
            s: np.mean([v / np.linalg.norm(v) for v, t in zip(train, senses, strict=True) if t == s], 0) for s in senses
        }
        centroid.append(max(centroids, key=lambda s: cosine(vector, centroids[s])))
    majority = max(sorted(set(senses)), key=senses.count)
    accuracy = lambda predicted: sum(a == b for a, b in zip(predicted, gold, strict=True)) / len(gold)
    return accuracy(nearest), accuracy(centroid), accuracy([majority] * len(gold))


def random_vectors(count: int, seed: int, senses: int = 3) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    sense_ids = rng.choice(senses, count, p=[0.6, 0.3, 0.1])
    return (np.eye(8)[sense_ids] + 0.7 * rng.normal(size=(count, 8))).astype(np.float32), [f"s{n}" for n in sense_ids]


@pytest.mark.parametrize("seed", range(5))
def test_sense_scores_match_loop(seed):
    (train, senses), (test, gold) = random_vectors(60, seed), random_vectors(25, seed + 100)
    scores = score_senses(train, senses, test, gold)
    assert (scores.nearest_neighbor, scores.nearest_centroid, scores.majority_baseline) == pytest.approx(
        score_with_loops(train, senses, test, gold)
    )
    assert scores.num_evaluated == 25 and scores.nearest_neighbor > scores.majority_baseline


@pytest.mark.parametrize("seed", range(5))
def test_sense_scores_leave_one_out_without_test_set(seed):
    vectors, senses = random_vectors(40, seed)
    scores = score_senses(vectors, senses)
    expected = [score_with_loops(np.delete(vectors, i, 0), senses[:i] + senses[i + 1 :], vectors[i : i + 1], senses[i : i + 1])
            for i in range(40)]  # fmt: skip
    assert (scores.nearest_neighbor, scores.nearest_centroid) == pytest.approx(tuple(np.mean(expected, 0)[:2]))
    assert scores.majority_baseline == pytest.approx(
        max(senses.count(sense) for sense in senses) / 40
    )  # the occurrence itself is counted


def test_sense_scores_of_static_vectors_equal_majority_baseline():
    vector = np.random.default_rng(0).normal(size=16).astype(np.float32)
    _, senses = random_vectors(50, 3)
    _, gold = random_vectors(30, 4)
    scores = score_senses(np.tile(vector, (50, 1)), senses, np.tile(vector, (30, 1)) * 1.000001, gold)
    assert scores.nearest_neighbor == scores.nearest_centroid == scores.majority_baseline
    for train_senses in (senses, ["river", "money"] * 12):
        scores = score_senses(np.tile(vector, (len(train_senses), 1)), train_senses)
        assert (
            scores.nearest_neighbor
            == scores.nearest_centroid
            == scores.majority_baseline
            == max(train_senses.count(s) for s in train_senses) / len(train_senses)
        )


def test_sense_scores_count_unseen_sense_as_wrong():
    vectors = np.eye(4, dtype=np.float32)
    assert score_senses(vectors[:2], ["a", "b"], vectors[:2], ["a", "new"]).nearest_neighbor == 0.5
    with pytest.raises(UserError, match="at least two sentences"):
        score_senses(vectors[:1], ["a"])


def test_nearest_neighbors_are_sorted_by_cosine():
    vectors, _ = random_vectors(20, 7)
    for index, neighbors in enumerate(nearest_neighbors(vectors, 3)):
        others = sorted((i for i in range(20) if i != index), key=lambda i: -cosine(vectors[index], vectors[i]))
        assert neighbors.tolist() == others[:3]


def test_read_occurrences_by_position_brackets_or_word(tmp_path):
    path = tmp_path / "s.tsv"
    path.write_text("text\tposition\tsense\nthe bank of a bank .\t4\triver\n")
    (occurrences,) = read_occurrences(path, None)
    assert (occurrences.train[0].start, occurrences.train[0].word, occurrences.train[0].sense, occurrences.test) == (
        14,
        "bank",
        "river",
        [],
    )
    path.write_text("text\nthe bank of a [[bank]] .\n我吃[[苹果]]。\n")
    assert [(occurrence.text, occurrence.start, occurrence.word) for occurrence in read_occurrences(path, "bank")[0].train] == [
        ("the bank of a bank .", 14, "bank"), ("我吃苹果。", 2, "苹果"),
    ]  # fmt: skip
    path.write_text("text\nBanks and a Bank\n")
    assert read_occurrences(path, "bank")[0].train[0].start == 12  # a whole word, ignoring case
    path.write_text("text\n他买了苹果手机\n")
    assert read_occurrences(path, "苹果")[0].train[0].word == "苹果"
    path.write_text("text\nIl y a des années, né à Lyon\n", encoding="utf-8")
    assert read_occurrences(path, "né")[0].train[0].start == 19  # not inside années
    path.write_text("text\nACC++, C++11 and C++.\n")
    assert read_occurrences(path, "c++")[0].train[0].start == 17


@pytest.mark.parametrize(
    ("text", "word", "match"),
    [
        ("text\tposition\na b\t2\n", None, r"s\.tsv, line 2: position 2 is out of range for 2 words"),
        ("text\na river\n", "bank", r"line 2 does not contain the word 'bank'"),
        ("text\na river\n", None, r"line 2: no word is marked"),
        ("sentence\na river\n", "river", r"no column 'text'"),
        ("text\n", "river", r"has no rows"),
    ],
)
def test_read_occurrences_errors(tmp_path, text, word, match):
    path = tmp_path / "s.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        read_occurrences(path, word)


def test_read_occurrences_passes_bad_rows_to_callback(tmp_path):
    path, errors = tmp_path / "s.tsv", []
    path.write_text("text\tsense\na river bank\t1\na river\t1\nthe banks\t2\nthe bank\t2\n")
    (occurrences,) = read_occurrences(path, "bank", errors.append)
    assert [occurrence.text for occurrence in occurrences.train] == ["a river bank", "the bank"] and len(errors) == 2
    assert "set skip_bad=true to skip such rows" in str(errors[0])
    path.write_text("text\na river\n")
    with pytest.raises(UserError, match="has no valid rows"):
        read_occurrences(path, "bank", errors.append)


def test_read_occurrences_of_coarse_wsd_folder(tmp_path):
    (occurrences,) = read_occurrences(write_coarse_wsd(tmp_path), "bank")
    assert occurrences.word == "bank" and occurrences.senses == ["bank", "bank (geography)"]
    assert [(x.start, x.sense) for x in occurrences.train] == [(4, "bank"), (7, "bank (geography)")]
    assert [x.sense for x in occurrences.test] == ["bank (geography)"]
    write_coarse_wsd(tmp_path, "bow")
    assert [x.word for x in read_occurrences(tmp_path, None)] == ["bank", "bow"]
    with pytest.raises(UserError, match=r"has no folder 'seal'; choose one of bank, bow"):
        read_occurrences(tmp_path, "seal")
    for name in ("train.data.txt", "train.gold.txt"):
        (tmp_path / "bow" / name).write_text("")
    with pytest.raises(UserError, match=r"bow: train\.data\.txt is empty"):
        read_occurrences(tmp_path, "bow")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    tokenizer = Tokenizer.from_vocab([*VOCAB, "苹", "果"])
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=64, mixer=Attention(num_attention_heads=2), max_position_embeddings=32
    )
    return Predictor(TorchEngine(build_model(ModelConfig(encoder=encoder, vocab_size=len(tokenizer)), 0)), tokenizer, {})


def test_word_vector_is_mean_of_subwords(predictor):
    """`bank` is tokenized as b ##a ##n ##k here, and 苹果 as two characters."""
    for text, word in (("the bank was", "bank"), ("我说苹果好", "苹果")):
        start = text.index(word)
        occurrence = Occurrence(text, start, start + len(word), None, "-")
        ids, word_indices = encode_occurrence(predictor.tokenizer, occurrence, 32)
        assert "".join(predictor.tokenizer.id_to_token[i].removeprefix("##") for i in ids[word_indices]) == word
        vectors, block_inputs = compute_word_vectors(predictor, [occurrence, occurrence]), []
        hidden_states, layout = predictor.engine.compute_hidden_states([ids])
        predictor.model(Inputs(torch.from_numpy(ids), layout), block_inputs)
        assert len(vectors) == 3 and np.allclose(
            vectors[0][0], block_inputs[0][word_indices].mean(0).detach().numpy(), atol=1e-6
        )
        assert np.allclose(vectors[-1][1], hidden_states[word_indices].mean(0).detach().numpy(), atol=1e-6)


def test_encode_occurrence_truncates_around_word(predictor):
    text = "the " * 50 + "people" + " of" * 50
    occurrence = Occurrence(text, 200, 206, None, "-")
    ids, word_indices = encode_occurrence(predictor.tokenizer, occurrence, 32)
    assert len(ids) == 32 and [predictor.tokenizer.id_to_token[i] for i in ids[word_indices]] == ["people"]
    assert 10 < word_indices[0] < 22
    first_word = Occurrence(text, 0, 3, None, "-")
    assert encode_occurrence(predictor.tokenizer, first_word, 32)[1].tolist() == [1]


def test_encode_occurrence_rejects_word_without_tokens(predictor):
    with pytest.raises(UserError, match=r"f, line 3: the tokenizer has no tokens"):
        encode_occurrence(predictor.tokenizer, Occurrence("a \x01 b", 2, 3, None, "f, line 3"), 32)
