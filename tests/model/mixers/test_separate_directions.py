"""biLM of two Transformers (`mixer.directions=apart`): equal to two causal models, and refused where directions would mix."""

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model import attention_weights
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, LayerTypes
from bertsmith.model.decoders.transformer import TransformerDecoderConfig
from bertsmith.model.embeddings import CharCNNConfig, NgramConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import T5BiasConfig
from bertsmith.model.presets import PRESETS
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import BiLM

HIDDEN_SIZE, VOCAB_SIZE, LENGTHS = 32, 50, (9, 4, 12, 1)
HALF = HIDDEN_SIZE // 2


def encoder_config(mixer=None, hidden_size=HIDDEN_SIZE, **fields):
    fields = {"embedding_norm": False, "pooler_act": "none", "type_vocab_size": 0, "layer_norm_eps": 1e-5} | fields
    return EncoderConfig(
        num_hidden_layers=3,
        hidden_size=hidden_size,
        mixer=mixer or Attention(num_attention_heads=4, directions="apart"),
        feedforward=FeedForwardConfig(intermediate_size=40),
        max_position_embeddings=16,
        initializer_range=0.3,
        **fields,
    )


def build(config, seed=0):
    return build_model(ModelConfig(encoder=config, vocab_size=VOCAB_SIZE), seed).eval()


def random_inputs(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(3)
    return Inputs(torch.randint(VOCAB_SIZE, (sum(lengths),), generator=generator), Layout.from_lengths(lengths))


def stack_of_direction(model, direction):
    """A causal stack of half the hidden size with the weights of one direction."""
    encoder = model.config.encoder
    mixer = msgspec.structs.replace(encoder.mixer, causal=True, directions="joint")
    config = msgspec.structs.replace(encoder, mixer=mixer, hidden_size=HALF, embedding_size=None, embeddings=None)
    stack, infix = build(config).encoder.stack, f".directions.{direction}."
    own = {name.replace(infix, "."): value for name, value in model.encoder.stack.state_dict().items() if infix in name}
    stack.load_state_dict(own)
    return stack


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"position_embedding_type": "sinusoidal", "scale_embeddings": True},
        {"embedding_norm": True, "embedding_size": 10},
        {"num_hidden_groups": 1},
        {
            "mixer": Attention(num_attention_heads=2, directions="apart", position_bias=T5BiasConfig(num_buckets=8)),
            "position_embedding_type": "none",
        },
    ],
    ids=["absolute", "sinusoidal", "projected", "shared layers", "t5"],
)
@torch.no_grad()
def test_bilm_of_transformers_equals_two_causal_stacks_the_second_over_reversed_texts(norm, fields):
    model, inputs = build(encoder_config(norm=norm, **fields)), random_inputs()
    all_hidden_states = []
    out = model.encoder(inputs, all_hidden_states)
    embeddings = model.encoder.embed(inputs)
    assert_close(embeddings[:, :HALF], embeddings[:, HALF:])  # the token layer is shared
    assert len(all_hidden_states) == 4 and out.shape == (sum(LENGTHS), HIDDEN_SIZE)
    for row, x in enumerate(embeddings[:, :HALF].split(LENGTHS)):
        layout = Layout.from_lengths([len(x)])
        expected, expected_layers = [], []
        for direction, tokens in enumerate((x, x.flip(0))):
            layers = []
            final = stack_of_direction(model, direction)(tokens, layout, layers)
            expected.append(final.flip(0) if direction else final)
            expected_layers.append([states.flip(0) if direction else states for states in layers])
        assert_close(out.split(LENGTHS)[row], torch.cat(expected, -1), atol=1e-5, rtol=1e-5)
        for states, *halves in zip(all_hidden_states[1:], *expected_layers, strict=True):
            assert_close(states.split(LENGTHS)[row], torch.cat(halves, -1), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_each_direction_equals_a_torch_transformer_encoder_layer():
    model, inputs = build(encoder_config()), random_inputs((10,))
    x = model.encoder.embed(inputs)[None, :, :HALF]
    halves = []
    for direction, states in enumerate((x, x.flip(1))):
        for block in model.encoder.stack.layers:
            layer = nn.TransformerEncoderLayer(HALF, 4, 40, 0.0, F.gelu, batch_first=True).eval()
            mixer, feedforward = block.mixer.directions[direction].projections, block.feedforward.directions[direction]
            weights = {"self_attn.in_proj": mixer.qkv, "self_attn.out_proj": mixer.output, "linear1": feedforward.intermediate}
            weights |= {"linear2": feedforward.output, "norm1": block.mixer_norm.directions[direction]}
            weights["norm2"] = block.feedforward_norm.directions[direction]
            separator = {"self_attn.in_proj": "_"}
            layer.load_state_dict({
                f"{name}{separator.get(name, '.')}{kind}": getattr(module, kind)
                for name, module in weights.items()
                for kind in ("weight", "bias")
            })  # fmt: skip
            states = layer(states, src_mask=nn.Transformer.generate_square_subsequent_mask(10), is_causal=True)
        halves.append(states.flip(1) if direction else states)
    assert_close(model.encoder(inputs), torch.cat(halves, -1)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_forward_half_sees_no_later_token_and_backward_half_no_earlier_one(norm):
    model, inputs = build(encoder_config(norm=norm)).double(), random_inputs((12, 5))
    before = model.encoder(inputs)
    for position in range(12):
        changed = inputs.input_ids.clone()
        changed[position] = (changed[position] + 1) % VOCAB_SIZE
        differs = (before != model.encoder(Inputs(changed, inputs.layout))).unflatten(1, (2, HALF)).any(2)
        token = torch.arange(17)
        assert torch.equal(differs, torch.stack([(token >= position) & (token < 12), token <= position], 1))


@torch.no_grad()
def test_output_rows_equal_those_of_all_tokens():
    model, inputs, rows = build(encoder_config(norm="pre")), random_inputs(), torch.tensor([0, 3, 10, 25])
    selected = model.encoder(Inputs(inputs.input_ids, inputs.layout, output_indices=rows))
    assert_close(selected, model.encoder(inputs)[rows], atol=1e-6, rtol=1e-6)


def test_attention_weights_of_both_directions():
    model, inputs = build(encoder_config()), random_inputs()
    layers = attention_weights.self_attention_weights(model, inputs)
    assert [weights.shape for weights in layers] == [(4, 8, 12, 12)] * 3
    for row, length in enumerate(LENGTHS):
        forward, backward = layers[1][row, :, :length, :length].chunk(2)
        assert not forward.triu(1).any() and not backward.tril(-1).any()
        assert (forward.tril() > 0).sum() == (backward.triu() > 0).sum() == 4 * length * (length + 1) // 2


def test_character_cnn_and_positions_are_shared_by_both_directions():
    encoder = PRESETS["elmo-transformer"]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=encoder, vocab_size=100), init_weights=False)
    assert model.encoder.sinusoids.shape[1] == 512 and len(model.encoder.stack.layers) == 6
    layer = sum(parameter.numel() for parameter in model.encoder.stack.layers[0].parameters())
    assert layer == 2 * sum(p.numel() for p in nn.TransformerEncoderLayer(512, 8, 2048).parameters())
    BiLM().check(encoder)
    one_direction = msgspec.structs.replace(encoder, mixer=Attention(num_attention_heads=8), hidden_size=512)
    assert encoder.init_std == one_direction.init_std


def test_seq2seq_decoder_of_bilm_encoder_is_one_stack():
    config = encoder_config()
    decoder = TransformerDecoderConfig().build(config)
    assert decoder.block_config.mixer.directions == "joint" and decoder.block_config.mixer.causal
    assert "every layer" in decoder.init_from_encoder(build(config).encoder)
    with pytest.raises(UserError, match=r"decoder\.shared=true needs an encoder"):
        TransformerDecoderConfig(shared=True).build(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer": Attention(num_attention_heads=4, directions="apart", causal=True)}, r"leave out model\.mixer\.causal"),
        ({"hidden_size": 33}, r"model\.hidden_size=33 must be even"),
        ({"layer_types": LayerTypes(mixer=Attention(num_attention_heads=4))}, r"leave out model\.layer_types"),
        (
            {
                "mixer": Attention(num_attention_heads=4),
                "layer_types": LayerTypes(mixer=Attention(num_attention_heads=4, directions="apart")),
            },
            r"leave out model\.layer_types",
        ),
        ({"norm": "pre", "reversible": True}, r"leave out .* model\.reversible"),
        ({"embeddings": NgramConfig(order=3)}, r"set model\.embeddings=char-cnn"),
    ],
)
def test_directions_apart_refuse_what_would_mix_them(fields, message):
    with pytest.raises(UserError, match=message):
        build(encoder_config(**fields))


def test_bilm_objective_takes_directions_apart_only():
    BiLM().check(encoder_config())
    BiLM().check(encoder_config(embeddings=CharCNNConfig()))
    with pytest.raises(UserError, match="two directions share no layer"):
        BiLM().check(encoder_config(Attention(num_attention_heads=4, causal=True)))
