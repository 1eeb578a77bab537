"""The training loop; it depends only on the `Objective` interface, not on models, tasks or text."""

from .config import TrainConfig
from .objective import Batch, Loss, Objective
from .setup import prepare
from .trainer import Trainer, Validation

__all__ = ["Batch", "Loss", "Objective", "TrainConfig", "Trainer", "Validation", "prepare"]
