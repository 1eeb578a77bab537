"""Downstream tasks a model can be fine-tuned on: reading examples, encoding, decoding and metrics.

To add a task, write its module, then import it and add it to `TaskConfig` here.
"""

from .base import Task
from .classification import TextClassification
from .multiple_choice import MultipleChoice
from .question_answering import QuestionAnswering
from .regression import TextRegression
from .seq2seq import Seq2Seq
from .similarity import TextSimilarity
from .token_classification import TokenClassification

TaskConfig = (
    TextClassification | TextRegression | TokenClassification | QuestionAnswering | MultipleChoice | TextSimilarity | Seq2Seq
)

__all__ = [
    "MultipleChoice",
    "QuestionAnswering",
    "Seq2Seq",
    "Task",
    "TaskConfig",
    "TextClassification",
    "TextRegression",
    "TextSimilarity",
    "TokenClassification",
]
