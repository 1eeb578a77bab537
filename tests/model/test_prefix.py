"""Prefixes that see all of themselves, and what follows them that sees all before it: against one dense mask."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.generation.kv_cache import KVCache, PrefillLayout
from bertsmith.model.mixers import Attention
from bertsmith.model.packing import Layout

HEADS, WIDTH = 2, 16
CASES = {
    "long": ((50, 9, 1, 40), (20, 9, 0, 1)),
    "even": ((8, 8, 8), (3, 8, 0)),
    "short": ((3, 2, 3, 3, 2), (0, 2, 3, 1, 1)),
    "uneven": ((30, 2, 3), (5, 1, 3)),
}
every_case = pytest.mark.parametrize(("lengths", "prefix"), CASES.values(), ids=CASES)


def dense(q, k, v, lengths, prefix):
    """(tokens, heads, width) three times, by one mask over everything."""
    owner = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    place = torch.cat([torch.arange(length) for length in lengths])
    same = owner[:, None] == owner
    seen = (place <= place[:, None]) | (place < torch.tensor(prefix)[owner])
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~(same & seen), float("-inf")).softmax(-1), v)


def tokens(lengths):
    torch.manual_seed(0)
    return torch.randn(3, sum(lengths), HEADS, WIDTH // HEADS)


@every_case
def test_attention_is_that_of_a_dense_mask(lengths, prefix):
    q, k, v = tokens(lengths)
    found = Layout.from_lengths(lengths, prefix).attend(q, k, v, causal=True)
    assert_close(found, dense(q, k, v, lengths, prefix), atol=1e-5, rtol=1e-5)


@every_case
def test_the_two_halves_that_a_gpu_computes_make_the_whole(lengths, prefix):
    """Prefixes by themselves; what follows, the last query beside the last key of its sequence."""
    q, k, v = tokens(lengths)
    layout = Layout.from_lengths(lengths, prefix)
    (inside, prefixes), (behind, rests) = layout._prefixes_and_rests
    out = torch.full_like(v, float("nan"))
    if len(inside):
        out[inside] = prefixes.attend(q[inside], k[inside], v[inside])
    for number, part in enumerate(behind.split(rests.lengths.tolist())):
        a, b = layout.cu_seqlens[number : number + 2].tolist()
        for nth, token in enumerate(part.tolist()):
            end = b - len(part) + nth + 1  # bottom-right: the last of the rest sees the last of the whole
            out[token] = dense(q[[token]].expand(end - a, -1, -1), k[a:end], v[a:end], (end - a,), (end - a,))[0]
    assert_close(out, dense(q, k, v, lengths, prefix), atol=1e-5, rtol=1e-5)


@every_case
def test_gradients_are_those_of_a_dense_mask(lengths, prefix):
    ours, theirs = (tokens(lengths).requires_grad_() for _ in range(2))
    Layout.from_lengths(lengths, prefix).attend(*ours, causal=True).square().sum().backward()
    dense(*theirs, lengths, prefix).square().sum().backward()
    assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_a_causal_mixer_takes_prefixes_from_the_layout():
    torch.manual_seed(1)
    mixer = Attention(heads=HEADS, causal=True, rotary=100.0).build(WIDTH).eval()
    x = torch.randn(20, WIDTH)
    whole, none, plain = (mixer(x, Layout.from_lengths([20], prefix)) for prefix in ([20], [0], None))
    both_ways = Attention(heads=HEADS, rotary=100.0).build(WIDTH).eval()
    both_ways.load_state_dict(mixer.state_dict())
    assert_close(whole, both_ways(x, Layout.from_lengths([20])))
    assert_close(none, plain)
    half = mixer(x, Layout.from_lengths([20], [8]))
    assert_close(half[:8], both_ways(x[:8], Layout.from_lengths([8])))
    assert not torch.allclose(half[:8], plain[:8])
    assert_close(half[8:], plain[8:])  # in one layer; what they see is another in the next


def test_prefixes_move_with_their_layout_and_fill_a_cache():
    layout = Layout.from_lengths([6, 4], [2, 3]).to("cpu")
    assert layout.prefix_lengths.tolist() == [2, 3]
    mixer, x = Attention(heads=HEADS, causal=True).build(WIDTH), torch.randn(10, WIDTH)
    cache = KVCache(8)
    assert_close(mixer(x, PrefillLayout.from_layout(layout, cache)), mixer(x, layout))
    assert cache.layers[0][0].shape == (2, HEADS, 8, WIDTH // HEADS)
