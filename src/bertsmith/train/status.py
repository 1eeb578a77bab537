"""How far a run is: `state/run.json` says what it is, `state/status.json` where it is. `bertsmith serve runs=` reads them.

metrics.jsonl has no times, so that a resumed run has the same rows; these files have them, and go with the checkpoints.
"""

import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..console import logger
from ..runs import RUN_FILE, STATUS_FILE
from ..writing import write_json

SECONDS_BETWEEN_WRITES = 2.0


class RunStatus:
    """Writes both files of a run; a disk that is full or slow does not stop the run."""

    def __init__(self, folder: Path, record: dict[str, Any], enabled: bool = True) -> None:
        """record: stage, recipe, and what a curve is compared with (unigram_entropy)."""
        self.state, self.enabled, self._next_write = folder / "state", enabled, 0.0
        self._write(RUN_FILE, record)

    def update(self, values: dict[str, Any], is_last: bool = False) -> None:
        """Replaces the status, unless it was written a moment ago."""
        now = time.monotonic()
        if now >= self._next_write or is_last:
            self._next_write = now + SECONDS_BETWEEN_WRITES
            self._write(STATUS_FILE, {**values, "time": round(time.time(), 3)})

    def _write(self, name: str, values: dict[str, Any]) -> None:
        if not self.enabled:
            return
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            write_json(self.state / name, values)
        except OSError as error:
            logger.warning(f"{self.state / name} cannot be written: {error}")
            self.enabled = False


def read_memory(device: torch.device) -> int:
    """Bytes: the most that tensors on a GPU have taken, or that this process has had in memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
