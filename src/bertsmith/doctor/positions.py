"""Positions that play no part: the order of words changes nothing, or rows of the table are where they began."""

from collections.abc import Iterator

from torch.nn.functional import cosine_similarity

from ..model.model import Model, built
from .finding import Finding
from .probe import Probe
from .run import Run

NAME = "positions unused"
MOVED = 0.001  # of its length: what a hidden state changes by when the words around it change places
WORSE = 0.01  # of the loss: what another order must cost a model that learnt from order
SAME = 0.9999  # cosine of a row with its beginning; weight decay alone only shortens it
UNTRAINED = 0.25  # of the table


def unordered(probe: Probe, baseline: float | None) -> Iterator[Finding]:
    """`baseline` is what the same words cost by frequency alone; a model that is no better cannot show what it uses."""
    if not probe.model.config.encoder.layers:
        return  # a table of words is a bag of words, and means to be
    (hidden, _, _), other = probe.read, probe.stirred
    apart = (other - hidden)[probe.ordinary].norm(dim=-1) / hidden[probe.ordinary].norm(dim=-1).clamp(min=1e-9)
    changed = float(apart.mean())
    told = f"with their words in another order, hidden states of {probe.layout.sequences} texts change by {changed:.2%}"
    same = changed < MOVED
    if probe.asked:
        before, after = probe.cost(hidden), probe.cost(other)
        told += f"; hidden words cost {before:.3f} nats in order, {after:.3f} in disorder"
        learnt = baseline is not None and before < 0.95 * baseline
        same = same or (learnt and after < (1 + WORSE) * before)
    if same:
        table = probe.model.encoder.positions is not None
        yield Finding(
            NAME, "problem", told, "the model reads a text as a bag of words: it cannot tell who did what to whom",
            "see that positions are trained, not frozen, and not lost on the way (zeros in an imported checkpoint); text whose "
            "order means nothing gives this too" if table else "give it a table of positions, or rotary ones",
            "model.deviation=0.04" if table else "model.table=true",
        )  # fmt: skip


def unmoved(model: Model, run: Run) -> Iterator[Finding]:
    """Rows of the table that no text has reached: exact, since the first weights follow from the seed."""
    table = model.encoder.positions
    if run.stage != "pretrain" or not run.fresh or run.recipe is None or table is None:
        return
    first = built(model.config, run.recipe["seed"]).encoder.positions
    assert first is not None, "the same config builds the same parts"
    still = int((cosine_similarity(table.weight, first.weight) > SAME).sum())
    count, length = table.num_embeddings, max(run.recipe["length"])
    if still == count:
        yield Finding(
            "positions untrained", "problem", f"all {count} positions are where they began",
            "training has not moved them: they are frozen, or nothing was learnt at all",
            "mend first what else was found; if there is nothing, raise the rate", f"train.rate={10 * run.train('rate'):.2g}",
        )  # fmt: skip
    elif still > UNTRAINED * count:
        yield Finding(
            "positions untrained", "note", f"{still} of {count} positions are where they began; the longest text was {length}",
            "longer texts than it was trained on would be read at places that mean nothing to it",
            "keep texts as short as in training, or train the last part of the run on longer ones",
            f"length='[{length}, {count}]'" if length < count else f"model.positions={count - still}",
        )  # fmt: skip
