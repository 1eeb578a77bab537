"""Replaced-token detection (RTD, ELECTRA; Clark et al. 2020).

A small generator (MLM) fills masked tokens with samples; the discriminator classifies every token as original or replaced.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ..config import PosFloat
from ..corpus.collate import NumpyBatch
from ..corpus.sampling import SamplerConfig, Windows
from ..errors import UserError
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.heads import DiscriminatorHeadConfig, HeadConfig
from ..model.heads.electra_generator import ElectraGenerator, GeneratorHeadConfig, SizeFraction
from ..model.model import Model
from ..train.objective import Batch, Loss
from .base import to_inputs
from .mlm import MaskingObjective, with_output_indices

GENERATOR_HEAD, RTD_HEAD = "generator", "rtd"


class ReplacedTokenDetection(MaskingObjective, frozen=True, tag="rtd"):
    """Replaced token detection (ELECTRA, Clark et al. 2020).

    MLM loss of the generator plus `discriminator_weight` times the discriminator's binary cross entropy over all tokens.
    """

    packing: Annotated[SamplerConfig, "how the corpus is packed into sequences"] = Windows()
    mlm_probability: Annotated[float, Meta(gt=0, lt=1), "share of tokens the generator predicts (0.15 in ELECTRA)"] = 0.15
    generator_size: Annotated[
        SizeFraction, "hidden size of the generator as a fraction of the model's (1/4 for small, 1/3 for base)"
    ] = 0.25
    discriminator_weight: Annotated[PosFloat, "weight of the discriminator loss (50 in ELECTRA)"] = 50.0

    can_fill_mask: ClassVar[bool] = False  # the generator could, but it is dropped from the published model

    def check(self, encoder: EncoderConfig) -> None:
        if self.uses_streams:
            raise UserError("objective.packing=streams is not supported by objective=rtd, whose generator has no memory; use "
                           "another, such as objective.packing=windows")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {RTD_HEAD: DiscriminatorHeadConfig(), GENERATOR_HEAD: GeneratorHeadConfig(size=self.generator_size)}

    @property
    def sampler(self) -> SamplerConfig:
        return self.packing

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        targets = {"output_indices": torch.from_numpy(arrays.output_indices), "target_ids": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets, {"mlm": len(arrays.output_indices), "rtd": len(arrays.input_ids)})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        generator, output_indices, target_ids = (
            model.heads[GENERATOR_HEAD],
            batch.targets["output_indices"],
            batch.targets["target_ids"],
        )
        assert isinstance(generator, ElectraGenerator)
        hidden_states = generator(with_output_indices(batch.inputs, output_indices), model.encoder)
        mlm_loss, num_correct = generator.cross_entropy(hidden_states, model.encoder, target_ids)
        samples = generator.sample(hidden_states, model.encoder)
        input_ids = batch.inputs.input_ids.index_copy(0, output_indices, samples)
        # a correct sample counts as original
        is_replaced = torch.zeros_like(input_ids, dtype=torch.bool).index_copy(0, output_indices, samples != target_ids)
        logits = model.compute_logits(RTD_HEAD, model(replace(batch.inputs, input_ids=input_ids))).squeeze(-1).float()
        rtd_loss = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        predicted = logits > 0
        metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {
            "mlm_accuracy": (num_correct, batch.target_counts["mlm"]),
            "rtd_accuracy": ((predicted == is_replaced).sum(), batch.target_counts["rtd"]),
            "rtd_recall": ((predicted & is_replaced).sum(), is_replaced.sum()),
        }
        return Loss({"mlm": mlm_loss, "rtd": self.discriminator_weight * rtd_loss}, metrics)
