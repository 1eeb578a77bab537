"""The contract of mixers: tests that every mixer passes."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model import lora
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import (
    AdaptiveSpan,
    Attention,
    Cnn,
    LiteTransformer,
    Longformer,
    Lstm,
    MixerConfig,
    Reformer,
    ReformerChunked,
    TransformerXL,
)
from bertsmith.model.mixers.base import Mixer
from bertsmith.model.mixers.reformer.chunked import ChunkConfig
from bertsmith.model.mixers.separate_directions import SeparateDirections
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.position_bias import AlibiConfig, ShawConfig, T5BiasConfig
from tests.support.references import rope_by_complex_multiplication

HIDDEN_SIZE, LENGTHS = 32, (17, 5, 40, 1, 23)
ATTENTION = [Attention(num_attention_heads=4), Attention(num_attention_heads=4, rope_theta=100.0, bias=False)]
CAUSAL_ATTENTION = [
    Attention(num_attention_heads=4, causal=True),
    Attention(num_attention_heads=4, causal=True, rope_theta=100.0),
]
MIXERS = [
    *ATTENTION, Lstm(), Lstm(cell_size=40), Lstm(directions="apart", cell_size=40, cell_clip=0.3), Lstm(cell="gru"),
    Lstm(cell="rnn"), Cnn(), Cnn(stride=3, dilation=2),
    Cnn(kernel_sizes=(1, 2, 6, 3), hidden_act="tanh"), TransformerXL(num_attention_heads=4, causal=False),
    TransformerXL(num_attention_heads=4, causal=False, clamp_len=6, same_length=True, mem_len=9, bias=True),
    AdaptiveSpan(num_attention_heads=4, max_span=48, span_ramp=8),
]  # fmt: skip
CAUSAL_WITH_MEMORY = [
    TransformerXL(num_attention_heads=4),
    TransformerXL(num_attention_heads=4, same_length=True, mem_len=9, clamp_len=5, bias=True),
    AdaptiveSpan(num_attention_heads=4, max_span=48, span_ramp=8, causal=True),
    AdaptiveSpan(num_attention_heads=4, max_span=20, span_ramp=32, causal=True),
]
CAUSAL = [
    *CAUSAL_ATTENTION,
    Lstm(directions="forward"),
    Lstm(directions="forward", cell_clip=0.3),
    Cnn(causal=True),
    Cnn(causal=True, stride=2, dilation=3),
    *CAUSAL_WITH_MEMORY,
]


def config_id(config):
    values = {field: getattr(config, field) for field in config.__struct_fields__}
    return "-".join(
        [
            config.__struct_config__.tag,
            *(f"{name}={value}" for name, value in values.items() if value and name != "num_attention_heads"),
        ]
    )


MIXERS += [
    Longformer(num_attention_heads=4, attention_window=(8,)),
    Longformer(num_attention_heads=4, attention_window=(8,), global_attention=False),
    Longformer(num_attention_heads=4, attention_window=(128,)),
    Longformer(num_attention_heads=4, attention_window=(6,), dilation=(2, 3), bias=False),
    Longformer(num_attention_heads=4, attention_window=(10,), rope_theta=100.0),
]
CAUSAL += [
    Longformer(num_attention_heads=4, attention_window=(8,), causal=True),
    Longformer(num_attention_heads=4, attention_window=(6,), dilation=(2,), global_attention=False, causal=True),
]

MIXERS += [
    Reformer(num_attention_heads=4, num_buckets=4, num_hashes=3, bucket_window=4),
    Reformer(num_attention_heads=4, num_buckets=1, bias=False),
]
MIXERS += [
    ReformerChunked(num_attention_heads=4, attn_layers=("local",), local=ChunkConfig(chunk_length=4)),
    ReformerChunked(
        num_attention_heads=4,
        attention_head_size=6,
        attn_layers=("lsh",),
        lsh=ChunkConfig(chunk_length=4, num_chunks_after=1),
        num_buckets=4,
        num_hashes=3,
    ),
]
CAUSAL += [
    ReformerChunked(num_attention_heads=4, attn_layers=("local",), local=ChunkConfig(chunk_length=4), causal=True)
]  # LSH chunks are only partly causal
CAUSAL += [
    Reformer(num_attention_heads=4, num_buckets=(2, 4), num_hashes=2, bucket_window=3, causal=True),
    Reformer(num_attention_heads=4, num_buckets=1, causal=True),
]

MIXERS += [
    LiteTransformer(kernel_sizes=(5,)),
    LiteTransformer(kernel_sizes=(4,), dynamic=True, num_filters=8, bias=False, rope_theta=100.0),
]
CAUSAL += [LiteTransformer(kernel_sizes=(5,), causal=True), LiteTransformer(kernel_sizes=(31,), dynamic=True, causal=True)]

APART = [
    Attention(num_attention_heads=4, directions="apart"),
    Attention(num_attention_heads=4, directions="apart", rope_theta=100.0, bias=False),
    Attention(num_attention_heads=4, directions="apart", position_bias=T5BiasConfig(num_buckets=8, max_distance=12)),
    Attention(num_attention_heads=4, directions="apart", position_bias=ShawConfig(clip=5)),
]
MIXERS += [
    *APART,
    Attention(num_attention_heads=4, position_bias=AlibiConfig()),
    Attention(num_attention_heads=4, position_bias=ShawConfig(clip=5)),
    Attention(num_attention_heads=4, position_bias=T5BiasConfig(num_buckets=8, max_distance=12)),
]
CAUSAL += [
    Attention(num_attention_heads=4, position_bias=AlibiConfig(), causal=True),
    Attention(num_attention_heads=4, position_bias=ShawConfig(clip=5), causal=True),
    Attention(num_attention_heads=4, position_bias=T5BiasConfig(num_buckets=4, max_distance=9), causal=True),
]

every_mixer = pytest.mark.parametrize("config", MIXERS, ids=config_id)
mixer_of_two_directions = pytest.mark.parametrize(
    "config", [*APART, Lstm(directions="apart"), Lstm(directions="apart", cell="rnn")], ids=config_id
)
every_causal_mixer = pytest.mark.parametrize("config", CAUSAL, ids=config_id)
every_mixer_and_causal = pytest.mark.parametrize("config", MIXERS + CAUSAL, ids=config_id)
full_attention = pytest.mark.parametrize("config", ATTENTION + CAUSAL_ATTENTION, ids=config_id)
COMPILABLE = [config for config in MIXERS + CAUSAL if config.build(HIDDEN_SIZE).can_compile]
FIRST = [next(config for config in COMPILABLE if type(config) is kind) for kind in dict.fromkeys(map(type, COMPILABLE))]
compilable = (
    pytest.mark.parametrize(  # a configuration takes seconds: the first of each kind, and the others with `make test-slow`
        "config",
        [pytest.param(config, marks=() if config in FIRST else pytest.mark.slow) for config in COMPILABLE],
        ids=[config_id(config) for config in COMPILABLE],
    )
)


def build_mixer(config):
    torch.manual_seed(1)
    mixer = config.build(HIDDEN_SIZE).eval()
    for weight in mixer.parameters():  # so that none is zero at initialization
        torch.nn.init.normal_(weight, std=0.2)
    mixer(*random_inputs())  # Adaptive-Span trims its spans in a forward pass, but not in a compiled graph
    return mixer


def random_inputs(lengths=LENGTHS):
    torch.manual_seed(2)
    return torch.randn(sum(lengths), HIDDEN_SIZE), Layout.from_lengths(lengths)


def test_contract_covers_every_mixer():
    members = set(getattr(MixerConfig, "__args__", (MixerConfig,)))
    assert {type(c) for c in MIXERS} == members
    assert {type(c) for c in CAUSAL} == {member for member in members if hasattr(member, "causal")}


@every_mixer_and_causal
@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70), (8, 8, 8), (1,)], ids=["short", "long", "uniform", "one"])
def test_mixer_packed_matches_single_sequences(config, lengths):
    mixer, (x, layout) = build_mixer(config), random_inputs(lengths)
    expected = [mixer(part, Layout.from_lengths([len(part)])) for part in x.split(lengths)]
    assert_close(mixer(x, layout), torch.cat(expected), atol=1e-5, rtol=1e-5)


@every_mixer_and_causal
def test_mixer_padded_matches_packed(config):
    mixer, (x, layout) = build_mixer(config), random_inputs()
    mask = layout.padding_mask()
    padded = layout.pad(x).masked_fill(~mask[..., None], 9.0).flatten(0, 1)  # large values in the padding must not leak
    assert_close(mixer(padded, PaddedLayout.from_mask(mask))[mask.flatten()], mixer(x, layout), atol=1e-5, rtol=1e-5)


@every_causal_mixer
def test_causal_mixer_does_not_see_the_future(config):
    mixer, (x, layout) = build_mixer(config), random_inputs((30, 10))
    changed = x.clone()
    changed[20:30] = torch.randn(10, HIDDEN_SIZE)
    before, after = mixer(x, layout), mixer(changed, layout)
    assert_close(before[:20], after[:20], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(before[20:30], after[20:30])


@mixer_of_two_directions
def test_directions_apart_never_mix(config):
    """The forward half sees no later token and no channel of the other half, the backward half no earlier one."""
    mixer, (x, layout), half = build_mixer(config), random_inputs((30, 10)), HIDDEN_SIZE // 2
    for changed_tokens, changed_channels in (
        (slice(12, 14), slice(None)),
        (slice(0, 30), slice(half)),
        (slice(0, 30), slice(half, None)),
    ):
        changed = x.clone()
        changed[changed_tokens, changed_channels] += torch.randn_like(changed[changed_tokens, changed_channels])
        differs = mixer(changed, layout) != mixer(x, layout)
        expected = torch.zeros(40, 2, dtype=torch.bool)
        if changed_tokens == slice(12, 14):
            expected[12:30, 0] = expected[:14, 1] = True
        else:
            expected[:30, int(changed_channels != slice(half))] = True
        assert torch.equal(differs.unflatten(1, (2, half)).any(2), expected)


@every_mixer
def test_mixer_grads_reach_every_parameter(config):
    mixer, (x, layout) = build_mixer(config).train(), random_inputs()
    mixer(x, layout).square().mean().backward()
    assert not [name for name, parameter in mixer.named_parameters() if parameter.grad is None or not parameter.grad.any()]


@every_mixer_and_causal
def test_mixer_lora_inject_and_merge(config):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=HIDDEN_SIZE,
        mixer=config,
        feedforward=None,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    model, inputs = (
        build_model(ModelConfig(encoder=encoder, vocab_size=60), 0).eval(),
        Inputs(torch.arange(86) % 60, random_inputs()[1]),
    )
    expected = model(inputs)
    lora.inject_adapters(model, lora.LoraConfig(r=2), seed=1)
    assert_close(model(inputs), expected, atol=1e-5, rtol=1e-5)
    adapters = [adapter for adapter in model.modules() if isinstance(adapter, lora.LoRALinear)]
    for adapter in adapters:
        torch.nn.init.normal_(adapter.lora_B, std=0.1)
    adapted = model(inputs)
    assert not adapters or not torch.allclose(adapted, expected, atol=1e-3)
    lora.merge_and_unload(model)
    assert_close(model(inputs), adapted, atol=1e-4, rtol=1e-4)


@compilable
def test_mixer_compiles_fullgraph_with_dynamic_lengths(config):
    torch._dynamo.reset()
    graphs = []
    from torch._dynamo.backends.debugging import aot_eager

    def counting_backend(graph, example, **options):
        graphs.append(graph)
        return aot_eager(graph, example, **options)

    mixer = build_mixer(config)
    compiled = torch.compile(mixer, fullgraph=True, backend=counting_backend)
    for lengths in (LENGTHS, (9, 30, 2), (50, 3, 8, 20), (7, 41)):
        x, layout = random_inputs(lengths)
        assert_close(compiled(x, layout), mixer(x, layout), atol=1e-5, rtol=1e-5)
    assert len(graphs) <= 2  # one for the first lengths, one for all others


@full_attention
@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70), (12, 12)], ids=["padded", "per sequence", "uniform"])
def test_attention_matches_explicit_softmax(config, lengths):
    mixer, (x, layout) = build_mixer(config), random_inputs(lengths)
    q, k, v = mixer.projections(x)
    if config.rope_theta:
        q, k = (rope_by_complex_multiplication(t, layout.position, config.rope_theta).float() for t in (q, k))
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    visible = layout.seq_id == layout.seq_id[:, None]
    if config.causal:
        visible &= layout.position <= layout.position[:, None]
    probs = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible, float("-inf")).softmax(-1)
    assert_close(mixer(x, layout), mixer.projections.project_out((probs @ v).transpose(0, 1)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70)], ids=["padded", "per sequence"])
def test_attention_dropout_in_training_only_keeps_the_mean(lengths):
    mixer, (x, layout) = build_mixer(Attention(num_attention_heads=4, attention_dropout=0.3)), random_inputs(lengths)
    expected = mixer(x, layout)
    assert_close(expected, build_mixer(Attention(num_attention_heads=4))(x, layout))
    mixer.train()
    torch.manual_seed(0)
    samples = torch.stack([mixer(x, layout) for _ in range(400)])
    assert not torch.allclose(samples[0], expected)
    assert_close(samples.mean(0), expected, atol=0.35, rtol=0.1)


def test_attention_refuses_indivisible_hidden_size():
    with pytest.raises(UserError, match="hidden_size of 32 does not divide into 5 heads"):
        Attention(num_attention_heads=5).build(HIDDEN_SIZE)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config",
    [Attention(num_attention_heads=4), Attention(num_attention_heads=4, causal=True), Attention(num_attention_heads=16)],
    ids=["all", "causal", "heads of 2"],
)
@pytest.mark.parametrize("lengths", [LENGTHS, (128, 33, 512), (64, 64)], ids=["short", "long", "uniform"])
def test_attention_flash_close_to_float32(config, lengths):
    """On CUDA in bfloat16 the variable-length kernel runs: within rounding of float32, forward and backward."""
    mixer, (x, layout) = build_mixer(config).cuda(), random_inputs(lengths)
    x, layout = x.cuda(), layout.to("cuda")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = mixer(inputs, layout)
        out.float().square().sum().backward()
        results.append((out.float(), inputs.grad))
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() / exact.norm() < 0.02


@pytest.mark.parametrize(
    ("lengths", "per_sequence"), [([3] * 20 + [60], True), ([40, 33, 50], True), ([3, 4, 5], False), ([60, 60], False)]
)
def test_layout_pads_only_short_sequences_of_similar_length(lengths, per_sequence):
    layout = Layout.from_lengths(lengths)
    assert layout.attends_per_sequence == per_sequence
    torch.manual_seed(0)
    q, k, v = torch.randn(3, sum(lengths), 2, 8)
    parts = zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
    expected = [Layout.from_lengths([len(q_part)]).attend(q_part, k_part, v_part) for q_part, k_part, v_part in parts]
    assert_close(layout.attend(q, k, v), torch.cat(expected), atol=1e-5, rtol=1e-5)


# Every mixer that overrides `attention_weights`. Shaw's values depend on the distance: see test_position_bias.py.
WITH_WEIGHTS = [
    config
    for config in MIXERS + CAUSAL
    if type(config.build(HIDDEN_SIZE)).attention_weights is not Mixer.attention_weights
    and not isinstance(getattr(config, "position_bias", None), ShawConfig)
] + [
    Longformer(num_attention_heads=4, attention_window=(4,), rope_theta=100.0, dilation=(2, 3), bias=False),
    Longformer(num_attention_heads=4, attention_window=(6,), rope_theta=50.0, causal=True),
    Longformer(num_attention_heads=4, attention_window=(6,), rope_theta=50.0, global_attention=False),
]


def values_of(mixer, config, x, layout):
    """(sequences, heads, keys, head_dim) of the projections that the weights multiply."""
    if isinstance(config, Reformer):
        return layout.pad(mixer.qkv(x).unflatten(-1, (2, 4, -1)).select(-3, 1)).transpose(1, 2)
    if isinstance(config, LiteTransformer):
        mixer, x = mixer.attention, x.chunk(2, -1)[0]
    if isinstance(mixer, SeparateDirections):
        parts = zip(mixer.mixers, x.chunk(2, -1), strict=True)
        return torch.cat([values_of(part, config, half, layout) for part, half in parts], 1)
    return layout.pad(mixer.projections(x)[2]).transpose(1, 2)


def attend(config, mixer, x, layout):
    """(tokens, hidden_size): weights @ values, before the output projection."""
    weights, values = mixer.attention_weights(x, layout), values_of(mixer, config, x, layout)
    out = weights.nan_to_num() @ values
    if isinstance(config, Longformer) and config.global_attention:  # rows of global tokens have values of their own
        global_values = layout.pad(mixer.global_qkv(x).unflatten(-1, (3, 4, -1)).select(-3, 2)).transpose(1, 2)
        is_global = layout.pad(torch.isin(torch.arange(len(x)), layout.global_tokens))[:, None, :, None]
        out = torch.where(is_global, weights.nan_to_num() @ global_values, out)
    return layout.unpad(out.transpose(1, 2)).flatten(1)


@pytest.mark.parametrize("config", WITH_WEIGHTS, ids=config_id)
@pytest.mark.parametrize("lengths", [LENGTHS, (12, 12)], ids=["lengths", "uniform"])
@torch.no_grad()
def test_attention_weights_times_values_are_the_output_of_the_mixer(config, lengths):
    mixer, (x, layout) = build_mixer(config), random_inputs(lengths)
    weights = mixer.attention_weights(x, layout)
    assert weights.dtype == torch.float32
    for row, length in enumerate(lengths):
        assert_close(weights[row, :, :length, :length].sum(-1), torch.ones(weights.shape[1], length))
    out = attend(config, mixer, x, layout)
    if isinstance(config, Reformer):
        expected, actual = mixer(x, layout), mixer.output(out)
    elif isinstance(config, LiteTransformer):
        expected, actual = mixer(x, layout)[:, : HIDDEN_SIZE // 2], mixer.attention.projections.output(out)
    elif isinstance(mixer, SeparateDirections):
        parts = zip(mixer.mixers, out.chunk(2, -1), strict=True)
        expected, actual = mixer(x, layout), torch.cat([part.projections.output(half) for part, half in parts], -1)
    else:
        expected, actual = mixer(x, layout), mixer.projections.output(out)
    assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_longformer_weights_with_explicit_global_tokens():
    config = Longformer(num_attention_heads=4, attention_window=(4,), dilation=(2,))
    mixer, (x, _) = build_mixer(config), random_inputs((30, 20))
    layout = Layout.from_lengths((30, 20), global_tokens=[0, 7, 30, 45])
    assert_close(mixer.projections.output(attend(config, mixer, x, layout)), mixer(x, layout), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config", [Lstm(), Cnn(), ReformerChunked(num_attention_heads=4, attn_layers=("local",), local=ChunkConfig(chunk_length=4))]
)
def test_mixers_without_attention_weights_say_so(config):
    mixer, (x, layout) = build_mixer(config), random_inputs()
    with pytest.raises(UserError, match="no attention weights"):
        mixer.attention_weights(x, layout)
