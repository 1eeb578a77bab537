"""A learning rate too high (bad updates, a loss that rises, gradients that grow) or too low (weights that hardly move)."""

from collections.abc import Iterator

import numpy as np

from .course import Course, window
from .finding import Finding, number
from .run import ADAMS, DEVIATION, Run

HIGH, LOW = "learning rate too high", "learning rate too low"
BOLD = 0.3  # of a weight's first size, moved by a single step of Adam: what was learnt is thrown away as fast
BRISK = 0.01  # of it: a step that is large enough, so that a short way means few steps
ADAPTED = 0.05  # of it, moved over a whole run that began with trained weights: they are still what they were
GENTLE = 0.05  # of it, in a step: what is safe to try
LEARNT = 0.6  # of the first loss: knowing only frequencies leaves about 0.65 of it
FEW, GROWTH = 3, 5.0


def too_high(course: Course, run: Run) -> Iterator[Finding]:
    signs = [sign for sign in (_bad(course), _risen(course), _grown(course), _bold(course, run)) if sign]
    if not signs:
        return
    peak, gentle = run.train("rate") or course.rate, GENTLE * max(run.deviation, DEVIATION)
    few = signs == [_bad(course)] and 0 < len(course.faults) < FEW and not course.rollbacks and not _nan(course)
    yield Finding(
        HIGH, "note" if few else "problem", f"at a peak rate of {peak:.3g}, {'; '.join(signs)}",
        "a few updates were thrown away, which costs little" if few else
        "steps are longer than the valley is wide: weights jump about, and at worst become NaN or forget all they knew",
        "keep an eye on it; if it comes again, lower the rate" if few else
        "lower the rate, lengthen the warm-up (train.warmup=0.1), keep train.clip=1; if one batch does it, look at its text",
        f"train.rate={number(peak / 3 if few else min(peak / 10, gentle) if run.optimizer in ADAMS else peak / 10)}",
    )  # fmt: skip


def too_low(course: Course, run: Run) -> Iterator[Finding]:
    """By the sum of the rates, which no weight can be moved much further than, whatever its gradient."""
    if run.optimizer not in ADAMS or len(course.losses) < FEW or list(too_high(course, run)):
        return
    reach = run.deviation * (1 if run.fresh else ADAPTED)
    share = (course.losses[0] - course.end) / max(abs(course.losses[0]), 1e-9)
    if course.path >= reach or (not run.fresh and share >= ADAPTED):
        return
    brisk = course.rate >= BRISK * run.deviation and run.fresh
    wanted = min(10 * reach / max(course.path, 1e-12), 1e4)
    yield Finding(
        "run too short" if brisk else LOW, "problem",
        f"the loss went from {course.losses[0]:.3f} to {course.end:.3f} in {course.steps:,} steps at rates up to "
        f"{course.rate:.2g}; these add up to {course.path:.2g}, and weights begin at about {run.deviation:.2g}",
        "Adam moves a weight by about the rate at each step: in this run hardly any weight can have moved by its own size"
        if run.fresh else "Adam moves a weight by about the rate at each step: the model is still what it was before this run",
        "train longer" if brisk else "raise the rate, or train longer",
        f"train.steps={_round(course.steps * wanted)}" if brisk else f"train.rate={number(course.rate * wanted)}",
    )  # fmt: skip


def still_falling(course: Course) -> bool:
    """The last quarter is clearly below the one before it."""
    some = course.losses
    if len(some) < 8:
        return True
    third, last = some[-len(some) // 2 : -len(some) // 4], some[-len(some) // 4 :]
    return float(third.mean() - last.mean()) > 2 * _noise(some) / np.sqrt(len(last)) + 0.002 * abs(float(last.mean()))


def _bad(course: Course) -> str | None:
    if not course.faults and not course.rollbacks:
        return None
    back = f", and the run went back to a checkpoint {course.rollbacks} times" if course.rollbacks else ""
    first = f", the first since {course.faults[0]}" if course.faults else ""
    return f"{len(course.faults):,} updates were skipped{first}{back}"


def _nan(course: Course) -> bool:
    return any("nan" in why or "inf" in why for why in course.faults)


def _risen(course: Course) -> str | None:
    some = course.losses
    if len(some) < 8:
        return None
    size = window(len(some))
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(some, size), axis=1)
    low = float(smooth.min())
    least = max(0.1, 0.1 * (some[0] - low), 3 * _noise(some))
    if course.end <= low + least:
        return None
    return f"the loss rose from {low:.3f} to {course.end:.3f}"


def _grown(course: Course) -> str | None:
    norms, losses = course.column("norm"), course.losses
    if len(norms) < 12 or len(losses) < 12:
        return None
    early, late = _quarters(norms)
    before, after = _quarters(losses)
    if late <= GROWTH * early or after < 0.98 * before:
        return None
    return f"gradients grew from {early:.3g} to {late:.3g} while the loss did not fall ({before:.3f} to {after:.3f})"


def _bold(course: Course, run: Run) -> str | None:
    """A sign only where little was learnt: it may go well all the same."""
    size, some = max(run.deviation, DEVIATION), course.losses
    if run.optimizer not in ADAMS or not run.fresh or course.rate <= BOLD * size or not len(some):
        return None
    if course.end < LEARNT * some[0]:
        return None
    return f"a step of Adam moves a weight by up to {course.rate / size:.1f} of the size that weights begin with ({size:.2g})"


def _quarters(some: np.ndarray) -> tuple[float, float]:
    """The medians of the second and of the last: the first is warm-up."""
    size = len(some) // 4
    return float(np.median(some[size : 2 * size])), float(np.median(some[-size:]))


def _noise(some: np.ndarray) -> float:
    """How far neighbours lie apart."""
    return float(np.median(np.abs(np.diff(some)))) if len(some) > 1 else 0.0


def _round(value: float) -> int:
    """To a number somebody would type."""
    size = 10 ** max(0, len(str(int(value))) - 2)
    return int(-(-value // size) * size)
