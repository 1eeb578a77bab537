"""A toy model and objective: two losses with different target counts, dropout, a recurrent state, and batches that are pure
functions of their index."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.runs import Run
from bertsmith.train import Batch, Loss, TrainConfig, Trainer, Validation, checkpoint, prepare
from bertsmith.train.param_groups import uniform_schedule

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


@dataclass(frozen=True)
class Inputs:
    ids: Tensor

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> "Inputs":
        return Inputs(self.ids.to(device))


def build_batch(ids: Tensor, words: Tensor, next_labels: Tensor, scale: float = 1.0) -> Batch[Inputs]:
    """words, next_labels: (tokens,), -100 where there is no target; scale: multiplies the loss of words."""
    counts = {"mlm": int((words >= 0).sum()), "nsp": int((next_labels >= 0).sum())}
    return Batch(Inputs(ids), {"words": words, "next": next_labels, "scale": torch.tensor(scale)}, counts)


def slice_batch(batch: Batch[Inputs], first: int, last: int) -> Batch[Inputs]:
    return build_batch(batch.inputs.ids[first:last], *(batch.targets[name][first:last] for name in ("words", "next")))


class Objective:
    """Its recurrent state is the number of batches seen, which changes the loss a little, so that a lost state is noticed."""

    def compute_loss(self, model: nn.Module, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...]) -> Loss:
        ids, targets = batch.inputs.ids, batch.targets
        num_seen = recurrent_state[0] if recurrent_state else torch.zeros((), device=ids.device)
        hidden_states = model(ids)
        logits = model.words(hidden_states)
        word_loss = nn.functional.cross_entropy(logits, targets["words"], ignore_index=-100, reduction="sum")
        next_loss = nn.functional.cross_entropy(model.next(hidden_states), targets["next"], ignore_index=-100, reduction="sum")
        num_correct = (logits.argmax(-1) == targets["words"]).sum()
        parts = {"mlm": word_loss * targets["scale"], "nsp": next_loss * (1 + 0.01 * num_seen)}
        return Loss(parts, {"accuracy": (num_correct, batch.target_counts["mlm"])}, (num_seen + 1,))


class StatelessObjective(Objective):
    """Without recurrent state, so that the order of micro-batches does not matter."""

    def compute_loss(self, model: nn.Module, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...]) -> Loss:
        loss = super().compute_loss(model, batch, ())
        return Loss(loss.parts, loss.metrics)


@dataclass
class Data:
    """Micro-batch k, of varying size; the loss of those in `bad_batches` is multiplied by `scale`."""

    bad_batches: frozenset[int] = frozenset()
    scale: float = float("nan")
    requested: list[int] = field(default_factory=list)

    def __call__(self, k: int, fraction_done: float) -> Batch[Inputs]:
        self.requested.append(k)
        generator = torch.Generator().manual_seed(k)
        size = 8 + k % 5
        ids = torch.randint(0, 20, (size,), generator=generator)
        words = torch.where(torch.rand(size, generator=generator) < 0.5, (ids * 7 + 3) % 20, -100)
        next_labels = torch.where(torch.arange(size) % 4 == 0, ids % 2, -100)
        return build_batch(ids, words, next_labels, self.scale if k in self.bad_batches else 1.0)


def eval_batches() -> list[Batch[Inputs]]:
    return [Data()(1000 + k, 0.0) for k in range(3)]


CONFIG = TrainConfig(
    steps=12,
    learning_rate=3e-3,
    warmup_steps=2,
    gradient_accumulation_steps=2,
    save_every=4,
    log_every=3,
    eval_every=6,
    device="cpu",
)


def build_trainer(
    folder: Path, config: TrainConfig = CONFIG, model: nn.Module | None = None, objective: Objective | None = None, **options
) -> Trainer:
    """options: fingerprint, quiet, param_schedule, on_step, and the fields of Validation."""
    torch.set_num_threads(1)  # the same order of summation in every process
    run = Run(folder, options.pop("fingerprint", ""), Console(options.pop("quiet", True)))
    setup = prepare(model or Model(dropout=0.1), config, options.pop("param_schedule", uniform_schedule))
    eval_sets, score_fn = options.pop("eval_sets", {"dev": eval_batches}), options.pop("score_fn", None)
    validation = Validation(eval_sets, score_fn, options.pop("baseline", None))
    return Trainer(setup, objective or Objective(), run, 5, validation=validation, **options)


def run_in_subprocess(call: str, wait: bool = True, **variables: str) -> subprocess.Popen:
    """Evaluates `toy.{call}` in a subprocess."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    code = f"from tests.support import toy_objective as toy; toy.{call}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path, **variables}, stderr=subprocess.PIPE, text=True
    )
    if wait:
        process.wait(120)
    return process


def run_and_exit(folder: str, at: int) -> None:
    """Exits without cleanup after a step."""
    build_trainer(Path(folder), on_step=lambda step, _: os._exit(9) if step == at else None).fit(Data())


def run_and_exit_while_saving(folder: str, at: int) -> None:
    """Exits while a checkpoint is half written."""
    from bertsmith import artifacts

    write_manifest = artifacts.write_manifest
    artifacts.write_manifest = lambda part, *args: (
        os._exit(9) if part.name.startswith(f".step-{at}.") else write_manifest(part, *args)
    )
    build_trainer(Path(folder)).fit(Data())


def run_until_signal(folder: str) -> None:
    """Trains long enough to be sent a signal."""
    import time

    from bertsmith.errors import Interrupted

    config = TrainConfig(steps=100_000, learning_rate=1e-3, save_every=100_000, log_every=1, device="cpu")
    try:
        build_trainer(Path(folder), config, eval_sets={}, on_step=lambda step, _: time.sleep(0.01)).fit(Data())
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(3)


def crash_at(num_steps: int):
    """An on_step callback that raises SimulatedCrash after so many steps."""
    steps = []

    def on_step(step: int, row: dict[str, float]) -> None:
        steps.append(step)
        if len(steps) == num_steps:
            raise SimulatedCrash

    return on_step


class SimulatedCrash(Exception):
    pass


DISTRIBUTED_CONFIG = TrainConfig(
    steps=5, learning_rate=3e-3, gradient_accumulation_steps=4, save_every=2, log_every=1, device="cpu"
)


def run_distributed(folder: str) -> None:
    """Runs one of several ranks; crashes after three steps and resumes."""
    for on_step in (crash_at(3), crash_at(0)):
        with suppress(SimulatedCrash):
            build_trainer(Path(folder), DISTRIBUTED_CONFIG, Model(), objective=StatelessObjective(), on_step=on_step).fit(
                Data()
            )


def run_rank_beside_a_dead_one(folder: str) -> None:
    """Rank 1 dies after a step; the other prints the error that it meets."""

    def die(step: int, _: object) -> None:
        if os.environ["RANK"] == "1":
            os._exit(9)

    try:
        build_trainer(Path(folder), DISTRIBUTED_CONFIG, Model(), objective=StatelessObjective(), on_step=die).fit(Data())
    except UserError as error:
        sys.exit(f"error: {error}")


EARLY_STOPPING_CONFIG = TrainConfig(
    steps=6, learning_rate=3e-2, gradient_accumulation_steps=2, eval_every=1, early_stopping_patience=6, device="cpu"
)
AVERAGING_CONFIG = TrainConfig(
    steps=6, learning_rate=3e-3, gradient_accumulation_steps=2, save_every=2, average_checkpoints=3, device="cpu"
)


def run_distributed_to_weights(folder: str, config_name: str) -> None:
    """Trains one of several ranks; rank 0 removes the checkpoints as soon as it is done. Writes the weights of each rank."""
    scores = iter([0.1, 0.3, 0.9, 0.2, 0.5, 0.4])  # step 3 is the best
    trainer = build_trainer(
        Path(folder), globals()[config_name], Model(), objective=StatelessObjective(), score_fn=lambda: next(scores)
    )
    if not trainer.is_main_process:
        load, average = checkpoint.load_best, checkpoint.load_average
        checkpoint.load_best = lambda *args: (time.sleep(1), load(*args))
        checkpoint.load_average = lambda *args: (time.sleep(1), average(*args))[1]
    trainer.fit(Data())
    if trainer.is_main_process:
        shutil.rmtree(trainer.run.state)
    torch.save(trainer.model.state_dict(), Path(folder).parent / f"weights-{os.environ.get('RANK', 'alone')}.pt")


def count_pickled_gathers(folder: str) -> None:
    """Trains one of several ranks and fails if its later steps pickle anything."""
    gathers = []
    all_gather_object = dist.all_gather_object
    dist.all_gather_object = lambda *args, **options: (gathers.append(1), all_gather_object(*args, **options))
    counts = []
    on_step = lambda step, row: counts.append(len(gathers))
    build_trainer(Path(folder), DISTRIBUTED_CONFIG, Model(), objective=StatelessObjective(), on_step=on_step, eval_sets={}).fit(
        Data()
    )
    pickled = {step + 2: after - before for step, (before, after) in enumerate(itertools.pairwise(counts))}
    assert {step: count for step, count in pickled.items() if count} == {2: 1, 4: 1}, pickled  # saving
