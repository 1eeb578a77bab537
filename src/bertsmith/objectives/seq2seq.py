"""Translation, and all else that answers a text by a text: each token is foretold from the source and those before it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model.batch import Batch, Inputs
from ..model.generation.seq2seq import decoder_hidden_states
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..tasks import Seq2Seq
from ..train.loss import Loss
from .base import Ints
from .supervised import ExampleBatches


@dataclass(frozen=True)
class Seq2SeqObjective:
    """Teacher forcing, with smoothed labels while it learns; a loss that is only judged is the cross entropy itself."""

    task: Seq2Seq

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig(transform=False, bias=False)}

    def finalize_task(self, model: Model) -> Seq2Seq:
        """The task as it is: nothing of it is learnt."""
        return self.task

    def compute_loss(self, model: Model, batch: "Seq2SeqBatch", recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        words, count = batch.targets["words"], batch.target_counts["task"]
        scores = model.compute_logits(LM_HEAD, decoder_hidden_states(model, batch.inputs, batch.decoder_inputs)).float()
        total, plain = label_smoothed_loss(scores, words, self.task.smoothing if model.training else 0.0)
        right = (scores.argmax(-1) == words).sum()
        return Loss({"task": total}, {"nats": (plain.detach(), count), "accuracy": (right, count)})


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The summed cross entropy against targets of which `share` is spread over all words alike, and against the bare ones."""
    logs = logits.log_softmax(-1)
    bare = -logs.gather(1, labels[:, None]).sum()
    return ((1 - smoothing) * bare - smoothing * logs.mean(-1).sum() if smoothing else bare), bare


@dataclass(frozen=True)
class Seq2SeqBatch(Batch):
    decoder_inputs: Inputs | None = None  # what a decoder reads; without one the answers stand behind their sources

    @property
    def num_tokens(self) -> int:
        return super().num_tokens + (0 if self.decoder_inputs is None else self.decoder_inputs.input_ids.shape[0])

    def to(self, device: Any) -> "Seq2SeqBatch":
        moved = super().to(device)
        return Seq2SeqBatch(
            moved.inputs, moved.targets, moved.target_counts, self.decoder_inputs and self.decoder_inputs.to(device)
        )


@dataclass(frozen=True)
class Seq2SeqBatches(ExampleBatches):
    """Batches of sources with their answers, both counted in the budget."""

    is_prefix_lm: bool = False  # one sequence holds both, for a model without a decoder

    def build(self, groups: list[Ints]) -> Seq2SeqBatch:
        chosen = np.concatenate(groups)
        return (build_prefix_lm_batch if self.is_prefix_lm else build_encoder_decoder_batch)(
            [self.encoded.input_ids[i] for i in chosen], [self.target_ids[i] for i in chosen]
        )

    @cached_property
    def target_ids(self) -> list[Ints]:
        """[CLS] ... [SEP] of each."""
        return np.split(self.encoded.targets["reply"], np.cumsum(self.encoded.targets["size"])[:-1])

    @cached_property
    def group_lengths(self) -> Ints:
        return np.array([len(ids) for ids in self.encoded.input_ids]) + self.encoded.targets["size"]


def build_encoder_decoder_batch(source_ids: list[Ints], target_ids: list[Ints]) -> Seq2SeqBatch:
    """For an encoder-decoder: it reads [CLS] y1 .. yn, and is asked for y1 .. yn [SEP]."""
    told = Inputs(_concat([one[:-1] for one in target_ids]), Layout.from_lengths([len(one) - 1 for one in target_ids]))
    source = Inputs(_concat(source_ids), Layout.from_lengths([len(one) for one in source_ids]))
    return Seq2SeqBatch(source, *_shifted_labels(target_ids), told)


def build_prefix_lm_batch(source_ids: list[Ints], target_ids: list[Ints]) -> Seq2SeqBatch:
    """For one stack: [CLS] source [SEP] y1 .. yn, the answer as segment B; asked for y1 .. yn [SEP], from [SEP] on.

    The next token, as GPT and s2s-ft fine-tune, not masked ones, as UniLM itself: every token of the answer is learnt from.
    """
    first, more = (np.array([len(one) for one in some]) for some in (source_ids, target_ids))
    lengths = first + more - 2
    parts = [part for source, one in zip(source_ids, target_ids, strict=True) for part in (source, one[1:-1])]
    segments = np.repeat(np.tile([0, 1], len(source_ids)), np.stack([first, more - 2], 1).ravel())
    place = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    wanted = np.flatnonzero(place >= np.repeat(first, lengths) - 1)
    layout = Layout.from_lengths(lengths.tolist(), first.tolist())
    source = Inputs(_concat(parts), layout, torch.from_numpy(segments), output_indices=torch.from_numpy(wanted))
    return Seq2SeqBatch(source, *_shifted_labels(target_ids))


def _shifted_labels(target_ids: list[Ints]) -> tuple[dict[str, Tensor], dict[str, int]]:
    words = _concat([one[1:] for one in target_ids])
    return {"words": words}, {"task": len(words)}


def _concat(parts: list[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
