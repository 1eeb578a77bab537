"""HTML sections about a fine-tuned model: fill-mask predictions, and a comparison with a model trained from scratch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .charts import compute_axis_range, whisker
from .corpus import fraction_bar
from .html import Html, element, note, section, table


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
    """Accuracies of fine-tuned models on one test set; `above` is the difference of the first and the second."""

    scores: list[ScoreInterval]
    difference: ScoreInterval
    chance_accuracy: float  # accuracy of random guessing
    num_train: int  # training texts
    num_test: int  # test texts
    answers: list[ExampleAnswer]


def render_filled_masks(
    fill_results: Iterable[tuple[str, Sequence[Sequence[Mapping[str, Any]]]]], title: str = "Filled masks"
) -> Html:
    """A table of predictions per mask; takes (text, result of `Predictor.fill`) pairs."""
    blocks = [_render_fill(text, predictions) for text, predictions in fill_results]
    return section(title, note("The model's likeliest words for each [MASK]."), element("div", *blocks, class_="pair"))


def render_comparison(title: str, comparison: FinetuningComparison) -> Html:
    """Accuracies with intervals, the difference, and some example predictions."""
    above, guess = comparison.difference, comparison.chance_accuracy
    limits = compute_axis_range(
        [guess, *(bound for score in comparison.scores for bound in (score.low, score.high))], (0.0, 1.0)
    )
    caption = (
        f"{comparison.num_train:,} texts to learn from, {comparison.num_test:,} of other files to be judged on. "
        f"Lines are 95% intervals; the dashed one is a guess, {guess:.1%}."
    )
    difference = (
        f"{100 * above.value:+.1f} points on the same texts, with 95% confidence from {100 * above.low:+.1f} to "
        f"{100 * above.high:+.1f}: what pre-training is worth here."
    )
    scores = [
        (score.name, whisker(score.low, score.value, score.high, limits, guess), score.percent, score.interval)
        for score in comparison.scores
    ]
    answers = []
    for answer in comparison.answers:
        prediction = _render_label(answer.prediction, answer.prediction == answer.label)
        answers.append((prediction, f"{answer.confidence:.0%}", element("mark", answer.label), answer.text))
    parts = [note(caption), table(scores, ("", "", "right", "95% interval")), note(difference)]
    return section(title, *parts, element("h3", "Some of its answers"), table(answers, ("it says", "sure", "truly", "text")))


def _render_fill(text: str, predictions: Sequence[Sequence[Mapping[str, Any]]]) -> Html:
    tables = [table([(row["word"], f"{row['score']:.1%}", fraction_bar(row["score"])) for row in rows]) for rows in predictions]
    return element("div", element("p", text, class_="question"), *tables, class_="answers")


def _render_label(label: str, is_correct: bool) -> Html:
    return element("mark", label, class_="kept" if is_correct else "swapped")  # green or orange
