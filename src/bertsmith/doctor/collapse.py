"""Hidden states that have collapsed: every text has the same vector."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import normalize

from ..model.layout import means
from .finding import Finding, number
from .probe import Probe
from .run import Run

# 1 - cosine, on average over pairs of texts, and of tokens. Trained models have 0.1 and more; untrained ones, whose texts are
# means of what was never told apart, 0.0005 and 0.05.
TEXTS, TOKENS = 1e-4, 0.005
LEAST = 4  # texts


def collapsed(probe: Probe, run: Run) -> Iterator[Finding]:
    texts, tokens = spread(probe)
    if probe.layout.sequences < LEAST or texts >= TEXTS or tokens >= TOKENS:
        return
    rate = run.train("rate")
    yield Finding(
        "collapsed hidden states", "problem",
        f"the vectors of {probe.layout.sequences} different texts lie {texts:.1g} apart (1 - cosine, on average), and those of "
        f"their tokens {tokens:.1g}",
        "whatever the text, the model answers the same: it knows how frequent words are, and forgot what it reads",
        "begin again at a lower rate with a longer warm-up; deep models with norms after each part want model.norm=before",
        f"train.rate={number(rate / 10)}" if rate else None,
    )  # fmt: skip


def spread(probe: Probe) -> tuple[float, float]:
    """The mean of 1 - cosine over pairs of texts, each the mean of its tokens, and over pairs of tokens."""
    rows, owner = probe.read[0][probe.ordinary].double(), probe.layout.owner[probe.ordinary]
    return _apart(means(rows, owner)), _apart(rows)


def _apart(vectors: Tensor) -> float:
    """A vector is no pair with itself."""
    count = len(vectors)
    together = float(normalize(vectors, dim=-1).sum(0).square().sum() - count) / max(1, count * (count - 1))
    return max(0.0, 1 - together)
