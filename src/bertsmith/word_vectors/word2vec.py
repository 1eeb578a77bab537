"""word2vec training (Mikolov et al. 2013) and fastText (Bojanowski et al. 2017), in mini-batches on a CPU or a GPU.

- Word2VecTrainer: skip-gram and CBOW with negative sampling or hierarchical softmax
- worker_pair: two threads for the independent parts of a step
"""

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
Floats = NDArray[np.float64]

CHUNK_WORDS = 32  # center words of a chunk
NOISE_WORDS = {"skip_gram": 32, "cbow": 16}  # noise words of a chunk, shared by all its predictions
MIN_LR_FACTOR = 1e-4  # of the learning rate, at the end
STEP_WORDS = {"cpu": 2048, "cuda": 8192}  # default words of text per step
PARTS_PER_STEP = {"cpu": 2, "cuda": 1}  # parts of a step that are computed in parallel; one keeps a GPU busy
LOSS_EVERY = 16  # steps between computed losses


class Word2VecConfig(NamedTuple):
    """Options of word2vec; `ngrams` makes it fastText."""

    algorithm: str  # skip_gram, cbow
    vector_size: int
    window: int
    negative: int  # noise words per pair; 0: hierarchical softmax
    sample: float
    learning_rate: float
    ngrams: CharNgramConfig | None = None


class Word2VecTrainer:
    """Trains word vectors in rounds, one shard of the corpus each; round k depends only on corpus, seed, k and tables."""

    def __init__(self, config: Word2VecConfig, corpus: Corpus, epochs: float, seed: int, device: torch.device) -> None:
        self.config, self.tokenizer = config, corpus.tokenizer
        counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
        counts[corpus.tokenizer.is_special] = 0
        if np.count_nonzero(counts) < 2:
            raise UserError(f"{corpus.path} has fewer than two known words; prepare more text, or train a tokenizer on it "
                           "(`bertsmith tokenizer kind=word`)")  # fmt: skip
        self.counts = counts
        sampling = SamplingConfig(
            config.window, CHUNK_WORDS, NOISE_WORDS[config.algorithm] if config.negative else 0, config.sample
        )
        self.shards = CorpusShards(corpus, counts, sampling, seed, device)
        self.num_rounds = math.ceil(epochs * self.shards.shards_per_epoch - 1e-9)
        self.window_masks = WindowMasks(config.window, CHUNK_WORDS, device)
        self.paths = None if config.negative else build_huffman_paths(counts)
        self._init_tables(seed, device)
        self.output_layer = self._build_output_layer(device)

    def train_round(self, round_index: int) -> dict[str, float]:
        losses, lr = list[Tensor](), self._set_lr(round_index)
        with worker_pair(self.parts_per_step) as workers:
            chunks, num_words = self.shards(round_index)
            # chunks are not split
            num_steps = max(1, min(len(chunks.extents), len(chunks.extents) * CHUNK_WORDS // self.batch_words))
            parts = chunks.interleave(num_steps * self.parts_per_step) if len(chunks.extents) else []
            for step in range(len(parts) // self.parts_per_step):
                lr = self.learning_rate(round_index + step / num_steps)
                losses += self._step(
                    parts[step * self.parts_per_step :][: self.parts_per_step], lr, step % LOSS_EVERY == 0, workers
                )
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is not finite in round {round_index + 1}; lower train.learning_rate ({self.config.learning_rate:g})"
            )
        return {"loss": loss, "learning_rate": lr, "words": num_words}

    def set_batch_words(self, words: int) -> None:
        """Sets the words of text per step: more is faster on a GPU, fewer give slightly better vectors."""
        self.batch_words = self.input_table.batch_words = self.output_table.batch_words = words

    @property
    def chance_loss(self) -> float | None:
        """Loss at logits 0, (1 + negative) * log 2; None for hierarchical softmax, where it depends on the words."""
        return (1 + self.config.negative) * math.log(2) if self.config.negative else None

    def learning_rate(self, round_index: float) -> float:
        """Linear decay to MIN_LR_FACTOR of the initial learning rate."""
        return self.config.learning_rate * max(1 - round_index / self.num_rounds, MIN_LR_FACTOR)

    def state_dict(self) -> dict[str, Tensor]:
        return {"inputs": self.input_table.rows, "outputs": self.output_table.rows}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, rows in self.state_dict().items():
            rows.copy_(state[name])

    def build_model(self) -> tuple[Model, dict[str, Any]]:
        word_ids = torch.arange(len(self.tokenizer), device=self.input_table.rows.device)
        vectors = self.input_rows.gather(word_ids)[0].cpu()
        untrained = self.tokenizer.is_special if self.config.ngrams else self.counts == 0
        vectors[torch.from_numpy(untrained)] = 0  # never trained: their random initial vectors are noise
        ngrams = self.config.ngrams
        buckets = self.input_table.rows[len(word_ids) :].cpu() if ngrams else None
        model = build_model(vectors, self.output_table.rows.cpu(), self.paths, ngrams, buckets)
        return model, {"vector_size": self.config.vector_size, "words": int(np.count_nonzero(self.counts))}

    def _step(self, parts: list[Chunks], lr: float, compute_loss: bool, workers: "WorkerPair") -> list[Tensor]:
        """Computes the updates of all parts at the current tables, then applies them to each table in a fixed order."""
        compute_updates = getattr(self.output_layer, self.config.algorithm)
        updates: list[StepUpdates] = workers(
            [
                partial(compute_updates, part, self.window_masks, self.input_rows, lr, compute_loss)
                for part in parts
                if len(part.extents)
            ]
        )
        workers(
            [
                partial(_apply_updates, [part.input_updates for part in updates]),
                partial(_apply_updates, [part.output_updates for part in updates]),
            ]
        )
        return [part.loss for part in updates if part.loss is not None]

    def _set_lr(self, round_index: int) -> float:
        lr = self.learning_rate(round_index)
        self.input_table.set_lr(lr)
        self.output_table.set_lr(lr)
        return lr

    def _init_tables(self, seed: int, device: torch.device) -> None:
        """Creates the input and output tables, and sets the step size in words."""
        ngrams, vector_size = self.config.ngrams, self.config.vector_size
        ngram_rows = ngrams.embedding_rows(self.tokenizer.id_to_token, self.tokenizer.is_special) if ngrams else None
        input_frequency, output_frequency = self._update_frequencies()
        input_frequency = (
            input_frequency
            if ngram_rows is None
            else row_frequencies(input_frequency, *ngram_rows, len(input_frequency) + (ngrams.bucket if ngrams else 0))
        )
        initial = init_vectors(len(input_frequency), vector_size, 2 if ngrams else 1, seed)
        self.input_table = VectorTable(initial.to(device), torch.from_numpy(input_frequency).float().to(device))
        self.output_table = VectorTable(
            torch.zeros(len(output_frequency), vector_size, device=device),
            torch.from_numpy(output_frequency).float().to(device),
        )
        device_type = "cuda" if device.type == "cuda" else "cpu"
        self.parts_per_step = PARTS_PER_STEP[device_type]
        self.set_batch_words(STEP_WORDS[device_type])
        self.input_rows: RowSource = self.input_table
        if ngram_rows is not None:
            self.input_rows = NgramRows(self.input_table, *(torch.from_numpy(array).to(device) for array in ngram_rows))

    def _build_output_layer(self, device: torch.device) -> NegativeSampling | HierarchicalSoftmax:
        if self.paths is None:
            return NegativeSampling(self.output_table, self.config.negative)
        nodes, codes = (torch.from_numpy(array).to(device) for array in self.paths)
        return HierarchicalSoftmax(self.output_table, nodes.long(), codes)

    def _update_frequencies(self) -> tuple[Floats, Floats]:
        """Expected updates of each input word and of each output row, per word of text."""
        pairs_per_word = self.config.window + 1 if self.config.algorithm == "skip_gram" else 1
        word_probs, noise_probs, negative = self.shards.word_probs, self.shards.noise_probs, self.config.negative
        if self.paths is None:
            return pairs_per_word * (1 + negative) * word_probs, pairs_per_word * (word_probs + negative * noise_probs)
        node_probs = np.bincount(
            self.paths.nodes.ravel(), np.repeat(word_probs, self.paths.nodes.shape[1]), len(word_probs) + 1
        )
        node_probs[-1] = 0  # padding gets no updates
        return pairs_per_word * self.paths.lengths * word_probs, (pairs_per_word * node_probs).astype(np.float64)


class WorkerPair(NamedTuple):
    """Runs tasks in this thread and one other, or all in this one if there is no executor."""

    executor: Executor | None

    def __call__(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Results in order; the first task runs in this thread, the others in the second."""
        if self.executor is None:
            return [task() for task in tasks]
        futures = [self.executor.submit(task) for task in tasks[1:]]
        return [*(task() for task in tasks[:1]), *(future.result() for future in futures)]


@contextmanager
def worker_pair(num_workers: int) -> Iterator[WorkerPair]:
    """A WorkerPair with a second thread, if num_workers is 2 and torch may use two threads.

    With two workers, each computes with one torch thread, so that results do not depend on the number of threads. torch's
    own threads split a single operation, and those of a step are too short to gain from it. With one worker, torch's
    settings stay.
    """
    if num_workers == 1:
        yield WorkerPair(None)
        return
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if num_threads == 1:
            yield WorkerPair(None)
        else:
            with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as executor:
                yield WorkerPair(executor)
    finally:
        torch.set_num_threads(num_threads)


def _apply_updates(updates: list[list[PendingUpdate]]) -> None:
    for apply_update in chain.from_iterable(updates):
        apply_update()


def row_frequencies(word_frequencies: Floats, row_ids: NDArray[np.int64], offsets: NDArray[np.int64], rows: int) -> Floats:
    """(rows,): update frequency of each row that words are composed of, from that of the words."""
    return np.bincount(row_ids, np.repeat(word_frequencies, np.diff(offsets)), rows).astype(np.float64)


def init_vectors(num_rows: int, vector_size: int, scale: float, seed: int) -> Tensor:
    """(num_rows, vector_size), uniform in +-scale / (2 * vector_size): word2vec's with scale 1, fastText's with scale 2."""
    return torch.rand(num_rows, vector_size, generator=torch.Generator().manual_seed(seed)).sub_(0.5).mul_(scale / vector_size)
