"""A modern BERT (RoPE, GLU, no biases) trained with Muon: pre-trained, killed and resumed, fine-tuned, exported."""

import numpy as np
import pytest

from bertsmith.tensors import load_tensors
from tests.support.cli import FAST, SMALL, kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import check_trained_model
from tests.support.rows import classification_row, write_jsonl

MODERN = """
model.norm=pre model.norm_bias=false model.position_embedding_type=none model.mixer.rope_theta=1000 model.mixer.bias=false
model.feedforward.glu=true model.feedforward.bias=false train.optimizer=muon
""".split()  # noqa: SIM905
RUN = ["train.steps=40", "train.save_every=10", "train.gradient_accumulation_steps=2"]


def pretrain_command(corpus, out, *options):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *MODERN, *RUN, "model.initializer_range=0.1", *options]


@pytest.fixture(scope="module")
def modern_run(corpus, tmp_path_factory):
    """A run of forty steps without interruption: its folder and result."""
    out = tmp_path_factory.mktemp("modern") / "bert"
    return out, run_cli_json(*pretrain_command(corpus, out))


def test_modern_bert_pretrains_and_fills_masks(modern_run):
    names = check_trained_model(*modern_run)
    assert not [name for name in names if "position_embeddings" in name or (".stack." in name and "bias" in name)]


@pytest.mark.parametrize("options", [["train.workers=1"], ["train.gradient_checkpointing=true"]], ids=["workers", "recompute"])
def test_modern_bert_resumed_run_is_bit_identical(corpus, modern_run, tmp_path, options):
    """Muon's momentum is restored too; workers and gradient checkpointing change nothing."""
    out = tmp_path / "bert"
    kill_cli_when_exists(*pretrain_command(corpus, out, *options), until=out / "state" / "step-20")
    state_files = {path.name for path in (out / "state").glob("step-20/*")}
    assert "optimizer.safetensors" in state_files
    assert any(key.endswith("qkv.weight/momentum") for key in load_tensors(out / "state/step-20/optimizer.safetensors"))
    assert "resuming from step" in run_cli(*pretrain_command(corpus, out, *options)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (modern_run[0] / name).read_bytes(), name


def test_resume_refuses_another_optimizer(corpus, tmp_path):
    out = tmp_path / "bert"
    kill_cli_when_exists(*pretrain_command(corpus, out), until=out / "state" / "step-10")
    assert "another recipe" in run_cli_error(*pretrain_command(corpus, out, "train.optimizer=adamw"))


@pytest.mark.parametrize(
    "options",
    [[], ["train.optimizer=muon", "train.learning_rate=1e-3"], ["lora={r=4}", "train.learning_rate=1e-2"]],
    ids=["adamw", "muon", "lora"],
)
def test_modern_bert_fine_tunes(modern_run, tmp_path, options):
    files = [
        write_jsonl(tmp_path / f"{n}.jsonl", [classification_row(np.random.default_rng(i + n)) for i in range(n)])
        for n in (400, 100)
    ]
    common = [f"model={modern_run[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    result = run_cli_json("finetune", "task=classify", *common, *FAST, "train.epochs=8", *options)
    assert result["dev"]["accuracy"] > 0.8
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={files[1]}")
    assert evaluation["scores"]["accuracy"] == pytest.approx(result["dev"]["accuracy"])


def test_modern_bert_leaves_with_its_code_and_comes_back(modern_run, tmp_path):
    result = run_cli_json("export", f"model={modern_run[0]}", f"out={tmp_path / 'hf'}", "check=true")
    assert result["class"] == "BertsmithForMaskedLM" and max(result["differences"].values()) < 1e-5
    run_cli_json("import", f"source={tmp_path / 'hf'}", f"out={tmp_path / 'back'}")
    before, after = (load_tensors(folder / "model.safetensors") for folder in (modern_run[0], tmp_path / "back"))
    assert before.keys() >= after.keys() and all(after[name].equal(before[name]) for name in after)


def test_modern_bert_plan_counts_parameters(corpus, modern_run, tmp_path):
    planned = run_cli_json("plan", *pretrain_command(corpus, tmp_path / "bert")[1:], "machine=h200")
    assert planned["parameters"]["total"] == sum(
        weight.numel() for weight in load_tensors(modern_run[0] / "model.safetensors").values()
    )
