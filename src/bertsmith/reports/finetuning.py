"""Filled masks: each text with the words a model would put in, and how sure it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .charts import scale, whisker
from .corpus import share_bar
from .html import Html, element, note, section, table


def answers(filled: Iterable[tuple[str, Sequence[Sequence[Mapping[str, Any]]]]], title: str = "Filled masks") -> Html:
    """Takes texts with what `Predictor.fill` gave for them."""
    blocks = [_block(text, guesses) for text, guesses in filled]
    return section(title, note("The model's likeliest words for each [MASK]."), element("div", *blocks, class_="pair"))


def _block(text: str, guesses: Sequence[Sequence[Mapping[str, Any]]]) -> Html:
    tables = [table([(g["word"], f"{g['score']:.1%}", share_bar(g["score"])) for g in mask]) for mask in guesses]
    return element("div", element("p", text, class_="question"), *tables, class_="answers")


class Score(NamedTuple):
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


class Answer(NamedTuple):
    """What the model says of a text, how sure it is, and what is true."""

    says: str
    sure: float
    truly: str
    text: str


class Lesson(NamedTuple):
    """The models that were taught, the first the one of interest, and how far it is above the second on the same texts."""

    scores: list[Score]
    above: Score
    guess: float
    learnt: int  # texts
    judged: int
    answers: list[Answer]


def lesson(title: str, found: Lesson) -> Html:
    above, limits = (
        found.above,
        scale([found.guess, *(bound for one in found.scores for bound in (one.low, one.high))], (0.0, 1.0)),
    )
    told = (
        f"{found.learnt:,} texts to learn from, {found.judged:,} of other files to be judged on. Lines are 95% intervals; the "
        f"dashed one is a guess, {found.guess:.1%}."
    )
    difference = (
        f"{100 * above.value:+.1f} points on the same texts, with 95% confidence from {100 * above.low:+.1f} to "
        f"{100 * above.high:+.1f}: what pre-training is worth here."
    )
    judged = [
        (one.name, whisker(one.low, one.value, one.high, limits, found.guess), one.percent, one.interval)
        for one in found.scores
    ]
    said = [(_label(one.says, one.says == one.truly), f"{one.sure:.0%}", element("mark", one.truly), one.text)
            for one in found.answers]  # fmt: skip
    parts = [note(told), table(judged, ("", "", "right", "95% interval")), note(difference)]
    return section(title, *parts, element("h3", "Some of its answers"), table(said, ("it says", "sure", "truly", "text")))


def _label(says: str, right: bool) -> Html:
    return element("mark", says, class_="kept" if right else "swapped")  # green or orange
