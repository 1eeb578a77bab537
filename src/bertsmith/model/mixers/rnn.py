"""LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al. 2014) and plain RNN (Elman 1990) over packed sequences."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...config import PosFloat, PosInt
from ...errors import UserError
from ..packing import Layout
from .base import BaseMixerConfig, LayerState, Mixer


class Lstm(BaseMixerConfig, frozen=True):
    """LSTM, GRU or plain RNN, in one direction or two; with `cell_size`, an LSTM with projection (Sak et al. 2014; ELMo)."""

    directions: Annotated[
        Literal["both", "forward", "apart"],
        "both: bidirectional, hidden_size / 2 each; forward; apart: each reads its own half (ELMo)",
    ] = "both"
    cell_size: Annotated[
        PosInt | None, "LSTM cells per direction, projected to its output (4096 in ELMo); none: no projection"
    ] = None
    cell: Annotated[Literal["lstm", "gru", "rnn"], "type of RNN cell; rnn: tanh(W x + U h + b), without gates (Elman 1990)"] = (
        "lstm"
    )
    cell_clip: Annotated[
        PosFloat | None, "clip cell state and projection to [-x, x] (3 in ELMo); slower on a GPU (no cuDNN)"
    ] = None

    @property
    def causal(self) -> bool:
        return self.directions == "forward"

    def build(self, hidden_size: int) -> Mixer:
        return RnnMixer(self, hidden_size)


@dataclass(frozen=True)
class PackedSteps:
    """Tokens by time step, as in torch's PackedSequence: all first tokens, then all second ones, longest sequences first."""

    token_order: Tensor  # (tokens,): index in the layout of each token, in time-step order
    inverse_order: Tensor  # (tokens,): the inverse permutation
    batch_sizes: list[int]  # (max_seqlen,): number of sequences at each step
    sorted_indices: Tensor  # (sequences,): by length, longest first
    unsorted_indices: Tensor  # (sequences,): the inverse permutation

    @classmethod
    def from_layout(cls, layout: Layout, reverse: bool = False) -> "PackedSteps":
        """Of a packed layout. Computed on the host, where the lengths are, to avoid a GPU synchronization."""
        lengths = np.array(layout.lengths.tolist())
        sorted_indices = np.argsort(-lengths, kind="stable")
        unsorted_indices, seq_id = np.argsort(sorted_indices), np.arange(len(lengths)).repeat(lengths)
        batch_sizes = len(lengths) - np.searchsorted(np.sort(lengths), np.arange(layout.max_seqlen), side="right")
        step = np.arange(len(seq_id)) - (lengths.cumsum() - lengths)[seq_id]
        step = lengths[seq_id] - 1 - step if reverse else step
        inverse_order = (batch_sizes.cumsum() - batch_sizes)[step] + unsorted_indices[seq_id]
        tensors = [
            torch.from_numpy(array).to(layout.seq_id.device)
            for array in (np.argsort(inverse_order), inverse_order, sorted_indices, unsorted_indices)
        ]
        return PackedSteps(tensors[0], tensors[1], batch_sizes.tolist(), tensors[2], tensors[3])


class RnnMixer(Mixer):
    """Recurrent network over each sequence, from a zero state."""

    can_compile: ClassVar[bool] = False  # cuDNN's kernels, or a Python loop over the steps

    def __init__(self, config: Lstm, hidden_size: int) -> None:
        super().__init__()
        num_directions = 1 if config.directions == "forward" else 2
        if hidden_size % num_directions:
            raise UserError(f"model.hidden_size={hidden_size} must be even: each direction computes half of it")
        self.splits_input, output_size = config.directions == "apart", hidden_size // num_directions
        input_size = output_size if self.splits_input else hidden_size
        self.directions = nn.ModuleList(_build_rnn(config, input_size, output_size) for _ in range(num_directions))
        self.clip = config.cell_clip

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        if layout.is_packed:
            return self._run(x, layout)
        token_indices = layout.padding_mask().flatten().nonzero().squeeze(1)  # padded batch: skip the padding
        out = self._run(x[token_indices], Layout.from_lengths(layout.lengths.cpu()).to(x.device))
        return x.new_zeros(len(x), out.shape[1], dtype=out.dtype).index_copy(0, token_indices, out)

    def _run(self, x: Tensor, layout: Layout) -> Tensor:
        outs = []
        for direction, rnn in enumerate(self.directions):
            steps, inputs = (
                PackedSteps.from_layout(layout, reverse=direction == 1),
                x.chunk(2, -1)[direction] if self.splits_input else x,
            )
            with torch.autocast(x.device.type, enabled=False):  # cuDNN would run in float16, which loses small gradients
                out = self._run_direction(rnn, inputs[steps.token_order].to(next(rnn.parameters()).dtype), steps)
            outs.append(out[steps.inverse_order].to(x.dtype))
        return torch.cat(outs, -1)

    def _run_direction(self, rnn: nn.Module, data: Tensor, steps: PackedSteps) -> Tensor:
        # On a CPU the Python loop is 1.1 to 1.5 times as fast as torch's kernel with backward, and a tenth slower without.
        if self.clip is not None or (not data.is_cuda and torch.is_grad_enabled()):
            if isinstance(rnn, nn.LSTM):
                return lstm_forward(rnn, data, steps, self.clip)
            return (gru_forward if isinstance(rnn, nn.GRU) else elman_forward)(rnn, data, steps)
        packed = PackedSequence(data, torch.tensor(steps.batch_sizes), steps.sorted_indices, steps.unsorted_indices)
        return rnn(packed)[0].data


def lstm_forward(lstm: nn.Module, data: Tensor, steps: PackedSteps, clip: float | None) -> Tensor:
    """nn.LSTM with its own weights, step by step, with optional clipping of the cell state and of the projection (ELMo).

    data: (tokens, input_size) in time-step order. Returns (tokens, output_size). One call per
    step: on a GPU slower than cuDNN's one call for all.
    """
    assert isinstance(lstm, nn.LSTM)
    num_sequences, batch_sizes, limit = len(steps.sorted_indices), steps.batch_sizes, float("inf") if clip is None else clip
    h, c = (data.new_zeros(num_sequences, dim) for dim in (lstm.proj_size or lstm.hidden_size, lstm.hidden_size))
    weights = dict(lstm.named_parameters())
    input_gates = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"])
    outs = []
    for step_gates, batch_size in zip(input_gates.split(batch_sizes), batch_sizes, strict=True):
        gates = step_gates + F.linear(h[:batch_size], weights["weight_hh_l0"])
        i, f, g, o = gates.chunk(4, -1)
        c = (i.sigmoid() * g.tanh() + f.sigmoid() * c[:batch_size]).clamp(-limit, limit)
        h = o.sigmoid() * c.tanh()
        if lstm.proj_size:
            h = F.linear(h, weights["weight_hr_l0"]).clamp(-limit, limit)
        outs.append(h)
    return torch.cat(outs)


def gru_forward(gru: nn.Module, data: Tensor, steps: PackedSteps) -> Tensor:
    """nn.GRU with its own weights, step by step; shapes as in `lstm_forward`."""
    assert isinstance(gru, nn.GRU)
    weights = dict(gru.named_parameters())
    h = data.new_zeros(len(steps.sorted_indices), gru.hidden_size)
    input_gates, outs = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"]), []
    for step_gates, batch_size in zip(input_gates.split(steps.batch_sizes), steps.batch_sizes, strict=True):
        h_prev = h[:batch_size]
        r, z, n = step_gates.chunk(3, -1)
        hidden_r, hidden_z, hidden_n = F.linear(h_prev, weights["weight_hh_l0"], weights["bias_hh_l0"]).chunk(3, -1)
        z = (z + hidden_z).sigmoid()
        h = (1 - z) * (n + (r + hidden_r).sigmoid() * hidden_n).tanh() + z * h_prev
        outs.append(h)
    return torch.cat(outs)


def elman_forward(rnn: nn.Module, data: Tensor, steps: PackedSteps) -> Tensor:
    """nn.RNN (tanh) with its own weights, step by step; shapes as in `lstm_forward`."""
    assert isinstance(rnn, nn.RNN)
    weights = dict(rnn.named_parameters())
    h = data.new_zeros(len(steps.sorted_indices), rnn.hidden_size)
    inputs = F.linear(data, weights["weight_ih_l0"], weights["bias_ih_l0"] + weights["bias_hh_l0"])
    outs = []
    for step_inputs, batch_size in zip(inputs.split(steps.batch_sizes), steps.batch_sizes, strict=True):
        h = (step_inputs + F.linear(h[:batch_size], weights["weight_hh_l0"])).tanh()
        outs.append(h)
    return torch.cat(outs)


def _build_rnn(config: Lstm, input_size: int, output_size: int) -> nn.LSTM | nn.GRU | nn.RNN:
    hidden_size = config.cell_size or output_size
    if config.cell != "lstm":
        if hidden_size != output_size or config.cell_clip is not None:
            raise UserError(
                f"cell={config.cell} does not support model.mixer.cell_size and cell_clip; leave them out, or set cell=lstm"
            )
        return nn.GRU(input_size, output_size) if config.cell == "gru" else nn.RNN(input_size, output_size)
    if hidden_size < output_size:
        raise UserError(
            f"{hidden_size} cells cannot be projected to {output_size} features; raise model.mixer.cell_size, or leave it out"
        )
    lstm = nn.LSTM(input_size, hidden_size, proj_size=output_size if hidden_size > output_size else 0)
    with torch.no_grad():
        dict(lstm.named_parameters())["bias_ih_l0"][hidden_size : 2 * hidden_size] = 1.0  # open forget gate at initialization
    return lstm
