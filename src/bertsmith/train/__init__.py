"""The training engine: it knows objectives, and nothing of models, tasks or text."""

from .config import Train
from .loss import Batch, Loss, Objective
from .trainer import Trainer

__all__ = ["Batch", "Loss", "Objective", "Train", "Trainer"]
