"""ELECTRA from text to a fine-tuned task: joint training, exact resuming, published discriminator."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.support.cli import FAST, SMALL, kill_cli_when_exists, run_cli, run_cli_json
from tests.support.rows import classification_row, write_jsonl

ELECTRA = ["objective=rtd", "objective.generator_size=0.5", "model.embedding_size=16", "model.pooler_act=gelu",
           "train.steps=40", "train.save_every=10"]  # fmt: skip


def pretrain_command(corpus, out, *options):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *ELECTRA, *options]


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    """A model folder and the result of forty uninterrupted steps."""
    out = tmp_path_factory.mktemp("electra") / "model"
    return out, run_cli_json(*pretrain_command(corpus, out))


def test_electra_trains_both_and_publishes_discriminator(uninterrupted):
    out, result = uninterrupted
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert result["valid_mlm_loss"] < rows[0]["mlm_loss"] - 0.1
    assert result["valid_rtd_loss"] < 50 * np.log(2) and result["valid_rtd_accuracy"] > 0.8
    names = set(load_tensors(out / "model.safetensors"))
    assert "heads.rtd.classifier.weight" in names and not [name for name in names if "generator" in name]
    assert result["parameters"] == sum(weight.numel() for weight in load_tensors(out / "model.safetensors").values())
    assert list(bertsmith.load(out).model.config.heads) == ["rtd"]


def test_electra_killed_run_resumes_exactly(corpus, uninterrupted, tmp_path):
    out = tmp_path / "model"
    kill_cli_when_exists(*pretrain_command(corpus, out), until=out / "state" / "step-20")
    assert any("heads.generator.stack" in key for key in load_tensors(out / "state/step-20/model.safetensors"))
    assert "resuming from step" in run_cli(*pretrain_command(corpus, out)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (uninterrupted[0] / name).read_bytes(), name


def test_electra_exports_and_fine_tunes(uninterrupted, tmp_path):
    assert run_cli_json("export", f"model={uninterrupted[0]}", f"out={tmp_path / 'hf'}")["class"] == "ElectraForPreTraining"
    files = [
        write_jsonl(tmp_path / f"{size}.jsonl", [classification_row(np.random.default_rng(i + size)) for i in range(size)])
        for size in (400, 100)
    ]
    options = [f"model={uninterrupted[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    assert run_cli_json("finetune", "task=classify", *options, *FAST, "train.epochs=8")["dev"]["accuracy"] > 0.8


def test_electra_plan_counts_generator(corpus, uninterrupted, tmp_path):
    plan = run_cli_json("plan", *pretrain_command(corpus, tmp_path / "model")[1:], "machine=h200")
    assert plan["parameters"]["total"] > uninterrupted[1]["parameters"]  # includes the generator
