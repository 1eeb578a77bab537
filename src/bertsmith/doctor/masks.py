"""Masks that are missing: nothing is asked for, or what is asked for stands in plain sight."""

from collections.abc import Iterator

from .course import Course
from .finding import Finding
from .probe import Probe
from .run import Run

NAME = "masks missing"
FEW, LITTLE = 0.01, 0.05  # of the tokens asked for
COPIED = 0.4  # of what hidden words cost: a loss that low was not made on hidden words, of which there are eight in ten


def masks(course: Course | None, run: Run, probe: Probe | None) -> Iterator[Finding]:
    asked = (run.recipe or {}).get("objective", {}).get("rate", 0.15)
    if run.words and (seen := _nothing(course, probe)):
        yield Finding(
            NAME, "problem", f"{seen}, with objective.rate={asked:g}",
            "hardly a word is hidden, so there is hardly anything to learn from",
            "ask for 15 to 40 % of the tokens; text that is all unknown words or specials has nothing to hide",
            "objective.rate=0.15",
        )  # fmt: skip
    elif run.words and asked < LITTLE:
        yield Finding(
            "few masks", "note", f"objective.rate={asked:g}", "each step teaches little: BERT asks for 15 % of the tokens",
            "hide more", "objective.rate=0.15",
        )  # fmt: skip
    if found := _copied(course, probe):
        shown, hidden, where = found
        yield Finding(
            NAME, "problem", f"{where} is {shown:.3f}, but words that are truly hidden cost {hidden:.3f} nats",
            "in training the words stood in plain sight: it learnt to copy them, and never met a [MASK]",
            "see that the objective hides words (`bertsmith show masks` draws what the model is shown), then train again",
            "objective.masks=pieces",
        )  # fmt: skip


def _nothing(course: Course | None, probe: Probe | None) -> str | None:
    if probe is not None and (share := len(probe.arrays.where) / len(probe.arrays.tokens)) < FEW:
        return f"{len(probe.arrays.where)} of {len(probe.arrays.tokens):,} tokens are asked for ({share:.2%})"
    if course is not None and course.train and not len(course.losses):
        return f"no row of the log has a loss on words, over {course.steps:,} steps"
    return None


def _copied(course: Course | None, probe: Probe | None) -> tuple[float, float, str] | None:
    """A loss in the log that is far below that of hidden words, and what both are; held-out with held-out, if not probed."""
    if course is None or not len(course.losses):
        return None
    if probe is not None and probe.asked:
        found = course.end, probe.cost(probe.read[0]), "the loss in training"
    else:
        _, held, _ = course.judged()
        if (alone := course.alone()) is None or not len(held):
            return None
        found = float(held[-1]), alone, "the loss on held-out text"
    return found if found[0] < COPIED * found[1] and found[1] > 0.1 else None
