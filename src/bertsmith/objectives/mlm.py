"""Masked language modelling (MLM), alone or with next-sentence or sentence-order prediction (Devlin et al. 2019; Lan et al.
2020)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from ..config import Fraction, PosInt
from ..corpus.collate import ClsSepPacking, MlmTargets, NumpyBatch, Packing, Targets
from ..corpus.loader import BatchLoader
from ..corpus.masking import MaskingConfig, TokenMasking
from ..corpus.sampling import NextSentence, PairSamplerConfig, PairStyle, SamplerConfig, SentenceOrder, Windows
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig, PooledHeadConfig
from ..model.model import Model
from ..model.segment_memory import SegmentMemory
from ..train.objective import Batch, Loss
from .base import MAX_LOG_PERPLEXITY, EvalSet, Ints, PretrainObjective, to_inputs
from .pseudo_perplexity import count_masked_copy_tokens, pseudo_perplexity_batches
from .recurrent_state import next_recurrent_state, restore_memory, stream_targets

PSEUDO_PERPLEXITY = "pseudo_perplexity"  # the evaluation with one masked token at a time


class MaskingObjective(PretrainObjective, frozen=True):
    """Base of objectives that predict masked tokens: MLM, alone or with sentence pairs, and replaced-token detection."""

    masking: Annotated[MaskingConfig, "unit of masking: token, whole-word, span or ngram"] = TokenMasking()
    mlm_probability: Annotated[float, Meta(gt=0, lt=1), "share of tokens selected for prediction (0.15 in BERT)"] = 0.15
    dupe_factor: Annotated[
        PosInt | None, "number of differently masked copies of the data (10 in BERT); unset: new masks each epoch"
    ] = None

    token_loss: ClassVar[str] = "mlm_loss"

    @property
    def packing_format(self) -> Packing:
        return ClsSepPacking()

    @property
    def targets(self) -> Targets:
        return MlmTargets(self.masking, self.mlm_probability)

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        loader = super().build_batches(corpus, document_ids, max_length, batch_tokens, seed)
        return replace(loader, dupe_factor=self.dupe_factor)


class MlmObjective(MaskingObjective, frozen=True):
    """Base of MLM, alone or with sentence pairs: its models fill masks, and are evaluated by pseudo-perplexity."""

    can_fill_mask: ClassVar[bool] = True

    def eval_sets(
        self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int, max_tokens: int
    ) -> dict[str, EvalSet]:
        """`valid`, and `pseudo_perplexity` on half as many tokens."""
        pseudo_perplexity = EvalSet(
            lambda: pseudo_perplexity_batches(corpus, document_ids, max_length, batch_tokens, seed, max_tokens // 2),
            count_masked_copy_tokens(corpus, document_ids, max_tokens // 2),
        )
        eval_sets = super().eval_sets(corpus, document_ids, max_length, batch_tokens, seed, max_tokens)
        return eval_sets | {PSEUDO_PERPLEXITY: pseudo_perplexity}

    def summarize(self, evaluations: Mapping[str, Mapping[str, float]], card: dict[str, Any]) -> dict[str, float]:
        nll = evaluations.get(PSEUDO_PERPLEXITY, {}).get("loss")  # absent if the validation text has only unknown words
        return {} if nll is None else {PSEUDO_PERPLEXITY: math.exp(min(nll, MAX_LOG_PERPLEXITY))}


class MaskedLM(MlmObjective, frozen=True, tag="mlm"):
    """MLM: predicts the original tokens at masked positions."""

    packing: Annotated[SamplerConfig, "how the corpus is packed into sequences"] = Windows()

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig()}

    @property
    def sampler(self) -> SamplerConfig:
        return self.packing

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        targets = {"output_indices": torch.from_numpy(arrays.output_indices), "target_ids": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets | stream_targets(arrays), {"mlm": len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        memory = restore_memory(model, batch, recurrent_state)
        loss = mlm_loss(model, batch, model(with_output_indices(batch.inputs, batch.targets["output_indices"], memory)))
        return replace(loss, recurrent_state=next_recurrent_state(memory, batch))


class SentencePairMLM(MlmObjective, frozen=True):
    """Base of MLM with a binary sentence-pair objective on the first token; subclasses define the sampler of pairs."""

    min_sentences: ClassVar[int] = 2  # a document of one sentence makes no pair
    pair_task: ClassVar[str]  # nsp or sop: its head and its metrics

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: LMHeadConfig(), self.pair_task: PooledHeadConfig(labels=2)}

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

    @property
    def sampler(self) -> PairSamplerConfig:
        return NextSentence(short_seq_prob=self.short_seq_prob, style=self.style)


class SentenceOrderMLM(SentencePairMLM, frozen=True, tag="mlm-sop"):
    """MLM and sentence-order prediction (ALBERT, Lan et al. 2020)."""

    short_seq_prob: Annotated[Fraction, "share of sequences with a random shorter length (0.1 in BERT)"] = 0.1

    pair_task: ClassVar[str] = "sop"

    @property
    def sampler(self) -> PairSamplerConfig:
        return SentenceOrder(short_seq_prob=self.short_seq_prob)


def with_output_indices(inputs: Inputs, output_indices: Tensor, memory: SegmentMemory | None = None) -> Inputs:
    """The inputs with `output_indices`: the last layer and the LM head compute only these rows."""
    return replace(inputs, output_indices=output_indices, state=memory)


def mlm_loss(model: Model, batch: Batch[Inputs], hidden_states: Tensor) -> Loss:
    """Cross entropy of the masked tokens; hidden_states: (targets, hidden_size)."""
    total, num_correct = model.cross_entropy(LM_HEAD, hidden_states, batch.targets["target_ids"])
    return Loss({"mlm": total}, {"mlm_accuracy": (num_correct, batch.target_counts["mlm"])})
