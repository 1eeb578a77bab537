"""Two hands for one step: works that do not touch one another are done at once, where there are two cores for them."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.card import unigrams
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.embeddings.fasttext import CharacterGrams
from ..model.model import Model
from .hierarchical_softmax import Tree, huffman
from .models import published
from .negative_sampling import Negatives
from .tables import Change, Source, Spelt, Step, Table
from .windows import Bands, Chunks, Reading, Stretches

T = TypeVar("T")


class Hands(NamedTuple):
    other: Executor | None

    def __call__(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """What each of them gives, in their order; the first is done here, the rest by the other hand."""
        if self.other is None:
            return [work() for work in works]
        begun = [self.other.submit(work) for work in works[1:]]
        return [*(work() for work in works[:1]), *(one.result() for one in begun)]


@contextmanager
def hands(wanted: int) -> Iterator[Hands]:
    """Two, if so many are wanted and torch may have two threads; each then computes in one, so that no number depends on how
    many there are. One is torch as it is.

    torch's own threads share a single operation, and those of a step are over before threads have found together.
    """
    if wanted == 1:
        yield Hands(None)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if threads == 1:
            yield Hands(None)
        else:
            with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
                yield Hands(other)
    finally:
        torch.set_num_threads(threads)


Floats = NDArray[np.float64]

WORDS = 32  # of a chunk
NOISE = {"skip_gram": 32, "cbow": 16}  # words drawn for a chunk: each foretold word sees them all, not its own few
LOWEST = 1e-4  # of the rate, at the end
STEP = {"cpu": 2048, "cuda": 8192}  # words of a step, if nobody says
PARTS = {"cpu": 2, "cuda": 1}  # of a step, which may be computed at once; a GPU is kept busy by one
TOLD = 16  # steps from one loss that is looked at to the next


class Setting(NamedTuple):
    way: str  # skip_gram, cbow
    width: int
    window: int
    negatives: int  # 0: a tree
    sample: float
    rate: float
    subwords: CharacterGrams | None = None


class Learning:
    """What stretch k does depends on the corpus, the seed, k and the tables alone."""

    def __init__(self, setting: Setting, corpus: Corpus, epochs: float, seed: int, device: torch.device) -> None:
        self.setting, self.tokenizer = setting, corpus.tokenizer
        counts = unigrams(corpus.tokens, len(corpus.tokenizer))
        counts[corpus.tokenizer.special] = 0
        if np.count_nonzero(counts) < 2:
            raise BadInput(f"{corpus.path} has fewer than two words to learn from, unknown ones not counted; its tokenizer is "
                           "of other text, or there is too little of it")  # fmt: skip
        self.counts = counts
        reading = Reading(setting.window, WORDS, NOISE[setting.way] if setting.negatives else 0, setting.sample)
        self.read = Stretches(corpus, counts, reading, seed, device)
        self.turns = math.ceil(epochs * self.read.an_epoch - 1e-9)
        self.bands = Bands(setting.window, WORDS, device)
        self.paths = None if setting.negatives else huffman(counts)
        self._begin(seed, device)
        self.against = self._against(device)

    def turn(self, k: int) -> dict[str, float]:
        costs, rate = list[Tensor](), self._pace(k)
        with hands(self.parts) as both:
            chunks, words = self.read(k)
            steps = max(1, min(len(chunks.sides), len(chunks.sides) * WORDS // self.step))  # a chunk is not cut
            dealt = chunks.dealt(steps * self.parts) if len(chunks.sides) else []
            for nth in range(len(dealt) // self.parts):
                rate = self.rate(k + nth / steps)
                costs += self._step(dealt[nth * self.parts :][: self.parts], rate, nth % TOLD == 0, both)
        loss = float(torch.stack(costs).mean()) if costs else 0.0
        if not math.isfinite(loss):
            raise BadInput(f"the vectors grew beyond all numbers in turn {k + 1}; lower objective.rate ({self.setting.rate:g})")
        return {"loss": loss, "rate": rate, "words": words}

    def step_by(self, words: int) -> None:
        """So many words of text move the tables at once: many are quicker on a GPU, few learn a little more."""
        self.step = self.table.batch = self.outputs.batch = words

    @property
    def chance(self) -> float | None:
        """The loss of a table that tells no word from another; None of a tree, where it depends on the words."""
        return (1 + self.setting.negatives) * math.log(2) if self.setting.negatives else None

    def rate(self, turn: float) -> float:
        """It falls evenly to almost nothing."""
        return self.setting.rate * max(1 - turn / self.turns, LOWEST)

    def state(self) -> dict[str, Tensor]:
        return {"inputs": self.table.rows, "outputs": self.outputs.rows}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, rows in self.state().items():
            rows.copy_(state[name])

    def finished(self) -> tuple[Model, dict[str, Any]]:
        words = torch.arange(len(self.tokenizer), device=self.table.rows.device)
        vectors = self.inputs.open(words)[0].cpu()
        unseen = self.tokenizer.special if self.setting.subwords else self.counts == 0
        vectors[torch.from_numpy(unseen)] = 0  # they are as they were drawn, which is noise
        grams = self.setting.subwords
        buckets = self.table.rows[len(words) :].cpu() if grams else None
        model = published(vectors, self.outputs.rows.cpu(), self.paths, grams, buckets)
        return model, {"width": self.setting.width, "words": int(np.count_nonzero(self.counts))}

    def _step(self, parts: list[Chunks], rate: float, told: bool, both: Hands) -> list[Tensor]:
        """Every part at the tables as they were, then either table by all of its changes, in one order."""
        way = getattr(self.against, self.setting.way)
        steps: list[Step] = both([partial(way, one, self.bands, self.inputs, rate, told) for one in parts if len(one.sides)])
        both([partial(_made, [one.inputs for one in steps]), partial(_made, [one.outputs for one in steps])])
        return [one.loss for one in steps if one.loss is not None]

    def _pace(self, k: int) -> float:
        rate = self.rate(k)
        self.table.pace(rate)
        self.outputs.pace(rate)
        return rate

    def _begin(self, seed: int, device: torch.device) -> None:
        """The tables, and how many words a step takes."""
        grams, width = self.setting.subwords, self.setting.width
        parts = grams.parts(self.tokenizer.pieces, self.tokenizer.special) if grams else None
        moved, turned = self._moved()
        moved = moved if parts is None else by_parts(moved, *parts, len(moved) + (grams.buckets if grams else 0))
        begun = drawn(len(moved), width, 2 if grams else 1, seed)
        self.table = Table(begun.to(device), torch.from_numpy(moved).float().to(device))
        self.outputs = Table(torch.zeros(len(turned), width, device=device), torch.from_numpy(turned).float().to(device))
        kind = "cuda" if device.type == "cuda" else "cpu"
        self.parts = PARTS[kind]
        self.step_by(STEP[kind])
        self.inputs: Source = self.table
        if parts is not None:
            self.inputs = Spelt(self.table, *(torch.from_numpy(one).to(device) for one in parts))

    def _against(self, device: torch.device) -> Negatives | Tree:
        if self.paths is None:
            return Negatives(self.outputs, self.setting.negatives)
        nodes, turns = (torch.from_numpy(one).to(device) for one in self.paths)
        return Tree(self.outputs, nodes.long(), turns)

    def _moved(self) -> tuple[Floats, Floats]:
        """For each word of text: how often it moves each word of the inputs, and each row of the outputs, in expectation."""
        pairs = self.setting.window + 1 if self.setting.way == "skip_gram" else 1
        share, wrong, count = self.read.share, self.read.wrong, self.setting.negatives
        if self.paths is None:
            return pairs * (1 + count) * share, pairs * (share + count * wrong)
        nodes = np.bincount(self.paths.nodes.ravel(), np.repeat(share, self.paths.nodes.shape[1]), len(share) + 1)
        nodes[-1] = 0  # padding moves nothing
        return pairs * self.paths.lengths * share, (pairs * nodes).astype(np.float64)


def _made(changes: list[list[Change]]) -> None:
    for one in chain.from_iterable(changes):
        one()


def by_parts(moved: Floats, parts: NDArray[np.int64], starts: NDArray[np.int64], rows: int) -> Floats:
    """How often each of the rows that words are made of is moved, from how often the words are."""
    return np.bincount(parts, np.repeat(moved, np.diff(starts)), rows).astype(np.float64)


def drawn(rows: int, width: int, reach: float, seed: int) -> Tensor:
    """Evenly between -reach / 2 width and reach / 2 width: word2vec's beginning, and, with a reach of 2, fastText's."""
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)).sub_(0.5).mul_(reach / width)
