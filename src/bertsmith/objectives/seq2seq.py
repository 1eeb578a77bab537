"""Translation, and all else that answers a text by a text: each token is foretold from the source and those before it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model.batch import Batch, Inputs
from ..model.generation.seq2seq import hidden
from ..model.heads import HEAD, HeadConfig, WordHead
from ..model.model import Model
from ..model.packing import Layout
from ..tasks import Generate
from ..train.loss import Loss
from .base import Ints
from .supervised import Reading


@dataclass(frozen=True)
class Translate:
    """Teacher forcing, with smoothed labels while it learns; a loss that is only judged is the cross entropy itself."""

    task: Generate

    def heads(self) -> dict[str, HeadConfig]:
        return {HEAD: WordHead(transform=False, bias=False)}

    def settled(self, model: Model) -> Generate:
        """The task as it is: nothing of it is learnt."""
        return self.task

    def loss(self, model: Model, batch: "Couples", carry: tuple[Tensor, ...] = ()) -> Loss:
        words, count = batch.targets["words"], batch.counts["task"]
        scores = model.scores(HEAD, hidden(model, batch.inputs, batch.answer)).float()
        total, plain = smoothed(scores, words, self.task.smoothing if model.training else 0.0)
        right = (scores.argmax(-1) == words).sum()
        return Loss({"task": total}, {"nats": (plain.detach(), count), "accuracy": (right, count)})


def smoothed(scores: Tensor, words: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The summed cross entropy against targets of which `share` is spread over all words alike, and against the bare ones."""
    logs = scores.log_softmax(-1)
    bare = -logs.gather(1, words[:, None]).sum()
    return ((1 - share) * bare - share * logs.mean(-1).sum() if share else bare), bare


@dataclass(frozen=True)
class Couples(Batch):
    answer: Inputs | None = None  # what a decoder reads; without one the answers stand behind their sources

    @property
    def tokens(self) -> int:
        return super().tokens + (0 if self.answer is None else self.answer.tokens.shape[0])

    def to(self, device: Any) -> "Couples":
        moved = super().to(device)
        return Couples(moved.inputs, moved.targets, moved.counts, self.answer and self.answer.to(device))


@dataclass(frozen=True)
class Replies(Reading):
    """Batches of sources with their answers, both counted in the budget."""

    joint: bool = False  # one sequence holds both, for a model without a decoder

    def made(self, units: list[Ints]) -> Couples:
        chosen = np.concatenate(units)
        return (joint if self.joint else apart)([self.encoded.ids[i] for i in chosen], [self.answers[i] for i in chosen])

    @cached_property
    def answers(self) -> list[Ints]:
        """[CLS] ... [SEP] of each."""
        return np.split(self.encoded.targets["reply"], np.cumsum(self.encoded.targets["size"])[:-1])

    @cached_property
    def sizes(self) -> Ints:
        return np.array([len(ids) for ids in self.encoded.ids]) + self.encoded.targets["size"]


def apart(sources: list[Ints], answers: list[Ints]) -> Couples:
    """For an encoder-decoder: it reads [CLS] y1 .. yn, and is asked for y1 .. yn [SEP]."""
    told = Inputs(_joined([one[:-1] for one in answers]), Layout.of([len(one) - 1 for one in answers]))
    source = Inputs(_joined(sources), Layout.of([len(one) for one in sources]))
    return Couples(source, *_asked(answers), told)


def joint(sources: list[Ints], answers: list[Ints]) -> Couples:
    """For one stack: [CLS] source [SEP] y1 .. yn, the answer as segment B; asked for y1 .. yn [SEP], from [SEP] on.

    The next token, as GPT and s2s-ft fine-tune, not masked ones, as UniLM itself: every token of the answer is learnt from.
    """
    first, more = (np.array([len(one) for one in some]) for some in (sources, answers))
    lengths = first + more - 2
    parts = [part for source, one in zip(sources, answers, strict=True) for part in (source, one[1:-1])]
    segments = np.repeat(np.tile([0, 1], len(sources)), np.stack([first, more - 2], 1).ravel())
    place = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
    wanted = np.flatnonzero(place >= np.repeat(first, lengths) - 1)
    layout = Layout.of(lengths.tolist(), first.tolist())
    source = Inputs(_joined(parts), layout, torch.from_numpy(segments), wanted=torch.from_numpy(wanted))
    return Couples(source, *_asked(answers))


def _asked(answers: list[Ints]) -> tuple[dict[str, Tensor], dict[str, int]]:
    words = _joined([one[1:] for one in answers])
    return {"words": words}, {"task": len(words)}


def _joined(parts: list[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
