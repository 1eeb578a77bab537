"""The HTML section of head importance: a cell for each attention head."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .charts import value_map
from .html import Section, format_value, render

CAPTION = (
    "Each cell is the mean of |dL/dξ| over the examples, where ξ = 1 multiplies the output of the head: how much the loss "
    "would change if the head were masked (Michel et al. 2019). 1 is the most important head; bertsmith prune unit=head "
    "removes the least important ones, after dividing each layer by its L2 norm."
)


def render_head_importance(importance: Sequence[NDArray[np.float64]], num_examples: int, data: str) -> Section:
    """`importance`: (heads,) of each layer."""
    largest = max(float(layer.max(initial=0)) for layer in importance) or 1.0
    best, worst = (
        pick(((value, layer, head) for layer, values in enumerate(importance, 1) for head, value in enumerate(values, 1)))
        for pick in (max, min)
    )
    facts = [
        ("most important head", f"layer {best[1]}, head {best[2]}", f"|dL/dξ| = {format_value(float(best[0]))}"),
        ("least important head", f"layer {worst[1]}, head {worst[2]}", f"|dL/dξ| = {format_value(float(worst[0]))}"),
        ("examples", num_examples, f"of {data}"),
    ]
    cells = [[(f"{value / largest:.2f}", value / largest) for value in layer.tolist()] for layer in importance]
    names = [str(number) for number in range(1, max(map(len, importance)) + 1)]
    chart = value_map("Importance of every head (rows: layers, columns: heads)", cells,
                      [str(number) for number in range(1, len(cells) + 1)], names,
                      extra_columns=[("layer mean", [f"{layer.mean() / largest:.2f}" for layer in importance])])  # fmt: skip
    return Section("Head importance", render("macros", "facts_note_chart", facts=facts, caption=CAPTION, chart=chart), (chart,))
