"""Prefix LM attention (UniLM): bidirectional prefixes, causal suffixes, against one dense mask."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.kv_cache import LayerKVCache
from bertsmith.model.mixers import Attention
from bertsmith.model.packing import Layout

HEADS, HIDDEN_SIZE = 2, 16
CASES = {
    "long": ((50, 9, 1, 40), (20, 9, 0, 1)),
    "even": ((8, 8, 8), (3, 8, 0)),
    "short": ((3, 2, 3, 3, 2), (0, 2, 3, 1, 1)),
    "uneven": ((30, 2, 3), (5, 1, 3)),
}
every_case = pytest.mark.parametrize(("lengths", "prefix_lengths"), CASES.values(), ids=CASES)


def dense_attention(q, k, v, lengths, prefix_lengths):
    """q, k, v (tokens, heads, head_dim), by one dense mask over all tokens."""
    seq_id = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    position = torch.cat([torch.arange(length) for length in lengths])
    same_sequence = seq_id[:, None] == seq_id
    visible = (position <= position[:, None]) | (position < torch.tensor(prefix_lengths)[seq_id])
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~(same_sequence & visible), float("-inf")).softmax(-1), v)


def random_qkv(lengths):
    torch.manual_seed(0)
    return torch.randn(3, sum(lengths), HEADS, HIDDEN_SIZE // HEADS)


@every_case
def test_prefix_lm_attention_matches_dense_mask(lengths, prefix_lengths):
    q, k, v = random_qkv(lengths)
    actual = Layout.from_lengths(lengths, prefix_lengths).attend(q, k, v, causal=True)
    assert_close(actual, dense_attention(q, k, v, lengths, prefix_lengths), atol=1e-5, rtol=1e-5)


@every_case
def test_prefix_lm_flash_decomposition_matches_dense_mask(lengths, prefix_lengths):
    """Prefixes alone; suffixes with the last query aligned to the last key of their sequence."""
    q, k, v = random_qkv(lengths)
    layout = Layout.from_lengths(lengths, prefix_lengths)
    (prefix_tokens, prefix_layout), (suffix_tokens, suffix_layout) = layout._prefixes_and_suffixes
    out = torch.full_like(v, float("nan"))
    if len(prefix_tokens):
        out[prefix_tokens] = prefix_layout.attend(q[prefix_tokens], k[prefix_tokens], v[prefix_tokens])
    for i, suffix in enumerate(suffix_tokens.split(suffix_layout.lengths.tolist())):
        start, stop = layout.cu_seqlens[i : i + 2].tolist()
        for offset, token in enumerate(suffix.tolist()):
            end = stop - len(suffix) + offset + 1  # bottom-right: the last suffix token sees the last key
            out[token] = dense_attention(
                q[[token]].expand(end - start, -1, -1), k[start:end], v[start:end], (end - start,), (end - start,)
            )[0]
    assert_close(out, dense_attention(q, k, v, lengths, prefix_lengths), atol=1e-5, rtol=1e-5)


@every_case
def test_prefix_lm_grads_match_dense_mask(lengths, prefix_lengths):
    qkv, reference_qkv = (random_qkv(lengths).requires_grad_() for _ in range(2))
    Layout.from_lengths(lengths, prefix_lengths).attend(*qkv, causal=True).square().sum().backward()
    dense_attention(*reference_qkv, lengths, prefix_lengths).square().sum().backward()
    assert_close(qkv.grad, reference_qkv.grad, atol=1e-4, rtol=1e-4)


def test_prefix_lm_in_causal_mixer():
    torch.manual_seed(1)
    mixer = Attention(num_attention_heads=HEADS, causal=True, rope_theta=100.0).build(HIDDEN_SIZE).eval()
    x = torch.randn(20, HIDDEN_SIZE)
    full_prefix, empty_prefix, causal = (
        mixer(x, Layout.from_lengths([20], prefix_lengths)) for prefix_lengths in ([20], [0], None)
    )
    bidirectional = Attention(num_attention_heads=HEADS, rope_theta=100.0).build(HIDDEN_SIZE).eval()
    bidirectional.load_state_dict(mixer.state_dict())
    assert_close(full_prefix, bidirectional(x, Layout.from_lengths([20])))
    assert_close(empty_prefix, causal)
    partial = mixer(x, Layout.from_lengths([20], [8]))
    assert_close(partial[:8], bidirectional(x[:8], Layout.from_lengths([8])))
    assert not torch.allclose(partial[:8], causal[:8])
    assert_close(partial[8:], causal[8:])  # in one layer; their inputs differ in the next


def test_prefix_lm_layout_moves_and_fills_kv_cache():
    layout = Layout.from_lengths([6, 4], [2, 3]).to("cpu")
    assert layout.prefix_lengths.tolist() == [2, 3]
    mixer, x = Attention(num_attention_heads=HEADS, causal=True).build(HIDDEN_SIZE), torch.randn(10, HIDDEN_SIZE)
    cache = LayerKVCache(max_length=8)
    assert_close(mixer(x, layout, cache), mixer(x, layout))
    assert cache.keys_values.shape == (2, 2, HEADS, 8, HIDDEN_SIZE // HEADS)
