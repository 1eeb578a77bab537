"""The Transformer against torch's own: encoder and decoder layers, padded there and packed here."""

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

WIDTH, HEADS, INNER, WORDS = 32, 4, 48, 30
SOURCES, ANSWERS = [7, 3, 5, 1], [4, 6, 1, 5]


def ours(norm: str, **settings):
    encoder = EncoderConfig(
        layers=2, width=WIDTH, mixer=Attention(heads=HEADS), feedforward=FeedForwardConfig(inner=INNER, activation="relu"), norm=norm,
        table="sinusoid", scaled=True, segments=0, embedding_norm=False, eps=1e-5, pooler="none", deviation=0.2,
        positions=16, **settings,
    )  # fmt: skip
    model = build_model(ModelConfig(encoder=encoder, vocabulary=WORDS, decoder=TransformerDecoderConfig(layers=3)), 0)
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # else biases of 0 and scales of 1 would hide each other
            nn.init.normal_(weight, std=0.3)
    return model.eval()


def theirs(model, norm: str) -> nn.Transformer:
    made = nn.Transformer(WIDTH, HEADS, 2, 3, INNER, 0.0, "relu", batch_first=True, norm_first=norm == "before").eval()
    if norm == "after":  # torch puts a last norm there as well, which the paper has not
        made.encoder.norm = made.decoder.norm = None
    else:
        _norm(made.encoder.norm, model.encoder.stack.norm)
        _norm(made.decoder.norm, model.decoder.norm)
    for layer, block in zip(made.encoder.layers, model.encoder.stack.blocks, strict=True):
        _block(layer, block)
        _norm(layer.norm2, block.feedforward_norm)
    for layer, block, cross in zip(made.decoder.layers, model.decoder.blocks, model.decoder.crossings, strict=True):
        _block(layer, block)
        _norm(layer.norm2, cross.norm)
        _norm(layer.norm3, block.feedforward_norm)
        attention = layer.multihead_attn
        attention.in_proj_weight.data = torch.cat([cross.q.weight, cross.kv.weight]).data
        attention.in_proj_bias.data = torch.cat([cross.q.bias, cross.kv.bias]).data
        attention.out_proj.load_state_dict(cross.out.state_dict())
    return made


def _norm(layer, norm):
    layer.load_state_dict(norm.state_dict())


def _block(layer, block):
    layer.self_attn.in_proj_weight.data = block.mixer.project.qkv.weight.data
    layer.self_attn.in_proj_bias.data = block.mixer.project.qkv.bias.data
    layer.self_attn.out_proj.load_state_dict(block.mixer.project.out.state_dict())
    layer.linear1.load_state_dict(block.feedforward.up.state_dict())
    layer.linear2.load_state_dict(block.feedforward.down.state_dict())
    _norm(layer.norm1, block.mixer_norm)


def padded(tokens, lengths, table):
    """(texts, longest, width) as the paper embeds them, and where there is padding."""
    layout = Layout.from_lengths(lengths)
    grid = layout.pad(tokens)
    return table[grid] * math.sqrt(WIDTH) + sinusoidal_positions(16, WIDTH)[: grid.shape[1]], ~layout.padding_mask()


@pytest.mark.parametrize("norm", ["after", "before"])
def test_packed_batches_agree_with_padded_ones_of_torch(norm):
    model = ours(norm)
    source, answer = (
        torch.randint(WORDS, (sum(some),), generator=torch.Generator().manual_seed(1)) for some in (SOURCES, ANSWERS)
    )
    inputs, told = Inputs(source, Layout.from_lengths(SOURCES)), Inputs(answer, Layout.from_lengths(ANSWERS))
    with torch.no_grad():
        hidden = model(inputs)
        said = model.decoder(told, hidden, inputs.layout, model.encoder)
        table = model.encoder.tokens.weight
        (x, blank), (y, unwritten) = padded(source, SOURCES, table), padded(answer, ANSWERS, table)
        other = theirs(model, norm)
        memory = other.encoder(x, src_key_padding_mask=blank)
        causal = nn.Transformer.generate_square_subsequent_mask(max(ANSWERS)).isinf()
        found = other.decoder(y, memory, causal, tgt_key_padding_mask=unwritten, memory_key_padding_mask=blank)
    torch.testing.assert_close(hidden, inputs.layout.unpad(memory), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(said, told.layout.unpad(found), atol=1e-5, rtol=1e-5)


def test_positions_are_the_papers_sines_and_cosines():
    waves = sinusoidal_positions(50, 12)
    for place in (0, 1, 7, 49):
        for column in range(12):
            angle = place / 10000 ** ((column - column % 2) / 12)
            assert float(waves[place, column]) == pytest.approx(math.cos(angle) if column % 2 else math.sin(angle), abs=1e-6)


def test_gradients_agree_with_torch():
    model = ours("after")
    other = theirs(model, "after")
    source, answer = torch.arange(6), torch.arange(5) + 3
    inputs, told = Inputs(source, Layout.from_lengths([6])), Inputs(answer, Layout.from_lengths([5]))
    model.decoder(told, model(inputs), inputs.layout, model.encoder).square().sum().backward()
    table = model.encoder.tokens.weight.detach()
    (x, _), (y, _) = padded(source, [6], table), padded(answer, [5], table)
    other(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5)).square().sum().backward()
    pairs = zip(model.decoder.crossings, other.decoder.layers, strict=True)
    for cross, layer in pairs:
        mine = torch.cat([cross.q.weight.grad, cross.kv.weight.grad])
        torch.testing.assert_close(mine, layer.multihead_attn.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
