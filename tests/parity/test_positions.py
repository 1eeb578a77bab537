"""Scores that lean on distance are those of transformers' T5, weights copied in, and of its Bloom."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.mixers import Attention
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig, alibi_slopes

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, LENGTHS = 32, 4, (17, 70, 150)
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])


@both_ways
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (64, 300)])
def test_distances_fall_into_the_buckets_of_t5(causal, buckets, furthest):
    from transformers.models.t5.modeling_t5 import T5Attention

    ahead = torch.arange(-700, 700)
    theirs = T5Attention._relative_position_bucket(ahead, not causal, buckets, furthest)
    assert torch.equal(T5BiasConfig(buckets=buckets, furthest=furthest).build(2, causal).bucket(ahead), theirs)


@both_ways
def test_attention_is_t5s(causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, dropout_rate=0.0, is_decoder=causal, use_cache=False
    )
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    ours = Attention(heads=HEADS, causal=causal, bias=False, distance=T5BiasConfig()).build(WIDTH)
    unscaled = theirs.q.weight * (WIDTH // HEADS) ** 0.5  # T5 leaves the scores as they are
    ours.load_state_dict({
        "project.qkv.weight": torch.cat([unscaled, theirs.k.weight, theirs.v.weight]),
        "project.out.weight": theirs.o.weight, "distance.table.weight": theirs.relative_attention_bias.weight,
    })  # fmt: skip
    x = torch.randn(sum(LENGTHS), WIDTH)
    found = ours(x, Layout.from_lengths(LENGTHS))
    for part, mine in zip(x.split(LENGTHS), found.split(LENGTHS), strict=True):
        hidden = torch.full((len(part),) * 2, float("-inf")).triu(1)[None, None] if causal else None
        assert_close(mine, theirs(part[None], mask=hidden)[0][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 5, 8, 12, 16, 24])
def test_slopes_are_blooms(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)[:, 0]  # (heads, keys): by place, not by distance
    assert_close(torch.tensor(alibi_slopes(heads))[:, None] * torch.arange(9), theirs)
    ours = AlibiConfig().build(heads, True)(torch.arange(9) - 8)  # of the last query; softmax does not mind what all keys share
    assert_close(ours - ours[:, :1], theirs, atol=1e-6, rtol=1e-6)
