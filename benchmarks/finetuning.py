"""Fine-tuning for a label, examples a second: our trainer against transformers', the same weights, texts and batch.

Both count from the end of one step to the end of another: reading, saving and evaluating are outside. Batches hold as many
examples in the mean; ours are filled by tokens and never padded, theirs are padded to their longest, as is their default.
Ours have no dropout on attention, which is our default; theirs are measured without it, and as the model's config has it.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, built
from bertsmith.objectives.supervised import Reading, Supervised
from bertsmith.tasks import Classify
from bertsmith.tasks.classification import Text
from bertsmith.train.config import Train
from bertsmith.train.optim import Adamw
from bertsmith.train.trainer import Trainer

from . import peer
from .batches import budget
from .labelled import labelled
from .material import Material
from .weights import Weights, pretrained

KINDS = {"short": ("sentences", 128, 32), "long": ("documents", 512, 8)}  # length, examples of a batch
WARM = 20  # steps before the clock runs: compiling takes some of them


class Clock:
    """The time between two steps, when the device has done all it was asked."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.taken = first, last, 0.0

    def __call__(self, step: int) -> None:
        if step not in (self.first, self.last):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.taken = time.perf_counter() - self.taken


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    weights = pretrained(stuff)
    kinds = [kind for kind in KINDS if kind in stuff.given or not {*KINDS} & {*stuff.given}]
    return [row for kind in kinds for row in _rows(stuff, weights, kind)]


def _rows(stuff: Material, weights: Weights, kind: str) -> list[tuple[str, str, str, str, str]]:
    name, length, batch = KINDS[kind]
    batch, steps = stuff.number("batch", batch), stuff.number("steps", 24)
    examples = labelled(stuff, kind)
    ours, tokens = _ours(stuff, weights.ours, examples, length, batch, steps)
    theirs = [_theirs(stuff, weights.theirs, examples, length, batch, steps, dropout) for dropout in (0.0, None)]
    speeds = [[side() for side in (ours, *theirs)] for _ in range(stuff.number("rounds", 3))]
    mine, peers, as_it_comes = (statistics.median(side) for side in zip(*speeds, strict=True))
    where = f"{_device(stuff)}, {stuff.given.get('precision', 'fp32')}"
    what = f"fine-tune on {name} ({tokens:.0f} tokens in the mean, {batch} a batch, {where})"
    said, peer_said = f"{mine:,.1f} examples/s", "transformers' Trainer {:,.1f} examples/s".format
    return [
        (what, said, peer_said(peers), f"{mine / peers:.2f}x", "2x"),
        (
            "the same, transformers with its own dropout on attention",
            said,
            peer_said(as_it_comes),
            f"{mine / as_it_comes:.2f}x",
            "",
        ),
    ]


def _ours(
    stuff: Material, folder: Path, examples: Sequence[Text], length: int, batch: int, steps: int
) -> tuple[Callable[[], float], float]:
    """A round, giving examples a second; and the tokens of an example."""
    base, tokenizer, _ = checkpoint.load(folder)
    task = Classify().fitted(examples)
    encoded, objective = task.encode(examples, tokenizer, length), Supervised(task)
    reading = Reading(task, encoded, budget(task, encoded, batch), 0)
    config = ModelConfig(base.config.encoder, base.config.vocabulary, objective.heads())
    recipe = Train(steps=WARM + steps, batch_tokens=reading.tokens, rate=5e-5, warmup=0, decay=0, optimizer=Adamw(eps=1e-8),
                   device=_device(stuff), precision=stuff.given.get("precision", "fp32"),  # type: ignore[arg-type]
                   compile=stuff.given.get("compile") == "true")  # fmt: skip

    def once() -> float:
        model, clock, out = built(config, 0), Clock(WARM, WARM + steps), stuff.folder / "ours"
        model.encoder.load_state_dict(base.encoder.state_dict())
        timed = lambda step, report: clock(step)
        Trainer(model, objective, recipe, out, seed=0, quiet=True, on_step=timed).fit(reading)
        shutil.rmtree(out)
        return sum(reading(k).counts["task"] for k in range(WARM, WARM + steps)) / clock.taken

    return once, sum(len(ids) for ids in encoded.ids) / len(encoded.ids)


def _theirs(
    stuff: Material, folder: Path, examples: Sequence[Text], length: int, batch: int, steps: int, dropout: float | None
) -> Callable[[], float]:
    from transformers import TrainerCallback

    class Timed(TrainerCallback):
        def __init__(self, clock: Clock) -> None:
            self.clock = clock

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.clock(state.global_step)

    tokenizer = peer.tokenizer(folder)
    labels = sorted({str(one.label) for one in examples})
    features = peer.texts(tokenizer, examples, length, labels)
    how = {"precision": stuff.given.get("precision", "fp32"), "device": _device(stuff)}

    def once() -> float:
        clock, out = Clock(WARM, WARM + steps), stuff.folder / "theirs"
        model = peer.model("classify", folder, len(labels), dropout)
        peer.trainer(model, tokenizer, features, out, callbacks=[Timed(clock)], max_steps=WARM + steps,
                     per_device_train_batch_size=batch, learning_rate=5e-5, **how).train()  # fmt: skip
        return batch * steps / clock.taken

    return once


def _device(stuff: Material) -> str:
    return stuff.given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
