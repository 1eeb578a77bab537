"""The base of pre-training objectives: what they read of a corpus, their loss, and how they are evaluated."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import Variant
from ..corpus.card import bits_per_byte
from ..corpus.collate import Collator, NumpyBatch, Packing, Targets
from ..corpus.loader import BatchLoader
from ..corpus.sampling import PairSamplerConfig, SamplerConfig, Streams
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.heads import HeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..train.objective import Batch, Loss

Ints = NDArray[np.int64]
VALID = "valid"  # the evaluation with batches as in training
MAX_LOG_PERPLEXITY = 700.0  # exp of more is not finite


class EvalSet(NamedTuple):
    """Batches of one evaluation, made anew each time, and about how many tokens they have."""

    batches: Callable[[], Iterator[Batch[Inputs]]]
    num_tokens: float


class PretrainObjective(Variant, frozen=True):
    """Base of the objectives that train a network: the trainer's `Objective`, and the config `objective` of a recipe.

    A new one defines `token_loss`, `heads`, `sampler`, `packing_format`, `targets`, `to_batch` and `compute_loss`.
    """

    token_loss: ClassVar[str]  # the metric that is the mean NLL of tokens, to compare with the unigram baseline
    min_sentences: ClassVar[int] = 1  # documents with fewer sentences are not used
    can_fill_mask: ClassVar[bool] = False  # whether the trained model can fill [MASK]
    default_learning_rate: ClassVar[float | None] = None  # if `train.learning_rate` is not given; None: the trainer's

    def heads(self) -> dict[str, HeadConfig]:
        """Configs of the heads it needs, by name."""
        raise NotImplementedError

    def check(self, encoder: EncoderConfig) -> None:
        """Raises a UserError for a model that cannot be trained with this objective."""

    # batches

    @property
    def sampler(self) -> SamplerConfig | PairSamplerConfig:
        """How documents are divided into samples."""
        raise NotImplementedError

    @property
    def packing_format(self) -> Packing:
        """Which special tokens stand around the text of a sample."""
        raise NotImplementedError

    @property
    def targets(self) -> Targets:
        """Which tokens are predicted, and how the input hides them."""
        raise NotImplementedError

    @property
    def uses_streams(self) -> bool:
        """Whether batches continue the text of the batch before, as memory (Transformer-XL) needs."""
        return isinstance(self.sampler, Streams)

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        """Batches of these documents: sequences of at most `max_length`, batches of at most `batch_tokens` tokens."""
        collator = Collator(corpus.path, self.packing_format, self.targets, seed)
        return BatchLoader(collator, self.sampler, document_ids, max_length, batch_tokens)

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        """Converts a collated batch of numpy arrays to tensors."""
        raise NotImplementedError

    # training

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        """Loss summed over the targets of each part."""
        raise NotImplementedError

    # evaluation

    def eval_sets(
        self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int, max_tokens: int
    ) -> dict[str, EvalSet]:
        """What is evaluated during training, by split: `valid`, batches as in training of about `max_tokens` tokens."""
        loader = self.build_batches(corpus, document_ids, max_length, batch_tokens, seed)

        def batches() -> Iterator[Batch[Inputs]]:
            return map(self.to_batch, islice(loader, max(1, max_tokens // batch_tokens)))

        num_tokens = int(np.diff(corpus.document_token_offsets)[document_ids].sum())
        return {VALID: EvalSet(batches, min(max(max_tokens, batch_tokens), num_tokens))}

    def summarize(self, evaluations: Mapping[str, Mapping[str, float]], card: dict[str, Any]) -> dict[str, float]:
        """Scores of the final evaluation that are no losses, such as a perplexity; `card` is that of the validation corpus."""
        return {}


def lm_perplexity(evaluations: Mapping[str, Mapping[str, float]], card: dict[str, Any]) -> dict[str, float]:
    """Perplexity exp(nll) of a causal or bidirectional LM on held-out text, and bits per byte where bytes were counted."""
    nll = evaluations.get(VALID, {}).get("loss")
    if nll is None:
        return {}
    bits = bits_per_byte(nll, card)
    return {"perplexity": math.exp(min(nll, MAX_LOG_PERPLEXITY))} | ({} if bits is None else {"bits_per_byte": bits})


def to_inputs(arrays: NumpyBatch) -> Inputs:
    """Model inputs of a collated batch: packed input_ids, layout and token types."""
    token_type_ids = None if arrays.token_type_ids is None else torch.from_numpy(arrays.token_type_ids)
    return Inputs(torch.from_numpy(arrays.input_ids), Layout.from_lengths(torch.from_numpy(arrays.lengths)), token_type_ids)
