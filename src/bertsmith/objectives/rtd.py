"""Replaced-token detection: a small generator fills hidden words, and the model says of every token if it did (ELECTRA)."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ..config import PosFloat, PosInt, Variant
from ..corpus.collate import NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.masking import MaskingConfig, TokenMasking
from ..corpus.sampling import SamplerConfig, Windows
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.heads import DiscriminatorHeadConfig, HeadConfig
from ..model.heads.electra_generator import ElectraGenerator, GeneratorHeadConfig, SizeFraction
from ..model.model import Model
from ..train.loss import Loss
from .base import Ints, to_inputs
from .mlm import build_mlm_batches, with_output_indices

GENERATOR_HEAD, RTD_HEAD = "generator", "replaced"


class ReplacedTokenDetection(Variant, frozen=True, tag="replaced"):
    """Clark et al. 2020: what the generator's words cost, and `weight` times what the answers about every token do."""

    view: Annotated[SamplerConfig, "how the corpus is read"] = Windows()
    masks: Annotated[MaskingConfig, "what is hidden together"] = TokenMasking()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens the generator is asked for"] = 0.15
    repeats: Annotated[PosInt | None, "epochs after which samples and masks come again"] = None
    size: Annotated[SizeFraction, "of the generator, as a share of the model's width: 1/4 for small models, 1/3 for base"] = (
        0.25
    )
    weight: Annotated[PosFloat, "of what the model says of every token, beside the generator's words"] = 50.0

    min_sentences: ClassVar[int] = 1  # sentences a document must have to be read
    can_fill_mask: ClassVar[bool] = False  # from the generator, which is gone when the model is published

    def heads(self) -> dict[str, HeadConfig]:
        return {RTD_HEAD: DiscriminatorHeadConfig(), GENERATOR_HEAD: GeneratorHeadConfig(size=self.size)}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return build_mlm_batches(
            self.view, self.masks, self.rate, self.repeats, corpus, document_ids, max_length, batch_tokens, seed
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        targets = {"where": torch.from_numpy(arrays.output_indices), "words": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets, {"words": len(arrays.output_indices), RTD_HEAD: len(arrays.input_ids)})

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        generator, where, words = model.heads[GENERATOR_HEAD], batch.targets["where"], batch.targets["words"]
        assert isinstance(generator, ElectraGenerator)
        rows = generator(with_output_indices(batch.inputs, where), model.encoder)
        guessed, right = generator.cross_entropy(rows, model.encoder, words)
        drawn = generator.sample(rows, model.encoder)
        tokens = batch.inputs.input_ids.index_copy(0, where, drawn)
        fake = torch.zeros_like(tokens, dtype=torch.bool).index_copy(0, where, drawn != words)  # a right guess is no fake
        scores = model.compute_logits(RTD_HEAD, model(replace(batch.inputs, input_ids=tokens))).squeeze(-1).float()
        told = F.binary_cross_entropy_with_logits(scores, fake.float(), reduction="sum")
        called = scores > 0
        report: dict[str, tuple[Tensor | float, Tensor | float]] = {
            "mlm_accuracy": (right, batch.target_counts["words"]),
            "replaced_accuracy": ((called == fake).sum(), batch.target_counts[RTD_HEAD]),
            "replaced_found": ((called & fake).sum(), fake.sum()),
        }
        return Loss({"words": guessed, RTD_HEAD: self.weight * told}, report)
