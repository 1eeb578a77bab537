"""metrics.jsonl: a row for every few steps, the same bytes however often the run was interrupted."""

import json
import math
import os
from pathlib import Path
from typing import Any

from .. import artifacts
from ..errors import BadInput


class Metrics:
    """Only the leader of several processes writes; TensorBoard gets the same numbers where it is asked for."""

    def __init__(self, folder: Path, writes: bool = True, tensorboard: bool = False) -> None:
        self.path, self._writes = folder / "metrics.jsonl", writes
        self._curves = Curves(folder / "tensorboard") if tensorboard and writes else None

    def row(self, step: int, **values: Any) -> None:
        if not self._writes:
            return
        values = {name: None if _lost(value) else value for name, value in values.items()}
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values}, ensure_ascii=False) + "\n")
        if self._curves:
            self._curves.add(step, values)

    def settled(self) -> int:
        """Its size, once all of it is on the disk: what a checkpoint remembers."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut(self, size: int, step: int) -> None:
        """Forget the rows after a checkpoint: they come again."""
        if not self._writes:
            return
        if self._curves:
            self._curves.begin(step)
        if self.path.exists():
            kept = self.path.read_bytes()[:size]
            artifacts.write_whole(self.path, kept[: kept.rfind(b"\n") + 1])  # whole rows, whatever the disk lost


class Curves:
    """The numbers of the rows as TensorBoard's events; runs that went on hide what they repeat."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("train.tensorboard needs a package: pip install bertsmith[tensorboard]") from None
        self._folder, self._kind = folder, SummaryWriter
        self._writer: Any = None

    def begin(self, step: int) -> None:
        self._writer = self._kind(str(self._folder), purge_step=step + 1)

    def add(self, step: int, values: dict[str, Any]) -> None:
        assert self._writer, "rows come after `cut`"
        prefix = values.get("trial", "train")
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
        self._writer.flush()


def _lost(value: Any) -> bool:
    """JSON has no word for NaN or infinity."""
    return isinstance(value, float) and not math.isfinite(value)
