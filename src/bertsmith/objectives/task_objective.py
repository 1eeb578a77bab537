"""Which objective teaches a task: most have a head that is paid for its answers, `similar` and `generate` have none."""

from ..errors import UserError
from ..model.heads.features import FeaturesConfig
from ..tasks import Seq2Seq, TaskConfig, TextSimilarity
from .contrastive import Contrastive
from .seq2seq import Seq2SeqObjective
from .supervised import Supervised

TaskObjective = Supervised | Contrastive | Seq2SeqObjective


def build_task_objective(task: TaskConfig, features: FeaturesConfig | None = None) -> TaskObjective:
    if not isinstance(task, TextSimilarity | Seq2Seq):
        return Supervised(task, features)
    if features is not None:
        other = "and choose task.pool" if isinstance(task, TextSimilarity) else "for the last layer is read"
        kind = task.__struct_config__.tag
        raise UserError(f"features are what a head reads, and task={kind} has none; leave them out, {other}")
    return Contrastive(task) if isinstance(task, TextSimilarity) else Seq2SeqObjective(task)
