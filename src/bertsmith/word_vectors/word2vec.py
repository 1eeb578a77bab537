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

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from ..errors import UserError
from ..model.embeddings.fasttext import CharNgramConfig
from ..model.model import Model
from .hierarchical_softmax import HierarchicalSoftmax, build_huffman_paths
from .models import build_model
from .negative_sampling import NegativeSampling
from .tables import NgramRows, PendingUpdate, RowSource, StepUpdates, VectorTable
from .windows import Chunks, CorpusShards, SamplingConfig, WindowMasks

T = TypeVar("T")


class WorkerPair(NamedTuple):
    executor: Executor | None

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """What each of them gives, in their order; the first is done here, the rest by the other hand."""
        if self.executor is None:
            return [work() for work in tasks]
        begun = [self.executor.submit(work) for work in tasks[1:]]
        return [*(work() for work in tasks[:1]), *(one.result() for one in begun)]


@contextmanager
def worker_pair(num_workers: int) -> Iterator[WorkerPair]:
    """Two, if so many are wanted and torch may have two threads; each then computes in one, so that no number depends on how
    many there are. One is torch as it is.

    torch's own threads share a single operation, and those of a step are over before threads have found together.
    """
    if num_workers == 1:
        yield WorkerPair(None)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if threads == 1:
            yield WorkerPair(None)
        else:
            with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as other:
                yield WorkerPair(other)
    finally:
        torch.set_num_threads(threads)


Floats = NDArray[np.float64]

CHUNK_WORDS = 32  # of a chunk
NOISE_WORDS = {"skip_gram": 32, "cbow": 16}  # words drawn for a chunk: each foretold word sees them all, not its own few
MIN_LR_FACTOR = 1e-4  # of the rate, at the end
STEP_WORDS = {"cpu": 2048, "cuda": 8192}  # words of a step, if nobody says
PARTS_PER_STEP = {"cpu": 2, "cuda": 1}  # of a step, which may be computed at once; a GPU is kept busy by one
LOSS_EVERY = 16  # steps from one loss that is looked at to the next


class Word2VecConfig(NamedTuple):
    algorithm: str  # skip_gram, cbow
    vector_size: int
    window: int
    negative: int  # 0: a tree
    sample: float
    learning_rate: float
    ngrams: CharNgramConfig | None = None


class Word2VecTrainer:
    """What stretch k does depends on the corpus, the seed, k and the tables alone."""

    def __init__(self, config: Word2VecConfig, corpus: Corpus, epochs: float, seed: int, device: torch.device) -> None:
        self.config, self.tokenizer = config, corpus.tokenizer
        counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
        counts[corpus.tokenizer.is_special] = 0
        if np.count_nonzero(counts) < 2:
            raise UserError(f"{corpus.path} has fewer than two words to learn from, unknown ones not counted; its tokenizer is "
                           "of other text, or there is too little of it")  # fmt: skip
        self.counts = counts
        reading = SamplingConfig(
            config.window, CHUNK_WORDS, NOISE_WORDS[config.algorithm] if config.negative else 0, config.sample
        )
        self.shards = CorpusShards(corpus, counts, reading, seed, device)
        self.num_rounds = math.ceil(epochs * self.shards.shards_per_epoch - 1e-9)
        self.window_masks = WindowMasks(config.window, CHUNK_WORDS, device)
        self.paths = None if config.negative else build_huffman_paths(counts)
        self._init_tables(seed, device)
        self.output_layer = self._build_output_layer(device)

    def train_round(self, round_index: int) -> dict[str, float]:
        costs, rate = list[Tensor](), self._set_lr(round_index)
        with worker_pair(self.parts_per_step) as both:
            chunks, words = self.shards(round_index)
            steps = max(
                1, min(len(chunks.extents), len(chunks.extents) * CHUNK_WORDS // self.batch_words)
            )  # a chunk is not cut
            dealt = chunks.interleave(steps * self.parts_per_step) if len(chunks.extents) else []
            for nth in range(len(dealt) // self.parts_per_step):
                rate = self.learning_rate(round_index + nth / steps)
                costs += self._step(
                    dealt[nth * self.parts_per_step :][: self.parts_per_step], rate, nth % LOSS_EVERY == 0, both
                )
        loss = float(torch.stack(costs).mean()) if costs else 0.0
        if not math.isfinite(loss):
            raise UserError(
                f"the vectors grew beyond all numbers in turn {round_index + 1}; lower objective.rate ({self.config.learning_rate:g})"
            )
        return {"loss": loss, "rate": rate, "words": words}

    def set_batch_words(self, words: int) -> None:
        """So many words of text move the tables at once: many are quicker on a GPU, few learn a little more."""
        self.batch_words = self.input_table.batch_words = self.output_table.batch_words = words

    @property
    def chance_loss(self) -> float | None:
        """The loss of a table that tells no word from another; None of a tree, where it depends on the words."""
        return (1 + self.config.negative) * math.log(2) if self.config.negative else None

    def learning_rate(self, round_index: float) -> float:
        """It falls evenly to almost nothing."""
        return self.config.learning_rate * max(1 - round_index / self.num_rounds, MIN_LR_FACTOR)

    def state_dict(self) -> dict[str, Tensor]:
        return {"inputs": self.input_table.rows, "outputs": self.output_table.rows}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, rows in self.state_dict().items():
            rows.copy_(state[name])

    def build_model(self) -> tuple[Model, dict[str, Any]]:
        words = torch.arange(len(self.tokenizer), device=self.input_table.rows.device)
        vectors = self.input_rows.gather(words)[0].cpu()
        unseen = self.tokenizer.is_special if self.config.ngrams else self.counts == 0
        vectors[torch.from_numpy(unseen)] = 0  # they are as they were drawn, which is noise
        grams = self.config.ngrams
        buckets = self.input_table.rows[len(words) :].cpu() if grams else None
        model = build_model(vectors, self.output_table.rows.cpu(), self.paths, grams, buckets)
        return model, {"width": self.config.vector_size, "words": int(np.count_nonzero(self.counts))}

    def _step(self, parts: list[Chunks], lr: float, compute_loss: bool, workers: WorkerPair) -> list[Tensor]:
        """Every part at the tables as they were, then either table by all of its changes, in one order."""
        way = getattr(self.output_layer, self.config.algorithm)
        steps: list[StepUpdates] = workers(
            [partial(way, one, self.window_masks, self.input_rows, lr, compute_loss) for one in parts if len(one.extents)]
        )
        workers(
            [
                partial(_apply_updates, [one.input_updates for one in steps]),
                partial(_apply_updates, [one.output_updates for one in steps]),
            ]
        )
        return [one.loss for one in steps if one.loss is not None]

    def _set_lr(self, round_index: int) -> float:
        rate = self.learning_rate(round_index)
        self.input_table.set_lr(rate)
        self.output_table.set_lr(rate)
        return rate

    def _init_tables(self, seed: int, device: torch.device) -> None:
        """The tables, and how many words a step takes."""
        grams, width = self.config.ngrams, self.config.vector_size
        parts = grams.embedding_rows(self.tokenizer.id_to_token, self.tokenizer.is_special) if grams else None
        moved, turned = self._update_frequencies()
        moved = moved if parts is None else row_frequencies(moved, *parts, len(moved) + (grams.buckets if grams else 0))
        begun = init_vectors(len(moved), width, 2 if grams else 1, seed)
        self.input_table = VectorTable(begun.to(device), torch.from_numpy(moved).float().to(device))
        self.output_table = VectorTable(
            torch.zeros(len(turned), width, device=device), torch.from_numpy(turned).float().to(device)
        )
        kind = "cuda" if device.type == "cuda" else "cpu"
        self.parts_per_step = PARTS_PER_STEP[kind]
        self.set_batch_words(STEP_WORDS[kind])
        self.input_rows: RowSource = self.input_table
        if parts is not None:
            self.input_rows = NgramRows(self.input_table, *(torch.from_numpy(one).to(device) for one in parts))

    def _build_output_layer(self, device: torch.device) -> NegativeSampling | HierarchicalSoftmax:
        if self.paths is None:
            return NegativeSampling(self.output_table, self.config.negative)
        nodes, turns = (torch.from_numpy(one).to(device) for one in self.paths)
        return HierarchicalSoftmax(self.output_table, nodes.long(), turns)

    def _update_frequencies(self) -> tuple[Floats, Floats]:
        """For each word of text: how often it moves each word of the inputs, and each row of the outputs, in expectation."""
        pairs = self.config.window + 1 if self.config.algorithm == "skip_gram" else 1
        share, wrong, count = self.shards.word_probs, self.shards.noise_probs, self.config.negative
        if self.paths is None:
            return pairs * (1 + count) * share, pairs * (share + count * wrong)
        nodes = np.bincount(self.paths.nodes.ravel(), np.repeat(share, self.paths.nodes.shape[1]), len(share) + 1)
        nodes[-1] = 0  # padding moves nothing
        return pairs * self.paths.lengths * share, (pairs * nodes).astype(np.float64)


def _apply_updates(updates: list[list[PendingUpdate]]) -> None:
    for one in chain.from_iterable(updates):
        one()


def row_frequencies(word_frequencies: Floats, row_ids: NDArray[np.int64], offsets: NDArray[np.int64], rows: int) -> Floats:
    """How often each of the rows that words are made of is moved, from how often the words are."""
    return np.bincount(row_ids, np.repeat(word_frequencies, np.diff(offsets)), rows).astype(np.float64)


def init_vectors(rows: int, width: int, scale: float, seed: int) -> Tensor:
    """Evenly between -reach / 2 width and reach / 2 width: word2vec's beginning, and, with a reach of 2, fastText's."""
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)).sub_(0.5).mul_(scale / width)
