"""Masked language modelling: hide some words, and ask for them back."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from ..config import Count, Variant
from ..corpus.collate import Arrays, Maker
from ..corpus.loader import Batches
from ..corpus.masking import MaskConfig, Pieces
from ..corpus.sampling import NextSentence, PairConfig, ViewConfig, Windows
from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig, LabelHead, WordHead
from ..model.model import Model
from ..model.segment_memory import Memory
from ..train.loss import Loss
from .base import Ints, packed
from .recurrent_state import carried, flowing, recalled


class Masked(Variant, frozen=True):
    view: Annotated[ViewConfig, "how the corpus is read"] = Windows()
    masks: Annotated[MaskConfig, "what is hidden together"] = Pieces()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens asked for"] = 0.15
    repeats: Annotated[Count | None, "epochs after which samples and masks come again: 10 is BERT's static masking"] = None

    least: ClassVar[int] = 1  # sentences a document must have to be read
    hides: ClassVar[bool] = True

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": WordHead()}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        return batches(self.view, self.masks, self.rate, self.repeats, corpus, documents, length, tokens, seed)

    def batch(self, arrays: Arrays) -> Batch:
        targets = {"where": torch.from_numpy(arrays.where), "words": torch.from_numpy(arrays.words)}
        return Batch(packed(arrays), targets | flowing(arrays), {"words": len(arrays.where)})

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        memory = recalled(model, batch, carry)
        loss = word_loss(model, batch, model(asked(batch.inputs, batch.targets["where"], memory)))
        return replace(loss, carry=carried(memory, batch))


def batches(
    view: ViewConfig | PairConfig, masks: MaskConfig, rate: float, repeats: int | None,
    corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int,
) -> Batches:  # fmt: skip
    return Batches(Maker(corpus.path, masks, rate, seed), view, documents, length, tokens, repeats)


def asked(inputs: Inputs, where: Tensor, memory: Memory | None = None) -> Inputs:
    """No other row leaves the last block, and none reaches the vocabulary."""
    return replace(inputs, wanted=where, memory=memory)


def word_loss(model: Model, batch: Batch, rows: Tensor) -> Loss:
    total, right = model.entropy("words", rows, batch.targets["words"])
    return Loss({"words": total}, {"mlm_accuracy": (right, batch.counts["words"])})


class Pairs(Variant, frozen=True):
    pairs: Annotated[PairConfig, "next-sentence: does B follow A; sentence-order: or does A follow B"] = NextSentence()
    masks: Annotated[MaskConfig, "what is hidden together"] = Pieces()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens asked for"] = 0.15
    repeats: Annotated[Count | None, "epochs after which samples and masks come again: 10 is BERT's static masking"] = None

    least: ClassVar[int] = 2  # sentences a document must have to be read: one alone makes no pair
    hides: ClassVar[bool] = True

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": WordHead(), "next": LabelHead(labels=2)}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        return batches(self.pairs, self.masks, self.rate, self.repeats, corpus, documents, length, tokens, seed)

    def batch(self, arrays: Arrays) -> Batch:
        assert arrays.labels is not None
        targets = {"where": arrays.where, "words": arrays.words, "next": arrays.labels}
        counts = {"words": len(arrays.where), "next": len(arrays.labels)}
        return Batch(packed(arrays), {name: torch.from_numpy(target) for name, target in targets.items()}, counts)

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        where = batch.targets["where"]
        if "next" not in batch.targets:  # texts that are no pairs, asked for their words alone
            return word_loss(model, batch, model(asked(batch.inputs, where)))
        rows = model(asked(batch.inputs, torch.cat([where, batch.inputs.layout.firsts])))
        words = word_loss(model, batch, rows[: len(where)])
        total, right = model.entropy("next", rows[len(where) :], batch.targets["next"])
        report = {**words.report, "next_accuracy": (right, batch.counts["next"])}
        return Loss({**words.parts, "next": total}, report)
