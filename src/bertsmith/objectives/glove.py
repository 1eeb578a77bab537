"""GloVe: vectors whose products are the logarithms of how often words stand near one another."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import Count, Positive
from ..corpus.cooccurrence import Counts, Progress, counted
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.model import Model
from ..rng import Stream, bits, shuffled
from ..word_vectors.glove import Tables, batches
from ..word_vectors.models import bag
from .word2vec import Tabled

TURN = 1 << 22  # pairs of one piece of work, at most


class Glove(Tabled, frozen=True):
    """Pennington et al. 2014. Words further apart count less (1 / distance), in windows that cross no border."""

    width: Annotated[Count, "numbers of a vector; `model.width` says the same"] = 100
    window: Annotated[Count, "words on each side, 20 at most"] = 10
    within: Annotated[Literal["sentence", "document"], "what a window does not cross: the original has lines"] = "sentence"
    memory: Annotated[Count, "megabytes to count in: sorted runs go to disk"] = 512
    most: Annotated[Positive, "the count from which on all pairs weigh 1"] = 100.0
    power: Annotated[Positive, "of the weight below it: (x / most) ** power"] = 0.75
    rate: Annotated[Positive, "of AdaGrad; `train.rate` says the same"] = 0.05
    pairs: Annotated[Count, "of one step"] = 65_536

    own: ClassVar[tuple[str, ...]] = ("epochs", "rate", "device", "keep")
    usual: ClassVar[float | None] = 15

    def filling(
        self, corpus: Corpus, folder: Path, epochs: float, seed: int, device: torch.device, progress: Progress
    ) -> "Fitting":
        """Counts (in `folder`, where an interrupted count goes on), then ready to fit."""
        counts = counted(corpus, folder / "counts", self.window, self.within, self.memory << 20, progress)
        if not len(counts):
            raise BadInput(f"{corpus.path}: no two words that its tokenizer knows stand near one another; give more text, or a "
                           "tokenizer of its words")  # fmt: skip
        return Fitting(self, counts, len(corpus.tokenizer), int(epochs), seed, device)


class Fitting:
    """Epochs over the counts, a sample of all of them at a time, in another order each time."""

    def __init__(self, config: Glove, counts: Counts, words: int, epochs: int, seed: int, device: torch.device) -> None:
        self.config, self.counts, self.seed, self.device = config, counts, seed, device
        self.parts = max(1, -(-len(counts) // (TURN // 2)))
        self.turns, self.tables = epochs * self.parts, Tables(words, config.width, seed, device)

    def turn(self, k: int) -> dict[str, float]:
        epoch, nth = divmod(k, self.parts)
        part = int(shuffled(self.parts, self.seed, Stream.GLOVE_SHARDS, epoch)[nth])
        i, j, x = self._pairs(part, k)
        total, config = torch.zeros((), dtype=torch.float64, device=self.device), self.config
        for some in batches(len(x), config.pairs):
            total += self.tables.step(i[some], j[some], x[some], config.rate, config.most, config.power)
        if not math.isfinite(loss := float(total) / len(x)):
            raise BadInput(f"the vectors grew beyond all numbers in turn {k + 1}; lower objective.rate ({config.rate:g})")
        return {"loss": loss, "pairs": len(x), "epoch": epoch + 1}

    def state(self) -> dict[str, Tensor]:
        return self.tables.state()

    def load(self, state: dict[str, Tensor]) -> None:
        self.tables.load(state)

    def finished(self) -> tuple[Model, dict[str, Any]]:
        vectors = self.tables.vectors.cpu()
        model = Model(bag(*vectors.shape), drawn=False)
        unseen = torch.ones(len(vectors), dtype=torch.bool)
        for part in range(self.parts):
            entries = self.counts.part(part, self.parts)
            unseen[entries["i"].astype(np.int64)] = unseen[entries["j"].astype(np.int64)] = False
        vectors[unseen] = 0  # [CLS] and words without company were never fitted: they are as they were drawn, which is noise
        model.encoder.tokens.weight.data = vectors.contiguous()
        return model.eval(), {"entries": len(self.counts), "width": vectors.shape[1], "words": int((~unseen).sum())}

    def _pairs(self, part: int, turn: int) -> tuple[Tensor, Tensor, Tensor]:
        """Both orders of each pair, mixed; a word with itself has but one."""
        entries = self.counts.part(part, self.parts)
        other = entries[entries["i"] != entries["j"]]
        i, j = (np.concatenate([entries[a], other[b]]).astype(np.int64) for a, b in ("ij", "ji"))
        order = np.argsort(bits(self.seed, Stream.GLOVE_PAIRS, turn, np.arange(len(i))))
        x = np.concatenate([entries["x"], other["x"]])[order]
        return self._moved(i[order]), self._moved(j[order]), self._moved(x)

    def _moved(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)
