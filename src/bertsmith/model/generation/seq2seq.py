"""Sequence-to-sequence decoding: an encoder-decoder, or a prefix LM (UniLM) that continues the source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batch import Inputs
from ..heads import LM_HEAD
from ..model import Model
from ..packing import Layout
from .kv_cache import KVCacheDecoder
from .search import IncrementalDecoder, Ints


def build_incremental_decoder(model: Model, decoder_start_token_id: int, max_new_tokens: int) -> IncrementalDecoder:
    """The incremental decoder of a sequence-to-sequence model; targets of an encoder-decoder start with
    `decoder_start_token_id`."""
    return (
        Seq2SeqDecoder(model, decoder_start_token_id)
        if model.decoder is not None
        else KVCacheDecoder(model, max_new_tokens, is_prefix_lm=True)
    )


def decoder_hidden_states(model: Model, encoder_inputs: Inputs, decoder_inputs: Inputs | None) -> Tensor:
    """Hidden states (rows, hidden_size) from which the target tokens are predicted, with teacher forcing.

    Without a decoder (prefix LM), `encoder_inputs` holds each target behind its source.
    """
    if decoder_inputs is None:
        return model(encoder_inputs)
    assert model.decoder is not None
    return model.decoder(decoder_inputs, model(encoder_inputs), encoder_inputs.layout, model.encoder)


@dataclass(frozen=True)
class Seq2SeqDecoder:
    """Incremental decoder of an encoder-decoder: the source is encoded once, in `prefill`."""

    model: Model
    decoder_start_token_id: int

    def prefill(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        inputs = _pack_prompts(self.model, prompts)
        state = self.model.decoder.init_state(self.model(inputs), inputs.layout, self.model.encoder)
        return self.decode_step(state, torch.full((len(prompts),), self.decoder_start_token_id, device=inputs.input_ids.device))

    def decode_step(self, state: Any, input_ids: Tensor) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        state, hidden_states = self.model.decoder.decode_step(state, input_ids, self.model.encoder)
        return state, self.model.compute_logits(LM_HEAD, hidden_states)

    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        assert self.model.decoder is not None
        return self.model.decoder.reorder_state(state, row_indices)


def _pack_prompts(model: Model, prompts: Sequence[Ints]) -> Inputs:
    input_ids = torch.cat([torch.as_tensor(prompt) for prompt in prompts])
    return Inputs(input_ids, Layout.from_lengths([len(prompt) for prompt in prompts])).to(
        model.encoder.word_embeddings.weight.device
    )
