"""A model of today, moved by Muon: turned and not tabled, gated, without biases; killed and resumed, filled, taught, kept."""

import numpy as np
import pytest

from bertsmith.tensors import load_tensors
from tests.journeys.test_finetuning import FAST, classified, written
from tests.journeys.test_pretraining import SMALL, answer, killed_command, learnt, ran, refused

MODERN = """
model.norm=before model.norm_bias=false model.table=false model.mixer.rotary=1000 model.mixer.bias=false
model.feedforward.gated=true model.feedforward.bias=false train.optimizer=muon
""".split()  # noqa: SIM905
LONG = ["train.steps=40", "train.save_every=10", "train.accumulate=2"]


def words(corpus, out, *more):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *MODERN, *LONG, *more]


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """Forty steps that nobody interrupted."""
    out = tmp_path_factory.mktemp("modern") / "bert"
    return out, answer(*words(corpus, out))


def test_it_learns_and_fills_what_is_masked(straight):
    names = learnt(*straight)
    assert not [name for name in names if "positions" in name or (".stack." in name and "bias" in name)]


@pytest.mark.parametrize("more", [["train.workers=1"], ["train.recompute=true"]], ids=["workers", "recompute"])
def test_a_killed_run_goes_on_to_the_same_end(corpus, straight, tmp_path, more):
    """What Muon remembers of its matrices is kept too; who makes batches, or computes twice, changes nothing."""
    out = tmp_path / "bert"
    killed_command(*words(corpus, out, *more), until=out / "state" / "step-20")
    held = {path.name for path in (out / "state").glob("step-20/*")}
    assert "optimizer.safetensors" in held
    assert any(key.endswith("qkv.weight/momentum") for key in load_tensors(out / "state/step-20/optimizer.safetensors"))
    assert "going on from step" in ran(*words(corpus, out, *more)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (straight[0] / name).read_bytes(), name


def test_another_optimizer_does_not_go_on_with_this_run(corpus, tmp_path):
    out = tmp_path / "bert"
    killed_command(*words(corpus, out), until=out / "state" / "step-10")
    assert "another recipe" in refused(*words(corpus, out, "train.optimizer=adamw"))


@pytest.mark.parametrize("way", [[], ["train.optimizer=muon", "train.rate=1e-3"], ["lora={rank=4}", "train.rate=1e-2"]],
                         ids=["adamw", "muon", "lora"])  # fmt: skip
def test_it_is_taught_a_task_as_any_other(straight, tmp_path, way):
    files = [written(tmp_path / f"{n}.jsonl", [classified(np.random.default_rng(i + n)) for i in range(n)]) for n in (400, 100)]
    given = [f"model={straight[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    made = answer("finetune", "task=classify", *given, *FAST, "train.epochs=8", *way)
    assert made["dev"]["accuracy"] > 0.8
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={files[1]}")
    assert judged["scores"]["accuracy"] == pytest.approx(made["dev"]["accuracy"])


def test_it_stays_in_our_own_format(straight, tmp_path):
    said = refused("export", f"model={straight[0]}", f"out={tmp_path / 'hf'}")
    lost = ["norm = 'before'", "norm_bias = False", "table = False", "mixer.rotary = 1000.0", "mixer.bias = False",
            "feedforward.gated = True", "feedforward.bias = False"]  # fmt: skip
    assert not [
        word for word in (*lost, "Hugging Face's bert cannot say", "stays in bertsmith's own format") if word not in said
    ]
    assert not (tmp_path / "hf").exists()


def test_it_is_planned_as_it_is(corpus, straight, tmp_path):
    planned = answer("plan", *words(corpus, tmp_path / "bert")[1:], "machine=h200")
    assert planned["parameters"]["all"] == sum(
        weight.numel() for weight in load_tensors(straight[0] / "model.safetensors").values()
    )
