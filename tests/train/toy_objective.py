"""A toy to train: two losses of different counts, dropout, a carry, and batches that are functions of their number."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsmith.train import Loss, TrainConfig, Trainer

ROOT = Path(__file__).parents[2]


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(dropout)
        self.words = nn.Linear(16, 20)
        self.next = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.norm(torch.relu(self.inner(self.tokens(ids)))))


@dataclass
class Batch:
    ids: Tensor
    words: Tensor  # -100 where there is no target
    next: Tensor
    scale: float = 1.0
    target_counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target_counts = self.target_counts or {"words": int((self.words >= 0).sum()), "next": int((self.next >= 0).sum())}

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.words.to(device), self.next.to(device), self.scale, self.target_counts)

    def part(self, first: int, last: int) -> "Batch":
        return Batch(self.ids[first:last], self.words[first:last], self.next[first:last], self.scale)


class Objective:
    """Its carry is the number of batches met, which also moves the loss a little: a lost carry changes everything after."""

    def compute_loss(self, model: nn.Module, batch: Batch, recurrent_state: tuple[Tensor, ...]) -> Loss:
        met = recurrent_state[0] if recurrent_state else torch.zeros((), device=batch.ids.device)
        hidden = model(batch.ids)
        scores = model.words(hidden)
        words = nn.functional.cross_entropy(scores, batch.words, ignore_index=-100, reduction="sum")
        follows = nn.functional.cross_entropy(model.next(hidden), batch.next, ignore_index=-100, reduction="sum")
        right = (scores.argmax(-1) == batch.words).sum()
        parts = {"words": words * batch.scale, "next": follows * (1 + 0.01 * met)}
        return Loss(parts, {"accuracy": (right, batch.target_counts["words"])}, (met + 1,))


class Forgetful(Objective):
    """Without the carry, so that the order of micro-batches cannot matter."""

    def compute_loss(self, model: nn.Module, batch: Batch, recurrent_state: tuple[Tensor, ...]) -> Loss:
        loss = super().compute_loss(model, batch, ())
        return Loss(loss.parts, loss.metrics)


@dataclass
class Data:
    """Micro-batch k, of a size of its own; the numbers in `wild` have a loss of `scale` times the usual."""

    wild: frozenset[int] = frozenset()
    scale: float = float("nan")
    asked: list[int] = field(default_factory=list)

    def __call__(self, k: int, done: float) -> Batch:
        self.asked.append(k)
        dice = torch.Generator().manual_seed(k)
        size = 8 + k % 5
        ids = torch.randint(0, 20, (size,), generator=dice)
        words = torch.where(torch.rand(size, generator=dice) < 0.5, (ids * 7 + 3) % 20, -100)
        follows = torch.where(torch.arange(size) % 4 == 0, ids % 2, -100)
        return Batch(ids, words, follows, self.scale if k in self.wild else 1.0)


def trial() -> list[Batch]:
    return [Data()(1000 + k, 0.0) for k in range(3)]


RECIPE = TrainConfig(steps=12, rate=3e-3, warmup=2, accumulate=2, save_every=4, log_every=3, eval_every=6, device="cpu")


def trainer(folder: Path, config: TrainConfig = RECIPE, model: nn.Module | None = None, **more) -> Trainer:
    torch.set_num_threads(1)  # sums of one order, whoever runs them
    given = {"trials": {"dev": trial}, "seed": 5, "quiet": True, **more}
    return Trainer(model or Model(dropout=0.1), given.pop("objective", Objective()), config, folder, **given)


def child(call: str, wait: bool = True, **variables: str) -> subprocess.Popen:
    """Runs `call`, an expression over this module, in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    code = f"from tests.train import toy_objective as toy; toy.{call}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path, **variables}, stderr=subprocess.PIPE, text=True
    )
    if wait:
        process.wait(120)
    return process


def run_and_die(folder: str, at: int) -> None:
    """Without a word, after a step."""
    trainer(Path(folder), on_step=lambda step, _: os._exit(9) if step == at else None).fit(Data())


def run_and_die_saving(folder: str, at: int) -> None:
    """While a checkpoint is half written."""
    from bertsmith import artifacts

    seal = artifacts.write_manifest
    artifacts.write_manifest = lambda part: os._exit(9) if part.name == f"step-{at}.part" else seal(part)
    trainer(Path(folder)).fit(Data())


def run_slowly(folder: str) -> None:
    """Long enough to be sent a signal."""
    import time

    from bertsmith.errors import Interrupted

    slow = TrainConfig(steps=100_000, rate=1e-3, save_every=100_000, log_every=1, device="cpu")
    try:
        trainer(Path(folder), slow, trials={}, on_step=lambda step, _: time.sleep(0.01)).fit(Data())
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(3)


def fail_at(number: int):
    """A hook that ends a run after so many steps."""
    seen = []

    def hook(step: int, row: dict[str, float]) -> None:
        seen.append(step)
        if len(seen) == number:
            raise Died

    return hook


class Died(Exception):
    pass


SHARED = TrainConfig(steps=5, rate=3e-3, accumulate=4, save_every=2, log_every=1, device="cpu")


def run_shared(folder: str) -> None:
    """One of several ranks, which fail after three steps and go on."""
    for hook in (fail_at(3), fail_at(0)):
        with suppress(Died):
            trainer(Path(folder), SHARED, Model(), objective=Forgetful(), on_step=hook).fit(Data())
