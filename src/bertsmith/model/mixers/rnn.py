"""Packed sequences by steps: all first tokens, then all second ones, the longest sequences first."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...config import PosFloat, PosInt, Variant
from ...errors import UserError
from ..packing import Layout
from .base import Mixer

# (1, sequences, outputs) and (1, sequences, hidden): what was said last, and the memory; a GRU has the first alone
RnnState = tuple[Tensor, ...]


@dataclass(frozen=True)
class PackedSteps:
    token_order: Tensor  # (tokens,): where in the layout each token of the steps stands
    inverse_order: Tensor  # (tokens,): and where in the steps each of the layout
    batch_sizes: list[int]  # (longest,): sequences that have such a step
    sorted_indices: Tensor  # (sequences,): the longest first
    unsorted_indices: Tensor  # (sequences,): where each came

    @classmethod
    def from_layout(cls, layout: Layout, reverse: bool = False) -> "PackedSteps":
        """Of a gapless layout. Counted on the host, where the lengths are: a GPU would be waited for."""
        lengths = np.array(layout.lengths.tolist())
        ranked = np.argsort(-lengths, kind="stable")
        unranked, owner = np.argsort(ranked), np.arange(len(lengths)).repeat(lengths)
        sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(layout.max_seqlen), side="right")
        place = np.arange(len(owner)) - (lengths.cumsum() - lengths)[owner]
        place = lengths[owner] - 1 - place if reverse else place
        back = (sizes.cumsum() - sizes)[place] + unranked[owner]
        moved = [torch.from_numpy(one).to(layout.seq_id.device) for one in (np.argsort(back), back, ranked, unranked)]
        return PackedSteps(moved[0], moved[1], sizes.tolist(), moved[2], moved[3])


def lstm_forward(
    lstm: nn.Module, data: Tensor, steps: PackedSteps, clip: float | None, state: RnnState | None
) -> tuple[Tensor, RnnState]:
    """What nn.LSTM does with the same weights, but for the clip, if there is one: of memory, and of what is projected.

    A call a step: slower than one for all.
    """
    assert isinstance(lstm, nn.LSTM)
    count, sizes, limit = len(steps.sorted_indices), steps.batch_sizes, float("inf") if clip is None else clip
    if state is None:
        said, memory = (data.new_zeros(count, size) for size in (lstm.proj_size or lstm.hidden_size, lstm.hidden_size))
    else:
        said, memory = (part[0][steps.sorted_indices].to(data.dtype) for part in state)
    weights = dict(lstm.named_parameters())
    read = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"])
    outs, ended = [], []
    for part, size in zip(read.split(sizes), sizes, strict=True):
        ended.append((said[size:], memory[size:]))  # of sequences that are over
        gates = part + F.linear(said[:size], weights["weight_hh_l0"])
        enter, keep, new, show = gates.chunk(4, -1)
        memory = (enter.sigmoid() * new.tanh() + keep.sigmoid() * memory[:size]).clamp(-limit, limit)
        said = show.sigmoid() * memory.tanh()
        if lstm.proj_size:
            said = F.linear(said, weights["weight_hr_l0"]).clamp(-limit, limit)
        outs.append(said)
    ended.append((said, memory))
    last, kept = (torch.cat(parts)[steps.unsorted_indices][None] for parts in zip(*reversed(ended), strict=True))
    return torch.cat(outs), (last, kept)


def gru_forward(gru: nn.Module, data: Tensor, steps: PackedSteps, state: RnnState | None) -> tuple[Tensor, RnnState]:
    """What nn.GRU does with the same weights."""
    assert isinstance(gru, nn.GRU)
    weights = dict(gru.named_parameters())
    said = (
        data.new_zeros(len(steps.sorted_indices), gru.hidden_size)
        if state is None
        else state[0][0][steps.sorted_indices].to(data.dtype)
    )
    read, outs, ended = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"]), [], []
    for part, size in zip(read.split(steps.batch_sizes), steps.batch_sizes, strict=True):
        ended.append(said[size:])
        was = said[:size]
        fresh, keep, new = part.chunk(3, -1)
        said_fresh, said_keep, said_new = F.linear(was, weights["weight_hh_l0"], weights["bias_hh_l0"]).chunk(3, -1)
        keep = (keep + said_keep).sigmoid()
        said = (1 - keep) * (new + (fresh + said_fresh).sigmoid() * said_new).tanh() + keep * was
        outs.append(said)
    return torch.cat(outs), (torch.cat([said, *reversed(ended)])[steps.unsorted_indices][None],)


class Lstm(Variant, frozen=True):
    directions: Annotated[
        Literal["both", "forward", "apart"], "two that each give half the width; one; or two that read and give a half each"
    ] = "both"
    hidden: Annotated[PosInt | None, "cells of a direction, projected to what it gives; else as many as it gives"] = None
    cell: Annotated[Literal["lstm", "gru"], "what remembers"] = "lstm"
    clip: Annotated[PosFloat | None, "memory and projection stay within this, 3 in ELMo; a GPU then takes step by step"] = None

    @property
    def causal(self) -> bool:
        return self.directions == "forward"

    def build(self, hidden_size: int) -> Mixer:
        return RnnMixer(self, hidden_size)


class RnnMixer(Mixer):
    """A sequence begins with an empty memory; `carried` hands one on."""

    can_compile: ClassVar[bool] = False  # torch's own kernels take the steps

    def __init__(self, config: Lstm, hidden_size: int) -> None:
        super().__init__()
        ways = 1 if config.directions == "forward" else 2
        if hidden_size % ways:
            raise UserError(f"two directions give half the width each: {hidden_size} is not even; change model.width")
        self.splits_input, given = config.directions == "apart", hidden_size // ways
        read = given if self.splits_input else hidden_size
        self.ways = nn.ModuleList(_build_rnn(config, read, given) for _ in range(ways))
        self.clip = config.clip

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.is_packed:
            return self.forward_with_state(x, layout)[0]
        real = layout.padding_mask().flatten().nonzero().squeeze(1)  # a padded rectangle: what is no token is not read
        out = self.forward_with_state(x[real], Layout.from_lengths(layout.lengths.cpu()).to(x.device))[0]
        return x.new_zeros(len(x), out.shape[1], dtype=out.dtype).index_copy(0, real, out)

    @torch.compiler.disable
    def forward_with_state(
        self, x: Tensor, layout: Layout, states: list[RnnState | None] | None = None
    ) -> tuple[Tensor, list[RnnState]]:
        """And the state in which each direction ends, with which another batch of as many sequences may begin."""
        outs, ends = [], []
        for number, cells in enumerate(self.ways):
            steps, part = (
                PackedSteps.from_layout(layout, reverse=number == 1),
                x.chunk(2, -1)[number] if self.splits_input else x,
            )
            state = states[number] if states else None
            with torch.autocast(x.device.type, enabled=False):  # cuDNN's would be float16, which loses small gradients
                out, end = self._run_direction(cells, part[steps.token_order].to(next(cells.parameters()).dtype), steps, state)
            outs.append(out[steps.inverse_order].to(x.dtype))
            ends.append(end)
        return torch.cat(outs, -1), ends

    def _run_direction(
        self, rnn: nn.Module, data: Tensor, steps: PackedSteps, state: RnnState | None
    ) -> tuple[Tensor, RnnState]:
        # On a CPU step by step is 1.1 to 1.5 times as fast as torch's own with the way back, and a tenth slower without.
        if self.clip is not None or (not data.is_cuda and torch.is_grad_enabled()):
            single = isinstance(rnn, nn.GRU)
            return gru_forward(rnn, data, steps, state) if single else lstm_forward(rnn, data, steps, self.clip, state)
        packed = PackedSequence(data, torch.tensor(steps.batch_sizes), steps.sorted_indices, steps.unsorted_indices)
        if isinstance(rnn, nn.GRU):
            out, end = rnn(packed, state[0] if state else None)
            return out.data, (end,)
        out, both = rnn(packed, state)
        return out.data, both


def _build_rnn(config: Lstm, input_size: int, output_size: int) -> nn.LSTM | nn.GRU:
    hidden = config.hidden or output_size
    if config.cell == "gru":
        if hidden != output_size or config.clip is not None:
            raise UserError("a GRU has neither projection nor clip; leave out model.mixer.hidden and clip, or set cell=lstm")
        return nn.GRU(input_size, output_size)
    if hidden < output_size:
        raise UserError(
            f"{hidden} cells cannot be projected to {output_size} numbers; raise model.mixer.hidden, or leave it out"
        )
    cells = nn.LSTM(input_size, hidden, proj_size=output_size if hidden > output_size else 0)
    with torch.no_grad():
        dict(cells.named_parameters())["bias_ih_l0"][hidden : 2 * hidden] = 1.0  # it begins by remembering
    return cells
