"""`GraphEngine`: an exported graph of a model, computed by onnxruntime or OpenVINO on a CPU, without torch.

A `Graph` takes padded batches by the names of `convert/onnx/outputs.py`. The graph of a model is `model.onnx`; a head whose
rows are few (the language model's, or that of pooled windows) is a graph of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...tasks import Task
from ...tasks.base import CrossAttentionPair, EncodedExamples
from ...tasks.sequences import is_pooled
from ...tasks.similarity import Pooling
from .base import EMBEDDING_HEAD, LM_HEAD, Backend, Engine, Floats, Ints, ModelFacts

if TYPE_CHECKING:
    from .torch import TorchEngine

MODEL_GRAPH, TASK_HEAD = "model", "task"  # besides LM_HEAD and EMBEDDING_HEAD, the names of a model's graphs
CALL_TOKENS = 48  # what another batch costs, in tokens: the engine's own overhead, and smaller matrices


class Graph(ABC):
    """A loaded graph; several threads may call it at once."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    precision: str  # fp32 or bf16

    @abstractmethod
    def __call__(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        """The named outputs; only what they depend on needs to be computed."""


class GraphEngine(Engine):
    """Forward passes through the graphs of a model."""

    def __init__(
        self, backend: Backend, facts: ModelFacts, load_graph: Callable[[str], Graph], num_parameters: int | None = None,
        load_torch: "Callable[[], TorchEngine] | None" = None,
    ) -> None:  # fmt: skip
        """`load_graph` loads the graph of a name; `load_torch` the same model in torch, where the folder has its weights."""
        self.backend, self.facts, self.load_torch = backend, facts, load_torch
        self._load_graph, self._graphs, self._num_parameters = (
            load_graph,
            {MODEL_GRAPH: load_graph(MODEL_GRAPH)},
            num_parameters,
        )

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def compute_precision(self) -> str:
        return self._graphs[MODEL_GRAPH].precision

    @property
    def batch_tokens(self) -> int:
        """Default batch size in tokens: larger batches are not faster, and take more memory."""
        return 1024

    @property
    def num_parameters(self) -> int | None:
        return self._num_parameters

    def batch_by_length(self, lengths: Ints, batch_tokens: int | None = None) -> list[Ints]:
        """Indices of the sequences in each batch, shortest first, of at most `batch_tokens` with padding.

        Of all divisions of the sorted sequences into batches, that with the least padding, where each batch more counts as
        `CALL_TOKENS` tokens.
        """
        if not len(lengths):
            return []
        order, budget = np.argsort(lengths, kind="stable"), batch_tokens or self.batch_tokens
        widths, counts = np.unique([self._width(int(length)) for length in lengths], return_counts=True)
        ends = np.cumsum(counts)
        batches = list[Ints]()
        for first, last in _join_widths(widths.tolist(), counts.tolist()):
            rows = order[ends[first] - counts[first] : ends[last]]
            size = max(1, budget // int(widths[last]))
            batches += np.split(rows, range(size, len(rows), size))
        return batches

    def hidden_states(self, input_ids: Sequence[Ints]) -> list[Floats]:
        (hidden,) = self._run(input_ids, None, ["last_hidden_state"])
        return [row[: len(ids)] for row, ids in zip(hidden, input_ids, strict=True)]

    def embed(self, input_ids: Sequence[Ints], pooling: Pooling) -> Floats:
        (hidden,) = self._run(input_ids, None, ["last_hidden_state"])
        return self._embed_rows(hidden, np.array([len(ids) for ids in input_ids]), pooling)

    def lm_logits(self, input_ids: Sequence[Ints], positions: Sequence[Ints]) -> list[Floats]:
        hidden = self.hidden_states(input_ids)
        rows = np.concatenate([vectors[index] for vectors, index in zip(hidden, positions, strict=True)])
        (logits,) = self._graph(LM_HEAD)({"last_hidden_state": rows}, ["logits"])
        return np.split(logits, np.cumsum([len(index) for index in positions])[:-1])

    def task_outputs(self, task: Task, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[NDArray[Any]]:
        if isinstance(task.pair, CrossAttentionPair):
            return self._compare_pairs(encoded, batch_tokens)
        has_pooled_windows = is_pooled(encoded)
        names = {"span": ["start_logits", "end_logits"], "embedding": ["last_hidden_state"]}.get(task.head_type, ["logits"])
        names = ["pooled_tokens"] if has_pooled_windows and task.head_type == "text" else names
        lengths = np.array([len(ids) for ids in encoded.input_ids], np.int64)
        rows = dict[int, NDArray[Any]]()
        for batch in self.batch_by_length(lengths, batch_tokens):
            ids, token_type_ids = ([part[i] for i in batch] for part in (encoded.input_ids, encoded.token_type_ids))
            outputs = self._run(ids, token_type_ids, names)
            if task.head_type == "embedding":
                outputs = [self._embed_rows(outputs[0], lengths[batch], task.pooling)]  # type: ignore[attr-defined]
            values = np.stack(outputs, -1) if task.head_type == "span" else outputs[0]
            is_token_level = task.head_type in ("token", "span")
            rows |= {int(i): row[: lengths[i]] if is_token_level else row for i, row in zip(batch, values, strict=True)}
        in_order = [rows[i] for i in range(len(rows))]
        return self._pool_windows(task, encoded, in_order) if has_pooled_windows else in_order

    def as_torch(self) -> "TorchEngine | None":
        return None if self.load_torch is None else self.load_torch()

    def _compare_pairs(self, encoded: EncodedExamples, batch_tokens: int | None) -> list[NDArray[Any]]:
        """One row for each two sequences, which a head with cross-attention compares."""
        pairs = np.arange(len(encoded.input_ids)).reshape(-1, 2)
        lengths = np.array([len(ids) for ids in encoded.input_ids], np.int64)[pairs].max(1)
        rows = dict[int, NDArray[Any]]()
        for batch in self.batch_by_length(lengths, max(1, (batch_tokens or self.batch_tokens) // 2)):
            sequences = pairs[batch].ravel()
            ids, token_type_ids = ([part[i] for i in sequences] for part in (encoded.input_ids, encoded.token_type_ids))
            rows |= zip(batch.tolist(), self._run(ids, token_type_ids, ["logits"])[0], strict=True)
        return [rows[i] for i in range(len(pairs))]

    def _pool_windows(self, task: Task, encoded: EncodedExamples, rows: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """One row for each text: the head's logits of the mean over its windows, or the mean itself for an embedding."""
        starts = np.flatnonzero([window.number == 0 for window in encoded.metadata])
        sizes = np.diff([*starts, len(rows)])
        means = (np.add.reduceat(np.stack(rows), starts) / sizes[:, None]).astype(np.float32)
        return list(means if task.head_type == "embedding" else self._graph(TASK_HEAD)({"pooled_tokens": means}, ["logits"])[0])

    def _embed_rows(self, hidden: Floats, lengths: Ints, pooling: Pooling) -> Floats:
        """Sentence embeddings (sequences, embedding_size): pooled, through the graph of dense layers if the model has any."""
        vectors = pool_rows(hidden, lengths, pooling, self.facts.is_causal)
        if EMBEDDING_HEAD not in self.facts.heads:
            return vectors
        (embeddings,) = self._graph(EMBEDDING_HEAD)({"last_hidden_state": vectors}, ["logits"])
        return embeddings

    def _graph(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = self._load_graph(name)
        return self._graphs[name]

    def _width(self, length: int) -> int:
        """The padded length of a batch whose longest sequence has `length` tokens: one of few, at most an eighth more."""
        step = max(1, 1 << length.bit_length() >> 4)
        return min(-(-length // step) * step, self.facts.max_position_embeddings)

    def _run(
        self, input_ids: Sequence[Ints], token_type_ids: Sequence[Ints] | None, outputs: Sequence[str]
    ) -> list[NDArray[Any]]:
        """Outputs (sequences, padded length, ...) of one batch."""
        graph = self._graphs[MODEL_GRAPH]
        lengths = np.array([len(ids) for ids in input_ids], np.int64)
        width = self._width(int(lengths.max(initial=1)))
        mask = np.arange(width) < lengths[:, None]
        feeds = {"input_ids": _pad(input_ids, mask), "attention_mask": mask.astype(np.int64)}
        if "token_type_ids" in graph.inputs:
            feeds["token_type_ids"] = np.zeros_like(mask, np.int64) if token_type_ids is None else _pad(token_type_ids, mask)
        if missing := [name for name in outputs if name not in graph.outputs]:
            raise UserError(f"the graph of this model has no output {missing[0]}, only {', '.join(graph.outputs)}; export the "
                            "model again, or use backend=torch")  # fmt: skip
        return graph(feeds, outputs)


def pool_rows(hidden: Floats, lengths: Ints, pooling: Pooling, is_causal: bool) -> Floats:
    """(sequences, padded length, hidden_size) -> (sequences, hidden_size), as `objectives.contrastive.pool_tokens`."""
    if pooling == "cls":
        return hidden[np.arange(len(hidden)), lengths - 1 if is_causal else 0]
    if len(hidden) == 1 == len(lengths) and hidden.shape[1] == lengths[0]:
        mean: Floats = np.add.reduce(hidden, 1) / np.float32(lengths[0])
        return mean
    weights = (np.arange(hidden.shape[1]) < lengths[:, None]) / lengths[:, None].astype(np.float32)
    return (weights[:, None].astype(np.float32) @ hidden)[:, 0]


def _join_widths(widths: list[int], counts: list[int]) -> list[tuple[int, int]]:
    """Divides sorted widths into runs (first, last), each padded to its last width, with the least cost (see above)."""
    best, first_of = [0], list[int]()
    for last, width in enumerate(widths):
        costs = [best[first] + CALL_TOKENS + width * sum(counts[first : last + 1]) for first in range(last + 1)]
        first_of.append(min(range(last + 1), key=costs.__getitem__))
        best.append(costs[first_of[-1]])
    runs, last = list[tuple[int, int]](), len(widths) - 1
    while last >= 0:
        runs.append((first_of[last], last))
        last = first_of[last] - 1
    return runs[::-1]


def _pad(rows: Sequence[Ints], mask: NDArray[np.bool_]) -> Ints:
    if mask.shape == (1, len(rows[0])):
        return rows[0].astype(np.int64, copy=False)[None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate(rows)
    return padded
