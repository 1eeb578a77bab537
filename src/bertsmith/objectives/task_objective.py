"""The objective of a task: contrastive for TextSimilarity, seq2seq for Seq2Seq, supervised (with a task head) for the
others."""

from ..errors import UserError
from ..model.heads.features import FeaturesConfig
from ..tasks import Seq2Seq, TaskConfig, TextSimilarity
from .contrastive import Contrastive
from .seq2seq import Seq2SeqObjective
from .supervised import Supervised

TaskObjective = Supervised | Contrastive | Seq2SeqObjective


def build_task_objective(task: TaskConfig, features: FeaturesConfig | None = None) -> TaskObjective:
    """The objective that fine-tunes a model for `task`."""
    if not isinstance(task, TextSimilarity | Seq2Seq):
        return Supervised(task, features)
    if features is not None:
        hint = " and set task.pooling instead" if isinstance(task, TextSimilarity) else ""
        kind = task.__struct_config__.tag
        raise UserError(f"features select the layers that a task head reads, and task={kind} has no head; leave it out{hint}")
    return Contrastive(task) if isinstance(task, TextSimilarity) else Seq2SeqObjective(task)
