"""Senses are told apart as a loop over all pairs would, and words are found where they stand, in any script."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.evaluation.word_senses.occurrences import Occurrence, read_occurrences
from bertsmith.evaluation.word_senses.vectors import compute_word_vectors, encode_occurrence, nearest_neighbors, score_senses
from bertsmith.inference.predictor import Predictor
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def by_hand(learn, senses, judge, right):
    """One occurrence after another, with no matrix in sight."""
    near, middle = [], []
    for vector in judge:
        near.append(senses[max(range(len(learn)), key=lambda i: cosine(vector, learn[i]))])
        centres = {s: np.mean([v / np.linalg.norm(v) for v, t in zip(learn, senses, strict=True) if t == s], 0) for s in senses}
        middle.append(max(centres, key=lambda s: cosine(vector, centres[s])))
    often = max(sorted(set(senses)), key=senses.count)
    share = lambda found: sum(a == b for a, b in zip(found, right, strict=True)) / len(right)
    return share(near), share(middle), share([often] * len(right))


def drawn(count: int, seed: int, senses: int = 3) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    numbers = rng.choice(senses, count, p=[0.6, 0.3, 0.1])
    return (np.eye(8)[numbers] + 0.7 * rng.normal(size=(count, 8))).astype(np.float32), [f"s{n}" for n in numbers]


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_a_loop(seed):
    (learn, senses), (judge, right) = drawn(60, seed), drawn(25, seed + 100)
    found = score_senses(learn, senses, judge, right)
    assert (found.nearest, found.centroid, found.frequent) == pytest.approx(by_hand(learn, senses, judge, right))
    assert found.num_evaluated == 25 and found.nearest > found.frequent


@pytest.mark.parametrize("seed", range(5))
def test_without_others_each_is_judged_by_all_but_itself(seed):
    vectors, senses = drawn(40, seed)
    found = score_senses(vectors, senses)
    each = [by_hand(np.delete(vectors, i, 0), senses[:i] + senses[i + 1 :], vectors[i : i + 1], senses[i : i + 1])
            for i in range(40)]  # fmt: skip
    assert (found.nearest, found.centroid) == pytest.approx(tuple(np.mean(each, 0)[:2]))
    assert found.frequent == pytest.approx(max(senses.count(one) for one in senses) / 40)  # itself among them


def test_vectors_without_context_score_as_no_context_does():
    one = np.random.default_rng(0).normal(size=16).astype(np.float32)
    _, senses = drawn(50, 3)
    _, right = drawn(30, 4)
    found = score_senses(np.tile(one, (50, 1)), senses, np.tile(one, (30, 1)) * 1.000001, right)
    assert found.nearest == found.centroid == found.frequent
    for some in (senses, ["river", "money"] * 12):
        found = score_senses(np.tile(one, (len(some), 1)), some)
        assert found.nearest == found.centroid == found.frequent == max(some.count(s) for s in some) / len(some)


def test_a_sense_that_was_never_seen_is_a_miss():
    vectors = np.eye(4, dtype=np.float32)
    assert score_senses(vectors[:2], ["a", "b"], vectors[:2], ["a", "new"]).nearest == 0.5
    with pytest.raises(UserError, match="two at least"):
        score_senses(vectors[:1], ["a"])


def test_neighbours_are_the_most_similar_others():
    vectors, _ = drawn(20, 7)
    for number, found in enumerate(nearest_neighbors(vectors, 3)):
        others = sorted((i for i in range(20) if i != number), key=lambda i: -cosine(vectors[number], vectors[i]))
        assert found.tolist() == others[:3]


def test_a_table_points_at_its_word_in_three_ways(tmp_path):
    path = tmp_path / "s.tsv"
    path.write_text("text\tposition\tsense\nthe bank of a bank .\t4\triver\n")
    (found,) = read_occurrences(path, None)
    assert (found.train[0].start, found.train[0].word, found.train[0].sense, found.test) == (14, "bank", "river", [])
    path.write_text("text\nthe bank of a [[bank]] .\n我吃[[苹果]]。\n")
    assert [(one.text, one.start, one.word) for one in read_occurrences(path, "bank")[0].train] == [
        ("the bank of a bank .", 14, "bank"), ("我吃苹果。", 2, "苹果"),
    ]  # fmt: skip
    path.write_text("text\nBanks and a Bank\n")
    assert read_occurrences(path, "bank")[0].train[0].start == 12  # alone, whatever its letters
    path.write_text("text\n他买了苹果手机\n")
    assert read_occurrences(path, "苹果")[0].train[0].word == "苹果"
    path.write_text("text\nIl y a des années, né à Lyon\n", encoding="utf-8")
    assert read_occurrences(path, "né")[0].train[0].start == 19  # and not in années
    path.write_text("text\nACC++, C++11 and C++.\n")
    assert read_occurrences(path, "c++")[0].train[0].start == 17


@pytest.mark.parametrize(
    ("text", "word", "match"),
    [
        ("text\tposition\na b\t2\n", None, r"s\.tsv, line 2: position 2 of 2 words"),
        ("text\na river\n", "bank", r"line 2 does not hold the word 'bank'"),
        ("text\na river\n", None, r"line 2: no word is pointed at"),
        ("sentence\na river\n", "river", r"no column 'text'"),
        ("text\n", "river", r"holds no sentence"),
    ],
)
def test_what_cannot_be_found_is_named(tmp_path, text, word, match):
    path = tmp_path / "s.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        read_occurrences(path, word)


def test_rows_that_cannot_be_used_are_left_out_if_somebody_hears_of_them(tmp_path):
    path, faults = tmp_path / "s.tsv", []
    path.write_text("text\tsense\na river bank\t1\na river\t1\nthe banks\t2\nthe bank\t2\n")
    (found,) = read_occurrences(path, "bank", faults.append)
    assert [one.text for one in found.train] == ["a river bank", "the bank"] and len(faults) == 2
    assert "leave such rows out by skip_bad=true" in str(faults[0])
    path.write_text("text\na river\n")
    with pytest.raises(UserError, match="holds no sentence that can be used"):
        read_occurrences(path, "bank", faults.append)


def coarse(folder: Path, word: str = "bank") -> Path:
    """A folder as CoarseWSD-20 lays them out."""
    (folder / word).mkdir(parents=True)
    for name, lines in (
        ("train", [("1", "the bank was in time", "0"), ("2", "up the bank", "1")]),
        ("test", [("0", "bank", "1")]),
    ):
        (folder / word / f"{name}.data.txt").write_text("".join(f"{at}\t{text}\n" for at, text, _ in lines))
        (folder / word / f"{name}.gold.txt").write_text("".join(f"{sense}\n" for _, _, sense in lines))
    (folder / word / "classes_map.txt").write_text(json.dumps({"0": f"{word}_{word}", "1": f"{word}_{word}_(geography)"}))
    return folder


def test_a_folder_of_coarse_senses_is_read_with_its_names(tmp_path):
    (found,) = read_occurrences(coarse(tmp_path), "bank")
    assert found.word == "bank" and found.senses == ["bank", "bank (geography)"]
    assert [(one.start, one.sense) for one in found.train] == [(4, "bank"), (7, "bank (geography)")]
    assert [one.sense for one in found.test] == ["bank (geography)"]
    coarse(tmp_path, "bow")
    assert [one.word for one in read_occurrences(tmp_path, None)] == ["bank", "bow"]
    with pytest.raises(UserError, match=r"no sentences of 'seal', only: bank, bow"):
        read_occurrences(tmp_path, "seal")
    for name in ("train.data.txt", "train.gold.txt"):
        (tmp_path / "bow" / name).write_text("")
    with pytest.raises(UserError, match=r"bow: train\.data\.txt holds no sentence"):
        read_occurrences(tmp_path, "bow")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    tokenizer = Tokenizer.from_vocab([*PIECES, "苹", "果"])
    encoder = EncoderConfig(layers=2, width=64, mixer=Attention(heads=2), positions=32)
    return Predictor(build_model(ModelConfig(encoder=encoder, vocabulary=len(tokenizer)), 0), tokenizer, {})


def test_a_word_of_several_pieces_is_their_mean(predictor):
    """`bank` is spelled b ##a ##n ##k here, and 苹果 is two characters."""
    for text, word in (("the bank was", "bank"), ("我说苹果好", "苹果")):
        start = text.index(word)
        one = Occurrence(text, start, start + len(word), None, "-")
        ids, where = encode_occurrence(predictor.tokenizer, one, 32)
        assert "".join(predictor.tokenizer.pieces[i].removeprefix("##") for i in ids[where]) == word
        found, kept = compute_word_vectors(predictor, [one, one]), []
        hidden, layout = predictor.runtime.hidden([ids])
        predictor.model(Inputs(torch.from_numpy(ids), layout), kept)
        assert len(found) == 3 and np.allclose(found[0][0], kept[0][where].mean(0).detach().numpy(), atol=1e-6)
        assert np.allclose(found[-1][1], hidden[where].mean(0).detach().numpy(), atol=1e-6)


def test_a_long_text_is_cut_around_its_word(predictor):
    text = "the " * 50 + "people" + " of" * 50
    one = Occurrence(text, 200, 206, None, "-")
    ids, where = encode_occurrence(predictor.tokenizer, one, 32)
    assert len(ids) == 32 and [predictor.tokenizer.pieces[i] for i in ids[where]] == ["people"]
    assert 10 < where[0] < 22
    edge = Occurrence(text, 0, 3, None, "-")
    assert encode_occurrence(predictor.tokenizer, edge, 32)[1].tolist() == [1]


def test_what_the_tokenizer_leaves_out_cannot_be_pointed_at(predictor):
    with pytest.raises(UserError, match=r"f, line 3: the tokenizer leaves nothing"):
        encode_occurrence(predictor.tokenizer, Occurrence("a \x01 b", 2, 3, None, "f, line 3"), 32)
