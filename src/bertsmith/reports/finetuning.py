"""HTML sections about a fine-tuned model: fill-mask predictions, and a comparison with a model trained from scratch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .charts import compute_axis_range, whisker
from .html import Section, render


class ScoreInterval(NamedTuple):
    """An accuracy with its 95% confidence interval."""

    name: str
    low: float
    value: float
    high: float

    @property
    def percent(self) -> str:
        return f"{self.value:.1%}"

    @property
    def interval(self) -> str:
        return f"{self.low:.1%} to {self.high:.1%}"


class ExampleAnswer(NamedTuple):
    """The predicted label of a text with its confidence, and the gold label."""

    prediction: str
    confidence: float
    label: str
    text: str


class FinetuningComparison(NamedTuple):
    """Accuracies of two fine-tuned models on one test set, and the difference of the first and the second."""

    scores: list[ScoreInterval]
    difference: ScoreInterval
    chance_accuracy: float  # accuracy of random guessing
    num_train: int  # training texts
    num_test: int  # test texts
    answers: list[ExampleAnswer]


def render_filled_masks(fill_results: Iterable[tuple[str, Sequence[Any]]], title: str = "Filled masks") -> Section:
    """A table of predictions per mask; takes (text, result of `Predictor.fill`) pairs."""
    items = [(text, _mask_rows(filled)) for text, filled in fill_results]
    return Section(title, render("finetuning", "filled_masks", items=items))


def _mask_rows(filled: Sequence[Any]) -> list[list[tuple[str, str, float]]]:
    """(token, percentage, score) of each prediction, per mask; `filled` is a flat list if the text has one mask."""
    masks = [filled] if isinstance(filled[0], Mapping) else filled
    return [[(row["token_str"], f"{row['score']:.1%}", row["score"]) for row in rows] for rows in masks]


def render_comparison(title: str, comparison: FinetuningComparison) -> Section:
    """Accuracies with intervals, the difference, and some example predictions."""
    difference, chance = comparison.difference, comparison.chance_accuracy
    limits = compute_axis_range(
        [chance, *(bound for score in comparison.scores for bound in (score.low, score.high))], (0.0, 1.0)
    )
    caption = (
        f"Both models were fine-tuned on {comparison.num_train:,} texts and evaluated on {comparison.num_test:,} texts from "
        f"other files. Bars are 95% confidence intervals; the dashed line is random guessing, {chance:.1%}."
    )
    difference_text = (
        f"Difference in accuracy due to pre-training: {100 * difference.value:+.1f} points "
        f"(95% CI {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, paired bootstrap)."
    )
    scores = [
        (score.name, whisker(score.low, score.value, score.high, limits, chance), score.percent, score.interval)
        for score in comparison.scores
    ]
    answers = [
        (answer.prediction, f"{answer.confidence:.0%}", answer.label, answer.text, answer.prediction == answer.label)
        for answer in comparison.answers
    ]
    body = render("finetuning", "comparison", caption=caption, scores=scores, difference=difference_text, answers=answers)
    return Section(title, body)
