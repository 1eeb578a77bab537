"""A Reformer from text to a filled mask: LSH attention, reversible blocks, axial positions; killed and resumed bit for bit."""

import numpy as np
import pytest

from bertsmith.tensors import load_tensors
from tests.support.cli import FAST, kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import check_trained_model
from tests.support.rows import classification_row, write_jsonl

SMALL = """
model=reformer-mini model.num_hidden_layers=2 model.hidden_size=32 model.mixer.num_attention_heads=2 model.mixer.num_buckets=4
model.mixer.num_hashes=2 model.mixer.bucket_window=8 model.feedforward.intermediate_size=64 model.feedforward.chunk_size=100
model.max_position_embeddings=64 model.position_embedding_type.shape=[8,8] max_length=64 train.batch_tokens=512
train.learning_rate=3e-3 train.log_every=5 train.save_every=10 train.steps=40 eval_tokens=2048 validation_split=0.1
""".split()  # noqa: SIM905


def pretrain_command(corpus, out, *options):
    return ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, *options]


@pytest.fixture(scope="module")
def reformer_run(corpus, tmp_path_factory):
    """A run of forty steps without interruption: its folder and result."""
    out = tmp_path_factory.mktemp("reformer") / "bert"
    return out, run_cli_json(*pretrain_command(corpus, out))


def test_reformer_pretrains_and_fills_masks(reformer_run):
    names = check_trained_model(*reformer_run)
    assert {"encoder.axial_position_embeddings.axes.0.weight", "encoder.stack.layers.1.mixer.output.weight"} <= names
    assert not [name for name in names if "hashes" in name]


def test_reformer_resumed_run_is_bit_identical(corpus, reformer_run, tmp_path):
    """Hashes are drawn at every step and dropout is replayed, from generators seeded by the step number."""
    out = tmp_path / "bert"
    kill_cli_when_exists(*pretrain_command(corpus, out), until=out / "state" / "step-20")
    assert "resuming from step" in run_cli(*pretrain_command(corpus, out)).stderr
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (reformer_run[0] / name).read_bytes(), name


def test_reformer_fine_tunes(reformer_run, tmp_path):
    files = [
        write_jsonl(tmp_path / f"{n}.jsonl", [classification_row(np.random.default_rng(i + n)) for i in range(n)])
        for n in (400, 100)
    ]
    options = [f"model={reformer_run[0]}", f"data.train={files[0]}", f"data.dev={files[1]}", f"out={tmp_path / 'out'}"]
    result = run_cli_json("finetune", "task=classify", *options, *FAST, "train.epochs=8")
    assert result["dev"]["accuracy"] > 0.8


def test_reformer_plan_counts_parameters(corpus, reformer_run, tmp_path):
    planned = run_cli_json("plan", *pretrain_command(corpus, tmp_path / "bert")[1:], "machine=h200")
    assert planned["parameters"]["total"] == sum(
        weight.numel() for weight in load_tensors(reformer_run[0] / "model.safetensors").values()
    )


def test_reformer_refuses_torch_compile(corpus, tmp_path):
    assert "leave out train.compile" in run_cli_error(*pretrain_command(corpus, tmp_path / "bert", "train.compile=true"))
