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
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives.supervised import ExampleBatches, Supervised
from bertsmith.tasks import TextClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.train.config import TrainConfig
from bertsmith.train.optim import Adamw
from bertsmith.train.trainer import Trainer

from . import peer
from .batches import find_batch_tokens
from .labelled import load_labelled_texts
from .material import BenchmarkInputs
from .weights import WeightFolders, import_pretrained

WORKLOADS = {"short": ("sentences", 128, 32), "long": ("documents", 512, 8)}  # length, examples of a batch
WARMUP_STEPS = 20  # steps before the clock runs: compiling takes some of them


class StepTimer:
    """The time between two steps, when the device has done all it was asked."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self.first_step, self.last_step, self.elapsed = first_step, last_step, 0.0

    def __call__(self, step: int) -> None:
        if step not in (self.first_step, self.last_step):
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.elapsed = time.perf_counter() - self.elapsed


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    weights = import_pretrained(bench)
    kinds = [kind for kind in WORKLOADS if kind in bench.options or not {*WORKLOADS} & {*bench.options}]
    return [row for kind in kinds for row in _compare(bench, weights, kind)]


def _compare(bench: BenchmarkInputs, weights: WeightFolders, kind: str) -> list[tuple[str, str, str, str, str]]:
    name, length, batch = WORKLOADS[kind]
    batch, steps = bench.int_option("batch", batch), bench.int_option("steps", 24)
    examples = load_labelled_texts(bench, kind)
    ours, tokens = _build_ours(bench, weights.ours, examples, length, batch, steps)
    theirs = [_build_theirs(bench, weights.theirs, examples, length, batch, steps, dropout) for dropout in (0.0, None)]
    speeds = [[side() for side in (ours, *theirs)] for _ in range(bench.int_option("rounds", 3))]
    mine, peers, as_it_comes = (statistics.median(side) for side in zip(*speeds, strict=True))
    where = f"{_device_name(bench)}, {bench.options.get('precision', 'fp32')}"
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


def _build_ours(
    bench: BenchmarkInputs,
    folder: Path,
    examples: Sequence[ClassificationExample],
    max_length: int,
    batch_size: int,
    steps: int,
) -> tuple[Callable[[], float], float]:
    """A round, giving examples a second; and the tokens of an example."""
    base, tokenizer, _ = checkpoint.load(folder)
    task = TextClassification().fit(examples)
    encoded, objective = task.encode(examples, tokenizer, max_length), Supervised(task)
    reading = ExampleBatches(task, encoded, find_batch_tokens(task, encoded, batch_size), 0)
    config = ModelConfig(base.config.encoder, base.config.vocabulary, objective.heads())
    recipe = TrainConfig(steps=WARMUP_STEPS + steps, batch_tokens=reading.batch_tokens, rate=5e-5, warmup=0, decay=0, optimizer=Adamw(eps=1e-8),
                   device=_device_name(bench), precision=bench.options.get("precision", "fp32"),  # type: ignore[arg-type]
                   compile=bench.options.get("compile") == "true")  # fmt: skip

    def run_round() -> float:
        model, clock, out = build_model(config, 0), StepTimer(WARMUP_STEPS, WARMUP_STEPS + steps), bench.folder / "ours"
        model.encoder.load_state_dict(base.encoder.state_dict())
        timed = lambda step, report: clock(step)
        Trainer(model, objective, recipe, out, seed=0, quiet=True, on_step=timed).fit(reading)
        shutil.rmtree(out)
        return sum(reading(k).target_counts["task"] for k in range(WARMUP_STEPS, WARMUP_STEPS + steps)) / clock.elapsed

    return run_round, sum(len(ids) for ids in encoded.input_ids) / len(encoded.input_ids)


def _build_theirs(
    bench: BenchmarkInputs,
    folder: Path,
    examples: Sequence[ClassificationExample],
    max_length: int,
    batch_size: int,
    steps: int,
    attention_dropout: float | None,
) -> Callable[[], float]:
    from transformers import TrainerCallback

    class TimerCallback(TrainerCallback):
        def __init__(self, timer: StepTimer) -> None:
            self.timer = timer

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.timer(state.global_step)

    tokenizer = peer.load_tokenizer(folder)
    labels = sorted({str(one.label) for one in examples})
    features = peer.encode_texts(tokenizer, examples, max_length, labels)
    how = {"precision": bench.options.get("precision", "fp32"), "device": _device_name(bench)}

    def run_round() -> float:
        clock, out = StepTimer(WARMUP_STEPS, WARMUP_STEPS + steps), bench.folder / "theirs"
        model = peer.load_model("classify", folder, len(labels), attention_dropout)
        peer.build_trainer(model, tokenizer, features, out, callbacks=[TimerCallback(clock)], max_steps=WARMUP_STEPS + steps,
                     per_device_train_batch_size=batch_size, learning_rate=5e-5, **how).train()  # fmt: skip
        return batch_size * steps / clock.elapsed

    return run_round


def _device_name(bench: BenchmarkInputs) -> str:
    return bench.options.get("device", "cuda" if torch.cuda.is_available() else "cpu")
