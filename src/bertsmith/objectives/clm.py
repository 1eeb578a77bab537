"""Causal language modelling (CLM): every token is predicted from the tokens before it, as in GPT (Radford et al. 2018)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from ..corpus.collate import ClmTargets, DocumentPacking, NumpyBatch, Packing, StreamPacking, Targets
from ..corpus.sampling import SamplerConfig, Windows
from ..errors import UserError
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.embeddings.adaptive import AdaptiveSoftmaxHeadConfig
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.model import Model
from ..train.objective import Batch, Loss
from .base import PretrainObjective, lm_perplexity, to_inputs
from .mlm import with_output_indices
from .recurrent_state import next_recurrent_state, restore_memory, stream_targets


class CausalLM(PretrainObjective, frozen=True, tag="clm"):
    """Causal language model (GPT): next-token prediction over all tokens.

    With streams, the memory of the model is carried from batch to batch.
    """

    packing: Annotated[SamplerConfig, "how the corpus is packed into sequences"] = Windows()
    head: Annotated[
        LMHeadConfig | AdaptiveSoftmaxHeadConfig, "LM head; adaptive (adaptive softmax) is faster for large vocabularies"
    ] = LMHeadConfig(transform=False, bias=False)

    token_loss: ClassVar[str] = "lm_loss"

    def check(self, encoder: EncoderConfig) -> None:
        """Raises a UserError for a model that is not causal."""
        if not encoder.is_causal:
            raise UserError("objective=clm needs a causal model, which does not attend to the next token; set "
                           "model.mixer.causal=true, or use a causal preset, such as model=gpt")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {LM_HEAD: self.head}

    @property
    def sampler(self) -> SamplerConfig:
        return self.packing

    @property
    def packing_format(self) -> Packing:
        return StreamPacking() if self.uses_streams else DocumentPacking()

    @property
    def targets(self) -> Targets:
        return ClmTargets()

    def to_batch(self, arrays: NumpyBatch) -> Batch[Inputs]:
        targets = {"output_indices": torch.from_numpy(arrays.output_indices), "target_ids": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets | stream_targets(arrays), {"lm": len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        memory = restore_memory(model, batch, recurrent_state)
        hidden_states = model(with_output_indices(batch.inputs, batch.targets["output_indices"], memory))
        total, num_correct = model.cross_entropy(LM_HEAD, hidden_states, batch.targets["target_ids"])
        return Loss({"lm": total}, {"accuracy": (num_correct, batch.target_counts["lm"])}, next_recurrent_state(memory, batch))

    def summarize(self, evaluations: Mapping[str, Mapping[str, float]], card: dict[str, Any]) -> dict[str, float]:
        return lm_perplexity(evaluations, card)
