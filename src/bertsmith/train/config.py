"""Recipe keys `train.*`: duration, batch size, learning rate schedule, optimizer, precision, checkpoints."""

import math
from typing import Annotated, Literal

import msgspec

from ..config import Config, Fraction, NonNegFloat, NonNegInt, NumMicroBatches, NumWorkers, PosFloat, PosInt
from ..errors import UserError
from .optim import Adamw, OptimizerConfig
from .schedule import SchedulerType, resolve_warmup


class TrainConfig(Config, frozen=True):
    """Training options. Exactly one of `steps`, `epochs` and `minutes` sets the duration."""

    steps: Annotated[PosInt | None, "number of optimizer updates (or give epochs, or minutes)"] = None
    epochs: Annotated[PosFloat | None, "number of passes over the data (or give steps, or minutes)"] = None
    minutes: Annotated[PosFloat | None, "training time in minutes, resumed runs included (or give steps, or epochs)"] = None
    batch_tokens: Annotated[PosInt, "tokens per micro-batch (per forward and backward pass)"] = 8192
    gradient_accumulation_steps: Annotated[NumMicroBatches, "micro-batches per optimizer update"] = 1
    learning_rate: Annotated[PosFloat, "learning rate at the peak of the schedule"] = 1e-4
    warmup_steps: Annotated[NonNegFloat, "linear warmup of the learning rate: steps, or below 1 a fraction of the run"] = 0.01
    lr_scheduler_type: Annotated[SchedulerType, "learning rate schedule after the warmup"] = "linear"
    decay_fraction: Annotated[Fraction, "fraction of the run over which warmup_stable_decay decays to 0"] = 0.3
    weight_decay: Annotated[NonNegFloat, "weight decay (0.01 in BERT); not applied to biases and norm weights"] = 0.01
    max_grad_norm: Annotated[NonNegFloat, "gradient norm to clip to; 0 for no clipping"] = 1.0
    optimizer: Annotated[OptimizerConfig, "optimizer and its options"] = Adamw()
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"], "dtype of the forward and backward pass (bf16, fp16: mixed precision)"
    ] = "fp32"
    compile: Annotated[bool, "use torch.compile: slower start, faster steps"] = False
    gradient_checkpointing: Annotated[bool, "recompute activations in the backward pass: less memory, slower"] = False
    full_determinism: Annotated[bool, "bitwise reproducible results on GPU, somewhat slower (on CPU they always are)"] = False
    workers: Annotated[NumWorkers, "worker processes that prepare batches; 0: the main process does"] = 0
    save_every: Annotated[PosInt, "steps between checkpoints"] = 1000
    save_total_limit: Annotated[PosInt, "number of checkpoints to keep, the newest ones"] = 2
    average_checkpoints: Annotated[
        NonNegInt, "number of last checkpoints whose weights are averaged at the end; 0: no averaging"
    ] = 0
    eval_every: Annotated[NonNegInt, "steps between evaluations; 0: only at the end"] = 0
    early_stopping_patience: Annotated[
        NonNegInt, "stop after this many evaluations without improvement, keep the best weights; 0: never"
    ] = 0
    log_every: Annotated[PosInt, "steps between rows of metrics.jsonl"] = 10
    device: Annotated[str, "device: auto, cpu, cuda or cuda:N"] = "auto"
    tensorboard: Annotated[bool, "also log metrics to TensorBoard"] = False
    grad_spike_factor: Annotated[
        NonNegFloat, "skip updates whose gradient norm exceeds this multiple of the median; 0: never"
    ] = 30.0
    max_bad_steps: Annotated[PosInt, "skipped updates in a row before rolling back to the last checkpoint"] = 5

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
            problem = (
                "no duration is set" if not durations else " and ".join(f"train.{name}" for name in durations) + " are both set"
            )
            raise UserError(f"{problem}; give one of train.steps, train.epochs and train.minutes, such as train.steps=1000")
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
                raise UserError(f"train.{name} = {getattr(self, name):g} must be greater than 0")
        for name in ("weight_decay", "max_grad_norm", "workers", "eval_every", "grad_spike_factor", "decay_fraction"):
            if getattr(self, name) < 0:
                raise UserError(f"train.{name} = {getattr(self, name):g} must be at least 0")
        if self.lr_scheduler_type == "inverse_sqrt" and not self.warmup_steps:
            raise UserError(
                "train.lr_scheduler_type=inverse_sqrt decays from the end of the warmup; set train.warmup_steps, such as 4000"
            )
        if self.average_checkpoints and self.early_stopping_patience:
            raise UserError(
                "train.early_stopping_patience keeps the best weights, train.average_checkpoints the mean of the last ones; "
                "set only one of them"
            )
        if self.epochs is None or self.warmup_steps < 1:
            resolve_warmup(self.warmup_steps, self.steps)
