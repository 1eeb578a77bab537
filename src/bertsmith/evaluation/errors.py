"""Error analysis: the wrong predictions of an evaluation by decreasing loss."""

from ..tasks.mistakes import Mistake
from .evaluate import Evaluation


def find_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """All wrong predictions by decreasing loss; ties in the order of the examples."""
    mistakes = evaluation.task.find_mistakes(evaluation.predictions, evaluation.examples)
    return sorted(mistakes, key=lambda mistake: -mistake.loss)
