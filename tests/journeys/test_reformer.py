"""A Reformer from text to a filled mask: hashed, reversible, by rows and columns; killed and resumed, bit for bit."""

import numpy as np
import pytest

from bertsmith.tensors import load_tensors
from tests.journeys.test_finetuning import FAST, classified, written
from tests.journeys.test_pretraining import answer, killed_command, learnt, ran, refused

SMALL = """
model=reformer-mini model.layers=2 model.width=32 model.mixer.heads=2 model.mixer.buckets=4 model.mixer.rounds=2
model.mixer.reach=8 model.feedforward.inner=64 model.feedforward.chunk=100 model.positions=64 model.table.shape=[8,8] length=64
train.batch_tokens=512 train.rate=3e-3 train.log_every=5 train.save_every=10 train.steps=40 eval_tokens=2048 held_out=0.1
""".split()  # noqa: SIM905


def words(corpus, out, *more):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *more]


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """Forty steps that nobody interrupted."""
    out = tmp_path_factory.mktemp("reformer") / "bert"
    return out, answer(*words(corpus, out))


def test_it_learns_and_fills_what_is_masked(straight):
    names = learnt(*straight)
    assert {"encoder.axial.axes.0.weight", "encoder.stack.blocks.1.mixer.project.weight"} <= names
    assert not [name for name in names if "hashes" in name]


def test_a_killed_run_goes_on_to_the_same_end(corpus, straight, tmp_path):
    """Hashes are drawn anew at every step, and dropout is replayed; both from generators that a step's number sets."""
    out = tmp_path / "bert"
    killed_command(*words(corpus, out), until=out / "state" / "step-20")
    assert "going on from step" in ran(*words(corpus, out)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (straight[0] / name).read_bytes(), name


def test_it_is_taught_a_task_as_any_other(straight, tmp_path):
    files = [written(tmp_path / f"{n}.jsonl", [classified(np.random.default_rng(i + n)) for i in range(n)]) for n in (400, 100)]
    given = [f"model={straight[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    made = answer("finetune", "task=classify", *given, *FAST, "train.epochs=8")
    assert made["dev"]["accuracy"] > 0.8


def test_it_is_planned_as_it_is(corpus, straight, tmp_path):
    planned = answer("plan", *words(corpus, tmp_path / "bert")[1:], "machine=h200")
    assert planned["parameters"]["all"] == sum(
        weight.numel() for weight in load_tensors(straight[0] / "model.safetensors").values()
    )


def test_it_does_not_compile(corpus, tmp_path):
    assert "leave out train.compile" in refused(*words(corpus, tmp_path / "bert", "train.compile=true"))
