"""Out of memory in pre-training: retried with smaller micro-batches and the same updates."""

import json
from pathlib import Path

import pytest
import torch

from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.objectives import SentencePairMLM
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_recipe
from bertsmith.train import oom
from bertsmith.train.config import TrainConfig

SMALL = """
model.initializer_range=0.1
model=bert-tiny model.hidden_size=32 model.mixer.num_attention_heads=2 model.feedforward.intermediate_size=64
model.max_position_embeddings=64 max_length=64
train.batch_tokens=512 train.learning_rate=1e-3 train.log_every=5 train.save_every=4 eval_tokens=1024 validation_split=0.1
""".split()  # noqa: SIM905
PHASES = ("max_length=[16,64]", "phase_fractions=[0.5,0.5]", "train.steps=20")


def make_recipe(corpus, out, *more):
    return read_recipe(PretrainRecipe, None, [f"corpus={corpus}", f"out={out}", *SMALL, *more])


@pytest.fixture
def small_memory(monkeypatch):
    """limit(tokens, spare): batches of more tokens, with sequences longer than `spare`, run out of memory; tried sizes."""
    compute_loss = SentencePairMLM.compute_loss

    def limit(max_tokens, max_spared_length=0):
        tried_sizes = []

        def loss(self, model, batch, recurrent_state=()):
            if model.training:
                tried_sizes.append(batch.num_tokens)
            if batch.num_tokens > max_tokens and batch.inputs.layout.max_seqlen > max_spared_length:
                torch.empty(1 << 55, dtype=torch.uint8)  # raises the allocator's own error
            return compute_loss(self, model, batch, recurrent_state)

        monkeypatch.setattr(SentencePairMLM, "compute_loss", loss)
        return tried_sizes

    return limit


def read_weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def test_oom_at_first_step_halves_micro_batches(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300)
    recipe = make_recipe(corpus, tmp_path / "bert", "train.steps=12", "train.gradient_accumulation_steps=2")
    result = pretrain(recipe, quiet=True)
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and "out of memory with train.batch_tokens=512;" in stderr
    assert "with train.batch_tokens=256 train.gradient_accumulation_steps=4:" in stderr
    assert tried[0] > 300 and all(tokens <= 256 for tokens in tried[1:]) and len(tried) == 1 + 12 * 4
    updates = [sum(tried[i : i + 4]) for i in range(1, len(tried), 4)]
    assert all(1024 - 4 * 64 < tokens <= 1024 for tokens in updates)  # as many as before, but for space that no sequence fills
    assert (result["step"], result["batch_tokens"], result["gradient_accumulation_steps"]) == (12, 256, 4)

    pretrain(
        make_recipe(
            corpus, tmp_path / "halves", "train.steps=12", "train.gradient_accumulation_steps=4", "train.batch_tokens=256"
        ),
        True,
    )
    assert read_weights(tmp_path / "bert") == read_weights(tmp_path / "halves")

    train_settings = json.loads((tmp_path / "bert" / "config.json").read_text())["recipe"]["train"]
    assert (train_settings["batch_tokens"], train_settings["gradient_accumulation_steps"]) == (512, 2)  # as in the recipe
    assert not pretrain(recipe, quiet=True)["created"] and not (tmp_path / "bert" / "state").exists()


def test_oom_retry_keeps_updates_per_epoch(corpus, tmp_path, small_memory):
    settings = ("train.epochs=0.5", "max_length=48")  # two batches of 256 hold fewer such sequences than one of 512
    straight = pretrain(make_recipe(corpus, tmp_path / "straight", *settings), quiet=True)
    small_memory(300)
    halves = pretrain(make_recipe(corpus, tmp_path / "bert", *settings), quiet=True)
    assert halves["gradient_accumulation_steps"] == 2 and halves["step"] == straight["step"] > 3
    assert "gradient_accumulation_steps" not in straight


def test_oom_in_later_phase_resumes_from_checkpoint(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300, max_spared_length=16)
    result = pretrain(make_recipe(corpus, tmp_path / "bert", *PHASES))
    stderr = capsys.readouterr().err
    assert result["step"] == 20 and result["gradient_accumulation_steps"] == 2
    assert stderr.index("step 8: checkpoint saved") < stderr.index("out of memory") < stderr.index("resuming from step  8/20")
    failed = max(index for index, tokens in enumerate(tried) if tokens > 300)
    assert 10 <= failed < 12 and len(tried[failed + 1 :]) == 2 * 12  # steps 9 to 20, in halves
    rows = [json.loads(line) for line in (tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "learning_rate" in row] == [5, 10, 15, 20]


class KilledError(Exception):
    pass


def test_oom_run_that_was_killed_resumes_exactly(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300, max_spared_length=16)
    pretrain(make_recipe(corpus, tmp_path / "straight", *PHASES), quiet=True)

    def kill(step, row):
        if step == 9 and len(tried) > 11:  # after the retry, in the phase that would fit
            raise KilledError

    recipe = make_recipe(corpus, tmp_path / "killed", *PHASES)
    tried.clear()
    with pytest.raises(KilledError):
        pretrain(recipe, quiet=True, on_step=kill)
    capsys.readouterr()
    result = pretrain(recipe)
    assert result["created"] and "with train.batch_tokens=256 train.gradient_accumulation_steps=2:" in capsys.readouterr().err
    assert read_weights(tmp_path / "killed") == read_weights(tmp_path / "straight")


def test_oom_of_smallest_micro_batch_is_user_error(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(20)
    with pytest.raises(
        UserError, match=r"batch_tokens=64, which cannot be halved: sequences have up to 64 tokens; set train\.gradient_ch"
    ):
        pretrain(make_recipe(corpus, tmp_path / "bert", "train.steps=12"), quiet=True)
    assert [line.split(";")[0].split("=")[-1] for line in capsys.readouterr().err.splitlines()] == ["512", "256", "128"]
    assert len(tried) == 4


def test_oom_retry_raises_other_errors(corpus, tmp_path, monkeypatch, capsys):
    calls = []

    def loss(self, model, batch, recurrent_state=()):
        calls.append(batch.num_tokens)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(SentencePairMLM, "compute_loss", loss)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        pretrain(make_recipe(corpus, tmp_path / "bert", "train.steps=12"), quiet=True)
    assert len(calls) == 1 and "memory" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), False),
    ],
)
def test_is_oom_recognizes_memory_errors(error, expected):
    assert oom.is_oom(error) is expected


def test_oom_retry_frees_failed_attempt(tmp_path):
    import weakref

    models = []

    def attempt(train):
        if models:
            assert models[0]() is None
            return train
        model = torch.nn.Linear(2, 2)
        model.itself = [model]  # a reference cycle, as models and optimizers have
        models.append(weakref.ref(model))
        raise torch.OutOfMemoryError("CUDA out of memory")

    retried = oom.retry_on_oom(TrainConfig(steps=1, batch_tokens=128), 64, tmp_path, attempt, Console(quiet=True))
    assert (retried.batch_tokens, retried.gradient_accumulation_steps) == (64, 2)


def test_oom_with_several_processes_suggests_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(oom, "world_size", lambda: 2)

    def attempt(train):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match=r"train\.batch_tokens=64 train\.gradient_accumulation_steps=4"):
        oom.retry_on_oom(
            TrainConfig(steps=1, batch_tokens=128, gradient_accumulation_steps=2), 64, tmp_path, attempt, Console(quiet=True)
        )
