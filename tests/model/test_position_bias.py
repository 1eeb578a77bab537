"""Position biases (ALiBi, T5): every attention path against a loop, the KV cache, sharing between layers."""

import msgspec
import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, LayerTypes
from bertsmith.model.generation.incremental import KVCacheDecoder, UncachedDecoder
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, ShawConfig, T5BiasConfig, alibi_slopes, attend_with_bias, flex_attend
from bertsmith.model.transformer import Stack

BIASES = [AlibiConfig(), T5BiasConfig(num_buckets=8, max_distance=12)]
LENGTHS = {"padded": (17, 5, 20, 1, 23), "per sequence": (60, 33, 70), "even": (12, 12)}
kinds = pytest.mark.parametrize("kind", BIASES, ids=["alibi", "relative"])
every_path = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def build_position_bias(kind, causal=False, heads=3):
    torch.manual_seed(3)
    bias = kind.build(heads, causal)
    for weight in bias.parameters():
        torch.nn.init.normal_(weight)
    return bias


def random_qkv(lengths, heads=3, head_dim=8):
    torch.manual_seed(4)
    return torch.randn(3, sum(lengths), heads, head_dim).requires_grad_()


def reference_attention(q, k, v, layout, position_bias, causal):
    """Attention as a loop over queries."""
    outputs = []
    for i in range(len(q)):
        keys = [
            j
            for j in range(len(q))
            if layout.seq_id[i] == layout.seq_id[j] and not (causal and layout.position[j] > layout.position[i])
        ]
        bias = torch.stack([position_bias(layout.position[j] - layout.position[i]) for j in keys], -1)
        scores = torch.einsum("hd,jhd->hj", q[i], k[keys]) / q.shape[-1] ** 0.5 + bias
        outputs.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), v[keys]))
    return torch.stack(outputs)


@kinds
@every_path
@both_directions
def test_position_bias_attention_and_grads_match_loop(kind, lengths, causal):
    bias, qkv, layout = build_position_bias(kind, causal), random_qkv(lengths), Layout.from_lengths(lengths)
    leaves = [qkv, *bias.parameters()]
    results = []
    for attend in (attend_with_bias, reference_attention):
        out = attend(*qkv, layout, bias, causal)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called")
@kinds
@both_directions
def test_position_bias_flex_attention_matches_sdpa(kind, causal):
    """mask_mod and score_mod, which a CPU evaluates densely."""
    lengths = LENGTHS["padded"]
    bias, (q, k, v), layout = (
        build_position_bias(kind, causal),
        random_qkv(lengths, head_dim=16).detach(),
        Layout.from_lengths(lengths),
    )
    with torch.no_grad():
        actual = flex_attend(q, k, v, layout, bias.bias_by_distance(layout.max_seqlen, q.device), causal)
        assert_close(actual, attend_with_bias(q, k, v, layout, bias, causal), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@kinds
@both_directions
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_position_bias_flex_attention_on_gpu_matches_cpu_with_grads(kind, causal, dtype):
    lengths = (128, 33, 300, 1, 77)
    bias, layout = build_position_bias(kind, causal).cuda(), Layout.from_lengths(lengths)
    qkv = random_qkv(lengths, head_dim=32).detach()
    results = []
    for device, compute_dtype in (("cpu", torch.float32), ("cuda", dtype)):
        bias = bias.to(device)
        leaf = qkv.to(device, compute_dtype).requires_grad_()
        out = attend_with_bias(*leaf, layout.to(device), bias, causal)
        tensors = [out, *torch.autograd.grad(out.float().square().sum(), [leaf, *bias.parameters()])]
        results.append([tensor.float().cpu() for tensor in tensors])
    for expected, actual in zip(*results, strict=True):
        assert (expected - actual).norm() / expected.norm() < (0.02 if dtype == torch.bfloat16 else 1e-3)


@kinds
def test_position_bias_with_prefix_lm_mask(kind):
    for lengths, prefix_lengths in (((9, 6, 12), (4, 6, 1)), ((60, 33, 70), (20, 1, 69))):
        bias, (q, k, v) = build_position_bias(kind), random_qkv(lengths).detach()
        layout = Layout.from_lengths(lengths, prefix_lengths)
        actual, start = attend_with_bias(q, k, v, layout, bias, causal=True), 0
        for length, prefix_length in zip(lengths, prefix_lengths, strict=True):
            for row in (0, prefix_length - 1, length - 1):
                end = start + max(prefix_length, row + 1)
                expected = reference_attention(
                    *(tensor[start:end] for tensor in (q, k, v)), Layout.from_lengths([end - start]), bias, False
                )
                assert_close(actual[start + row], expected[row], atol=1e-5, rtol=1e-5)
            start += length


def test_alibi_slopes_match_the_paper():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]  # those of 2 heads, then the first of every second one of 4


def build_small_model(kind, **overrides):
    mixer = Attention(num_attention_heads=4, causal=True, position_bias=kind)
    config = EncoderConfig(
        num_hidden_layers=3,
        hidden_size=32,
        mixer=mixer,
        max_position_embeddings=40,
        position_embedding_type="none",
        type_vocab_size=0,
        **overrides,
    )
    heads = {"lm": LMHeadConfig(transform=False, bias=False)}
    model = build_model(ModelConfig(encoder=config, vocab_size=50, heads=heads), 0).eval()
    for name, weight in model.named_parameters():
        if "position_bias" in name:
            torch.nn.init.normal_(weight)
    return model


@kinds
def test_position_bias_kv_cache_matches_full_forward(kind):
    model = build_small_model(kind)
    prompts = [torch.arange(7), torch.arange(3, 6), torch.arange(20, 32)]
    with torch.no_grad():
        (state, cached), (uncached_state, expected) = (
            decoder.prefill(prompts) for decoder in (KVCacheDecoder(model, 4), UncachedDecoder(model))
        )
        for token in (4, 9, 2):
            assert_close(cached, expected, atol=1e-5, rtol=1e-5)
            tokens = torch.full((3,), token)
            (state, cached), (uncached_state, expected) = (
                KVCacheDecoder(model, 4).decode_step(state, tokens),
                UncachedDecoder(model).decode_step(uncached_state, tokens),
            )
    assert_close(cached, expected, atol=1e-5, rtol=1e-5)


def test_t5_bias_table_is_shared_or_per_layer():
    tables = [name for name in build_small_model(T5BiasConfig()).state_dict() if "position_bias" in name]
    assert tables == ["encoder.stack.layers.0.mixer.position_bias.relative_attention_bias.weight"]
    separate_tables = [name for name in build_small_model(T5BiasConfig(shared=False)).state_dict() if "position_bias" in name]
    assert len(separate_tables) == 3
    assert not [name for name in build_small_model(AlibiConfig()).state_dict() if "position_bias" in name]


def test_t5_bias_shared_table_sums_grads_of_all_layers():
    model, separate = build_small_model(T5BiasConfig()), build_small_model(T5BiasConfig(shared=False))
    weights = model.state_dict()
    table = weights["encoder.stack.layers.0.mixer.position_bias.relative_attention_bias.weight"]
    separate.load_state_dict({name: weights.get(name, table) for name in separate.state_dict()})
    inputs = Inputs(torch.arange(30), Layout.from_lengths([11, 19]))
    for each in (model, separate):
        each(inputs).square().sum().backward()
    grads = [block.mixer.position_bias.relative_attention_bias.weight.grad for block in separate.encoder.stack.layers]
    assert_close(
        model.encoder.stack.layers[0].mixer.position_bias.relative_attention_bias.weight.grad, sum(grads), atol=1e-4, rtol=1e-4
    )


def test_position_bias_from_recipe_and_rejected_settings():
    fields = {"mixer": {"position_bias": "t5"}, "position_embedding_type": "none"}
    assert from_dict(EncoderConfig, fields).mixer == Attention(position_bias=T5BiasConfig())
    with pytest.raises(UserError, match=r"not both; leave out model\.mixer\.rope_theta or .*position_bias"):
        Attention(num_attention_heads=4, rope_theta=100.0, position_bias=AlibiConfig()).build(32)
    with pytest.raises(UserError, match="a multiple of 4"):
        msgspec.structs.replace(T5BiasConfig(), num_buckets=6).build(4, False)


@pytest.mark.parametrize(
    "other",
    [
        {"num_attention_heads": 4},
        {"position_bias": T5BiasConfig(num_buckets=16)},
        {"position_bias": T5BiasConfig(shared=False)},
    ],
    ids=str,
)
def test_t5_bias_is_not_shared_between_different_mixers(other):
    mixer = Attention(num_attention_heads=2, position_bias=T5BiasConfig())
    layer_types = LayerTypes(every=2, mixer=msgspec.structs.replace(mixer, **other))
    stack = Stack(EncoderConfig(num_hidden_layers=3, hidden_size=16, mixer=mixer, layer_types=layer_types))
    first, second, third = (block.mixer for block in stack.layers)
    assert third.tied_position_bias is first.position_bias and second.tied_position_bias is not first.position_bias
    assert second.position_bias.relative_attention_bias.weight.shape == (
        layer_types.mixer.position_bias.num_buckets,
        layer_types.mixer.num_attention_heads,
    )
    stack(torch.randn(9, 16), Layout.from_lengths([9]))


@every_path
@both_directions
def test_shaw_relative_positions_match_a_loop_over_the_paper(lengths, causal):
    """Shaw et al. 2018, equations 1 to 5: a^K and a^V of the clipped distance j - i are added to each key and each value."""
    torch.manual_seed(5)
    mixer = Attention(num_attention_heads=3, causal=causal, position_bias=ShawConfig(clip=4)).build(24).double()
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    layout, x = Layout.from_lengths(lengths), torch.randn(sum(lengths), 24, dtype=torch.double)
    q, k, v = mixer.projections(x)
    expected = []
    for queries, keys, values in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        for i in range(len(queries)):
            stop = i + 1 if causal else len(keys)
            ids = [max(-4, min(4, j - i)) + 4 for j in range(stop)]
            shifted_keys = keys[:stop] + mixer.shaw.keys.weight[ids][:, None]  # the same for all heads
            shifted_values = values[:stop] + mixer.shaw.values.weight[ids][:, None]
            scores = torch.einsum("hd,jhd->hj", queries[i], shifted_keys) / 8**0.5
            expected.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), shifted_values).flatten())
    assert_close(mixer(x, layout), mixer.projections.output(torch.stack(expected)), atol=1e-5, rtol=1e-5)


def test_shaw_attention_weights_are_those_of_the_scores():
    torch.manual_seed(5)
    mixer, layout = Attention(num_attention_heads=2, position_bias=ShawConfig(clip=2)).build(8), Layout.from_lengths((6, 3))
    torch.nn.init.normal_(mixer.shaw.keys.weight)
    x = torch.randn(9, 8)
    weights = mixer.attention_weights(x, layout)
    q, k, _ = (t[:6] for t in mixer.projections(x))
    distances = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    scores = torch.einsum("ihd,ijhd->hij", q, k[None] + mixer.shaw.keys.weight[distances][:, :, None]) / 2
    assert_close(weights[0], scores.softmax(-1), atol=1e-6, rtol=1e-5)


def test_shaw_kv_cache_matches_full_forward():
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=16,
        mixer=Attention(num_attention_heads=2, causal=True, position_bias=ShawConfig(clip=3)),
        feedforward=None,
        position_embedding_type="none",
        max_position_embeddings=32,
        initializer_range=0.4,
    )
    assert not encoder.lacks_position_information
    config = ModelConfig(encoder=encoder, vocab_size=20, heads={"lm": LMHeadConfig(transform=False, tied=False)})
    model = build_model(config, 0).eval()
    prompts = [torch.tensor(ids).numpy() for ids in ([2, 7, 9, 4, 11], [2, 5], [2, 8, 3, 6, 10, 12, 7])]
    with torch.no_grad():
        cached, uncached = KVCacheDecoder(model, 8), UncachedDecoder(model)
        states, tokens = [], torch.tensor([4, 9, 13])
        for decoder in (cached, uncached):
            state, logits = decoder.prefill(prompts)
            steps = [logits]
            for step in range(5):
                state, logits = decoder.decode_step(state, (tokens + step) % 20)
                steps.append(logits)
            states.append(torch.stack(steps))
    assert_close(*states, atol=1e-5, rtol=1e-5)
