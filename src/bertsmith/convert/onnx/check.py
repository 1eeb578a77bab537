"""Comparison of an exported graph with torch on random and extreme batches; an export that differs is not written."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from ...model.batch import Inputs
from ...model.heads import DiscriminatorHead, PooledClassifier
from ...model.heads.cross_attention import CrossAttentionHead
from ...model.model import Model
from ...model.packing import Layout
from ...objectives.contrastive import embed_sequences
from ...objectives.supervised import Supervised, find_global_tokens
from ...objectives.task_objective import build_task_objective
from ...tasks import Task
from ...train.objective import Batch
from .outputs import (
    ATTENTION_MASK,
    EMBEDDING,
    END_LOGITS,
    HIDDEN_STATES,
    INPUT_IDS,
    LOGITS,
    PAIR_LOGITS,
    POOLED,
    START_LOGITS,
    TASK_HEAD,
    TOKEN_TYPE_IDS,
    HeadModule,
    averages_sequences,
)

MIN_INT8_COSINE = 0.99  # of sentence embeddings to those in float32, on average
TOLERANCE = 1e-4  # largest difference, relative to the largest value where that is above 1
BATCH_SIZES = (1, 2, 8)
NUM_ROWS = (1, 7)  # of the graph of a head
Arrays = dict[str, NDArray[Any]]
Runner = Callable[[Arrays], Arrays]  # a graph: inputs by name -> outputs by name


class Texts(NamedTuple):
    """Random token ids and segment ids of some texts."""

    ids: list[NDArray[np.int64]]
    segments: list[NDArray[np.int64]]

    def pad(self, num_empty: int = 0) -> Arrays:
        """(texts, length) int64 each, right-padded, and `num_empty` rows of padding alone."""
        shape = len(self.ids) + num_empty, max(map(len, self.ids))
        arrays = {name: np.zeros(shape, np.int64) for name in (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS)}
        for row, (ids, segments) in enumerate(zip(self.ids, self.segments, strict=True)):
            for name, values in ((INPUT_IDS, ids), (ATTENTION_MASK, np.ones_like(ids)), (TOKEN_TYPE_IDS, segments)):
                arrays[name][row, : len(ids)] = values
        return arrays


def check_graph(run: Runner, input_names: Iterable[str], model: Model, task: Task | None) -> dict[str, float]:
    """Largest difference of each output, over batches of one text and of several, of one token and of the longest texts,
    and with a row of padding alone."""
    differences, names = dict[str, float](), set(input_names)
    is_pair = TASK_HEAD in model.heads and isinstance(model.heads[TASK_HEAD], CrossAttentionHead)
    for batch in _batches(model, is_pair):
        expected = compute_outputs(model, task, batch)
        feeds = {name: value for name, value in batch.pad(num_empty=2).items() if name in names}
        computed = run(feeds)
        mask = feeds[ATTENTION_MASK].astype(bool)
        for name, value in expected.items():
            if not np.isfinite(computed[name]).all():
                raise UserError(f"the exported graph gives values of {name} that are not finite; nothing was written")
            is_by_token = computed[name].shape[:2] == mask.shape and len(value) == mask.sum()
            ours = computed[name][mask] if is_by_token else computed[name][: len(value)]
            differences[name] = max(differences.get(name, 0.0), _difference(ours, value))
    return _require_small(differences)


def check_head_graph(run: Runner, module: HeadModule) -> dict[str, float]:
    """The same for the graph of one head, on random rows."""
    differences = {LOGITS: 0.0}
    for num_rows in NUM_ROWS:
        rows = np.random.default_rng(num_rows).standard_normal((num_rows, module.input_size), np.float32)
        with torch.inference_mode():
            expected = module(torch.from_numpy(rows))[LOGITS].numpy()
        computed = run({module.input_names[0]: rows})[LOGITS]
        differences[LOGITS] = max(differences[LOGITS], _difference(computed, expected))
    return _require_small(differences)


@torch.inference_mode()
def compute_outputs(model: Model, task: Task | None, texts: Texts) -> Arrays:
    """The outputs of a graph by name, by torch over packed texts; those of each token are (tokens, ..)."""
    global_tokens = None if task is None else find_global_tokens(task, texts.segments)
    layout = Layout.from_lengths([len(ids) for ids in texts.ids], global_tokens=global_tokens)
    inputs = Inputs(torch.from_numpy(np.concatenate(texts.ids)), layout, torch.from_numpy(np.concatenate(texts.segments)))
    hidden, encoder = model(inputs), model.encoder
    vectors = embed_sequences(model, hidden, layout, getattr(task, "pooling", "mean"))
    vectors = torch.nn.functional.normalize(vectors, dim=-1) if getattr(task, "normalize", False) else vectors
    outputs: dict[str, Tensor] = {HIDDEN_STATES: hidden, EMBEDDING: vectors}
    if task is not None and TASK_HEAD in model.heads:
        objective = build_task_objective(task)
        assert isinstance(objective, Supervised)
        logits = objective.compute_outputs(model, Batch(inputs))
        is_span = task.head_type == "span"
        outputs |= {START_LOGITS: logits[:, 0], END_LOGITS: logits[:, 1]} if is_span else {LOGITS: logits}
        outputs |= {POOLED: encoder.pool_tokens(inputs)} if averages_sequences(task) else {}
        return {name: value.numpy() for name, value in outputs.items()}
    for head in model.heads.values():
        if isinstance(head, DiscriminatorHead):
            outputs[LOGITS] = head(hidden, encoder).squeeze(-1)
        elif isinstance(head, PooledClassifier):
            outputs[PAIR_LOGITS] = head(encoder.pool_tokens(inputs), encoder)
    return {name: value.numpy() for name, value in outputs.items()}


def check_int8_graph(
    run: Runner, input_names: Iterable[str], model: Model, task: Task | None, batches: Iterable[Arrays]
) -> dict[str, float]:
    """Mean and lowest cosine of the sentence embeddings of a quantized graph to the model's.

    `batches` are inputs without padding. Random ids, as in `draw_batches`, are harder than texts: the mean decides.
    """
    names, cosines = set(input_names), list[float]()
    for feeds in batches:
        texts = Texts(list(feeds[INPUT_IDS]), list(feeds[TOKEN_TYPE_IDS]))
        with torch.inference_mode():
            expected = compute_outputs(model, task, texts)[EMBEDDING].astype(np.float64)
        computed = run({name: value for name, value in feeds.items() if name in names})[EMBEDDING].astype(np.float64)
        norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(computed, axis=1)
        cosines += ((expected * computed).sum(1) / np.maximum(norms, 1e-30)).tolist()
    result = {"mean": float(np.mean(cosines)), "lowest": min(cosines)}
    if not result["mean"] >= MIN_INT8_COSINE:
        raise UserError(
            f"precision=int8: sentence embeddings of random ids have a mean cosine of {result['mean']:.4f} to float32, below "
            f"{MIN_INT8_COSINE}; nothing was written. Use precision=fp32"
        )
    return result


def _batches(model: Model, is_pair: bool) -> Iterable[Texts]:
    """Texts of random lengths and the shortest and longest ones; `is_pair`: an even number, as two are one example."""
    longest, rng = model.config.encoder.max_position_embeddings, np.random.default_rng(0)
    lengths = [rng.integers(1, min(longest, 64) + 1, size).tolist() for size in BATCH_SIZES]
    for row_lengths in (*lengths, [1], [1, 1, 2 if longest > 1 else 1], [longest], [longest, 1, (longest + 1) // 2]):
        row_lengths = [*row_lengths, *row_lengths] if is_pair else row_lengths
        ids = [rng.integers(0, model.config.vocab_size, length) for length in row_lengths]
        types = model.config.encoder.type_vocab_size or 1
        yield Texts(ids, [np.sort(rng.integers(0, min(types, 2), length)) for length in row_lengths])


def _difference(computed: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(computed - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0)))


def _require_small(differences: dict[str, float]) -> dict[str, float]:
    if too_large := {name: value for name, value in differences.items() if not value <= TOLERANCE}:
        values = ", ".join(f"{name} by {value:.1e}" for name, value in too_large.items())
        raise UserError(f"the exported graph differs from the model: {values}, more than {TOLERANCE:g}; nothing was written")
    return differences


def onnx_runner(path: Path) -> tuple[Runner, list[str]]:
    """A graph computed by onnxruntime in float32, and the names of its inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    run: Runner = lambda feeds: dict(zip(outputs, session.run(outputs, feeds), strict=True))
    return run, [value.name for value in session.get_inputs()]


def openvino_runner(path: Path) -> tuple[Runner, list[str]]:
    """A model computed by OpenVINO in float32 (its default is bfloat16 on some CPUs), and the names of its inputs."""
    import openvino

    compiled: Any = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feeds: Arrays) -> Arrays:
        results = compiled(feeds)
        return {port.get_any_name(): results[port] for port in compiled.outputs}

    return run, [port.get_any_name() for port in compiled.inputs]
