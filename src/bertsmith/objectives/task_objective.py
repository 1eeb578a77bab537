"""Which objective teaches a task: most have a head that is paid for its answers, `similar` and `generate` have none."""

from ..errors import BadInput
from ..model.heads.features import Features
from ..tasks import Generate, Similar, TaskConfig
from .contrastive import Contrastive
from .seq2seq import Translate
from .supervised import Supervised

Lesson = Supervised | Contrastive | Translate


def teaching(task: TaskConfig, features: Features | None = None) -> Lesson:
    if not isinstance(task, Similar | Generate):
        return Supervised(task, features)
    if features is not None:
        other = "and choose task.pool" if isinstance(task, Similar) else "for the last layer is read"
        kind = task.__struct_config__.tag
        raise BadInput(f"features are what a head reads, and task={kind} has none; leave them out, {other}")
    return Contrastive(task) if isinstance(task, Similar) else Translate(task)
