"""The objective of a task, by the outputs of its model: supervised for a head, contrastive for embeddings, seq2seq for text."""

from collections.abc import Callable
from typing import Any

from ..model.heads.features import FeaturesConfig
from ..tasks import Task
from .contrastive import Contrastive
from .seq2seq import Seq2SeqObjective
from .supervised import Supervised

TaskObjective = Supervised | Contrastive | Seq2SeqObjective


def build_task_objective(task: Task, features: FeaturesConfig | None = None) -> TaskObjective:
    """The objective that fine-tunes a model for `task`; only a head reads `features`."""
    objectives: dict[str, Callable[[Any], TaskObjective]] = {"embedding": Contrastive, "lm": Seq2SeqObjective}
    return objectives[task.head_type](task) if task.head_type in objectives else Supervised(task, features)
