"""Encoded examples as batches: what belongs together stays together, and batch k is a function of (seed, k)."""

from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..corpus.loader import batch_boundaries
from ..errors import UserError
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig, SequenceHeadConfig, TokenHeadConfig
from ..model.heads.crf import CRF, CRFBatch, CRFHeadConfig
from ..model.heads.cross_attention import CrossAttentionHead, CrossAttentionHeadConfig
from ..model.heads.features import FeatureClassifier, FeatureHeadConfig, FeaturesConfig
from ..model.model import Model
from ..model.packing import Layout, segment_means
from ..rng import Stream, permutation
from ..tasks import (
    MultipleChoice,
    QuestionAnswering,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from ..tasks.base import BothOrdersPair, CrossAttentionPair, EncodedExamples
from ..train.loss import Loss
from .base import Ints

IGNORE_INDEX = -100


@dataclass(frozen=True)
class ExampleBatches:
    """Batch k of encoded examples: sequences that belong together stay together, and budgets are in tokens."""

    task: TaskConfig
    encoded: EncodedExamples
    batch_tokens: int
    seed: int
    shuffle: bool = True
    cache: dict[int, list[Ints]] = field(default_factory=dict, compare=False, repr=False)  # the batches of the last epoch asked

    @cached_property
    def groups(self) -> list[Ints]:
        """The sequences of each example that one batch must hold whole; else each sequence by itself."""
        count, compared = (
            len(self.encoded.input_ids),
            isinstance(self.task, MultipleChoice | TextSimilarity) and bool(self.encoded.targets),
        )
        if not compared and not self.pools_windows:
            return list(np.arange(count)[:, None])
        return np.split(np.arange(count), np.flatnonzero(np.diff(self.encoded.example_index)) + 1)

    @cached_property
    def pools_windows(self) -> bool:
        return bool(self.encoded.metadata) and getattr(self.encoded.metadata[0], "pooled", False)

    @cached_property
    def batches_per_epoch(self) -> int:
        return len(self.split_epoch(0))

    def __call__(self, k: int, fraction_done: float = 0.0) -> Batch:
        epoch, place = divmod(k, self.batches_per_epoch)
        batches = self.cache[epoch] if epoch in self.cache else self._cache_epoch(epoch)
        return self.build([self.groups[i] for i in batches[place % len(batches)]])

    def build(self, groups: list[Ints]) -> Batch:
        return build_batch(self.task, self.encoded, groups, self.pools_windows)

    def split_epoch(self, epoch: int) -> list[Ints]:
        """The units of each batch; one that is larger than the budget has a batch of its own."""
        sizes = self.group_lengths
        order = (
            permutation(len(sizes), self.seed, Stream.EXAMPLE_ORDER, epoch)
            if self.shuffle
            else np.argsort(sizes, kind="stable")
        )
        return np.split(order, batch_boundaries(sizes[order], max(self.batch_tokens, int(sizes.max()))))

    @cached_property
    def group_lengths(self) -> Ints:
        """(units,): tokens of each."""
        lengths = np.array([len(ids) for ids in self.encoded.input_ids])
        return np.add.reduceat(lengths, np.cumsum([0, *map(len, self.groups[:-1])]))

    def _cache_epoch(self, epoch: int) -> list[Ints]:
        """Of one epoch: the next needs another."""
        self.cache.clear()
        return self.cache.setdefault(epoch, self.split_epoch(epoch))


def build_batch(task: TaskConfig, encoded: EncodedExamples, groups: list[Ints], pools_windows: bool = False) -> Batch:
    """These sequences as a model takes them, with their targets where they are known."""
    chosen = np.concatenate(groups)
    ids, segments = ([part[i] for i in chosen] for part in (encoded.input_ids, encoded.token_type_ids))
    layout = Layout.from_lengths([len(one) for one in ids], global_tokens=_global_tokens(task, segments))
    inputs = Inputs(torch.from_numpy(np.concatenate(ids)), layout, torch.from_numpy(np.concatenate(segments)))
    group = np.repeat(np.arange(len(groups)), [len(unit) for unit in groups])
    targets = {"joined": group} if pools_windows else {}
    if isinstance(task, MultipleChoice | TextSimilarity):
        targets = _text_groups(encoded, chosen, group, pools_windows)
    targets |= _select_targets(task, encoded, chosen, [unit[0] for unit in groups] if pools_windows or targets else chosen)
    label = targets.get("label", targets.get("start", targets.get("texts")))
    count = (
        int((label != IGNORE_INDEX).sum())
        if isinstance(task, TokenClassification) and label is not None
        else len(chosen if label is None else label)
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in targets.items()}
    return Batch(inputs, tensors, {"task": max(count, 1)})


def _global_tokens(task: TaskConfig, segments: list[Ints]) -> Ints | None:
    """Tokens that meet their whole sequence in a model of windows: [CLS], and the segment that the task names; None: [CLS]."""
    if (number := getattr(task, "global_segment", None)) is None:
        return None
    marked = [one == number for one in segments]
    for one in marked:
        one[0] = True
    return np.flatnonzero(np.concatenate(marked))


def _text_groups(encoded: EncodedExamples, indices: Ints, group: Ints, pools_windows: bool) -> dict[str, Ints]:
    """`group`: the example of each text; and the text of each window, which the model joins or the loss averages."""
    first = np.array([encoded.metadata[number].number == 0 for number in indices])
    return {"group": group[first], "joined" if pools_windows else "windows": np.cumsum(first) - 1}


def _select_targets(
    task: TaskConfig, encoded: EncodedExamples, indices: Ints, first_indices: Ints | list[int]
) -> dict[str, Ints]:
    if isinstance(task, TokenClassification) and encoded.targets:
        ends, flat = encoded.seq_ends, encoded.targets["label"]
        label = np.concatenate([flat[ends[i] - len(encoded.input_ids[i]) : ends[i]] for i in indices])
        return {"label": label, **({"whole": encoded.targets["whole"][indices]} if task.crf else {})}
    rows = (
        encoded.example_index[np.asarray(first_indices)]
        if isinstance(task, MultipleChoice) or first_indices is not indices
        else indices
    )
    return {name: value[rows] for name, value in encoded.targets.items()}


@dataclass(frozen=True)
class Supervised:
    """One task as an objective; its head is called `task`, what a CRF adds to it `chain`."""

    task: TaskConfig
    features: FeaturesConfig | None = None  # what a new head reads; without them the last layer

    def heads(self) -> dict[str, HeadConfig]:
        beside: dict[str, HeadConfig] = {"chain": CRFHeadConfig(tags=self.task.num_outputs)} if self.uses_crf else {}
        if self.cross_head:
            return {"task": self.cross_head}
        if self.features:
            return {"task": FeatureHeadConfig(outputs=self.task.num_outputs, features=self.features), **beside}
        kind = SequenceHeadConfig if self.task.head_type == "text" else TokenHeadConfig
        return {"task": kind(outputs=self.task.num_outputs), **beside}

    @property
    def cross_head(self) -> CrossAttentionHeadConfig | None:
        """The head of texts that are read each by itself."""
        pair = self.task.pair if isinstance(self.task, TextClassification | TextRegression) else None
        if isinstance(pair, CrossAttentionPair) and self.features:
            raise UserError("features are what a plain head reads, and task.pair=cross has its own; leave one of them out")
        return (
            CrossAttentionHeadConfig(outputs=self.task.num_outputs, blocks=pair.blocks)
            if isinstance(pair, CrossAttentionPair)
            else None
        )

    @property
    def uses_both_orders(self) -> bool:
        return isinstance(self.task, TextClassification | TextRegression) and isinstance(self.task.pair, BothOrdersPair)

    @property
    def uses_crf(self) -> bool:
        return isinstance(self.task, TokenClassification) and self.task.crf

    def finalize_task(self, model: Model) -> TaskConfig:
        """The task with what the model learnt for its decoding: the moves of a CRF. Most tasks stay as they are."""
        if not self.uses_crf:
            return self.task
        moves = tuple(tuple(round(one, 6) for one in row) for row in _crf_transitions(model).tolist())
        return msgspec.structs.replace(self.task, moves=moves)

    def compute_outputs(self, model: Model, batch: Batch, hidden_states: Tensor | None = None) -> Tensor:
        """A row a sequence, or an example where its windows are joined, or a token; `hidden` are all rows, if known."""
        head, layout = model.heads["task"], batch.inputs.layout
        if isinstance(head, CrossAttentionHead):
            return model.compute_logits(
                "task", head.encode_pairs(model(batch.inputs) if hidden_states is None else hidden_states, layout)
            )
        if isinstance(head, FeatureClassifier):
            states: list[Tensor] = []
            states[-1:] = [model(batch.inputs, states)]  # the last layer as the encoder gives it, normed
            tokens = head.combine_layers(states, layout)
            rows = layout.mean_pool(tokens)
        elif self.task.head_type == "text":
            rows = tokens = model.encoder.pool_tokens(batch.inputs, hidden_states)
        else:
            rows = tokens = model(batch.inputs) if hidden_states is None else hidden_states
        if self.task.head_type != "text":
            return model.compute_logits("task", tokens)
        rows = pool_windows(rows, batch)
        return model.compute_logits("task", 2 * rows if self.uses_both_orders else rows)  # of two orders the sum, not the mean

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        return self.loss_from_logits(self.compute_outputs(model, batch).float(), batch, self.transitions(model))

    def transitions(self, model: Model) -> Tensor | None:
        """What the model's CRF scores each pair of neighbouring tags with; None for a task without one."""
        return _crf_transitions(model) if self.uses_crf else None

    def loss_from_logits(self, logits: Tensor, batch: Batch, transitions: Tensor | None = None) -> Loss:
        """What these scores cost, in sums over the targets; with a CRF, by the moves of the model's chain."""
        task = self.task
        if isinstance(task, QuestionAnswering):
            places = torch.cat([batch.targets["start"], batch.targets["end"]])
            return Loss({"task": F.cross_entropy(self.choice_logits(logits, batch), places, reduction="sum") / 2})
        label = batch.targets["label"]
        if isinstance(task, TextRegression):
            return Loss({"task": F.mse_loss(logits[:, 0], label, reduction="sum")})
        weights = _class_weights(task, logits)
        if isinstance(task, TextClassification) and task.many:
            total = F.binary_cross_entropy_with_logits(logits, label, pos_weight=weights, reduction="sum") / task.num_outputs
            return Loss({"task": total})
        logits = self.choice_logits(logits, batch)
        if self.uses_crf:
            total = self._crf_loss(logits, batch, transitions)
        else:
            total = F.cross_entropy(logits, label, weight=weights, ignore_index=IGNORE_INDEX, reduction="sum")
        right = (logits.argmax(-1) == label).sum()
        return Loss({"task": total}, {"accuracy": (right, batch.target_counts["task"])})

    def _crf_loss(self, logits: Tensor, batch: Batch, transitions: Tensor | None) -> Tensor:
        """Counted by token, as without a CRF: a token weighs the same in a long sentence as in a short one."""
        assert isinstance(self.task, TokenClassification) and transitions is not None, (
            "a CRF is priced by the moves of its model"
        )
        label, owner = batch.targets["label"], batch.inputs.layout.seq_id
        known, table = (label != IGNORE_INDEX).nonzero().squeeze(1), self.task.transition_mask()
        if not len(known):
            return logits.sum() * 0
        allowed = None if table is None else torch.from_numpy(table.copy()).to(logits.device)
        return (
            CRFBatch.from_tokens(logits[known], label[known], owner[known], batch.targets["whole"])
            .nll(transitions, allowed)
            .sum()
        )

    def choice_logits(self, logits: Tensor, batch: Batch) -> Tensor:
        """(rows, choices): one softmax a row, over labels, options, or the places where an answer may begin, then end."""
        if isinstance(self.task, MultipleChoice):
            windows = batch.targets.get("windows")
            return _pad_options((logits if windows is None else segment_means(logits, windows))[:, 0], batch.targets["group"])
        if not isinstance(self.task, QuestionAnswering):
            return logits
        layout = batch.inputs.layout
        grid = layout.pad(logits).masked_fill(~layout.padding_mask()[..., None], float("-inf"))
        return torch.cat(grid.unbind(-1))

    def consistency_loss(self, logits: Tensor, other_logits: Tensor, batch: Batch) -> Tensor:
        """How much two readings of a batch differ, over its targets: symmetric KL, or squares where answers are numbers."""
        task = self.task
        if isinstance(task, TextRegression):
            return F.mse_loss(logits, other_logits, reduction="sum")
        if isinstance(task, TextClassification) and task.many:
            logits, other_logits = (torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, other_logits))
            return _symmetric_kl(logits, other_logits).sum() / task.num_outputs
        apart = _symmetric_kl(self.choice_logits(logits, batch), self.choice_logits(other_logits, batch))
        if isinstance(task, TokenClassification):
            apart = apart[batch.targets["label"] != IGNORE_INDEX]
        return apart.sum() / (2 if isinstance(task, QuestionAnswering) else 1)


def _crf_transitions(model: Model) -> Tensor:
    chain = model.heads["chain"]
    assert isinstance(chain, CRF)
    return chain.moves


def pool_windows(rows: Tensor, batch: Batch) -> Tensor:
    """The windows of one document as one, their mean; otherwise every sequence by itself."""
    if "joined" not in batch.targets:
        return rows
    return segment_means(rows, batch.targets["joined"])


def _symmetric_kl(logits: Tensor, other_logits: Tensor) -> Tensor:
    """(..., choices) twice -> (...): the mean of KL one way and the other; impossible choices cost nothing."""
    never = logits == float("-inf")
    left, right = (x.log_softmax(-1).masked_fill(never, 0.0) for x in (logits, other_logits))
    return ((left.exp() - right.exp()) * (left - right)).sum(-1) / 2


def _pad_options(logits: Tensor, group: Tensor) -> Tensor:
    """(options,) -> (examples, most options): -inf where an example has fewer."""
    counts = torch.bincount(group)
    starts = counts.cumsum(0) - counts
    grid = logits.new_full((counts.shape[0], int(counts.max())), float("-inf"))
    return grid.index_put((group, torch.arange(len(group), device=group.device) - starts[group]), logits)


def _class_weights(task: TaskConfig, like: Tensor) -> Tensor | None:
    table = task.class_weights() if isinstance(task, TextClassification) else None
    return None if table is None else torch.from_numpy(table).to(like)
