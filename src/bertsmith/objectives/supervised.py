"""Fine-tuning: examples with their answers, and what each kind of task pays for a wrong one."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.heads import HeadConfig, TextHead, TokenHead
from ..model.model import Model
from ..model.types import Batch
from ..tasks import Answering, Choose, Classify, Regress, Tag, TaskConfig
from ..train.loss import Loss
from .reading import IGNORED


@dataclass(frozen=True)
class Supervised:
    """One task as an objective; its head is called `task`."""

    task: TaskConfig

    def heads(self) -> dict[str, HeadConfig]:
        kind = TextHead if self.task.head == "text" else TokenHead
        return {"task": kind(outputs=self.task.outputs)}

    def scores(self, model: Model, batch: Batch) -> Tensor:
        """A row a sequence, or an example where its windows are joined, or a token."""
        hidden, layout = model(batch.inputs), batch.inputs.layout
        if self.task.head != "text":
            return model.scores("task", hidden)
        return model.scores("task", _joined(hidden[layout.firsts], batch))

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        return self.price(self.scores(model, batch).float(), batch)

    def price(self, scores: Tensor, batch: Batch) -> Loss:
        """What these scores cost, in sums over the targets."""
        task = self.task
        if isinstance(task, Answering):
            places = torch.cat([batch.targets["start"], batch.targets["end"]])
            return Loss({"task": F.cross_entropy(self.choices(scores, batch), places, reduction="sum") / 2})
        label = batch.targets["label"]
        if isinstance(task, Regress):
            return Loss({"task": F.mse_loss(scores[:, 0], label, reduction="sum")})
        weights = _weights(task, scores)
        if isinstance(task, Classify) and task.many:
            total = F.binary_cross_entropy_with_logits(scores, label, pos_weight=weights, reduction="sum") / task.outputs
            return Loss({"task": total})
        scores = self.choices(scores, batch)
        total = F.cross_entropy(scores, label, weight=weights, ignore_index=IGNORED, reduction="sum")
        right = (scores.argmax(-1) == label).sum()
        return Loss({"task": total}, {"accuracy": (right, batch.counts["task"])})

    def choices(self, scores: Tensor, batch: Batch) -> Tensor:
        """(rows, choices): one softmax a row, over labels, options, or the places where an answer may begin, then end."""
        if isinstance(self.task, Choose):
            return _options(scores[:, 0], batch.targets["group"])
        if not isinstance(self.task, Answering):
            return scores
        layout = batch.inputs.layout
        grid = layout.grid(scores).masked_fill(~layout.real()[..., None], float("-inf"))
        return torch.cat(grid.unbind(-1))

    def apart(self, scores: Tensor, others: Tensor, batch: Batch) -> Tensor:
        """How much two readings of a batch differ, over its targets: symmetric KL, or squares where answers are numbers."""
        task = self.task
        if isinstance(task, Regress):
            return F.mse_loss(scores, others, reduction="sum")
        if isinstance(task, Classify) and task.many:
            scores, others = (torch.stack([x, torch.zeros_like(x)], -1) for x in (scores, others))
            return _divergence(scores, others).sum() / task.outputs
        apart = _divergence(self.choices(scores, batch), self.choices(others, batch))
        if isinstance(task, Tag):
            apart = apart[batch.targets["label"] != IGNORED]
        return apart.sum() / (2 if isinstance(task, Answering) else 1)


def _joined(rows: Tensor, batch: Batch) -> Tensor:
    """The windows of one document as one, their mean; otherwise every sequence by itself."""
    if "joined" not in batch.targets:
        return rows
    owner = batch.targets["joined"]
    sums = rows.new_zeros(int(owner[-1]) + 1, rows.shape[1]).index_add(0, owner, rows)
    return sums / torch.bincount(owner).to(rows.dtype)[:, None]


def _divergence(scores: Tensor, others: Tensor) -> Tensor:
    """(..., choices) twice -> (...): the mean of KL one way and the other; impossible choices cost nothing."""
    never = scores == float("-inf")
    left, right = (x.log_softmax(-1).masked_fill(never, 0.0) for x in (scores, others))
    return ((left.exp() - right.exp()) * (left - right)).sum(-1) / 2


def _options(scores: Tensor, group: Tensor) -> Tensor:
    """(options,) -> (examples, most options): -inf where an example has fewer."""
    counts = torch.bincount(group)
    starts = counts.cumsum(0) - counts
    grid = scores.new_full((counts.shape[0], int(counts.max())), float("-inf"))
    return grid.index_put((group, torch.arange(len(group), device=group.device) - starts[group]), scores)


def _weights(task: TaskConfig, like: Tensor) -> Tensor | None:
    table = task.class_weights() if isinstance(task, Classify) else None
    return None if table is None else torch.from_numpy(table).to(like)
