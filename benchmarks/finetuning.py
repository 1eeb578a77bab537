"""Text classification, training examples per second: our trainer against transformers', the same weights, texts and batch.

Both are timed between two steps, without reading, saving and evaluation. Batches have as many examples on average; ours are
filled by tokens without padding, theirs are padded to their longest sequence, as is their default. Ours have no attention
dropout, which is our default; theirs are measured without it, and with that of the model's config.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bertsmith.console import Console
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives.supervised import ExampleBatches, Supervised
from bertsmith.runs import Run
from bertsmith.tasks import TextClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.train.config import TrainConfig
from bertsmith.train.optim import Adamw
from bertsmith.train.setup import prepare
from bertsmith.train.trainer import Trainer

from . import peer
from .batches import find_batch_tokens
from .inputs import BenchmarkInputs
from .labelled import load_labelled_texts
from .weights import WeightFolders, import_pretrained

WORKLOADS = {"short": ("sentences", 128, 32), "long": ("documents", 512, 8)}  # label, max_length, batch size
WARMUP_STEPS = 20  # not timed; compiling takes some of them


class StepTimer:
    """Seconds between the ends of two steps, with the device synchronized."""

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
    name, length, batch_size = WORKLOADS[kind]
    batch_size, steps = bench.int_option("batch_size", batch_size), bench.int_option("steps", 24)
    examples = load_labelled_texts(bench, kind)
    ours, tokens = _build_ours(bench, weights.ours, examples, length, batch_size, steps)
    theirs = [_build_theirs(bench, weights.theirs, examples, length, batch_size, steps, dropout) for dropout in (0.0, None)]
    speeds = [[side() for side in (ours, *theirs)] for _ in range(bench.int_option("rounds", 3))]
    mine, theirs_without_dropout, theirs_default = (statistics.median(side) for side in zip(*speeds, strict=True))
    setup = f"{_device_name(bench)}, {bench.options.get('precision', 'fp32')}"
    label = f"fine-tune on {name} ({tokens:.0f} tokens on average, batch size {batch_size}, {setup})"
    our_text, format_theirs = f"{mine:,.1f} examples/s", "transformers' Trainer {:,.1f} examples/s".format
    return [
        (label, our_text, format_theirs(theirs_without_dropout), f"{mine / theirs_without_dropout:.2f}x", "2x"),
        (
            "the same, transformers with its default attention dropout",
            our_text,
            format_theirs(theirs_default),
            f"{mine / theirs_default:.2f}x",
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
    """A function that trains one round and returns examples per second, and the mean tokens of an example."""
    base, tokenizer, _ = checkpoint.load(folder)
    task = TextClassification().fit(examples)
    encoded, objective = task.encode(examples, tokenizer, max_length), Supervised(task)
    batches = ExampleBatches(task, encoded, find_batch_tokens(task, encoded, batch_size), 0)
    config = ModelConfig(base.config.encoder, base.config.vocab_size, objective.heads())
    train = TrainConfig(steps=WARMUP_STEPS + steps, batch_tokens=batches.batch_tokens, learning_rate=5e-5,
                   warmup_steps=0, weight_decay=0, optimizer=Adamw(eps=1e-8), device=_device_name(bench),
                   precision=bench.options.get("precision", "fp32"),  # type: ignore[arg-type]
                   compile=bench.options.get("compile") == "true")  # fmt: skip

    def run_round() -> float:
        model, timer, out = build_model(config, 0), StepTimer(WARMUP_STEPS, WARMUP_STEPS + steps), bench.folder / "ours"
        model.encoder.load_state_dict(base.encoder.state_dict())
        on_step = lambda step, report: timer(step)
        run = Run(out, console=Console(quiet=True))
        Trainer(prepare(model, train), objective, run, 0, on_step=on_step).fit(batches)
        shutil.rmtree(out)
        return sum(batches(k).target_counts["task"] for k in range(WARMUP_STEPS, WARMUP_STEPS + steps)) / timer.elapsed

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
    labels = sorted({str(example.label) for example in examples})
    features = peer.encode_texts(tokenizer, examples, max_length, labels)
    device_settings = {"precision": bench.options.get("precision", "fp32"), "device": _device_name(bench)}

    def run_round() -> float:
        timer, out = StepTimer(WARMUP_STEPS, WARMUP_STEPS + steps), bench.folder / "theirs"
        model = peer.load_model("classify", folder, len(labels), attention_dropout)
        peer.build_trainer(model, tokenizer, features, out, callbacks=[TimerCallback(timer)], max_steps=WARMUP_STEPS + steps,
                     per_device_train_batch_size=batch_size, learning_rate=5e-5, **device_settings).train()  # fmt: skip
        return batch_size * steps / timer.elapsed

    return run_round


def _device_name(bench: BenchmarkInputs) -> str:
    return bench.options.get("device", "cuda" if torch.cuda.is_available() else "cpu")
