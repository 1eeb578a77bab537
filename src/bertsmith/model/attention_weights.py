"""Attention weights of a model's layers, recorded in a forward pass: self-attention, and a decoder's over its source."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .batch import Inputs
from .model import Model

Recorded = list[tuple[nn.Module, Tensor]]  # a module and its weights, in the order of the calls

MAX_VALUES = 1 << 29  # values of one batch: 2 GiB in float32


@torch.no_grad()
def self_attention_weights(model: Model, inputs: Inputs) -> list[Tensor]:
    """(sequences, heads, max_seqlen, max_seqlen) of each layer of the encoder; rows of padding are undefined.

    UserError for a layer whose mixer has none (recurrence, convolution).
    """
    mixers = model.encoder.stack.mixers
    if not mixers:
        raise UserError("this model has no layers and therefore no attention weights")
    max_seqlen = inputs.layout.max_seqlen
    if max_seqlen > max_batch_tokens(model, max_seqlen):
        raise UserError(
            f"the attention weights of a text of {max_seqlen:,} tokens in {len(mixers)} layers take more than "
            f"{MAX_VALUES * 4 >> 30} GiB; give a shorter text"
        )
    with _record_weights(mixers, num_args=2) as recorded:
        model(inputs)
    return [weights for _, weights in recorded]


def max_batch_tokens(model: Model, max_seqlen: int) -> int:
    """Most tokens of a batch, of sequences up to `max_seqlen`, whose attention weights are within `MAX_VALUES`."""
    encoder = model.config.encoder
    num_heads = getattr(encoder.mixer, "num_attention_heads", 1) * (1 + encoder.separates_directions)
    return MAX_VALUES // (max(1, encoder.num_hidden_layers) * num_heads * max_seqlen)


@torch.no_grad()
def source_attention_weights(model: Model, source: Inputs, target: Inputs) -> list[Tensor]:
    """(sequences, heads, target tokens, source tokens) of each layer of the decoder that attends to the source, padded."""
    assert model.decoder is not None
    modules = model.decoder.source_attentions
    if not modules:
        raise UserError("decoder.score=none reads the mean of the source: this decoder has no attention weights")
    with _record_weights(modules) as recorded:
        model.decoder(target, model(source), source.layout, model.encoder)
    # An RNN decoder with additive attention is called once for each target token.
    return [torch.cat([weights for module, weights in recorded if module is called], -2) for called in modules]


@contextmanager
def _record_weights(modules: Iterable[nn.Module], num_args: int | None = None) -> Iterator[Recorded]:
    """Within the context, each call of these modules is recorded with its `attention_weights` of the same arguments."""
    recorded: Recorded = []

    def record(module: Any, args: tuple[Any, ...]) -> None:
        recorded.append((module, module.attention_weights(*args[:num_args])))

    with ExitStack() as stack:
        for module in dict.fromkeys(modules):  # layers may share one
            stack.callback(module.register_forward_pre_hook(record).remove)
        yield recorded
