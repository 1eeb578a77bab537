"""The training loop; it depends only on the `Objective` interface, not on models, tasks or text."""

from .config import TrainConfig
from .loss import BatchLike, Loss, Objective
from .trainer import Trainer

__all__ = ["BatchLike", "Loss", "Objective", "TrainConfig", "Trainer"]
