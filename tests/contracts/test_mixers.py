"""One contract, kept by every mixer."""

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
from bertsmith.model.mixers.reformer.chunked import ChunkConfig
from bertsmith.model.model import ModelConfig
from bertsmith.model.model import build_model as model_of
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig
from tests.model.test_rope import by_complex_numbers

WIDTH, LENGTHS = 32, (17, 5, 40, 1, 23)
DENSE = [Attention(heads=4), Attention(heads=4, rotary=100.0, bias=False)]
CAUSAL_DENSE = [Attention(heads=4, causal=True), Attention(heads=4, causal=True, rotary=100.0)]
MIXERS = [
    *DENSE, Lstm(), Lstm(hidden=40), Lstm(directions="apart", hidden=40, clip=0.3), Lstm(cell="gru"), Cnn(),
    Cnn(widths=(1, 2, 6, 3), activation="tanh"), TransformerXL(heads=4, causal=False),
    TransformerXL(heads=4, causal=False, clamp=6, same_length=True, remembers=9, bias=True), AdaptiveSpan(heads=4, longest=48, ramp=8),
]  # fmt: skip
REACHING = [
    TransformerXL(heads=4), TransformerXL(heads=4, same_length=True, remembers=9, clamp=5, bias=True),
    AdaptiveSpan(heads=4, longest=48, ramp=8, causal=True), AdaptiveSpan(heads=4, longest=20, ramp=32, causal=True),
]  # fmt: skip
CAUSAL = [*CAUSAL_DENSE, Lstm(directions="forward"), Lstm(directions="forward", clip=0.3), Cnn(causal=True), *REACHING]


def name(config):
    told = {field: getattr(config, field) for field in config.__struct_fields__}
    return "-".join([config.__struct_config__.tag, *(f"{n}={v}" for n, v in told.items() if v and n != "heads")])


MIXERS += [
    Longformer(heads=4, reach=(4,)), Longformer(heads=4, reach=(4,), anchors=False), Longformer(heads=4, reach=(64,)),
    Longformer(heads=4, reach=(3,), dilation=(2, 3), bias=False), Longformer(heads=4, reach=(5,), rotary=100.0),
]  # fmt: skip
CAUSAL += [
    Longformer(heads=4, reach=(4,), causal=True),
    Longformer(heads=4, reach=(3,), dilation=(2,), anchors=False, causal=True),
]

MIXERS += [Reformer(heads=4, buckets=4, rounds=3, reach=4), Reformer(heads=4, buckets=1, bias=False)]
MIXERS += [
    ReformerChunked(heads=4, layers=("near",), near=ChunkConfig(chunk=4)),
    ReformerChunked(heads=4, size=6, layers=("hashed",), hashed=ChunkConfig(chunk=4, after=1), buckets=4, rounds=3),
]
CAUSAL += [
    ReformerChunked(heads=4, layers=("near",), near=ChunkConfig(chunk=4), causal=True)
]  # those of hashes are so in part alone
CAUSAL += [Reformer(heads=4, buckets=(2, 4), rounds=2, reach=3, causal=True), Reformer(heads=4, buckets=1, causal=True)]

MIXERS += [LiteTransformer(kernels=(5,)), LiteTransformer(kernels=(4,), dynamic=True, filters=8, bias=False, rotary=100.0)]
CAUSAL += [LiteTransformer(kernels=(5,), causal=True), LiteTransformer(kernels=(31,), dynamic=True, causal=True)]

MIXERS += [Attention(heads=4, distance=AlibiConfig()), Attention(heads=4, distance=T5BiasConfig(buckets=8, furthest=12))]
CAUSAL += [
    Attention(heads=4, distance=AlibiConfig(), causal=True),
    Attention(heads=4, distance=T5BiasConfig(buckets=4, furthest=9), causal=True),
]

every_mixer = pytest.mark.parametrize("config", MIXERS, ids=name)
every_causal_mixer = pytest.mark.parametrize("config", CAUSAL, ids=name)
both = pytest.mark.parametrize("config", MIXERS + CAUSAL, ids=name)
dense = pytest.mark.parametrize("config", DENSE + CAUSAL_DENSE, ids=name)
compiled = pytest.mark.parametrize("config", [c for c in MIXERS + CAUSAL if c.build(WIDTH).compiles], ids=name)


def built(config):
    torch.manual_seed(1)
    mixer = config.build(WIDTH).eval()
    for weight in mixer.parameters():  # none may hide behind a zero it starts with
        torch.nn.init.normal_(weight, std=0.2)
    mixer.prepare_forward()  # a compiled graph cannot be
    return mixer


def tokens(lengths=LENGTHS):
    torch.manual_seed(2)
    return torch.randn(sum(lengths), WIDTH), Layout.from_lengths(lengths)


def test_the_contract_covers_every_mixer():
    members = set(getattr(MixerConfig, "__args__", (MixerConfig,)))
    assert {type(c) for c in MIXERS} == {type(c) for c in CAUSAL} == members


@both
@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70), (8, 8, 8), (1,)], ids=["short", "long", "even", "one"])
def test_a_sequence_is_the_same_alone_or_packed(config, lengths):
    mixer, (x, layout) = built(config), tokens(lengths)
    alone = [mixer(part, Layout.from_lengths([len(part)])) for part in x.split(lengths)]
    assert_close(mixer(x, layout), torch.cat(alone), atol=1e-5, rtol=1e-5)


@both
def test_the_rectangle_agrees_with_the_pack(config):
    mixer, (x, layout) = built(config), tokens()
    mask = layout.padding_mask()
    grid = layout.pad(x).masked_fill(~mask[..., None], 9.0).flatten(0, 1)  # padding shouts, and is not heard
    assert_close(mixer(grid, PaddedLayout.from_mask(mask))[mask.flatten()], mixer(x, layout), atol=1e-5, rtol=1e-5)


@every_causal_mixer
def test_causal_never_looks_ahead(config):
    mixer, (x, layout) = built(config), tokens((30, 10))
    changed = x.clone()
    changed[20:30] = torch.randn(10, WIDTH)
    before, after = mixer(x, layout), mixer(changed, layout)
    assert_close(before[:20], after[:20], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(before[20:30], after[20:30])


@every_mixer
def test_gradients_reach_every_weight(config):
    mixer, (x, layout) = built(config).train(), tokens()
    mixer(x, layout).square().mean().backward()
    assert not [n for n, p in mixer.named_parameters() if p.grad is None or not p.grad.any()]


@both
def test_small_matrices_stand_beside_its_own_and_are_merged_with_them(config):
    encoder = EncoderConfig(layers=2, width=WIDTH, mixer=config, feedforward=None, positions=64, deviation=0.2)
    model, given = model_of(ModelConfig(encoder=encoder, vocabulary=60), 0).eval(), Inputs(torch.arange(86) % 60, tokens()[1])
    plain = model(given)
    lora.inject_adapters(model, lora.LoraConfig(rank=2), seed=1)
    assert_close(model(given), plain, atol=1e-5, rtol=1e-5)
    beside = [part for part in model.modules() if isinstance(part, lora.LoRALinear)]
    for part in beside:
        torch.nn.init.normal_(part.up, std=0.1)
    taught = model(given)
    assert not beside or not torch.allclose(taught, plain, atol=1e-3)
    lora.merge_and_unload(model)
    assert_close(model(given), taught, atol=1e-4, rtol=1e-4)


@compiled
def test_compiles_whole_and_serves_other_lengths(config):
    torch._dynamo.reset()
    graphs = []
    from torch._dynamo.backends.debugging import aot_eager

    def counted(graph, example, **options):
        graphs.append(graph)
        return aot_eager(graph, example, **options)

    mixer = built(config)
    compiled = torch.compile(mixer, fullgraph=True, backend=counted)
    for lengths in (LENGTHS, (9, 30, 2), (50, 3, 8, 20), (7, 41)):
        x, layout = tokens(lengths)
        assert_close(compiled(x, layout), mixer(x, layout), atol=1e-5, rtol=1e-5)
    assert len(graphs) <= 2  # one for the first lengths, one for all others


@dense
@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70), (12, 12)], ids=["rectangle", "one by one", "even"])
def test_dense_agrees_with_the_whole_square_of_scores(config, lengths):
    mixer, (x, layout) = built(config), tokens(lengths)
    q, k, v = mixer.project(x)
    if config.rotary:
        q, k = (by_complex_numbers(t, layout.position, config.rotary).float() for t in (q, k))
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    visible = layout.seq_id == layout.seq_id[:, None]
    if config.causal:
        visible &= layout.position <= layout.position[:, None]
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible, float("-inf")).softmax(-1)
    assert_close(mixer(x, layout), mixer.project.join((weights @ v).transpose(0, 1)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [LENGTHS, (60, 33, 70)], ids=["rectangle", "one by one"])
def test_attention_dropout_falls_in_training_only_and_keeps_the_mean(lengths):
    mixer, (x, layout) = built(Attention(heads=4, dropout=0.3)), tokens(lengths)
    still = mixer(x, layout)
    assert_close(still, built(Attention(heads=4))(x, layout))
    mixer.train()
    torch.manual_seed(0)
    draws = torch.stack([mixer(x, layout) for _ in range(400)])
    assert not torch.allclose(draws[0], still)
    assert_close(draws.mean(0), still, atol=0.35, rtol=0.1)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="width of 32 does not divide into 5 heads"):
        Attention(heads=5).build(WIDTH)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config", [Attention(heads=4), Attention(heads=4, causal=True), Attention(heads=16)], ids=["all", "causal", "heads of 2"]
)
@pytest.mark.parametrize("lengths", [LENGTHS, (128, 33, 512), (64, 64)], ids=["short", "long", "even"])
def test_flash_agrees_with_the_rectangle(config, lengths):
    """On CUDA in half precision the variable-length kernel runs: within rounding of float32, forward and back."""
    mixer, (x, layout) = built(config).cuda(), tokens(lengths)
    x, layout = x.cuda(), layout.to("cuda")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = mixer(inputs, layout)
        out.float().square().sum().backward()
        results.append((out.float(), inputs.grad))
    for exact, half in zip(*results, strict=True):
        assert (exact - half).norm() / exact.norm() < 0.02


@pytest.mark.parametrize(
    ("lengths", "alone"), [([3] * 20 + [60], True), ([40, 33, 50], True), ([3, 4, 5], False), ([60, 60], False)]
)
def test_a_rectangle_is_laid_around_short_sequences_of_like_length_alone(lengths, alone):
    layout = Layout.from_lengths(lengths)
    assert layout.attends_per_sequence == alone
    torch.manual_seed(0)
    q, k, v = torch.randn(3, sum(lengths), 2, 8)
    parts = zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
    each = [Layout.from_lengths([len(a)]).attend(a, b, c) for a, b, c in parts]
    assert_close(layout.attend(q, k, v), torch.cat(each), atol=1e-5, rtol=1e-5)
