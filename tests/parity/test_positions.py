"""Position biases: parity with transformers' T5 (same weights) and Bloom (ALiBi)."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.mixers import Attention
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig, alibi_slopes

transformers = pytest.importorskip("transformers")

HIDDEN_SIZE, HEADS, LENGTHS = 32, 4, (17, 70, 150)
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])


@both_directions
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (64, 300)])
def test_t5_bias_buckets_match_transformers(causal, buckets, furthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    relative_position = torch.arange(-700, 700)
    expected = T5Attention._relative_position_bucket(relative_position, not causal, buckets, furthest)
    assert torch.equal(
        T5BiasConfig(num_buckets=buckets, max_distance=furthest).build(2, causal).relative_position_bucket(relative_position),
        expected,
    )


@both_directions
def test_t5_bias_attention_matches_transformers(causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=HIDDEN_SIZE, d_kv=HIDDEN_SIZE // HEADS, num_heads=HEADS, dropout_rate=0.0, is_decoder=causal, use_cache=False
    )
    config._attn_implementation = "eager"
    reference = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    ours = Attention(num_attention_heads=HEADS, causal=causal, bias=False, position_bias=T5BiasConfig()).build(HIDDEN_SIZE)
    scaled_query = reference.q.weight * (HIDDEN_SIZE // HEADS) ** 0.5  # T5 does not scale the scores
    ours.load_state_dict({
        "projections.qkv.weight": torch.cat([scaled_query, reference.k.weight, reference.v.weight]),
        "projections.output.weight": reference.o.weight,
        "position_bias.relative_attention_bias.weight": reference.relative_attention_bias.weight,
    })  # fmt: skip
    x = torch.randn(sum(LENGTHS), HIDDEN_SIZE)
    outputs = ours(x, Layout.from_lengths(LENGTHS))
    for sequence, actual in zip(x.split(LENGTHS), outputs.split(LENGTHS), strict=True):
        causal_mask = torch.full((len(sequence),) * 2, float("-inf")).triu(1)[None, None] if causal else None
        assert_close(actual, reference(sequence[None], mask=causal_mask)[0][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 5, 8, 12, 16, 24])
def test_alibi_slopes_match_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)[:, 0]  # (heads, keys): by position, not by distance
    assert_close(torch.tensor(alibi_slopes(heads))[:, None] * torch.arange(9), expected)
    ours = AlibiConfig().build(heads, True)(
        torch.arange(9) - 8
    )  # of the last query; softmax ignores a constant shared by all keys
    assert_close(ours - ours[:, :1], expected, atol=1e-6, rtol=1e-6)
