"""The HTML section of one text's attention weights: every head, attention rollout, and the mean of each layer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .charts import heat_grid, heat_map
from .html import Section, format_value, render

MAX_TOKENS = 96  # labels of longer texts could not be read
CAPTION = (
    "Rows are the tokens that attend, columns the tokens attended to; the first row and column are the first token. "
    "Color is the weight, relative to the largest one of the head or map. Rollout multiplies the layers' means over heads, "
    "each mixed half and half with the residual connection: how much each token of the input reaches each one "
    "of the last layer."
)
Weights = NDArray[np.float32]


def render_attention(title: str, tokens: Sequence[str], weights: Weights, rollout: Weights) -> Section:
    """`weights` (layers, heads, tokens, tokens) of one text; `rollout` (layers, tokens, tokens)."""
    if len(tokens) > MAX_TOKENS:
        raise UserError(
            f"a text of {len(tokens)} tokens is too long to draw; give at most {MAX_TOKENS}, or take the numbers from "
            "load(...).attentions(texts)"
        )
    num_layers, num_heads = weights.shape[:2]
    positions = np.arange(len(tokens))
    distances = (weights * abs(positions - positions[:, None])).sum(-1).mean(-1)  # (layers, heads)
    facts = [
        ("layers x heads", f"{num_layers} x {num_heads}", f"over {len(tokens)} tokens"),
        ("weight on the first token", format_value(float(weights[..., 0].mean())), "mean over tokens, heads and layers"),
        ("weight on the own token", format_value(float(weights.diagonal(axis1=2, axis2=3).mean())), "the diagonal"),
        ("mean distance", format_value(float(distances.mean())), "tokens between a token and those it attends to"),
    ]
    cells = [
        [
            (_relative(head), f"layer {layer}, head {number}: mean distance {distance:.1f}")
            for number, (head, distance) in enumerate(zip(heads, distances[layer - 1], strict=True), 1)
        ]
        for layer, heads in enumerate(weights, 1)
    ]
    rows, columns = ([str(number) for number in range(1, count + 1)] for count in (num_layers, num_heads))
    grid = heat_grid("Weights of every head (rows: layers, columns: heads)", cells, rows, columns)
    maps = [heat_map("Attention rollout to the last layer", _relative(rollout[-1]), tokens, tokens)]
    maps += [
        heat_map(f"Layer {layer}, mean over heads", _relative(mean), tokens, tokens)
        for layer, mean in enumerate(weights.mean(1), 1)
    ]
    body = render("attention", "attention", facts=facts, caption=CAPTION, grid=grid, maps=maps)
    return Section(title, body, (grid, *maps))


def render_alignment(source_tokens: Sequence[str], target_tokens: Sequence[str], weights: Weights) -> Section:
    """`weights` (layers, heads, target tokens, source tokens) of a sequence-to-sequence model."""
    maps = [
        heat_map(f"Layer {layer}, mean over heads", _relative(mean), target_tokens, source_tokens)
        for layer, mean in enumerate(weights.mean(1), 1)
    ]
    caption = "Rows are the tokens that the decoder predicts, columns the tokens of the source it attends to meanwhile."
    return Section("Alignment", render("attention", "alignment", caption=caption, maps=maps), tuple(maps))


def _relative(weights: Weights) -> Weights:
    return weights / weights.max()
