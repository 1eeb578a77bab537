"""Text learnt by heart: held-out loss that rises or lies far above training's, and text read too often."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..corpus.card import unigrams
from .finding import Finding, number
from .probe import Probe
from .run_log import ADAMS, DEVIATION, Course, Run, window

RISE = 0.02  # of the lowest held-out loss
GAP, LEAST = 0.2, 0.2  # of the training loss, and in nats
EPOCHS = 100  # BERT read its text 40 times, with masks that came again


def overfit(course: Course, run: Run, card: dict[str, Any] | None) -> Iterator[Finding]:
    name, held, steps = course.judged()
    read = epochs(course, card)
    risen = len(held) > 1 and not run.train("stop") and held[-1] > (1 + RISE) * held.min() + 0.01
    apart = len(held) > 0 and name == "valid" and held[-1] - course.end > max(LEAST, GAP * course.end)
    often = f", the text read {number(read)} times" if read else ""
    if (risen or apart) and course.end <= held[-1]:
        best = int(held.argmin())
        told = f"held-out loss was {held[best]:.3f} at step {steps[best]:,} and is {held[-1]:.3f}" if risen else ""
        gap = f"loss in training is {course.end:.3f}, on held-out text {held[-1]:.3f}" if apart else ""
        # Another corpus may be harder by nature, and fine-tuned answers often get better while their loss gets worse.
        elsewhere = run.stage == "finetune" or (bool((run.recipe or {}).get("valid")) and not risen)
        yield Finding(
            "overfitting", "note" if elsewhere else "problem", f"{'; '.join(filter(None, (told, gap)))}{often}",
            "the model learns its text by heart, and gets no better, or gets worse, at any other",
            "stop at the best evaluation, read more text fewer times, or take a smaller model or more dropout",
            f"train.steps={steps[best]}" if risen else "model.dropout=0.1",
        )  # fmt: skip
    elif read and read > EPOCHS:
        yield Finding(
            "too many epochs", "note", f"{course.tokens:,} tokens were read of a text of {card['tokens'] if card else 0:,}: "
            f"{number(read)} times over",
            "after the first few dozen readings the same text teaches little more; BERT read its own 40 times",
            "gather more text, or stop sooner", f"train.epochs={EPOCHS // 2}",
        )  # fmt: skip


def epochs(course: Course, card: dict[str, Any] | None) -> float | None:
    """How often a run read its text; none, where the text is not known."""
    return course.tokens / card["tokens"] if card and card.get("tokens") else None


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


CONTEXT = 0.05  # of what words cost by frequency: less saved than that is no use of context
SIGHT = 0.1  # of the words asked for stand in sight and are copied, so that a training loss lies lower by that


def stuck(course: Course | None, run: Run, probe: Probe | None, entropy: float | None,
          others: Sequence[Finding]) -> Iterator[Finding]:  # fmt: skip
    """`others` are the problems found before: one of them is likely the cause."""
    found = _measured(probe) or _logged(course, entropy)
    if found is None:
        return
    loss, baseline, told = found
    if loss < (1 - CONTEXT) * baseline:
        return
    causes = ", ".join(dict.fromkeys(one.name for one in others if one.severity == "problem"))
    way_out, setting = _way_out(course, run)
    yield Finding(
        "loss at the unigram entropy", "problem", told,
        "it has learnt how frequent words are, if that, and nothing yet from the words around them",
        f"mend first what was found above: {causes}" if causes else way_out, None if causes else setting,
    )  # fmt: skip


def frequencies(probe: Probe) -> float:
    """Nats for each hidden word of the probe, to one who knows only how frequent the pieces are."""
    counts = unigrams(probe.corpus.tokens, len(probe.corpus.tokenizer)) + 1.0
    words = probe.arrays.words[probe.hidden_words]
    return float(-np.log(counts[words] / counts.sum()).mean())


def _measured(probe: Probe | None) -> tuple[float, float, str] | None:
    if probe is None or not probe.asked:
        return None
    loss, baseline = probe.cost(probe.read[0]), frequencies(probe)
    told = f"{len(probe.hidden_words):,} hidden words cost {loss:.3f} nats each; knowing only frequencies, {baseline:.3f}"
    return loss, baseline, told


def _logged(course: Course | None, entropy: float | None) -> tuple[float, float, str] | None:
    if course is None or entropy is None or not len(course.losses):
        return None
    if (alone := course.alone()) is not None:
        told = f"held-out words, each hidden alone, cost {alone:.3f} nats; knowing only frequencies, {entropy:.3f}"
        return alone, entropy, told
    baseline = (1 - SIGHT) * entropy / (1 - CONTEXT)
    told = f"the loss is {course.end:.3f} after {course.steps:,} steps; the unigram entropy is {entropy:.3f}"
    return course.end, baseline, told


def _way_out(course: Course | None, run: Run) -> tuple[str, str | None]:
    if course is None or not course.rate:
        return "train the model on this text", None
    longer = f"train.steps={4 * course.steps}"
    if still_falling(course):
        return "the loss still falls: train longer; small models stay here a while before they begin to use context", longer
    step = course.rate / run.deviation if run.optimizer in ADAMS else 0.0
    if step > 0.05:
        return "the loss is flat, the rate high for weights of this size: lower it", f"train.rate={number(course.rate / 5)}"
    if run.optimizer in ADAMS and step < 0.01:
        return "the loss is flat, the rate low for weights of this size: raise it", f"train.rate={number(course.rate * 3)}"
    return "train longer, with more tokens in an update (train.accumulate); larger first weights wake attention sooner", longer
