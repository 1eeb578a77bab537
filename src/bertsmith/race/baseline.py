"""What a task scores without reading: always the most frequent label, the mean, the most frequent tag."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..tasks import Classify, Regress, Tag, TaskConfig
from ..text.tokenizer import Tokenizer


def majority(task: TaskConfig, learn: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer, length: int) -> dict[str, float]:
    """Scores on `dev` of what is most usual in `learn`; none for tasks where nothing is usual."""
    if isinstance(task, Classify) and not task.many:
        row = _shares(task.labels, [one.label for one in learn])
    elif isinstance(task, Tag):
        row = _shares(task.labels, [tag for one in learn for tag in one.tags])
    elif isinstance(task, Regress):
        row = np.array([float(np.mean([one.label for one in learn]))])
    else:
        return {}
    encoded = task.encode(dev, tokenizer, length)
    tokens = isinstance(task, Tag)
    scores = [np.tile(row, (len(ids), 1)) if tokens else row for ids in encoded.ids]
    return task.judge(task.decode(scores, encoded, dev), dev)  # type: ignore[arg-type]


def _shares(labels: Sequence[str], met: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = Counter(met)
    return np.log([(counts[label] + 1e-9) / max(1, len(met)) for label in labels])
