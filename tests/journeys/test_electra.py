"""ELECTRA from text to a task: generator and discriminator learn together, killed and resumed; the discriminator is kept."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.journeys.test_finetuning import FAST, classified, written
from tests.journeys.test_pretraining import SMALL, answer, killed_command, ran

ELECTRA = ["objective=replaced", "objective.size=0.5", "model.embedding=16", "model.pooler=gelu", "train.steps=40",
           "train.save_every=10"]  # fmt: skip


def words(corpus, out, *more):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *ELECTRA, *more]


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """Forty steps that nobody interrupted."""
    out = tmp_path_factory.mktemp("electra") / "model"
    return out, answer(*words(corpus, out))


def test_both_learn_and_the_discriminator_alone_is_published(straight):
    out, made = straight
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert made["valid_loss_words"] < rows[0]["loss.words"] - 0.1
    assert made["valid_loss_replaced"] < 50 * np.log(2) and made["valid_replaced_accuracy"] > 0.8
    names = set(load_tensors(out / "model.safetensors"))
    assert "heads.replaced.score.weight" in names and not [name for name in names if "generator" in name]
    assert made["parameters"] == sum(weight.numel() for weight in load_tensors(out / "model.safetensors").values())
    assert list(bertsmith.load(out).model.config.heads) == ["replaced"]


def test_a_killed_run_draws_the_same_words_and_goes_on_to_the_same_end(corpus, straight, tmp_path):
    out = tmp_path / "model"
    killed_command(*words(corpus, out), until=out / "state" / "step-20")
    assert any("heads.generator.stack" in key for key in load_tensors(out / "state/step-20/model.safetensors"))
    assert "going on from step" in ran(*words(corpus, out)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (straight[0] / name).read_bytes(), name


def test_it_goes_to_hugging_face_and_is_taught_a_task(straight, tmp_path):
    assert answer("export", f"model={straight[0]}", f"out={tmp_path / 'hf'}")["class"] == "ElectraForPreTraining"
    files = [written(tmp_path / f"{n}.jsonl", [classified(np.random.default_rng(i + n)) for i in range(n)]) for n in (400, 100)]
    given = [f"model={straight[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    assert answer("finetune", "task=classify", *given, *FAST, "train.epochs=8")["dev"]["accuracy"] > 0.8


def test_it_is_planned(corpus, straight, tmp_path):
    planned = answer("plan", *words(corpus, tmp_path / "model")[1:], "machine=h200")
    assert planned["parameters"]["all"] > straight[1]["parameters"]  # the generator learns too
