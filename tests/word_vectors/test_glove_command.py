"""`pretrain objective=glove`: from text to vectors, killed and taken up again to the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.objectives import glove
from bertsmith.pretraining import word_vectors as stage
from bertsmith.word_vectors import read_vectors
from tests.conftest import prepared

KINDS = (["cat", "dog", "cow", "pig"], ["red", "blue", "green", "pink"], ["one", "two", "three", "four"])


def text(sentences: int = 900) -> str:
    """Words of a kind stand near words of their kind, and near the same ones: eats, paints, counts."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(sentences):
        kind = rng.integers(3)
        some = rng.choice(KINDS[kind], 3)
        lines.append(" ".join([some[0], ("eats", "paints", "counts")[kind], some[1], "the", some[2], rng.choice(["a", "and"])]))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glove")
    (folder / "text.txt").write_text(text())
    api.train_tokenizer(kind="word", texts=str(folder / "text.txt"), size=100, out=str(folder / "words"), quiet=True)
    return prepared(folder / "text.txt", folder / "words", folder / "corpus", sentences="lines")


def recipe(corpus, out, **more):
    objective = {"kind": "glove", "width": 12, "pairs": 64, **more}
    return {"corpus": str(corpus), "out": str(out), "objective": objective, "train": {"epochs": 40, "device": "cpu"}}


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "glove"
    told = api.pretrain(**recipe(corpus, out), quiet=True)
    assert told["loss"] < 0.12 and told["words"] == 18 and told["entries"] > 50
    return out


def test_words_of_a_kind_are_neighbours(made):
    for kind in KINDS:
        for word in kind:
            told = api.embed(model=str(made), word=word, top=3, quiet=True)
            assert sum(row["word"] in kind for row in told["neighbours"]) >= 2, (word, told)


def test_the_folder_is_a_model_like_any_other(made, tmp_path):
    model = bertsmith.load(made, device="cpu")
    assert model.embed(["the cat eats", "zebra"]).shape == (2, 12)
    assert not model.embed("zebra").any()  # [UNK] was never fitted: it says nothing
    api.export(model=str(made), format="vectors", out=str(tmp_path / "v.txt"), quiet=True)
    assert "cat" in read_vectors(tmp_path / "v.txt").words
    assert not (made / "state").exists() and (made / "metrics.jsonl").read_text().count("\n") == 40


def test_the_doctor_does_not_mind_that_it_is_a_bag_of_words(made):
    assert "positions unused" not in [finding["name"] for finding in api.doctor(folder=str(made), quiet=True)["findings"]]


def test_made_once_it_is_found(made, corpus):
    assert api.pretrain(**recipe(corpus, made), quiet=True)["made"] is False


def test_turns_of_many_parts_learn_too(corpus, made, tmp_path, monkeypatch):
    monkeypatch.setattr(glove, "PAIRS_PER_ROUND", 64)
    told = api.pretrain(**recipe(corpus, tmp_path / "parts"), quiet=True)
    assert told["turns"] > 100 and told["loss"] < 0.12


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(corpus, made, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "SAVE_SECONDS", 0.0)
    turn, out = glove.GloveTrainer.train_round, tmp_path / "killed"

    def dying(self, k):
        if k == 17:
            raise KeyboardInterrupt
        return turn(self, k)

    monkeypatch.setattr(glove.GloveTrainer, "train_round", dying)
    with pytest.raises(KeyboardInterrupt):
        api.pretrain(**recipe(corpus, out), quiet=True)
    assert [path.name for path in sorted((out / "state").glob("step-*"))] == ["step-16", "step-17"]
    with pytest.raises(UserError, match="another recipe"):
        api.pretrain(**recipe(corpus, out, width=8), quiet=True)
    monkeypatch.setattr(glove.GloveTrainer, "train_round", turn)
    api.pretrain(**recipe(corpus, out), quiet=True)
    assert (out / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()
    assert (out / "metrics.jsonl").read_bytes() == (made / "metrics.jsonl").read_bytes()


def test_a_run_that_was_killed_goes_on_to_the_same_bits(corpus, made, tmp_path):
    """kill -9, wherever it is: the same command ends where an undisturbed run does."""
    code = f"""
import time
from bertsmith.objectives import glove
from bertsmith.pretraining import word_vectors
from bertsmith import api
word_vectors.SAVE = 0.0
turn = glove.Fitting.turn
glove.Fitting.turn = lambda self, k: (time.sleep(0.05), turn(self, k))[1]
api.pretrain(**{recipe(corpus, tmp_path / "out")!r}, quiet=True)
"""
    run = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while run.poll() is None and not list((tmp_path / "out" / "state").glob("step-[5-9]")):
        time.sleep(0.02)
    assert run.poll() is None, "it was done before it could be killed"
    run.send_signal(signal.SIGKILL)
    run.wait()
    Path(tmp_path / ".out.lock").unlink(missing_ok=True)
    api.pretrain(**recipe(corpus, tmp_path / "out"), quiet=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"train": {"steps": 5}}, r"train\.steps is for networks.*takes train\.epochs"),
        ({"train": {"epochs": 1.5}}, "whole times"),
        ({"train": {"epochs": 1, "warmup": 0.1}}, r"train\.warmup is for networks"),
        ({"model": "bert-tiny"}, r"takes model\.width alone"),
        ({"objective": {"kind": "glove", "window": 99}}, "window=99"),
    ],
)
def test_what_would_do_nothing_is_refused(corpus, tmp_path, more, told):
    given = recipe(corpus, tmp_path / "out") | more
    with pytest.raises(UserError, match=told):
        api.pretrain(**given, quiet=True)


def test_a_corpus_without_neighbours_is_refused(corpus, tmp_path):
    (tmp_path / "text.txt").write_text("cat\n\nzebra\ndog\n\n")
    lone = prepared(tmp_path / "text.txt", corpus, tmp_path / "corpus")
    with pytest.raises(UserError, match="no two words"):
        api.pretrain(**recipe(lone, tmp_path / "out"), quiet=True)


def test_a_plan_of_it_is_refused_in_words(corpus, tmp_path):
    with pytest.raises(UserError, match="reads no sequences"):
        api.plan(**recipe(corpus, tmp_path / "out"), quiet=True)
