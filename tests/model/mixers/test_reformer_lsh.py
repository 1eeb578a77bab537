"""Reformer's LSH attention against explicit neighbour sets: a key that is a neighbour in several rounds counts once."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.mixers import Reformer
from bertsmith.model.mixers.reformer import lsh
from bertsmith.model.mixers.reformer.lsh import LshHash, invert_permutation, unit_norm
from bertsmith.model.packing import Layout
from tests.support.references import find_neighbors

HIDDEN_SIZE, LENGTHS = 32, (17, 5, 40, 1, 23)


def build_mixer(**settings):
    torch.manual_seed(3)
    mixer = Reformer(num_attention_heads=4, **settings).build(HIDDEN_SIZE).eval()
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def random_inputs(lengths=LENGTHS):
    torch.manual_seed(4)
    return torch.randn(sum(lengths), HIDDEN_SIZE), Layout.from_lengths(lengths)


def project_qk_v(mixer, x):
    """Shared queries/keys and values, (heads, tokens, head_dim) each."""
    qk, v = mixer.qkv(x).chunk(2, -1)
    return qk.view(len(x), 4, -1).transpose(0, 1), v.view(len(x), 4, -1).transpose(0, 1)


def attend_to_sets(mixer, x, neighbors):
    qk, v = project_qk_v(mixer, x)
    out = torch.zeros(len(x), 4, HIDDEN_SIZE // 4)
    for head in range(4):
        for token in range(len(x)):
            others = sorted(neighbors[head][token]) or [token]
            keys = qk[head, others] / qk[head, others].norm(dim=-1, keepdim=True)
            out[token, head] = (keys @ qk[head, token]).softmax(0) @ v[head, others]
    return mixer.output(out.flatten(1))


SETTINGS = [
    {"num_buckets": 4, "num_hashes": 1, "bucket_window": 5},
    {"num_buckets": 4, "num_hashes": 3, "bucket_window": 4},
    {"num_buckets": (2, 4), "num_hashes": 4, "bucket_window": 6, "bias": False},
    {"num_buckets": 8, "num_hashes": 2, "bucket_window": 64},
    {"num_buckets": 4, "num_hashes": 3, "bucket_window": 3, "causal": True},
    {"num_buckets": 6, "num_hashes": 2, "bucket_window": 64, "causal": True, "seed": 5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_lsh_attention_matches_neighbor_sets(settings):
    mixer, (x, layout) = build_mixer(**settings), random_inputs()
    assert_close(
        mixer(x, layout),
        attend_to_sets(mixer, x, find_neighbors(mixer, project_qk_v(mixer, x)[0], LENGTHS)),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, (12, 12)])
def test_reformer_one_bucket_matches_full_attention(causal, lengths):
    mixer, (x, layout) = build_mixer(num_buckets=1, causal=causal), random_inputs(lengths)
    qk, v = project_qk_v(mixer, x)
    visible = (layout.seq_id == layout.seq_id[:, None]) & ~torch.eye(len(x), dtype=torch.bool)
    if causal:
        visible &= layout.position <= layout.position[:, None]
    visible |= torch.diag(~visible.any(1))  # a token alone attends to itself
    scores = qk @ (qk / qk.norm(dim=-1, keepdim=True)).mT
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    assert_close(mixer(x, layout), mixer.output((weights @ v).transpose(0, 1).flatten(1)), atol=1e-5, rtol=1e-5)


def test_lsh_attention_converges_to_full_attention_with_rounds():
    """With two buckets and thirty rounds, nearly every pair shares a bucket once."""
    exact, (x, layout) = build_mixer(num_buckets=1), random_inputs((100, 80))
    errors = []
    for rounds in (1, 4, 30):
        mixer = build_mixer(num_buckets=2, num_hashes=rounds, bucket_window=79)
        errors.append((mixer(x, layout) - exact(x, layout)).norm().item())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05 * errors[0]


def test_lsh_attention_grads_match_neighbor_sets():
    mixer, (x, layout) = build_mixer(num_buckets=4, num_hashes=3, bucket_window=4), random_inputs()
    x.requires_grad_()
    with torch.no_grad():
        neighbors = find_neighbors(mixer, project_qk_v(mixer, x)[0], LENGTHS)
    weights, target = [x, *mixer.parameters()], torch.randn(len(x), HIDDEN_SIZE)
    grads = torch.autograd.grad((mixer(x, layout) * target).sum(), weights)
    expected = torch.autograd.grad((attend_to_sets(mixer, x, neighbors) * target).sum(), weights)
    for grad, expected_grad in zip(grads, expected, strict=True):
        assert_close(grad, expected_grad, atol=1e-4, rtol=1e-4)


def test_lsh_hashes_are_random_in_training_and_fixed_in_eval():
    mixer, (x, layout) = build_mixer(num_buckets=4, num_hashes=1, bucket_window=4), random_inputs()
    assert torch.equal(mixer(x, layout), mixer(x, layout))
    assert torch.equal(build_mixer(num_buckets=4, num_hashes=1, bucket_window=4)(x, layout), mixer(x, layout))
    assert not torch.equal(build_mixer(num_buckets=4, num_hashes=1, bucket_window=4, seed=1)(x, layout), mixer(x, layout))
    mixer.train()
    torch.manual_seed(7)
    first, second = mixer(x, layout), mixer(x, layout)
    torch.manual_seed(7)
    assert torch.equal(mixer(x, layout), first) and not torch.equal(first, second)


def test_lsh_hashes_are_not_in_state_dict():
    assert set(build_mixer().state_dict()) == {"qkv.weight", "qkv.bias", "output.weight", "output.bias"}


def test_lsh_attention_saved_memory_is_linear():
    mixer = build_mixer(num_buckets=8, num_hashes=2, bucket_window=8)

    def saved_elements(tokens):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            mixer(torch.randn(tokens, HIDDEN_SIZE), Layout.from_lengths([tokens]))
        return sum(sizes)

    assert saved_elements(1600) < 2.1 * saved_elements(800) < 4.3 * saved_elements(400)


def test_reformer_refuses_impossible_configs():
    with pytest.raises(UserError, match="buckets=5 must be even"):
        build_mixer(num_buckets=5)
    with pytest.raises(UserError, match="hidden_size of 32 does not divide into 5 heads"):
        Reformer(num_attention_heads=5).build(HIDDEN_SIZE)
    with pytest.raises(UserError, match="prefix LM"):
        build_mixer()(random_inputs((6,))[0], Layout.from_lengths([6], prefix_lengths=[2]))


def sort_by_hash(q, rounds, half_window, sequences=3):
    """sorted_idx and bucket_rank as the mixer computes them, of tokens in `sequences` sequences."""
    seq_id = torch.arange(q.shape[1]) * sequences // q.shape[1]
    bucket_ids = seq_id * 4 + LshHash(len(q), q.shape[2], rounds, (4,), 0).eval()(q)
    sorted_idx = bucket_ids.argsort(dim=-1, stable=True)
    return sorted_idx, invert_permutation(sorted_idx) + bucket_ids * (half_window + 1)


@pytest.mark.parametrize("causal", [False, True])
def test_lsh_attention_chunk_size_does_not_change_results(causal, monkeypatch):
    torch.manual_seed(0)
    q, v = torch.randn(2, 150, 16, dtype=torch.float64), torch.randn(2, 150, 16, dtype=torch.float64)
    args = (*sort_by_hash(q.float(), 3, 20), 20, causal)
    results = []
    for max_scores in (1, 1 << 30):
        monkeypatch.setattr(lsh, "MAX_SCORES", max_scores)
        leaves = [t.clone().requires_grad_() for t in (q, unit_norm(q), v)]
        out, lse = lsh.lsh_attention(*leaves, *args)
        results.append([out, lse, *torch.autograd.grad((out * lse[..., None].tanh()).sum(), leaves)])
    for x, y in zip(*results, strict=True):
        assert_close(x, y, atol=1e-9, rtol=1e-7)


def test_lsh_attention_gradcheck():
    torch.manual_seed(0)
    q, v = torch.randn(1, 24, 4, dtype=torch.float64), torch.randn(1, 24, 4, dtype=torch.float64)
    sorted_idx, bucket_rank = sort_by_hash(q.float(), 2, 5)
    leaves = [t.clone().requires_grad_() for t in (q, unit_norm(q).double(), v)]
    assert torch.autograd.gradcheck(
        lambda a, b, c: lsh._LshAttention.apply(a, b, c, sorted_idx, bucket_rank, 5, False), leaves, atol=1e-4
    )


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("num_hashes", "half_window", "head_dim", "length"), [(1, 5, 16, 130), (4, 64, 64, 3000), (3, 100, 32, 700)]
)
def test_lsh_kernel_matches_torch(causal, num_hashes, half_window, head_dim, length):
    from bertsmith.model.kernels.lsh_attention import fused_lsh_attention

    torch.manual_seed(0)
    q, v = torch.randn(2, length, head_dim), torch.randn(2, length, head_dim)
    sorted_idx, bucket_rank = sort_by_hash(q, num_hashes, half_window)
    results = []
    for dtype, attention in ((torch.float64, lsh._LshAttention.apply), (torch.bfloat16, fused_lsh_attention)):
        leaves = [t.to("cuda", dtype).requires_grad_() for t in (q, unit_norm(q), v)]
        out, lse = attention(*leaves, sorted_idx.cuda(), bucket_rank.cuda(), half_window, causal)
        out_of_rounds = (lse.softmax(0)[..., None].to(dtype) * out).sum(0)
        grads = torch.autograd.grad((out_of_rounds * torch.linspace(-1, 1, head_dim, device="cuda", dtype=dtype)).sum(), leaves)
        results.append([out, out_of_rounds, *grads])
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded.double()).norm() <= 0.01 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_reformer_bf16_on_gpu_close_to_float32_on_cpu(causal):
    mixer, (x, layout) = (
        build_mixer(num_buckets=8, num_hashes=4, bucket_window=16, causal=causal),
        random_inputs((300, 77, 1, 150)),
    )
    exact = mixer(x, layout)
    mixer, x, layout = mixer.cuda(), x.cuda(), layout.to("cuda")
    assert_close(mixer(x, layout).cpu(), exact, atol=1e-3, rtol=1e-3)
    with torch.autocast("cuda", torch.bfloat16):
        rounded = mixer(x, layout).float().cpu()
    errors = ((rounded - exact).norm(dim=1) / exact.norm(dim=1)).sort().values
    assert errors[int(0.8 * len(errors))] < 0.05  # a few tokens between two buckets are hashed differently


def test_reformer_one_bucket_in_float16():
    torch.manual_seed(0)
    mixer, x, layout = Reformer(num_attention_heads=2, num_buckets=1).build(16), torch.randn(6, 16), Layout.from_lengths([5, 1])
    with torch.autocast("cpu", torch.float16):
        rounded = mixer(x, layout)
    assert_close(rounded.float(), mixer(x, layout), atol=1e-2, rtol=1e-2)
