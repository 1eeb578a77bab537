"""Supervised fine-tuning of a task head.

- ExampleBatches, build_batch: batches of encoded examples; batch k is a pure function of (seed, k)
- Supervised: heads, logits and loss (`task_losses.py`) of a task with a head
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..corpus.batches import batch_boundaries
from ..errors import UserError
from ..model.batch import Inputs
from ..model.heads import HeadConfig, SequenceHeadConfig, TokenHeadConfig
from ..model.heads.crf import CRF, CRFHeadConfig
from ..model.heads.cross_attention import CrossAttentionHead, CrossAttentionHeadConfig
from ..model.heads.features import FeatureClassifier, FeatureHeadConfig, FeaturesConfig
from ..model.model import Model
from ..model.packing import Layout, segment_means
from ..rng import Stream, permutation
from ..tasks import Task
from ..tasks.base import BothOrdersPair, CrossAttentionPair, EncodedExamples
from ..train.objective import Batch, Loss
from .base import Ints
from .task_losses import IGNORE_INDEX, TASK_LOSSES, TaskLoss


@dataclass(frozen=True)
class ExampleBatches:
    """Batches of encoded examples, of at most `batch_tokens` tokens; sequences of a group are never split."""

    task: Task
    encoded: EncodedExamples
    batch_tokens: int
    seed: int
    shuffle: bool = True
    cache: dict[int, list[Ints]] = field(default_factory=dict, compare=False, repr=False)  # batches of the current epoch

    @cached_property
    def groups(self) -> list[Ints]:
        """Sequences that must be in one batch: the options, texts or pooled windows of an example; else one each."""
        num_sequences, keeps_examples = (
            len(self.encoded.input_ids),
            self.task.groups_sequences and bool(self.encoded.targets),
        )
        if not keeps_examples and not self.pools_windows:
            return list(np.arange(num_sequences)[:, None])
        return np.split(np.arange(num_sequences), np.flatnonzero(np.diff(self.encoded.example_index)) + 1)

    @cached_property
    def pools_windows(self) -> bool:
        """Whether the windows of a long text are pooled to one vector."""
        return bool(self.encoded.metadata) and getattr(self.encoded.metadata[0], "pooled", False)

    @cached_property
    def batches_per_epoch(self) -> int:
        return len(self.split_epoch(0))

    def __call__(self, k: int, fraction_done: float = 0.0) -> Batch[Inputs]:
        """Batch k, counted over all epochs."""
        return self.build([self.groups[i] for i in self.group_indices(k)])

    def group_indices(self, k: int) -> Ints:
        """Which groups are in batch k."""
        epoch, index = divmod(k, self.batches_per_epoch)
        batches = self.cache[epoch] if epoch in self.cache else self._cache_epoch(epoch)
        return batches[index % len(batches)]

    def build(self, groups: list[Ints]) -> Batch[Inputs]:
        return build_batch(self.task, self.encoded, groups, self.pools_windows)

    def split_epoch(self, epoch: int) -> list[Ints]:
        """Group indices of each batch, shuffled or sorted by length; a group above `batch_tokens` has its own batch."""
        lengths = self.group_lengths
        order = (
            permutation(len(lengths), self.seed, Stream.EXAMPLE_ORDER, epoch)
            if self.shuffle
            else np.argsort(lengths, kind="stable")
        )
        return np.split(order, batch_boundaries(lengths[order], max(self.batch_tokens, int(lengths.max()))))

    @cached_property
    def group_lengths(self) -> Ints:
        """(groups,): tokens of each."""
        lengths = np.array([len(ids) for ids in self.encoded.input_ids])
        return np.add.reduceat(lengths, np.cumsum([0, *map(len, self.groups[:-1])]))

    def _cache_epoch(self, epoch: int) -> list[Ints]:
        """Batches of an epoch; only one epoch is cached."""
        self.cache.clear()
        return self.cache.setdefault(epoch, self.split_epoch(epoch))


def build_batch(task: Task, encoded: EncodedExamples, groups: list[Ints], pools_windows: bool = False) -> Batch[Inputs]:
    """Batch of these groups of sequences, with targets if the examples are labelled."""
    indices = np.concatenate(groups)
    ids, token_type_ids = ([part[i] for i in indices] for part in (encoded.input_ids, encoded.token_type_ids))
    layout = Layout.from_lengths([len(sequence) for sequence in ids], global_tokens=find_global_tokens(task, token_type_ids))
    inputs = Inputs(torch.from_numpy(np.concatenate(ids)), layout, torch.from_numpy(np.concatenate(token_type_ids)))
    group = np.repeat(np.arange(len(groups)), [len(sequences) for sequences in groups])
    targets = {"pooled_windows": group} if pools_windows else {}
    if task.groups_sequences:
        targets = _text_groups(encoded, indices, group, pools_windows)
    targets |= _select_targets(
        task, encoded, indices, [sequences[0] for sequences in groups] if pools_windows or targets else indices
    )
    label = targets.get("label", targets.get("start", targets.get("texts")))
    num_targets = (
        int((targets["label"] != IGNORE_INDEX).sum())
        if "label" in targets and (task.head_type == "token" or task.loss == "cross_entropy")
        else len(indices if label is None else label)
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in targets.items()}
    return Batch(inputs, tensors, {"task": max(num_targets, 1)})


def find_global_tokens(task: Task, token_type_ids: list[Ints]) -> Ints | None:
    """Indices of the global attention tokens (Longformer): [CLS] and the segment the task names; None for [CLS] only."""
    if task.global_segment is None:
        return None
    is_global = [ids == task.global_segment for ids in token_type_ids]
    for mask in is_global:
        mask[0] = True
    return np.flatnonzero(np.concatenate(is_global))


def _text_groups(encoded: EncodedExamples, indices: Ints, group: Ints, pools_windows: bool) -> dict[str, Ints]:
    """`group`: example of each text; `pooled_windows` or `windows`: text of each window, pooled by the model or in the loss."""
    is_first_window = np.array([encoded.metadata[index].number == 0 for index in indices])
    return {"group": group[is_first_window], "pooled_windows" if pools_windows else "windows": np.cumsum(is_first_window) - 1}


def _select_targets(task: Task, encoded: EncodedExamples, indices: Ints, first_indices: Ints | list[int]) -> dict[str, Ints]:
    """Targets of these sequences: by token for tagging, else by example or sequence."""
    if task.head_type == "token" and encoded.targets:
        ends, flat = encoded.seq_ends, encoded.targets["label"]
        label = np.concatenate([flat[ends[i] - len(encoded.input_ids[i]) : ends[i]] for i in indices])
        return {"label": label, **{name: value[indices] for name, value in encoded.targets.items() if name != "label"}}
    rows = encoded.example_index[np.asarray(first_indices)] if first_indices is not indices else indices
    return {name: value[rows] for name, value in encoded.targets.items()}


@dataclass(frozen=True)
class Supervised:
    """Objective of a task with a head `task`, and a head `crf` for the transitions of a CRF."""

    uses_pooler: ClassVar[bool] = True

    task: Task
    features: FeaturesConfig | None = None  # input features of a new head; None: the last layer

    def heads(self) -> dict[str, HeadConfig]:
        crf_heads: dict[str, HeadConfig] = {"crf": CRFHeadConfig(tags=self.task.num_outputs)} if self.uses_crf else {}
        if self.cross_head:
            return {"task": self.cross_head}
        if self.features:
            return {"task": FeatureHeadConfig(outputs=self.task.num_outputs, features=self.features), **crf_heads}
        head_class = SequenceHeadConfig if self.task.head_type == "text" else TokenHeadConfig
        return {"task": head_class(outputs=self.task.num_outputs), **crf_heads}

    @property
    def cross_head(self) -> CrossAttentionHeadConfig | None:
        """Head config for `task.pair=cross`, where both texts are encoded separately; else None."""
        pair = self.task.pair
        if not isinstance(pair, CrossAttentionPair):
            return None
        if self.features:
            raise UserError("features cannot be combined with task.pair=cross, which has its own head; leave one of them out")
        return CrossAttentionHeadConfig(outputs=self.task.num_outputs, blocks=pair.blocks)

    @property
    def uses_both_orders(self) -> bool:
        """Whether a pair is encoded as (a, b) and as (b, a), as in GPT."""
        return isinstance(self.task.pair, BothOrdersPair)

    @property
    def uses_crf(self) -> bool:
        return self.task.loss == "crf"

    def build_batches(
        self, encoded: EncodedExamples, batch_tokens: int, seed: int, is_prefix_lm: bool = False
    ) -> ExampleBatches:
        return ExampleBatches(self.task, encoded, batch_tokens, seed)

    def finalize_task(self, model: Model) -> Task:
        """The task with its learned decoding parameters: the transitions of a CRF. Other tasks are returned unchanged."""
        if not self.uses_crf:
            return self.task
        transitions = tuple(tuple(round(score, 6) for score in row) for row in _crf_transitions(model).tolist())
        return msgspec.structs.replace(self.task, transitions=transitions)

    def compute_outputs(self, model: Model, batch: Batch[Inputs], hidden_states: Tensor | None = None) -> Tensor:
        """Logits (rows, outputs): a row per sequence, per example where its windows are pooled, or per token.

        hidden_states: (tokens, hidden_size) of the encoder, if already computed.
        """
        head, layout = model.heads["task"], batch.inputs.layout
        if isinstance(head, CrossAttentionHead):
            return model.compute_logits(
                "task", head.encode_pairs(model(batch.inputs) if hidden_states is None else hidden_states, layout)
            )
        if isinstance(head, FeatureClassifier):
            layer_states: list[Tensor] = []
            layer_states[-1:] = [model(batch.inputs, layer_states)]  # the last layer after the final norm
            token_states = head.combine_layers(layer_states, batch.inputs)
            pooled = layout.mean_pool(token_states)
        elif self.task.head_type == "text":
            pooled = token_states = model.encoder.pool_tokens(batch.inputs, hidden_states)
        else:
            pooled = token_states = model(batch.inputs) if hidden_states is None else hidden_states
        if self.task.head_type != "text":
            return model.compute_logits("task", token_states)
        pooled = pool_windows(pooled, batch)
        # both orders: the sum, not the mean
        return model.compute_logits("task", 2 * pooled if self.uses_both_orders else pooled)

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        return self.loss_from_outputs(model, self.compute_outputs(model, batch).float(), batch)

    def transitions(self, model: Model) -> Tensor | None:
        """Transition scores of the CRF, or None for a task without one."""
        return _crf_transitions(model) if self.uses_crf else None

    @property
    def loss(self) -> TaskLoss:
        return TASK_LOSSES[self.task.loss](self.task)

    def loss_from_logits(self, logits: Tensor, batch: Batch[Inputs], transitions: Tensor | None = None) -> Loss:
        """Loss summed over targets; `transitions` are those of the CRF, if the task has one."""
        return self.loss.compute(logits, batch, transitions)

    def loss_from_outputs(self, model: Model, logits: Tensor, batch: Batch[Inputs]) -> Loss:
        """`loss_from_logits` with the transitions of the model's CRF, if it has one."""
        return self.loss_from_logits(logits, batch, self.transitions(model))

    def soft_labels(self, logits: Tensor, teacher_logits: Tensor, batch: Batch[Inputs], temperature: float) -> Tensor:
        """Soft-label loss of the teacher's logits for a batch, summed over targets."""
        return self.loss.soft_labels(logits, teacher_logits, batch, temperature)

    def consistency_loss(self, logits: Tensor, other_logits: Tensor, batch: Batch[Inputs]) -> Tensor:
        """Divergence of two outputs for a batch, summed over targets: symmetric KL, or squared error in regression."""
        return self.loss.divergence(logits, other_logits, batch)


def _crf_transitions(model: Model) -> Tensor:
    crf = model.heads["crf"]
    assert isinstance(crf, CRF)
    return crf.transitions


def pool_windows(rows: Tensor, batch: Batch[Inputs]) -> Tensor:
    """(sequences, hidden_size) -> (texts, hidden_size): the mean over the windows of a text; unchanged if there are none."""
    if "pooled_windows" not in batch.targets:
        return rows
    return segment_means(rows, batch.targets["pooled_windows"])
