"""Objectives that fill a table of words and train no network: `pretrain` hands them to a loop of their own."""

from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from ..config import Variant
from ..corpus.batches import Arrays, Batches
from ..corpus.cooccurrence import Progress
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.heads import HeadConfig
from ..model.model import Model
from ..model.types import Batch
from ..train.loss import Loss
from .base import Ints


class Filling(Protocol):
    """A table on its way. Turn k is a function of the state and of k, so that a run goes on from any turn bit for bit."""

    turns: int  # pieces of work in all, some seconds each

    def turn(self, k: int) -> dict[str, float]:
        """Does piece k; what it tells, `loss` and `pairs` at least, goes into a row of metrics.jsonl."""
        ...

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: dict[str, Tensor]) -> None: ...

    def finished(self) -> tuple[Model, dict[str, Any]]:
        """The model to publish, whose token table the vectors are, and what the run has to tell."""
        ...


class Tabled(Variant, frozen=True):
    """What word2vec's and GloVe's recipes have in common: whoever asks them for batches of sequences is told no."""

    least: ClassVar[int] = 1
    hides: ClassVar[bool] = False
    own: ClassVar[tuple[str, ...]] = ("epochs", "device", "keep")  # what it takes of `train.*`; the rest is for networks
    usual: ClassVar[float | None] = None  # epochs, where none are given
    cuts: ClassVar[bool] = False  # an epoch may be cut short

    def filling(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> Filling:
        """A table at its beginning; what is counted beforehand may lie in `folder / "counts"`, and go on from there."""
        raise NotImplementedError

    def heads(self) -> dict[str, HeadConfig]:
        return {}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        self._refuse()

    def batch(self, arrays: Arrays) -> Batch:
        self._refuse()

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BadInput(f"objective={self.__struct_config__.tag} fills a table of words, and reads no sequences; this is for "
                       "objectives that train a network, such as masked")  # fmt: skip
