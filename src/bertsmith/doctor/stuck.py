"""A loss at the unigram entropy: the model knows how frequent words are, and nothing of their context."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..corpus.card import unigrams
from .course import Course
from .finding import Finding, number
from .probe import Probe
from .rate import still_falling
from .run import ADAMS, Run

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
