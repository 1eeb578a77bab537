"""Hidden states that have collapsed: every text has the same vector."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..model.model import Model, built
from ..model.packing import means
from .finding import Finding, number
from .probe import Probe
from .run_log import Course, Run

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


EVEN = 0.02  # distance from looking at all tokens alike
SINGLE = 0.98  # of the attention; trained heads rest on [SEP] too, with less
SILENT = 1e-3  # of the length of what the head's output is added to
MANY = 1 / 3  # of all heads: fewer are usual in a trained model


def dead_heads(probe: Probe) -> Iterator[Finding]:
    even, single, silent, total = counted(probe)
    dead = {*even, *single, *silent}
    if not dead:
        return
    kinds = ((even, "look at all tokens alike"), (single, "look at one token only"), (silent, "give nothing back"))
    told = ", ".join(f"{len(some)} {what}" for some, what in kinds if some)
    where = ", ".join(f"{layer}.{head}" for layer, head in sorted(dead)[:8])
    many = len(dead) > MANY * total
    yield Finding(
        "dead heads", "problem" if many else "note",
        f"{len(dead)} of {total} heads do nothing on {probe.layout.sequences} texts: {told} (layer.head {where})",
        "tokens hardly learn from one another: attention has not begun to work, or has collapsed" if many else
        "some heads rest, as in most trained models; they could be pruned",
        "if the run was short, train longer; begin with larger weights, which wakes attention sooner; if the rate was high, "
        "lower it" if many else "nothing needs to be done",
        f"model.deviation={max(0.04, 2 * probe.model.config.encoder.deviation):.2g}" if many else None,
    )  # fmt: skip


def counted(probe: Probe) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]], int]:
    """(layer, head) of those that look at all alike, at one token, or give nothing; and how many heads there are."""
    _, kept, seen = probe.read
    even, single, silent, total = [], [], [], 0
    for layer, (call, before) in enumerate(zip(seen, kept, strict=False)):
        added = _added(probe, layer, call.given) / before.float().norm(dim=-1).mean()
        for head in range(len(call.uneven)):
            total += 1
            if added[head] < SILENT:
                silent.append((layer, head))
            elif call.uneven[head] < EVEN:
                even.append((layer, head))
            elif call.single[head] > SINGLE:
                single.append((layer, head))
    return even, single, silent, total


def _added(probe: Probe, layer: int, given: Tensor) -> Tensor:
    """(heads,): the mean length of what each adds to a token."""
    stack = probe.model.encoder.stack
    out = getattr(getattr(stack.blocks[stack.turns[layer]].mixer, "project", None), "out", None)
    if out is None or out.weight.shape[1] != given[0].numel():
        return given.norm(dim=-1).mean(0)
    by_head = out.weight.detach().float().unflatten(1, given.shape[1:])  # (width, heads, width of a head)
    lengths = [(given[:, head] @ by_head[:, head].T).norm(dim=-1).mean() for head in range(given.shape[1])]
    return given.new_tensor(lengths)


POSITIONS = "positions unused"
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
            POSITIONS, "problem", told, "the model reads a text as a bag of words: it cannot tell who did what to whom",
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


MASKING = "masks missing"
FEW, LITTLE = 0.01, 0.05  # of the tokens asked for
COPIED = 0.4  # of what hidden words cost: a loss that low was not made on hidden words, of which there are eight in ten


def masks(course: Course | None, run: Run, probe: Probe | None) -> Iterator[Finding]:
    asked = (run.recipe or {}).get("objective", {}).get("rate", 0.15)
    if run.words and (seen := _nothing(course, probe)):
        yield Finding(
            MASKING, "problem", f"{seen}, with objective.rate={asked:g}",
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
            MASKING, "problem", f"{where} is {shown:.3f}, but words that are truly hidden cost {hidden:.3f} nats",
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
