"""How far the outputs of a quantized graph are from those of the float graph, for the whole model and for each layer."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...convert.onnx.outputs import EMBEDDING, END_LOGITS, LOGITS, PAIR_LOGITS, POOLED, START_LOGITS
from .calibration import Feeds, Session

TASK_OUTPUTS = (LOGITS, START_LOGITS, END_LOGITS, PAIR_LOGITS, POOLED)  # else the sentence embedding


class Quality(NamedTuple):
    """cosine: mean of the sentence embeddings'; output_error: ||y' - y|| / ||y|| of the task's outputs, or the embeddings."""

    cosine: float
    lowest_cosine: float
    output_error: float


def compute_outputs(session: Session, batches: Sequence[Feeds]) -> list[Feeds]:
    return [session(batch) for batch in batches]


def compare(computed: Sequence[Feeds], expected: Sequence[Feeds]) -> Quality:
    """Outputs of the quantized and of the float graph on the same batches."""
    names = [name for name in TASK_OUTPUTS if name in expected[0]] or [EMBEDDING]
    y, reference = (np.concatenate([batch[name].ravel() for batch in batches for name in names]).astype(np.float64)
                    for batches in (computed, expected))  # fmt: skip
    vectors, others = (np.concatenate([batch[EMBEDDING] for batch in batches]).astype(np.float64)
                       for batches in (computed, expected))  # fmt: skip
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(others, axis=1)
    cosines = np.nan_to_num((vectors * others).sum(1) / np.maximum(norms, 1e-30), nan=-1.0)
    size = max(float(np.linalg.norm(reference)), 1e-30)
    error = float(np.nan_to_num(float(np.linalg.norm(y - reference)) / size, nan=np.inf))
    return Quality(float(cosines.mean()), float(cosines.min()), error)


def measure_sensitivity(
    names: Sequence[str], open_with: Callable[[str], Session], batches: Sequence[Feeds], expected: Sequence[Feeds]
) -> list[dict[str, Any]]:
    """A row for each layer or table, the most harmful first: the quality when it alone is quantized.

    open_with: the session of the graph in which only the named weight is quantized
    """
    rows = [{"layer": name, **compare(compute_outputs(open_with(name), batches), expected)._asdict()} for name in names]
    return sorted(rows, key=lambda row: -row["output_error"])
