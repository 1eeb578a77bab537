"""Heads that do nothing: they look at all tokens alike, at one token only, or give nothing back."""

from collections.abc import Iterator

from torch import Tensor

from .finding import Finding
from .probe import Probe

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
