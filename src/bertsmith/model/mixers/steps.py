"""Packed sequences by steps: all first tokens, then all second ones, the longest sequences first."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layout import Layout

# (1, sequences, outputs) and (1, sequences, hidden): what was said last, and the memory; a GRU has the first alone
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Steps:
    order: Tensor  # (tokens,): where in the layout each token of the steps stands
    back: Tensor  # (tokens,): and where in the steps each of the layout
    sizes: list[int]  # (longest,): sequences that have such a step
    ranked: Tensor  # (sequences,): the longest first
    unranked: Tensor  # (sequences,): where each came

    @classmethod
    def of(cls, layout: Layout, backward: bool = False) -> "Steps":
        """Of a gapless layout. Counted on the host, where the lengths are: a GPU would be waited for."""
        lengths = np.array(layout.lengths.tolist())
        ranked = np.argsort(-lengths, kind="stable")
        unranked, owner = np.argsort(ranked), np.arange(len(lengths)).repeat(lengths)
        sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(layout.longest), side="right")
        place = np.arange(len(owner)) - (lengths.cumsum() - lengths)[owner]
        place = lengths[owner] - 1 - place if backward else place
        back = (sizes.cumsum() - sizes)[place] + unranked[owner]
        moved = [torch.from_numpy(one).to(layout.owner.device) for one in (np.argsort(back), back, ranked, unranked)]
        return Steps(moved[0], moved[1], sizes.tolist(), moved[2], moved[3])


def clipped(cells: nn.Module, data: Tensor, steps: Steps, clip: float | None, state: State | None) -> tuple[Tensor, State]:
    """What nn.LSTM does with the same weights, but for the clip, if there is one: of memory, and of what is projected.

    A call a step: slower than one for all.
    """
    assert isinstance(cells, nn.LSTM)
    count, sizes, limit = len(steps.ranked), steps.sizes, float("inf") if clip is None else clip
    if state is None:
        said, memory = (data.new_zeros(count, size) for size in (cells.proj_size or cells.hidden_size, cells.hidden_size))
    else:
        said, memory = (part[0][steps.ranked].to(data.dtype) for part in state)
    weights = dict(cells.named_parameters())
    read = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"])
    outs, ended = [], []
    for part, size in zip(read.split(sizes), sizes, strict=True):
        ended.append((said[size:], memory[size:]))  # of sequences that are over
        gates = part + F.linear(said[:size], weights["weight_hh_l0"])
        enter, keep, new, show = gates.chunk(4, -1)
        memory = (enter.sigmoid() * new.tanh() + keep.sigmoid() * memory[:size]).clamp(-limit, limit)
        said = show.sigmoid() * memory.tanh()
        if cells.proj_size:
            said = F.linear(said, weights["weight_hr_l0"]).clamp(-limit, limit)
        outs.append(said)
    ended.append((said, memory))
    last, kept = (torch.cat(parts)[steps.unranked][None] for parts in zip(*reversed(ended), strict=True))
    return torch.cat(outs), (last, kept)


def gated(cells: nn.Module, data: Tensor, steps: Steps, state: State | None) -> tuple[Tensor, State]:
    """What nn.GRU does with the same weights."""
    assert isinstance(cells, nn.GRU)
    weights = dict(cells.named_parameters())
    said = data.new_zeros(len(steps.ranked), cells.hidden_size) if state is None else state[0][0][steps.ranked].to(data.dtype)
    read, outs, ended = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"]), [], []
    for part, size in zip(read.split(steps.sizes), steps.sizes, strict=True):
        ended.append(said[size:])
        was = said[:size]
        fresh, keep, new = part.chunk(3, -1)
        said_fresh, said_keep, said_new = F.linear(was, weights["weight_hh_l0"], weights["bias_hh_l0"]).chunk(3, -1)
        keep = (keep + said_keep).sigmoid()
        said = (1 - keep) * (new + (fresh + said_fresh).sigmoid() * said_new).tanh() + keep * was
        outs.append(said)
    return torch.cat(outs), (torch.cat([said, *reversed(ended)])[steps.unranked][None],)
