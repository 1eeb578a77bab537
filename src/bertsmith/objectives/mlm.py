"""Masked language modelling (MLM), alone or with next-sentence or sentence-order prediction (Devlin et al. 2019; Lan et al.
2020)."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from ..config import Fraction, PosInt, Variant
from ..corpus.collate import Collator, NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.masking import MaskingConfig, TokenMasking
from ..corpus.sampling import NextSentence, PairSamplerConfig, PairStyle, SamplerConfig, SentenceOrder, Windows
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig, PooledHeadConfig
from ..model.model import Model
from ..model.segment_memory import SegmentMemory
from ..train.objective import Batch, Loss
from .base import Ints, to_inputs
from .recurrent_state import next_recurrent_state, restore_memory, stream_targets


class MaskedLM(Variant, frozen=True, tag="mlm"):
    """MLM: predicts the original tokens at masked positions."""

    packing: Annotated[SamplerConfig, "how the corpus is packed into sequences"] = Windows()
    masking: Annotated[MaskingConfig, "unit of masking: token, whole-word, span or ngram"] = TokenMasking()
    mlm_probability: Annotated[float, Meta(gt=0, lt=1), "share of tokens selected for prediction (0.15 in BERT)"] = 0.15
    dupe_factor: Annotated[
        PosInt | None, "number of differently masked copies of the data (10 in BERT); unset: new masks each epoch"
    ] = None

    min_sentences: ClassVar[int] = 1  # documents with fewer sentences are not used
    can_fill_mask: ClassVar[bool] = True
    token_loss: ClassVar[str] = "mlm_loss"

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig()}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return build_mlm_batches(
            self.packing,
            self.masking,
            self.mlm_probability,
            self.dupe_factor,
            corpus,
            document_ids,
            max_length,
            batch_tokens,
            seed,
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        targets = {"output_indices": torch.from_numpy(arrays.output_indices), "target_ids": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets | stream_targets(arrays), {"mlm": len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        memory = restore_memory(model, batch, recurrent_state)
        loss = mlm_loss(model, batch, model(with_output_indices(batch.inputs, batch.targets["output_indices"], memory)))
        return replace(loss, recurrent_state=next_recurrent_state(memory, batch))


class SentencePairMLM(Variant, frozen=True):
    """Base of MLM with a binary sentence-pair objective on the first token; subclasses define the sampler of pairs."""

    masking: Annotated[MaskingConfig, "unit of masking: token, whole-word, span or ngram"] = TokenMasking()
    mlm_probability: Annotated[float, Meta(gt=0, lt=1), "share of tokens selected for prediction (0.15 in BERT)"] = 0.15
    dupe_factor: Annotated[
        PosInt | None, "number of differently masked copies of the data (10 in BERT); unset: new masks each epoch"
    ] = None

    min_sentences: ClassVar[int] = 2  # a document of one sentence makes no pair
    can_fill_mask: ClassVar[bool] = True
    token_loss: ClassVar[str] = "mlm_loss"
    pair_task: ClassVar[str]  # nsp or sop: its head and its metrics

    def pair_sampler(self) -> PairSamplerConfig:
        raise NotImplementedError(type(self).__name__)

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig(), self.pair_task: PooledHeadConfig(labels=2)}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return build_mlm_batches(
            self.pair_sampler(),
            self.masking,
            self.mlm_probability,
            self.dupe_factor,
            corpus,
            document_ids,
            max_length,
            batch_tokens,
            seed,
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        assert arrays.labels is not None
        targets = {"output_indices": arrays.output_indices, "target_ids": arrays.target_ids, "pair_labels": arrays.labels}
        counts = {"mlm": len(arrays.output_indices), self.pair_task: len(arrays.labels)}
        return Batch(to_inputs(arrays), {name: torch.from_numpy(target) for name, target in targets.items()}, counts)

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        output_indices = batch.targets["output_indices"]
        if "pair_labels" not in batch.targets:  # single texts: MLM only
            return mlm_loss(model, batch, model(with_output_indices(batch.inputs, output_indices)))
        hidden_states = model(with_output_indices(batch.inputs, torch.cat([output_indices, batch.inputs.layout.first_token])))
        mlm = mlm_loss(model, batch, hidden_states[: len(output_indices)])
        pair_states, pair_labels = hidden_states[len(output_indices) :], batch.targets["pair_labels"]
        pair_loss, num_correct = model.cross_entropy(self.pair_task, pair_states, pair_labels)
        metrics = {**mlm.metrics, f"{self.pair_task}_accuracy": (num_correct, batch.target_counts[self.pair_task])}
        return Loss({**mlm.parts, self.pair_task: pair_loss}, metrics)


class NextSentenceMLM(SentencePairMLM, frozen=True, tag="mlm-nsp"):
    """MLM and next-sentence prediction (BERT, Devlin et al. 2019)."""

    short_seq_prob: Annotated[Fraction, "share of sequences with a random shorter length (0.1 in BERT)"] = 0.1
    style: Annotated[PairStyle, "google: as published, a single sentence always gets a random second one"] = "corrected"

    pair_task: ClassVar[str] = "nsp"

    def pair_sampler(self) -> PairSamplerConfig:
        return NextSentence(short_seq_prob=self.short_seq_prob, style=self.style)


class SentenceOrderMLM(SentencePairMLM, frozen=True, tag="mlm-sop"):
    """MLM and sentence-order prediction (ALBERT, Lan et al. 2020)."""

    short_seq_prob: Annotated[Fraction, "share of sequences with a random shorter length (0.1 in BERT)"] = 0.1

    pair_task: ClassVar[str] = "sop"

    def pair_sampler(self) -> PairSamplerConfig:
        return SentenceOrder(short_seq_prob=self.short_seq_prob)


def build_mlm_batches(
    sampler: SamplerConfig | PairSamplerConfig, masking: MaskingConfig, mlm_probability: float, dupe_factor: int | None,
    corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int,
) -> BatchLoader:  # fmt: skip
    """Batches of samples of the corpus with masked tokens; shared by MLM and replaced-token detection."""
    return BatchLoader(
        Collator(corpus.path, masking, mlm_probability, seed), sampler, document_ids, max_length, batch_tokens, dupe_factor
    )


def with_output_indices(inputs: Inputs, output_indices: Tensor, memory: SegmentMemory | None = None) -> Inputs:
    """The inputs with `output_indices`: the last layer and the LM head compute only these rows."""
    return replace(inputs, output_indices=output_indices, state=memory)


def mlm_loss(model: Model, batch: Batch[Inputs], hidden_states: Tensor) -> Loss:
    """Cross entropy of the masked tokens; hidden_states: (targets, hidden_size)."""
    total, num_correct = model.cross_entropy(LM_HEAD, hidden_states, batch.targets["target_ids"])
    return Loss({"mlm": total}, {"mlm_accuracy": (num_correct, batch.target_counts["mlm"])})
