"""The Transformer against nn.Transformer: encoder and decoder layers, padded there and packed here."""

import math

import pytest
import torch
from torch import nn

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.decoders import TransformerDecoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.positions import sinusoidal_positions
from bertsmith.model.sublayers import FeedForwardConfig

HIDDEN_SIZE, HEADS, INTERMEDIATE_SIZE, VOCAB_SIZE = 32, 4, 48, 30
SOURCE_LENGTHS, TARGET_LENGTHS = [7, 3, 5, 1], [4, 6, 1, 5]


def build_ours(norm: str, **settings):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=HIDDEN_SIZE,
        mixer=Attention(num_attention_heads=HEADS),
        feedforward=FeedForwardConfig(intermediate_size=INTERMEDIATE_SIZE, hidden_act="relu"),
        norm=norm,
        position_embedding_type="sinusoidal",
        scale_embeddings=True,
        type_vocab_size=0,
        embedding_norm=False,
        layer_norm_eps=1e-5,
        pooler_act="none",
        initializer_range=0.2,
        max_position_embeddings=16,
        **settings,
    )
    model = build_model(
        ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, decoder=TransformerDecoderConfig(num_hidden_layers=3)), 0
    )
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # biases of 0 and gains of 1 would hide mistakes
            nn.init.normal_(weight, std=0.3)
    return model.eval()


def build_reference(model, norm: str) -> nn.Transformer:
    reference = nn.Transformer(
        HIDDEN_SIZE, HEADS, 2, 3, INTERMEDIATE_SIZE, 0.0, "relu", batch_first=True, norm_first=norm == "pre"
    ).eval()
    if norm == "post":  # torch adds a final norm there, which the paper has not
        reference.encoder.norm = reference.decoder.norm = None
    else:
        _copy_norm(reference.encoder.norm, model.encoder.stack.final_norm)
        _copy_norm(reference.decoder.norm, model.decoder.final_norm)
    for layer, block in zip(reference.encoder.layers, model.encoder.stack.layers, strict=True):
        _copy_block(layer, block)
        _copy_norm(layer.norm2, block.feedforward_norm)
    for layer, block, cross_attention in zip(
        reference.decoder.layers, model.decoder.layers, model.decoder.cross_attentions, strict=True
    ):
        _copy_block(layer, block)
        _copy_norm(layer.norm2, cross_attention.norm)
        _copy_norm(layer.norm3, block.feedforward_norm)
        attention = layer.multihead_attn
        attention.in_proj_weight.data = torch.cat([cross_attention.query.weight, cross_attention.key_value.weight]).data
        attention.in_proj_bias.data = torch.cat([cross_attention.query.bias, cross_attention.key_value.bias]).data
        attention.out_proj.load_state_dict(cross_attention.output.state_dict())
    return reference


def _copy_norm(layer, norm):
    layer.load_state_dict(norm.state_dict())


def _copy_block(layer, block):
    layer.self_attn.in_proj_weight.data = block.mixer.projections.qkv.weight.data
    layer.self_attn.in_proj_bias.data = block.mixer.projections.qkv.bias.data
    layer.self_attn.out_proj.load_state_dict(block.mixer.projections.output.state_dict())
    layer.linear1.load_state_dict(block.feedforward.intermediate.state_dict())
    layer.linear2.load_state_dict(block.feedforward.output.state_dict())
    _copy_norm(layer.norm1, block.mixer_norm)


def embed_padded(tokens, lengths, table):
    """Embeddings (texts, max_length, hidden_size) as in the paper, and the padding mask (True on padding)."""
    layout = Layout.from_lengths(lengths)
    input_ids = layout.pad(tokens)
    return table[input_ids] * math.sqrt(HIDDEN_SIZE) + sinusoidal_positions(16, HIDDEN_SIZE)[
        : input_ids.shape[1]
    ], ~layout.padding_mask()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_transformer_packed_matches_torch_padded(norm):
    model = build_ours(norm)
    source, target = (
        torch.randint(VOCAB_SIZE, (sum(lengths),), generator=torch.Generator().manual_seed(1))
        for lengths in (SOURCE_LENGTHS, TARGET_LENGTHS)
    )
    inputs, decoder_inputs = (
        Inputs(source, Layout.from_lengths(SOURCE_LENGTHS)),
        Inputs(target, Layout.from_lengths(TARGET_LENGTHS)),
    )
    with torch.no_grad():
        hidden = model(inputs)
        decoded = model.decoder(decoder_inputs, hidden, inputs.layout, model.encoder)
        table = model.encoder.word_embeddings.weight
        (x, source_padding), (y, target_padding) = (
            embed_padded(source, SOURCE_LENGTHS, table),
            embed_padded(target, TARGET_LENGTHS, table),
        )
        reference = build_reference(model, norm)
        memory = reference.encoder(x, src_key_padding_mask=source_padding)
        causal_mask = nn.Transformer.generate_square_subsequent_mask(max(TARGET_LENGTHS)).isinf()
        expected = reference.decoder(
            y, memory, causal_mask, tgt_key_padding_mask=target_padding, memory_key_padding_mask=source_padding
        )
    torch.testing.assert_close(hidden, inputs.layout.unpad(memory), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decoded, decoder_inputs.layout.unpad(expected), atol=1e-5, rtol=1e-5)


def test_sinusoidal_positions_match_the_paper():
    embeddings = sinusoidal_positions(50, 12)
    for position in (0, 1, 7, 49):
        for column in range(12):
            angle = position / 10000 ** ((column - column % 2) / 12)
            assert float(embeddings[position, column]) == pytest.approx(
                math.cos(angle) if column % 2 else math.sin(angle), abs=1e-6
            )


def test_transformer_grads_match_torch():
    model = build_ours("post")
    reference = build_reference(model, "post")
    source, target = torch.arange(6), torch.arange(5) + 3
    inputs, decoder_inputs = Inputs(source, Layout.from_lengths([6])), Inputs(target, Layout.from_lengths([5]))
    model.decoder(decoder_inputs, model(inputs), inputs.layout, model.encoder).square().sum().backward()
    table = model.encoder.word_embeddings.weight.detach()
    (x, _), (y, _) = embed_padded(source, [6], table), embed_padded(target, [5], table)
    reference(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5)).square().sum().backward()
    pairs = zip(model.decoder.cross_attentions, reference.decoder.layers, strict=True)
    for cross_attention, layer in pairs:
        actual = torch.cat([cross_attention.query.weight.grad, cross_attention.key_value.weight.grad])
        torch.testing.assert_close(actual, layer.multihead_attn.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
