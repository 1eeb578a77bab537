"""`TorchEngine`: forward passes by PyTorch, over packed sequences, on a CPU or a GPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import cores
from ...model.batch import Inputs
from ...model.heads.embedding import EMBEDDING_HEAD, EmbeddingHeadConfig
from ...model.model import Model
from ...model.packing import Layout
from ...objectives.contrastive import embed_sequences
from ...objectives.seq2seq import Seq2SeqObjective
from ...objectives.supervised import ExampleBatches, build_batch
from ...objectives.task_objective import build_task_objective
from ...tasks import Task
from ...tasks.base import EncodedExamples
from ...tasks.similarity import Pooling
from .base import (
    LM_HEAD,
    MIN_COSINE,
    Backend,
    Engine,
    Floats,
    Ints,
    ModelFacts,
    Precision,
    check_choice,
    lowest_cosine,
    random_ids,
)


class TorchEngine(Engine):
    """A model with its inference precision.

    `auto` is bf16 autocast on a GPU, several times faster than fp32; and on a CPU with instructions for it, unless the model
    generates text (a step of decoding is bound by reading weights, which autocast converts) or its vectors change.
    `fixed_threads` is for runs, whose results must not depend on the load of the machine: another number of threads adds in
    another order.
    """

    backend: Backend = "torch"

    def __init__(self, model: Model, precision: Precision = "auto", fixed_threads: bool = False) -> None:
        check_choice("precision", precision, Precision)
        self.model, self.precision, self.fixed_threads = model.eval(), precision, fixed_threads

    @property
    def facts(self) -> ModelFacts:  # type: ignore[override]
        config, encoder = self.model.config, self.model.config.encoder
        sizes = (encoder.hidden_size, encoder.num_hidden_layers, encoder.max_position_embeddings)
        head, has_decoder = config.heads.get(EMBEDDING_HEAD), config.decoder is not None
        embedding_size = head.layers[-1].out_features if isinstance(head, EmbeddingHeadConfig) else encoder.hidden_size
        return ModelFacts(config.vocab_size, *sizes, encoder.is_causal, has_decoder, tuple(config.heads), embedding_size)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def batch_tokens(self) -> int:
        """Default batch size in tokens: large on a GPU, small enough for the caches of a CPU."""
        return 16384 if self.device.type == "cuda" else super().batch_tokens

    @property
    def compute_precision(self) -> Literal["fp32", "bf16"]:
        if self.precision == "auto":
            return "bf16" if self.device.type == "cuda" or (cores.has_bf16() and self._keeps_vectors_in_bf16) else "fp32"
        return self.precision

    @cached_property
    def _keeps_vectors_in_bf16(self) -> bool:
        """Whether sentence embeddings in bf16 have a cosine of `MIN_COSINE` or more to those in fp32."""
        encoder = self.model.config.encoder
        if encoder.is_causal or self.model.decoder is not None or not encoder.num_hidden_layers:
            return False
        ids = random_ids((16, min(64, encoder.max_position_embeddings)), self.model.config.vocab_size)
        exact, rounded = (TorchEngine(self.model, precision).embed(ids, "mean") for precision in ("fp32", "bf16"))
        return lowest_cosine(exact, rounded) >= MIN_COSINE

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @contextmanager
    def inference_context(self) -> Iterator[None]:
        """Inference mode with autocast to the precision in use; on a CPU, with a thread for each free core."""
        use_bf16, threads = (
            self.compute_precision == "bf16",
            cores.limit_threads() if self.device.type == "cpu" and not self.fixed_threads else nullcontext(),
        )
        with threads, torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=use_bf16):
            yield

    def compute_hidden_states(self, input_ids: Sequence[Ints]) -> tuple[Tensor, Layout]:
        """Final hidden states (tokens, hidden_size) of packed sequences, and their layout."""
        layout = Layout.from_lengths([len(ids) for ids in input_ids])
        inputs = Inputs(torch.from_numpy(np.concatenate(input_ids)), layout).to(self.device)
        return self.model(inputs), inputs.layout

    def hidden_states(self, input_ids: Sequence[Ints]) -> list[Floats]:
        with self.inference_context():
            hidden, layout = self.compute_hidden_states(input_ids)
            return [part.numpy() for part in hidden.float().cpu().split(layout.lengths.tolist())]

    def embed(self, input_ids: Sequence[Ints], pooling: Pooling) -> Floats:
        with self.inference_context():
            hidden, layout = self.compute_hidden_states(input_ids)
            return embed_sequences(self.model, hidden, layout, pooling).float().cpu().numpy()

    @property
    def vector_table(self) -> Floats | None:
        """(vocab_size, vector_size): weights of a table of vectors on the CPU, which NumPy reads in microseconds; else None."""
        if not self._is_vector_table or self.precision == "bf16":
            return None
        weight = self.model.encoder.word_embeddings.weight
        return weight.detach().numpy() if weight.device.type == "cpu" else None

    @cached_property
    def _is_vector_table(self) -> bool:
        return self.model.config.encoder.is_vector_table

    def lm_logits(self, input_ids: Sequence[Ints], positions: Sequence[Ints]) -> list[Floats]:
        with self.inference_context():
            hidden, layout = self.compute_hidden_states(input_ids)
            starts = layout.cu_seqlens[:-1].tolist()
            rows = np.concatenate([start + part for start, part in zip(starts, positions, strict=True)])
            logits = self.model.compute_logits(LM_HEAD, hidden[torch.from_numpy(rows).to(hidden.device)])
            return [part.numpy() for part in logits.float().cpu().split([len(part) for part in positions])]

    def task_outputs(self, task: Task, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[NDArray[Any]]:
        objective = build_task_objective(task)
        assert not isinstance(objective, Seq2SeqObjective), "text is generated by `text_generation`"
        batches = ExampleBatches(task, encoded, batch_tokens or self.batch_tokens, 0, shuffle=False)
        outputs = dict[int, NDArray[Any]]()
        for indices in batches.split_epoch(0):
            groups = [batches.groups[i] for i in indices]
            batch = build_batch(task, encoded, groups, batches.pools_windows)
            with self.inference_context():
                rows = objective.compute_outputs(self.model, batch.to(self.device)).float().cpu()
            sequence_ids = [
                index for group in groups for index in group if not batches.pools_windows or encoded.metadata[index].number == 0
            ]
            is_token_level = task.head_type in ("token", "span")
            values = rows.split(batch.inputs.layout.lengths.tolist()) if is_token_level else rows
            outputs |= {int(i): value.numpy() for i, value in zip(sequence_ids, values, strict=True)}
        return [outputs[i] for i in sorted(outputs)]

    def as_torch(self) -> "TorchEngine":
        return self
