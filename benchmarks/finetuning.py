"""Fine-tuning for a label, examples a second: our trainer against transformers', the same weights, texts and batch.

Both count from the end of one step to the end of another: reading, saving and evaluating are outside. Batches hold as many
examples in the mean; ours are filled by tokens and never padded, theirs are padded to their longest, as is their default.
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
from bertsmith.objectives.reading import Reading
from bertsmith.objectives.supervised import Supervised
from bertsmith.tasks import Classify
from bertsmith.tasks.classify import Text
from bertsmith.train.optimizer import Adamw
from bertsmith.train.recipe import Train
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
    return [_row(stuff, weights, kind) for kind in KINDS if kind in stuff.given or not {*KINDS} & {*stuff.given}]


def _row(stuff: Material, weights: Weights, kind: str) -> tuple[str, str, str, str, str]:
    name, length, batch = KINDS[kind]
    batch, steps = stuff.number("batch", batch), stuff.number("steps", 24)
    examples = labelled(stuff, kind)
    ours, tokens = _ours(stuff, weights.ours, examples, length, batch, steps)
    theirs = _theirs(stuff, weights.theirs, examples, length, batch, steps)
    speeds = [(ours(), theirs()) for _ in range(stuff.number("rounds", 3))]
    mine, peers = (statistics.median(side) for side in zip(*speeds, strict=True))
    compiled = ", ours compiled" if stuff.given.get("compile") == "true" else ""
    where = f"{_device(stuff)}, {stuff.given.get('precision', 'fp32')}{compiled}"
    what = f"fine-tune on {name} ({tokens:.0f} tokens in the mean, {batch} a batch, {where})"
    ratio = f"{mine / peers:.2f}x"
    return what, f"{mine:,.1f} examples/s", f"transformers' Trainer {peers:,.1f} examples/s", ratio, "2x"


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
    stuff: Material, folder: Path, examples: Sequence[Text], length: int, batch: int, steps: int
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
        model = peer.model("classify", folder, len(labels))
        peer.trainer(model, tokenizer, features, out, callbacks=[Timed(clock)], max_steps=WARM + steps,
                     per_device_train_batch_size=batch, learning_rate=5e-5, **how).train()  # fmt: skip
        return batch * steps / clock.taken

    return once


def _device(stuff: Material) -> str:
    return stuff.given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
