"""Bidirectional language modelling (biLM, ELMo; Peters et al. 2018).

The first half of the hidden channels predicts the next token, the second half the previous one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ..corpus.collate import BilmTargets, ClsSepPacking, NumpyBatch, Packing, Targets
from ..corpus.sampling import SamplerConfig, Windows
from ..errors import UserError
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.embeddings import CharCNNConfig
from ..model.heads import LM_HEAD, HalfLMHeadConfig, HeadConfig
from ..model.mixers import Lstm
from ..model.model import Model
from ..train.objective import Batch, Loss
from .base import PretrainObjective, lm_perplexity, to_inputs

MetricPairs = dict[str, tuple[Tensor | float, Tensor | float]]


class BiLM(PretrainObjective, frozen=True, tag="bilm"):
    """Bidirectional language model (ELMo): next-token prediction in both directions.

    Both directions share one softmax; the first and the last token of a sequence are inputs, never targets.
    """

    packing: Annotated[SamplerConfig, "how the corpus is packed into sequences"] = Windows()
    head: Annotated[HalfLMHeadConfig, "LM head, shared by both directions"] = HalfLMHeadConfig()

    token_loss: ClassVar[str] = "lm_loss"

    def check(self, encoder: EncoderConfig) -> None:
        """Raises a UserError for a model in which the targets are visible in the input."""
        is_separate_lstm = (
            isinstance(encoder.mixer, Lstm) and encoder.mixer.directions == "apart" and encoder.feedforward is None
        )
        is_apart = encoder.separates_directions or (is_separate_lstm and encoder.norm == "none")
        embeds_tokens_only = encoder.embeddings is None or isinstance(encoder.embeddings, CharCNNConfig)
        if not is_apart or not embeds_tokens_only or not encoder.num_hidden_layers:
            raise UserError("objective=bilm needs a model whose two directions share no layer, or targets would be visible; "
                           "set model=elmo or elmo-transformer, or mixer.directions=apart (with mixer=lstm, no "
                           "feedforward and norm=none)")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: self.head}

    @property
    def sampler(self) -> SamplerConfig:
        return self.packing

    @property
    def packing_format(self) -> Packing:
        return ClsSepPacking()

    @property
    def targets(self) -> Targets:
        return BilmTargets()

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        targets = {"output_indices": torch.from_numpy(arrays.output_indices), "target_ids": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets, {"lm": 2 * len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        output_indices, target_ids = batch.targets["output_indices"], batch.targets["target_ids"]
        forward_states, backward_states = model(batch.inputs).chunk(2, -1)
        last_index = len(forward_states) - 1  # synthetic batches of `plan` may have targets at the ends
        forward_loss, forward_correct = model.cross_entropy(
            LM_HEAD, forward_states[(output_indices - 1).clamp(min=0)], target_ids
        )
        backward_loss, backward_correct = model.cross_entropy(
            LM_HEAD, backward_states[(output_indices + 1).clamp(max=last_index)], target_ids
        )
        metrics: MetricPairs = {"accuracy": (forward_correct + backward_correct, batch.target_counts["lm"])}
        metrics |= {
            "forward_nll": (forward_loss.detach(), len(output_indices)),
            "backward_nll": (backward_loss.detach(), len(output_indices)),
        }
        return Loss({"lm": forward_loss + backward_loss}, metrics)

    def summarize(self, evaluations: Mapping[str, Mapping[str, float]], card: dict[str, Any]) -> dict[str, float]:
        return lm_perplexity(evaluations, card)
