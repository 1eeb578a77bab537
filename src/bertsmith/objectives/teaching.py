"""Which objective teaches a task: most have a head that is paid for its answers, `similar` has none."""

from ..errors import BadInput
from ..model.features import Features
from ..tasks import Similar, TaskConfig
from .contrastive import Contrastive
from .supervised import Supervised

Lesson = Supervised | Contrastive


def teaching(task: TaskConfig, features: Features | None = None) -> Lesson:
    if not isinstance(task, Similar):
        return Supervised(task, features)
    if features is not None:
        raise BadInput("features are what a head reads, and task=similar has none; leave them out, and choose task.pool")
    return Contrastive(task)
