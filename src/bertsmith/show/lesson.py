"""A task that a model was taught: its score beside that of the same model without pre-training, and some of its answers."""

from typing import NamedTuple

from .page import Html, element, note, section, table
from .whisker import scale, whisker


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
