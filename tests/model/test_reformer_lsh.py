"""Reformer's attention against sets of tokens found one by one: whom a token meets in any round, it meets once."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.mixers import Reformer
from bertsmith.model.mixers.reformer import lsh
from bertsmith.model.mixers.reformer.lsh import LshHash, invert_permutation, unit_norm
from bertsmith.model.packing import Layout

WIDTH, LENGTHS = 32, (17, 5, 40, 1, 23)


def built(**settings):
    torch.manual_seed(3)
    mixer = Reformer(heads=4, **settings).build(WIDTH).eval()
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def given(lengths=LENGTHS):
    torch.manual_seed(4)
    return torch.randn(sum(lengths), WIDTH), Layout.from_lengths(lengths)


def projected(mixer, x):
    """Queries and values, (heads, tokens, width of a head)."""
    qk, v = mixer.project(x).chunk(2, -1)
    return qk.view(len(x), 4, -1).transpose(0, 1), v.view(len(x), 4, -1).transpose(0, 1)


def bucket(x, turns):
    """Of one vector: which of R's directions, or of their opposites, it points to most."""
    along = [float((x @ turn).detach()) for turn in turns.T]
    both = along + [-a for a in along]
    return both.index(max(both))


def met(mixer, qk, lengths):
    """For every head and token, the set of those that it meets in any round."""
    config, seen = mixer.config, [[set() for _ in range(qk.shape[1])] for _ in range(4)]
    factors = config.buckets if isinstance(config.buckets, tuple) else (config.buckets,)
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    for head in range(4):
        for turn in range(config.rounds):
            parts = mixer.hashes.turns[head, :, turn].split([f // 2 for f in factors], -1)
            for start, length in zip(starts, lengths, strict=True):
                whole = not config.causal and length <= config.reach + 1
                runs = {}
                for token in range(start, start + length):
                    key = 0 if whole else tuple(bucket(qk[head, token], part) for part in parts)
                    runs.setdefault(key, []).append(token)
                for run in runs.values():
                    for a, token in enumerate(run):
                        near = run[max(0, a - config.reach) : a] + ([] if config.causal else run[a + 1 : a + 1 + config.reach])
                        seen[head][token] |= set(near)
    return seen


def by_hand(mixer, x, seen):
    qk, v = projected(mixer, x)
    out = torch.zeros(len(x), 4, WIDTH // 4)
    for head in range(4):
        for token in range(len(x)):
            others = sorted(seen[head][token]) or [token]
            keys = qk[head, others] / qk[head, others].norm(dim=-1, keepdim=True)
            out[token, head] = (keys @ qk[head, token]).softmax(0) @ v[head, others]
    return mixer.out(out.flatten(1))


SETTINGS = [
    {"buckets": 4, "rounds": 1, "reach": 5},
    {"buckets": 4, "rounds": 3, "reach": 4},
    {"buckets": (2, 4), "rounds": 4, "reach": 6, "bias": False},
    {"buckets": 8, "rounds": 2, "reach": 64},
    {"buckets": 4, "rounds": 3, "reach": 3, "causal": True},
    {"buckets": 6, "rounds": 2, "reach": 64, "causal": True, "seed": 5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_token_meets_everyone_of_its_buckets_once(settings):
    mixer, (x, layout) = built(**settings), given()
    assert_close(mixer(x, layout), by_hand(mixer, x, met(mixer, projected(mixer, x)[0], LENGTHS)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, (12, 12)])
def test_one_bucket_is_exact(causal, lengths):
    mixer, (x, layout) = built(buckets=1, causal=causal), given(lengths)
    qk, v = projected(mixer, x)
    visible = (layout.seq_id == layout.seq_id[:, None]) & ~torch.eye(len(x), dtype=torch.bool)
    if causal:
        visible &= layout.position <= layout.position[:, None]
    visible |= torch.diag(~visible.any(1))  # nobody else is there
    scores = qk @ (qk / qk.norm(dim=-1, keepdim=True)).mT
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    assert_close(mixer(x, layout), mixer.out((weights @ v).transpose(0, 1).flatten(1)), atol=1e-5, rtol=1e-5)


def test_many_rounds_come_to_the_exact_answer():
    """Two buckets in thirty rounds: no pair is always apart, but for opposites."""
    exact, (x, layout) = built(buckets=1), given((100, 80))
    missed = []
    for rounds in (1, 4, 30):
        mixer = built(buckets=2, rounds=rounds, reach=79)
        missed.append((mixer(x, layout) - exact(x, layout)).norm().item())
    assert missed[0] > missed[1] > missed[2] and missed[2] < 0.05 * missed[0]


def test_gradients_are_those_of_the_sets():
    mixer, (x, layout) = built(buckets=4, rounds=3, reach=4), given()
    x.requires_grad_()
    with torch.no_grad():
        seen = met(mixer, projected(mixer, x)[0], LENGTHS)
    weights, target = [x, *mixer.parameters()], torch.randn(len(x), WIDTH)
    ours = torch.autograd.grad((mixer(x, layout) * target).sum(), weights)
    wanted = torch.autograd.grad((by_hand(mixer, x, seen) * target).sum(), weights)
    for one, other in zip(ours, wanted, strict=True):
        assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_training_draws_hashes_from_torchs_generator_and_answers_do_not():
    mixer, (x, layout) = built(buckets=4, rounds=1, reach=4), given()
    assert torch.equal(mixer(x, layout), mixer(x, layout))
    assert torch.equal(built(buckets=4, rounds=1, reach=4)(x, layout), mixer(x, layout))
    assert not torch.equal(built(buckets=4, rounds=1, reach=4, seed=1)(x, layout), mixer(x, layout))
    mixer.train()
    torch.manual_seed(7)
    first, second = mixer(x, layout), mixer(x, layout)
    torch.manual_seed(7)
    assert torch.equal(mixer(x, layout), first) and not torch.equal(first, second)


def test_hashes_are_no_part_of_a_checkpoint():
    assert set(built().state_dict()) == {"project.weight", "project.bias", "out.weight", "out.bias"}


def test_memory_grows_with_the_tokens_and_not_with_their_square():
    mixer = built(buckets=8, rounds=2, reach=8)

    def kept(tokens):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            mixer(torch.randn(tokens, WIDTH), Layout.from_lengths([tokens]))
        return sum(sizes)

    assert kept(1600) < 2.1 * kept(800) < 4.3 * kept(400)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="buckets=5 is not even"):
        built(buckets=5)
    with pytest.raises(UserError, match="width of 32 does not divide into 5 heads"):
        Reformer(heads=5).build(WIDTH)
    with pytest.raises(UserError, match="prefixes"):
        built()(given((6,))[0], Layout.from_lengths([6], prefix_lengths=[2]))


def sorted_by_hashes(q, rounds, reach, sequences=3):
    """Order and codes, as the mixer finds them, of tokens in so many sequences."""
    owner = torch.arange(q.shape[1]) * sequences // q.shape[1]
    label = owner * 4 + LshHash(len(q), q.shape[2], rounds, (4,), 0).eval()(q)
    order = label.argsort(dim=-1, stable=True)
    return order, invert_permutation(order) + label * (reach + 1)


@pytest.mark.parametrize("causal", [False, True])
def test_pieces_of_any_size_add_up_to_the_same(causal, monkeypatch):
    torch.manual_seed(0)
    q, v = torch.randn(2, 150, 16, dtype=torch.float64), torch.randn(2, 150, 16, dtype=torch.float64)
    given = (*sorted_by_hashes(q.float(), 3, 20), 20, causal)
    found = []
    for most in (1, 1 << 30):
        monkeypatch.setattr(lsh, "MAX_SCORES", most)
        leaves = [t.clone().requires_grad_() for t in (q, unit_norm(q), v)]
        out, mass = lsh.lsh_attention(*leaves, *given)
        found.append([out, mass, *torch.autograd.grad((out * mass[..., None].tanh()).sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, atol=1e-9, rtol=1e-7)


def test_slopes_are_those_of_differences():
    torch.manual_seed(0)
    q, v = torch.randn(1, 24, 4, dtype=torch.float64), torch.randn(1, 24, 4, dtype=torch.float64)
    order, code = sorted_by_hashes(q.float(), 2, 5)
    leaves = [t.clone().requires_grad_() for t in (q, unit_norm(q).double(), v)]
    assert torch.autograd.gradcheck(lambda a, b, c: lsh._LshAttention.apply(a, b, c, order, code, 5, False), leaves, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rounds", "reach", "width", "length"), [(1, 5, 16, 130), (4, 64, 64, 3000), (3, 100, 32, 700)])
def test_the_kernel_gathers_what_torch_does(causal, rounds, reach, width, length):
    from bertsmith.model.kernels.lsh_attention import fused_lsh_attention

    torch.manual_seed(0)
    q, v = torch.randn(2, length, width), torch.randn(2, length, width)
    order, code = sorted_by_hashes(q, rounds, reach)
    found = []
    for kind, run in ((torch.float64, lsh._LshAttention.apply), (torch.bfloat16, fused_lsh_attention)):
        leaves = [t.to("cuda", kind).requires_grad_() for t in (q, unit_norm(q), v)]
        out, mass = run(*leaves, order.cuda(), code.cuda(), reach, causal)
        mixed = (mass.softmax(0)[..., None].to(kind) * out).sum(0)
        slopes = torch.autograd.grad((mixed * torch.linspace(-1, 1, width, device="cuda", dtype=kind)).sum(), leaves)
        found.append([out, mixed, *slopes])
    for exact, half in zip(*found, strict=True):
        assert (exact - half.double()).norm() <= 0.01 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_on_a_gpu_is_near_float32_on_the_host(causal):
    mixer, (x, layout) = built(buckets=8, rounds=4, reach=16, causal=causal), given((300, 77, 1, 150))
    exact = mixer(x, layout)
    mixer, x, layout = mixer.cuda(), x.cuda(), layout.to("cuda")
    assert_close(mixer(x, layout).cpu(), exact, atol=1e-3, rtol=1e-3)
    with torch.autocast("cuda", torch.bfloat16):
        half = mixer(x, layout).float().cpu()
    rows = ((half - exact).norm(dim=1) / exact.norm(dim=1)).sort_by_bucket().values
    assert rows[int(0.8 * len(rows))] < 0.05  # a few tokens on the border of two buckets fall to the other side


def test_one_bucket_is_read_in_half_precision():
    torch.manual_seed(0)
    mixer, x, layout = Reformer(heads=2, buckets=1).build(16), torch.randn(6, 16), Layout.from_lengths([5, 1])
    with torch.autocast("cpu", torch.float16):
        half = mixer(x, layout)
    assert_close(half.float(), mixer(x, layout), atol=1e-2, rtol=1e-2)
