"""Filled masks: each text with the words a model would put in, and how sure it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .charts import compute_axis_range, whisker
from .corpus import fraction_bar
from .html import Html, element, note, section, table


def render_filled_masks(
    fill_results: Iterable[tuple[str, Sequence[Sequence[Mapping[str, Any]]]]], title: str = "Filled masks"
) -> Html:
    """Takes texts with what `Predictor.fill` gave for them."""
    blocks = [_render_fill(text, guesses) for text, guesses in fill_results]
    return section(title, note("The model's likeliest words for each [MASK]."), element("div", *blocks, class_="pair"))


def _render_fill(text: str, predictions: Sequence[Sequence[Mapping[str, Any]]]) -> Html:
    tables = [table([(g["word"], f"{g['score']:.1%}", fraction_bar(g["score"])) for g in mask]) for mask in predictions]
    return element("div", element("p", text, class_="question"), *tables, class_="answers")


class ScoreInterval(NamedTuple):
    """A share of right answers, and the interval it is in 95 times of 100."""

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
    """What the model says of a text, how sure it is, and what is true."""

    prediction: str
    confidence: float
    label: str
    text: str


class FinetuningComparison(NamedTuple):
    """The models that were taught, the first the one of interest, and how far it is above the second on the same texts."""

    scores: list[ScoreInterval]
    above: ScoreInterval
    guess: float
    learnt: int  # texts
    judged: int
    answers: list[ExampleAnswer]


def render_comparison(title: str, comparison: FinetuningComparison) -> Html:
    above, limits = (
        comparison.above,
        compute_axis_range(
            [comparison.guess, *(bound for one in comparison.scores for bound in (one.low, one.high))], (0.0, 1.0)
        ),
    )
    told = (
        f"{comparison.learnt:,} texts to learn from, {comparison.judged:,} of other files to be judged on. Lines are 95% intervals; the "
        f"dashed one is a guess, {comparison.guess:.1%}."
    )
    difference = (
        f"{100 * above.value:+.1f} points on the same texts, with 95% confidence from {100 * above.low:+.1f} to "
        f"{100 * above.high:+.1f}: what pre-training is worth here."
    )
    judged = [
        (one.name, whisker(one.low, one.value, one.high, limits, comparison.guess), one.percent, one.interval)
        for one in comparison.scores
    ]
    said = [(_render_label(one.prediction, one.prediction == one.label), f"{one.confidence:.0%}", element("mark", one.label), one.text)
            for one in comparison.answers]  # fmt: skip
    parts = [note(told), table(judged, ("", "", "right", "95% interval")), note(difference)]
    return section(title, *parts, element("h3", "Some of its answers"), table(said, ("it says", "sure", "truly", "text")))


def _render_label(label: str, is_correct: bool) -> Html:
    return element("mark", label, class_="kept" if is_correct else "swapped")  # green or orange
