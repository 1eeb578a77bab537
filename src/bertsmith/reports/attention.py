"""The HTML section of one text's attention weights: every head of every layer, and the mean of each layer with its tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .charts import heat_image, heat_map
from .html import Section, format_value, render

MAX_TOKENS = 96  # labels of longer texts could not be read
CAPTION = (
    "Rows are the tokens that attend, columns the tokens attended to; the first row and column are the first token. "
    "Color is the weight, relative to the largest one of the head."
)


def render_attention(title: str, tokens: Sequence[str], weights: NDArray[np.float32]) -> Section:
    """`weights` (layers, heads, tokens, tokens) of one text."""
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
    rows = [
        (
            layer + 1,
            [
                (heat_image(_relative(head)), f"layer {layer + 1}, head {number}: mean distance {distance:.1f}")
                for number, (head, distance) in enumerate(zip(heads, distances[layer], strict=True), 1)
            ],
        )
        for layer, heads in enumerate(weights)
    ]
    maps = [
        heat_map(f"Layer {layer}, mean over heads", _relative(mean), tokens, tokens)
        for layer, mean in enumerate(weights.mean(1), 1)
    ]
    header = ["layer", *(f"head {number}" for number in range(1, num_heads + 1))]
    return Section(title, render("attention", "attention", facts=facts, caption=CAPTION, header=header, rows=rows, maps=maps))


def _relative(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    return weights / weights.max()
