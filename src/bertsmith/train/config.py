"""Recipe keys `train.*`: duration, batch size, learning rate schedule, optimizer, precision, checkpoints."""

import math
from typing import Annotated, Literal

import msgspec

from ..config import Config, Fraction, NonNegFloat, NonNegInt, PosFloat, PosInt
from ..errors import UserError
from .optim import Adamw, OptimizerConfig
from .schedule import SchedulerType, resolve_warmup


class TrainConfig(Config, frozen=True):
    """Training options. Exactly one of `steps`, `epochs` and `minutes` sets the duration."""

    steps: Annotated[PosInt | None, "updates to make (or epochs, or minutes)"] = None
    epochs: Annotated[PosFloat | None, "passes over the data (or steps, or minutes)"] = None
    minutes: Annotated[PosFloat | None, "time to train for, sittings added up (or steps, or epochs)"] = None
    batch_tokens: Annotated[PosInt, "tokens of one micro-batch"] = 8192
    gradient_accumulation_steps: Annotated[PosInt, "micro-batches of one update"] = 1
    learning_rate: Annotated[PosFloat, "peak learning rate"] = 1e-4
    warmup_steps: Annotated[NonNegFloat, "rise of the rate: below 1 a share of the run, from 1 up steps"] = 0.01
    lr_scheduler_type: Annotated[SchedulerType, "course of the rate after the warm-up"] = "linear"
    decay_fraction: Annotated[Fraction, "share of the run over which a trapezoid falls to 0"] = 0.3
    weight_decay: Annotated[NonNegFloat, "weight decay of matrices; biases and norms have none"] = 0.01
    max_grad_norm: Annotated[NonNegFloat, "longest gradient; 0 for no limit"] = 1.0
    optimizer: Annotated[OptimizerConfig, "how gradients move the weights"] = Adamw()
    precision: Annotated[Literal["fp32", "bf16", "fp16"], "numbers of the forward and backward pass"] = "fp32"
    compile: Annotated[bool, "compile the model: a slower start, faster steps"] = False
    gradient_checkpointing: Annotated[bool, "compute activations twice rather than keep them: slower, far less memory"] = False
    full_determinism: Annotated[
        bool, "the same bits each time on a GPU too, for somewhat slower steps; a CPU always gives them"
    ] = False
    workers: Annotated[NonNegInt, "processes that make batches ahead of time; 0 for none"] = 0
    save_every: Annotated[PosInt, "steps from one checkpoint to the next"] = 1000
    save_total_limit: Annotated[PosInt, "checkpoints kept, the newest"] = 2
    average_checkpoints: Annotated[
        NonNegInt, "the mean of so many checkpoints, the last ones, is the result; 0: the last weights"
    ] = 0
    eval_every: Annotated[NonNegInt, "steps from one evaluation to the next; 0 for one at the end"] = 0
    early_stopping_patience: Annotated[
        NonNegInt, "evaluations in a row without a better score that end the run; the best weights stay; 0: no end"
    ] = 0
    log_every: Annotated[PosInt, "steps that one row of metrics.jsonl sums up"] = 10
    device: Annotated[str, "auto, cpu, cuda or cuda:N"] = "auto"
    tensorboard: Annotated[bool, "also write the metrics for TensorBoard"] = False
    grad_spike_factor: Annotated[NonNegFloat, "skip an update whose gradient is this many times the usual; 0 for never"] = 30.0
    max_bad_steps: Annotated[PosInt, "bad updates in a row before going back to the last checkpoint"] = 5

    def resolve_epochs(self, batches_per_epoch: int) -> "TrainConfig":
        """The same config with `epochs` converted to `steps`; with early stopping, `eval_every` defaults to one epoch."""
        self.check()
        train, steps_per_epoch = self, batches_per_epoch / self.gradient_accumulation_steps
        if train.epochs is not None:
            train = msgspec.structs.replace(train, steps=max(1, math.ceil(train.epochs * steps_per_epoch - 1e-9)), epochs=None)
        if train.early_stopping_patience and not train.eval_every:
            train = msgspec.structs.replace(train, eval_every=max(1, math.ceil(steps_per_epoch)))
        return train

    def check(self) -> None:
        """Raises a UserError for invalid values and combinations."""
        durations = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(durations) != 1:
            problem = "train has none of steps, epochs and minutes" if not durations else f"train has {' and '.join(durations)}"
            raise UserError(f"{problem}; give exactly one of the three, such as train.steps=1000")
        for name in (
            durations[0],
            "batch_tokens",
            "gradient_accumulation_steps",
            "learning_rate",
            "save_every",
            "save_total_limit",
            "log_every",
            "max_bad_steps",
        ):
            if getattr(self, name) <= 0:
                raise UserError(f"train.{name} = {getattr(self, name):g} must be above 0")
        for name in ("weight_decay", "max_grad_norm", "workers", "eval_every", "grad_spike_factor", "decay_fraction"):
            if getattr(self, name) < 0:
                raise UserError(f"train.{name} = {getattr(self, name):g} must not be negative")
        if self.lr_scheduler_type == "inverse_sqrt" and not self.warmup_steps:
            raise UserError(
                "train.lr_scheduler_type=inverse-sqrt falls from the end of its warm-up; give train.warmup, such as 4000"
            )
        if self.average_checkpoints and self.early_stopping_patience:
            raise UserError(
                "train.stop keeps the best weights and train.average_checkpoints the mean of the last; leave one of them out"
            )
        if self.epochs is None or self.warmup_steps < 1:
            resolve_warmup(self.warmup_steps, self.steps)
