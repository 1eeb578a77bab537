"""A run that does not fit the memory: smaller micro-batches, the same updates, the same run."""

import json
from pathlib import Path

import pytest
import torch

from bertsmith.config import read_recipe
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.objectives import SentencePairMLM
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.train import oom
from bertsmith.train.config import TrainConfig

SMALL = """
model=bert-tiny model.width=32 model.mixer.heads=2 model.feedforward.inner=64 model.positions=64 length=64
train.batch_tokens=512 train.rate=1e-3 train.log_every=5 train.save_every=4 eval_tokens=1024 held_out=0.1
""".split()  # noqa: SIM905
PHASES = ("length=[16,64]", "shares=[0.5,0.5]", "train.steps=20")


def recipe(corpus, out, *more):
    return read_recipe(PretrainRecipe, None, [f"corpus={corpus}", f"out={out}", *SMALL, *more])


@pytest.fixture
def small_memory(monkeypatch):
    """Call it to let batches over so many tokens run out of memory, those of longer sequences than `spare`; gives the sizes."""
    whole = SentencePairMLM.compute_loss

    def limit(tokens, spare=0):
        tried = []

        def loss(self, model, batch, carry=()):
            if model.training:
                tried.append(batch.tokens)
            if batch.tokens > tokens and batch.inputs.layout.longest > spare:
                torch.empty(1 << 55, dtype=torch.uint8)  # what the allocator really says
            return whole(self, model, batch, carry)

        monkeypatch.setattr(SentencePairMLM, "compute_loss", loss)
        return tried

    return limit


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def test_a_first_step_that_does_not_fit_is_done_in_halves(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300)
    given = recipe(corpus, tmp_path / "bert", "train.steps=12", "train.accumulate=2")
    made = pretrain(given, quiet=True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "out of memory with micro-batches of 512 tokens" in said
    assert "with 256, and train.accumulate=4 instead of 2" in said
    assert tried[0] > 300 and all(tokens <= 256 for tokens in tried[1:]) and len(tried) == 1 + 12 * 4
    updates = [sum(tried[i : i + 4]) for i in range(1, len(tried), 4)]
    assert all(1024 - 4 * 64 < tokens <= 1024 for tokens in updates)  # as many as before, but for what no sequence fills
    assert (made["step"], made["batch_tokens"], made["accumulate"]) == (12, 256, 4)

    pretrain(recipe(corpus, tmp_path / "halves", "train.steps=12", "train.accumulate=4", "train.batch_tokens=256"), True)
    assert weights(tmp_path / "bert") == weights(tmp_path / "halves")

    told = json.loads((tmp_path / "bert" / "config.json").read_text())["recipe"]["train"]
    assert (told["batch_tokens"], told["accumulate"]) == (512, 2)  # as it was given
    assert not pretrain(given, quiet=True)["made"] and not (tmp_path / "bert" / "state").exists()


def test_an_epoch_has_as_many_updates_as_without_the_trouble(corpus, tmp_path, small_memory):
    settings = ("train.epochs=0.5", "length=48")  # which halves of 512 hold less of than the whole
    straight = pretrain(recipe(corpus, tmp_path / "straight", *settings), quiet=True)
    small_memory(300)
    halves = pretrain(recipe(corpus, tmp_path / "bert", *settings), quiet=True)
    assert halves["accumulate"] == 2 and halves["step"] == straight["step"] > 3
    assert "accumulate" not in straight


def test_a_later_phase_that_does_not_fit_goes_on_from_the_newest_checkpoint(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300, spare=16)
    made = pretrain(recipe(corpus, tmp_path / "bert", *PHASES))
    said = capsys.readouterr().err
    assert made["step"] == 20 and made["accumulate"] == 2
    assert said.index("step 8: saved") < said.index("out of memory") < said.index("going on from step 8/20")
    failed = max(number for number, tokens in enumerate(tried) if tokens > 300)
    assert 10 <= failed < 12 and len(tried[failed + 1 :]) == 2 * 12  # steps 9 to 20, in halves
    rows = [json.loads(line) for line in (tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "rate" in row] == [5, 10, 15, 20]


class Killed(Exception):
    pass


def test_a_run_that_was_lowered_and_killed_goes_on_as_if_it_had_not_been(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(300, spare=16)
    pretrain(recipe(corpus, tmp_path / "straight", *PHASES), quiet=True)

    def kill(step, row):
        if step == 9 and len(tried) > 11:  # in halves already, where the length alone would not ask for it
            raise Killed

    given = recipe(corpus, tmp_path / "killed", *PHASES)
    tried.clear()
    with pytest.raises(Killed):
        pretrain(given, quiet=True, on_step=kill)
    capsys.readouterr()
    made = pretrain(given)
    assert made["made"] and "micro-batches of 256 tokens and train.accumulate=2" in capsys.readouterr().err
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")


def test_what_cannot_be_halved_is_refused_with_the_way_out(corpus, tmp_path, small_memory, capsys):
    tried = small_memory(20)
    with pytest.raises(UserError, match=r"64 tokens, which cannot be halved: a sequence may have 64; give train\.recompute=tr"):
        pretrain(recipe(corpus, tmp_path / "bert", "train.steps=12"), quiet=True)
    assert [line.split(" tokens")[0].split()[-1] for line in capsys.readouterr().err.splitlines()] == ["512", "256", "128"]
    assert len(tried) == 4


def test_another_error_is_nobody_s_to_swallow(corpus, tmp_path, monkeypatch, capsys):
    calls = []

    def loss(self, model, batch, carry=()):
        calls.append(batch.tokens)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(SentencePairMLM, "compute_loss", loss)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        pretrain(recipe(corpus, tmp_path / "bert", "train.steps=12"), quiet=True)
    assert len(calls) == 1 and "memory" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "found"),
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
def test_errors_of_memory_are_told_from_others(error, found):
    assert oom.is_oom(error) is found


def test_what_the_failed_attempt_held_is_let_go_before_the_next(tmp_path):
    import weakref

    held = []

    def attempt(train):
        if held:
            assert held[0]() is None
            return train
        model = torch.nn.Linear(2, 2)
        model.itself = [model]  # a circle, as models and optimizers have
        held.append(weakref.ref(model))
        raise torch.OutOfMemoryError("CUDA out of memory")

    found = oom.retry_on_oom(TrainConfig(steps=1, batch_tokens=128), 64, tmp_path, attempt, Console(quiet=True))
    assert (found.batch_tokens, found.accumulate) == (64, 2)


def test_several_processes_are_told_what_to_give_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(oom, "world_size", lambda: 2)

    def attempt(train):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match=r"train\.batch_tokens=64 train\.accumulate=4"):
        oom.retry_on_oom(TrainConfig(steps=1, batch_tokens=128, accumulate=2), 64, tmp_path, attempt, Console(quiet=True))
