"""The training engine: it knows objectives, and nothing of models, tasks or text."""

from .config import TrainConfig
from .loss import BatchLike, Loss, Objective
from .trainer import Trainer

__all__ = ["BatchLike", "Loss", "Objective", "TrainConfig", "Trainer"]
