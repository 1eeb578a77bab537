"""What a model may be asked to do with text. To add a task: write its file, then name it in two lines here."""

from .base import Task
from .choose import Choose
from .classify import Classify
from .regress import Regress
from .similar import Similar

TaskConfig = Classify | Regress | Choose | Similar

__all__ = ["Choose", "Classify", "Regress", "Similar", "Task", "TaskConfig"]
