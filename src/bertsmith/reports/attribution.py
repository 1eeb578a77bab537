"""The HTML section of attributions: a text whose tokens are colored by what they add to an answer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .charts import FlowToken, TokenFlow
from .html import Section, format_value, render

CAPTION = (
    "Integrated gradients: blue tokens raise the output, orange ones lower it, from that of a text whose token embeddings are "
    "all zero to that of this text. The numbers sum to the difference of the two outputs."
)


def render_attribution(
    title: str, tokens: Sequence[str], values: NDArray[np.float32], target: str, output: float, baseline_output: float,
    completeness_error: float, steps: int,
) -> Section:  # fmt: skip
    """The text with its attributions, and how complete their sum is."""
    largest = float(np.abs(values).max(initial=0)) or 1.0
    flow_tokens = [
        FlowToken(token.removeprefix("##") or token, f"{value:+.2g}" if value else "", value / largest, "",
                  token.startswith("##"), f"{token}: {value:+.4f}")
        for token, value in zip(tokens, values.tolist(), strict=True)
    ]  # fmt: skip
    flow = TokenFlow(f"Attribution of {target}", flow_tokens)
    facts = [
        (f"output for {target}", output, "probability of the label or token; the number of a regression"),
        ("output of the baseline", baseline_output, "for token embeddings of zero"),
        ("sum of attributions", float(values.sum()), f"completeness error {format_value(completeness_error)}, {steps} steps"),
    ]
    return Section(title, render("macros", "facts_note_chart", facts=facts, caption=CAPTION, chart=flow), (flow.draw(),))
