"""Sequence-to-sequence training with teacher forcing: each target token is predicted from the source and the target tokens
before it (Vaswani et al. 2017)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..model.batch import Inputs
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..tasks import Seq2Seq
from ..tasks.base import EncodedExamples
from ..train.objective import Batch, Loss
from .base import Ints
from .supervised import ExampleBatches


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Cross entropy of the target tokens, label-smoothed in training mode; the plain cross entropy is reported as `nll`."""

    uses_pooler: ClassVar[bool] = False

    task: Seq2Seq

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig(transform=False, bias=False)}

    def build_batches(
        self, encoded: EncodedExamples, batch_tokens: int, seed: int, is_prefix_lm: bool = False
    ) -> ExampleBatches:
        return Seq2SeqBatches(self.task, encoded, batch_tokens, seed, is_prefix_lm=is_prefix_lm)

    def finalize_task(self, model: Model) -> Seq2Seq:
        """The task unchanged: it has no learned parameters."""
        return self.task

    def compute_loss(self, model: Model, batch: "Seq2SeqBatch", recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        labels, count = batch.targets["target_ids"], batch.target_counts["task"]
        logits = model.compute_logits(LM_HEAD, model.decode(batch.inputs, batch.decoder_inputs)).float()
        loss, nll = label_smoothed_loss(logits, labels, self.task.label_smoothing_factor if model.training else 0.0)
        num_correct = (logits.argmax(-1) == labels).sum()
        return Loss({"task": loss}, {"nll": (nll.detach(), count), "accuracy": (num_correct, count)})


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed cross entropy against (1 - smoothing) * one-hot + smoothing * uniform targets, and the plain cross entropy.

    logits: (targets, vocab_size); labels: (targets,).
    """
    log_probs = logits.log_softmax(-1)
    nll = -log_probs.gather(1, labels[:, None]).sum()
    return ((1 - smoothing) * nll - smoothing * log_probs.mean(-1).sum() if smoothing else nll), nll


@dataclass(frozen=True)
class Seq2SeqBatch(Batch[Inputs]):
    """Sources with their targets."""

    decoder_inputs: Inputs | None = None  # None for a prefix LM, whose inputs hold source and target

    @property
    def num_tokens(self) -> int:
        return super().num_tokens + (0 if self.decoder_inputs is None else self.decoder_inputs.num_tokens)

    def to(self, device: Any) -> "Seq2SeqBatch":
        return replace(super().to(device), decoder_inputs=self.decoder_inputs and self.decoder_inputs.to(device))


@dataclass(frozen=True)
class Seq2SeqBatches(ExampleBatches):
    """Batches of source and target texts; `batch_tokens` counts both."""

    is_prefix_lm: bool = False  # source and target in one sequence, for a model without a decoder

    def build(self, groups: list[Ints]) -> Seq2SeqBatch:
        indices = np.concatenate(groups)
        return (build_prefix_lm_batch if self.is_prefix_lm else build_encoder_decoder_batch)(
            [self.encoded.input_ids[i] for i in indices], [self.target_ids[i] for i in indices]
        )

    @cached_property
    def target_ids(self) -> list[Ints]:
        """Token ids of each target, [CLS] ... [SEP]."""
        return np.split(self.encoded.targets["target_ids"], np.cumsum(self.encoded.targets["target_lengths"])[:-1])

    @cached_property
    def group_lengths(self) -> Ints:
        return np.array([len(ids) for ids in self.encoded.input_ids]) + self.encoded.targets["target_lengths"]


def build_encoder_decoder_batch(source_ids: list[Ints], target_ids: list[Ints]) -> Seq2SeqBatch:
    """For an encoder-decoder: decoder inputs [CLS] y1 .. yn, labels y1 .. yn [SEP]."""
    decoder_inputs = Inputs(
        _concat([ids[:-1] for ids in target_ids]), Layout.from_lengths([len(ids) - 1 for ids in target_ids])
    )
    source = Inputs(_concat(source_ids), Layout.from_lengths([len(ids) for ids in source_ids]))
    return Seq2SeqBatch(source, *_shifted_labels(target_ids), decoder_inputs)


def build_prefix_lm_batch(source_ids: list[Ints], target_ids: list[Ints]) -> Seq2SeqBatch:
    """For a prefix LM: inputs [CLS] source [SEP] y1 .. yn with the target as segment B, labels y1 .. yn [SEP].

    Next-token prediction, as GPT and s2s-ft fine-tune, not masked tokens, as UniLM: every target token gives a gradient.
    """
    source_lengths, target_lengths = (np.array([len(ids) for ids in texts]) for texts in (source_ids, target_ids))
    lengths = source_lengths + target_lengths - 2
    parts = [part for source, target in zip(source_ids, target_ids, strict=True) for part in (source, target[1:-1])]
    token_type_ids = np.repeat(np.tile([0, 1], len(source_ids)), np.stack([source_lengths, target_lengths - 2], 1).ravel())
    positions = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    output_indices = np.flatnonzero(positions >= np.repeat(source_lengths, lengths) - 1)
    layout = Layout.from_lengths(lengths.tolist(), source_lengths.tolist())
    source = Inputs(_concat(parts), layout, torch.from_numpy(token_type_ids), output_indices=torch.from_numpy(output_indices))
    return Seq2SeqBatch(source, *_shifted_labels(target_ids))


def _shifted_labels(target_ids: list[Ints]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Targets and target counts: all target tokens but [CLS]."""
    labels = _concat([ids[1:] for ids in target_ids])
    return {"target_ids": labels}, {"task": len(labels)}


def _concat(parts: list[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
