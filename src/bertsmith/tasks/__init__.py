"""What a model may be asked to do with text. To add a task: write its file, then name it in two lines here."""

from .base import Task
from .classification import Classify
from .multiple_choice import Choose
from .question_answering import Answering
from .regression import Regress
from .seq2seq import Generate
from .similarity import Similar
from .token_classification import Tag

TaskConfig = Classify | Regress | Tag | Answering | Choose | Similar | Generate

__all__ = ["Answering", "Choose", "Classify", "Generate", "Regress", "Similar", "Tag", "Task", "TaskConfig"]
