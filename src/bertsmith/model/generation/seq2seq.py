"""Texts answered by texts: an encoder-decoder, or one stack that reads the source both ways and writes on behind it."""

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
    """What writes at most so many tokens to each source; `start` is what a decoder's answers begin with."""
    return (
        Seq2SeqDecoder(model, decoder_start_token_id)
        if model.decoder is not None
        else KVCacheDecoder(model, max_new_tokens, is_prefix_lm=True)
    )


def decoder_hidden_states(model: Model, encoder_inputs: Inputs, decoder_inputs: Inputs | None) -> Tensor:
    """(tokens wanted, width): the rows that what comes next in the answers is told from.

    Without a decoder `source` holds the answers too, behind their sources.
    """
    if decoder_inputs is None:
        return model(encoder_inputs)
    assert model.decoder is not None
    return model.decoder(decoder_inputs, model(encoder_inputs), encoder_inputs.layout, model.encoder)


@dataclass(frozen=True)
class Seq2SeqDecoder:
    """An encoder-decoder: a source is read once, and every token written looks at it."""

    model: Model
    decoder_start_token_id: int

    def prefill(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        source = _pack_prompts(self.model, prompts)
        state = self.model.decoder.init_state(self.model(source), source.layout, self.model.encoder)
        return self.decode_step(state, torch.full((len(prompts),), self.decoder_start_token_id, device=source.input_ids.device))

    def decode_step(self, state: Any, input_ids: Tensor) -> tuple[Any, Tensor]:
        assert self.model.decoder is not None
        state, rows = self.model.decoder.decode_step(state, input_ids, self.model.encoder)
        return state, self.model.compute_logits(LM_HEAD, rows)

    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        assert self.model.decoder is not None
        return self.model.decoder.reorder_state(state, row_indices)


def _pack_prompts(model: Model, prompts: Sequence[Ints]) -> Inputs:
    tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts])
    return Inputs(tokens, Layout.from_lengths([len(prompt) for prompt in prompts])).to(model.encoder.tokens.weight.device)
