"""Masked language modelling: hide some words, and ask for them back."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from ..config import PosInt, Variant
from ..corpus.collate import Collator, NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.masking import MaskingConfig, TokenMasking
from ..corpus.sampling import NextSentence, PairSamplerConfig, SamplerConfig, Windows
from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig, LMHeadConfig, PooledHeadConfig
from ..model.model import Model
from ..model.segment_memory import SegmentMemory
from ..train.loss import Loss
from .base import Ints, to_inputs
from .recurrent_state import next_recurrent_state, restore_memory, stream_targets


class MaskedLM(Variant, frozen=True, tag="masked"):
    view: Annotated[SamplerConfig, "how the corpus is read"] = Windows()
    masks: Annotated[MaskingConfig, "what is hidden together"] = TokenMasking()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens asked for"] = 0.15
    repeats: Annotated[PosInt | None, "epochs after which samples and masks come again: 10 is BERT's static masking"] = None

    min_sentences: ClassVar[int] = 1  # sentences a document must have to be read
    can_fill_mask: ClassVar[bool] = True

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": LMHeadConfig()}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return build_mlm_batches(
            self.view, self.masks, self.rate, self.repeats, corpus, document_ids, max_length, batch_tokens, seed
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        targets = {"where": torch.from_numpy(arrays.output_indices), "words": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets | stream_targets(arrays), {"words": len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        memory = restore_memory(model, batch, recurrent_state)
        loss = mlm_loss(model, batch, model(with_output_indices(batch.inputs, batch.targets["where"], memory)))
        return replace(loss, recurrent_state=next_recurrent_state(memory, batch))


def build_mlm_batches(
    sampler: SamplerConfig | PairSamplerConfig, masking: MaskingConfig, mlm_probability: float, dupe_factor: int | None,
    corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int,
) -> BatchLoader:  # fmt: skip
    return BatchLoader(
        Collator(corpus.path, masking, mlm_probability, seed), sampler, document_ids, max_length, batch_tokens, dupe_factor
    )


def with_output_indices(inputs: Inputs, output_indices: Tensor, memory: SegmentMemory | None = None) -> Inputs:
    """No other row leaves the last block, and none reaches the vocabulary."""
    return replace(inputs, output_indices=output_indices, memory=memory)


def mlm_loss(model: Model, batch: Batch, hidden_states: Tensor) -> Loss:
    total, right = model.cross_entropy("words", hidden_states, batch.targets["words"])
    return Loss({"words": total}, {"mlm_accuracy": (right, batch.target_counts["words"])})


class SentencePairMLM(Variant, frozen=True, tag="pairs"):
    pairs: Annotated[PairSamplerConfig, "next-sentence: does B follow A; sentence-order: or does A follow B"] = NextSentence()
    masks: Annotated[MaskingConfig, "what is hidden together"] = TokenMasking()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens asked for"] = 0.15
    repeats: Annotated[PosInt | None, "epochs after which samples and masks come again: 10 is BERT's static masking"] = None

    min_sentences: ClassVar[int] = 2  # sentences a document must have to be read: one alone makes no pair
    can_fill_mask: ClassVar[bool] = True

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": LMHeadConfig(), "next": PooledHeadConfig(labels=2)}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return build_mlm_batches(
            self.pairs, self.masks, self.rate, self.repeats, corpus, document_ids, max_length, batch_tokens, seed
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        assert arrays.labels is not None
        targets = {"where": arrays.output_indices, "words": arrays.target_ids, "next": arrays.labels}
        counts = {"words": len(arrays.output_indices), "next": len(arrays.labels)}
        return Batch(to_inputs(arrays), {name: torch.from_numpy(target) for name, target in targets.items()}, counts)

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        where = batch.targets["where"]
        if "next" not in batch.targets:  # texts that are no pairs, asked for their words alone
            return mlm_loss(model, batch, model(with_output_indices(batch.inputs, where)))
        rows = model(with_output_indices(batch.inputs, torch.cat([where, batch.inputs.layout.first_token])))
        words = mlm_loss(model, batch, rows[: len(where)])
        total, right = model.cross_entropy("next", rows[len(where) :], batch.targets["next"])
        report = {**words.metrics, "next_accuracy": (right, batch.target_counts["next"])}
        return Loss({**words.parts, "next": total}, report)
