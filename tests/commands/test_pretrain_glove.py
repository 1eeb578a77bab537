"""`pretrain objective=glove`: from text to vectors, with exact resuming."""

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
from tests.support.corpora import prepare_test_corpus

CATEGORIES = (["cat", "dog", "cow", "pig"], ["red", "blue", "green", "pink"], ["one", "two", "three", "four"])


def synthetic_text(sentences: int = 900) -> str:
    """Words of a category co-occur with each other and with the same verb: eats, paints, counts."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(sentences):
        category = rng.integers(3)
        words = rng.choice(CATEGORIES[category], 3)
        lines.append(
            " ".join([words[0], ("eats", "paints", "counts")[category], words[1], "the", words[2], rng.choice(["a", "and"])])
        )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glove")
    (folder / "text.txt").write_text(synthetic_text())
    api.train_tokenizer(kind="word", texts=str(folder / "text.txt"), vocab_size=100, out=str(folder / "words"), quiet=True)
    return prepare_test_corpus(folder / "text.txt", folder / "words", folder / "corpus", sentences="lines")


def recipe(corpus, out, **options):
    objective = {"kind": "glove", "vector_size": 12, "pairs": 64, **options}
    return {"corpus": str(corpus), "out": str(out), "objective": objective, "train": {"epochs": 40, "device": "cpu"}}


@pytest.fixture(scope="module")
def glove_model(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "glove"
    result = api.pretrain(**recipe(corpus, out), quiet=True)
    assert result["loss"] < 0.12 and result["words"] == 18 and result["cooccurrences"] > 50
    return out


def test_glove_neighbours_are_of_same_category(glove_model):
    for category in CATEGORIES:
        for word in category:
            result = api.embed(model=str(glove_model), word=word, top_k=3, quiet=True)
            assert sum(row["word"] in category for row in result["neighbours"]) >= 2, (word, result)


def test_glove_folder_works_as_model(glove_model, tmp_path):
    model = bertsmith.load(glove_model, device="cpu")
    assert model.embed(["the cat eats", "zebra"]).shape == (2, 12)
    assert not model.embed("zebra").any()  # [UNK] was never trained: its vector is zero
    api.export(model=str(glove_model), format="vectors", out=str(tmp_path / "v.txt"), quiet=True)
    assert "cat" in read_vectors(tmp_path / "v.txt").words
    assert not (glove_model / "state").exists() and (glove_model / "metrics.jsonl").read_text().count("\n") == 40


def test_doctor_does_not_report_unused_positions_of_glove(glove_model):
    assert "word order ignored" not in [
        finding["name"] for finding in api.doctor(folder=str(glove_model), quiet=True)["findings"]
    ]


def test_glove_finished_run_is_not_repeated(glove_model, corpus):
    assert api.pretrain(**recipe(corpus, glove_model), quiet=True)["created"] is False


def test_glove_rounds_of_many_shards_converge(corpus, glove_model, tmp_path, monkeypatch):
    monkeypatch.setattr(glove, "PAIRS_PER_ROUND", 64)
    result = api.pretrain(**recipe(corpus, tmp_path / "parts"), quiet=True)
    assert result["rounds"] > 100 and result["loss"] < 0.12


def test_glove_interrupted_run_resumes_exactly(corpus, glove_model, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "SAVE_SECONDS", 0.0)
    train_round, out = glove.GloveTrainer.train_round, tmp_path / "killed"

    def interrupted_round(self, k):
        if k == 17:
            raise KeyboardInterrupt
        return train_round(self, k)

    monkeypatch.setattr(glove.GloveTrainer, "train_round", interrupted_round)
    with pytest.raises(KeyboardInterrupt):
        api.pretrain(**recipe(corpus, out), quiet=True)
    assert [path.name for path in sorted((out / "state").glob("step-*"))] == ["step-16", "step-17"]
    with pytest.raises(UserError, match="another recipe"):
        api.pretrain(**recipe(corpus, out, vector_size=8), quiet=True)
    monkeypatch.setattr(glove.GloveTrainer, "train_round", train_round)
    api.pretrain(**recipe(corpus, out), quiet=True)
    assert (out / "model.safetensors").read_bytes() == (glove_model / "model.safetensors").read_bytes()
    assert (out / "metrics.jsonl").read_bytes() == (glove_model / "metrics.jsonl").read_bytes()


def test_glove_killed_run_resumes_exactly(corpus, glove_model, tmp_path):
    """After kill -9 at any point, the same command gives the result of an uninterrupted run."""
    code = f"""
import time
from bertsmith.objectives import glove
from bertsmith.pretraining import word_vectors
from bertsmith import api
word_vectors.SAVE_SECONDS = 0.0
train_round = glove.GloveTrainer.train_round
glove.GloveTrainer.train_round = lambda self, k: (time.sleep(0.05), train_round(self, k))[1]
api.pretrain(**{recipe(corpus, tmp_path / "out")!r}, quiet=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None and not list((tmp_path / "out" / "state").glob("step-[5-9]")):
        time.sleep(0.02)
    assert process.poll() is None, "it was done before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    Path(tmp_path / ".out.lock").unlink(missing_ok=True)
    api.pretrain(**recipe(corpus, tmp_path / "out"), quiet=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (glove_model / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": {"steps": 5}},
            r"train\.steps has no effect on objective=glove, which uses train\.epochs, train\.learning_rate",
        ),
        ({"train": {"epochs": 1.5}}, "whole number of epochs, not 1.5"),
        ({"train": {"epochs": 1, "warmup_steps": 0.1}}, r"train\.warmup_steps has no effect"),
        ({"model": "bert-tiny"}, r"set only model\.hidden_size"),
        ({"objective": {"kind": "glove", "window": 99}}, "window = 99"),
    ],
)
def test_glove_refuses_network_options(corpus, tmp_path, changes, message):
    options = recipe(corpus, tmp_path / "out") | changes
    with pytest.raises(UserError, match=message):
        api.pretrain(**options, quiet=True)


def test_glove_refuses_corpus_without_cooccurrences(corpus, tmp_path):
    (tmp_path / "text.txt").write_text("cat\n\nzebra\ndog\n\n")
    sparse_corpus = prepare_test_corpus(tmp_path / "text.txt", corpus, tmp_path / "corpus")
    with pytest.raises(UserError, match="no co-occurrences of known words"):
        api.pretrain(**recipe(sparse_corpus, tmp_path / "out"), quiet=True)


def test_glove_plan_is_refused(corpus, tmp_path):
    with pytest.raises(UserError, match="has no batches of sequences"):
        api.plan(**recipe(corpus, tmp_path / "out"), quiet=True)
