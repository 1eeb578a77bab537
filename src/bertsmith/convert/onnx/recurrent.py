"""Recurrent layers in a graph: the operators LSTM, GRU and RNN of ONNX, or a Scan where the cell is projected or clipped.

ONNX has the gates of an LSTM in the order input, output, forget, cell (torch: input, forget, cell, output), and those of a GRU
in the order update, reset, hidden (torch: reset, update, hidden). Its attribute direction="reverse" is not used: OpenVINO
2026.4 computes other states than onnxruntime for texts that are shorter than the batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...model.heads.features import FeatureClassifier
from ...model.mixers.base import LayerState
from ...model.mixers.rnn import RnnMixer
from ...model.packing import Layout

GATE_ORDER = {nn.LSTM: (0, 3, 1, 2), nn.GRU: (1, 0, 2), nn.RNN: (0,)}  # of ONNX, as indices of torch's gates
OPERATORS = {nn.LSTM: "LSTM", nn.GRU: "GRU", nn.RNN: "RNN"}


class GraphRnnMixer(RnnMixer):
    """`RnnMixer` for a padded batch in a graph."""

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        inputs = list(layout.pad(x).chunk(2, -1)) if self.splits_input else [layout.pad(x)] * len(self.directions)
        outs = [
            run_rnn(rnn, part, layout, is_reverse=direction == 1, clip=self.clip)
            for direction, (rnn, part) in enumerate(zip(self.directions, inputs, strict=True))
        ]
        return layout.unpad(torch.cat(outs, -1))


class GraphFeatureClassifier(FeatureClassifier):
    """`FeatureClassifier` for a padded batch in a graph."""

    def _run_lstm(self, lstm: nn.LSTM, x: Tensor, layout: Layout) -> Tensor:
        x = layout.pad(x)
        for layer in range(lstm.num_layers):
            x = torch.cat([run_rnn(lstm, x, layout, layer, is_reverse) for is_reverse in (False, True)], -1)
        return layout.unpad(x)


def use_graph_layers(model: nn.Module) -> None:
    """Make recurrent layers of a model traceable, in place; their weights and names stay."""
    classes: dict[type[nn.Module], type[nn.Module]] = {RnnMixer: GraphRnnMixer, FeatureClassifier: GraphFeatureClassifier}
    for module in model.modules():
        module.__class__ = classes.get(type(module), type(module))


def run_rnn(
    rnn: nn.Module, x: Tensor, layout: Layout, layer: int = 0, is_reverse: bool = False, clip: float | None = None
) -> Tensor:
    """One direction of one layer of nn.LSTM, nn.GRU or nn.RNN: (sequences, length, input) -> (sequences, length, output).

    A mixer has a module of one direction for each direction; nn.LSTM of a head has both in one.
    """
    assert isinstance(rnn, nn.LSTM | nn.GRU | nn.RNN)
    suffix = f"_l{layer}" + ("_reverse" if is_reverse and rnn.bidirectional else "")
    parameters = rnn.named_parameters()
    weights: dict[str, Tensor] = {name.removesuffix(suffix): weight for name, weight in parameters if name.endswith(suffix)}
    if clip is not None or (isinstance(rnn, nn.LSTM) and rnn.proj_size):
        return _scan_lstm(weights, x, layout, is_reverse, clip)
    order = GATE_ORDER[type(rnn)]
    w, r, b_ih, b_hh = (_reorder(weights[name], order) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    lengths = layout.padding_mask().sum(1).int()
    attributes: dict[str, Any] = {"hidden_size": rnn.hidden_size}
    if isinstance(rnn, nn.GRU):
        attributes["linear_before_reset"] = 1
    sequences, length = x.shape[:2]
    x = _reverse_texts(x, lengths) if is_reverse else x
    out = torch.onnx.ops.symbolic(
        OPERATORS[type(rnn)], (x.transpose(0, 1), w[None], r[None], torch.cat([b_ih, b_hh])[None], lengths), attributes,
        dtype=x.dtype, shape=(length, 1, sequences, rnn.hidden_size), version=14,
    )  # fmt: skip
    out = out.squeeze(1).transpose(0, 1)
    return _reverse_texts(out, lengths) if is_reverse else out


def _reverse_texts(x: Tensor, lengths: Tensor) -> Tensor:
    """(sequences, length, size) with the tokens of each text in reverse order; padding stays behind them."""
    position = torch.arange(x.shape[1], device=x.device)
    source = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)
    return x.gather(1, source[..., None].expand_as(x))


def _scan_lstm(weights: dict[str, Tensor], x: Tensor, layout: Layout, is_reverse: bool, clip: float | None) -> Tensor:
    """As `mixers.rnn.lstm_forward`, step by step over a padded batch; the state is zero until a sequence begins."""
    from torch._higher_order_ops.scan import scan

    limit = float("inf") if clip is None else clip
    gates = F.linear(x, weights["weight_ih"], weights["bias_ih"] + weights["bias_hh"])
    mask = layout.padding_mask()[..., None].to(x.dtype)
    steps, step_mask = gates.transpose(0, 1), mask.transpose(0, 1)
    if is_reverse:
        steps, step_mask = steps.flip(0), step_mask.flip(0)
    output_size, cell_size = weights["weight_hh"].shape[1], weights["weight_hh"].shape[0] // 4

    def step(state: tuple[Tensor, Tensor], inputs: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        (h, c), (step_gates, is_token) = state, inputs
        i, f, g, o = (step_gates + F.linear(h, weights["weight_hh"])).chunk(4, -1)
        c = (i.sigmoid() * g.tanh() + f.sigmoid() * c).clamp(-limit, limit) * is_token
        h = o.sigmoid() * c.tanh()
        if "weight_hr" in weights:
            h = F.linear(h, weights["weight_hr"]).clamp(-limit, limit)
        h = h * is_token
        return (h, c), h.clone()

    start = (x.new_zeros(x.shape[0], output_size), x.new_zeros(x.shape[0], cell_size))
    out: Tensor = scan(step, start, (steps, step_mask))[1]
    return (out.flip(0) if is_reverse else out).transpose(0, 1)


def _reorder(weight: Tensor, order: tuple[int, ...]) -> Tensor:
    """The blocks of rows, one for each gate, in this order."""
    parts = weight.chunk(len(order))
    return weight if len(order) == 1 else torch.cat([parts[gate] for gate in order])
