"""What a model may be asked to do with text. To add a task: write its file, then name it in two lines here."""

from .answer import Answering
from .base import Task
from .choose import Choose
from .classify import Classify
from .generate import Generate
from .regress import Regress
from .similar import Similar
from .tag import Tag

TaskConfig = Classify | Regress | Tag | Answering | Choose | Similar | Generate

__all__ = ["Answering", "Choose", "Classify", "Generate", "Regress", "Similar", "Tag", "Task", "TaskConfig"]
