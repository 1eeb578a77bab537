"""Every kernel against plain torch in float64, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from bertsmith.model.packing import Layout
from bertsmith.model.positions import RotaryEmbedding, apply_rope

pytestmark = pytest.mark.gpu
LENGTHS = [5, 128, 1, 77]


def random_tensor(*shape, requires_grad=True, dtype=torch.bfloat16, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to("cuda", dtype)
    return values.requires_grad_(requires_grad)


def to_float64(*tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def assert_relatively_close(actual, expected, tolerance=8e-3):
    for x, y in zip(actual, expected, strict=True):
        assert (x.double() - y).norm() <= tolerance * y.norm(), (x, y)


@pytest.mark.parametrize("hidden_size", [48, 384, 768])
@pytest.mark.parametrize("return_sum", [False, True])
@pytest.mark.parametrize("has_sublayer", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_fused_add_norm_matches_torch(hidden_size, return_sum, has_sublayer, has_bias):
    from bertsmith.model.kernels.add_norm import fused_add_norm

    residual, sublayer_out = random_tensor(300, hidden_size), random_tensor(300, hidden_size, seed=1) if has_sublayer else None
    weight, bias = (
        random_tensor(hidden_size, dtype=torch.float32),
        random_tensor(hidden_size, dtype=torch.float32, seed=2) if has_bias else None,
    )
    grad1, grad2 = (
        random_tensor(300, hidden_size, requires_grad=False, seed=3),
        random_tensor(300, hidden_size, requires_grad=False, seed=4),
    )
    normed, second_out = fused_add_norm(residual, sublayer_out, weight, bias, 1e-12, 0.0, return_sum)
    leaves = [t for t in (residual, sublayer_out, weight, bias) if t is not None]
    grads = torch.autograd.grad([normed, second_out], leaves, [grad1, grad2])
    residual64, sublayer64, weight64, bias64 = to_float64(residual, sublayer_out, weight, bias)
    total = residual64 if sublayer64 is None else residual64 + sublayer64
    expected = F.layer_norm(total, (hidden_size,), weight64, bias64, 1e-12)
    expected_grads = torch.autograd.grad(
        [expected, total if return_sum else expected],
        [t for t in (residual64, sublayer64, weight64, bias64) if t is not None],
        [grad1.double(), grad2.double()],
    )
    assert_relatively_close([normed, second_out, *grads], [expected, total if return_sum else expected, *expected_grads])


def test_fused_add_norm_with_one_output_unused():
    from bertsmith.model.kernels.add_norm import fused_add_norm

    residual, sublayer_out, weight = (
        random_tensor(10, 64),
        random_tensor(10, 64, seed=1),
        random_tensor(64, dtype=torch.float32),
    )
    for used in (0, 1):
        out = fused_add_norm(residual, sublayer_out, weight, None, 1e-12, 0.0, True)[used]
        grad = torch.autograd.grad(out, residual, torch.ones_like(out))
        (residual64, sublayer64, weight64) = to_float64(residual, sublayer_out, weight)
        expected = (F.layer_norm(residual64 + sublayer64, (64,), weight64, None, 1e-12), residual64 + sublayer64)[used]
        expected_grad = torch.autograd.grad(expected, residual64, torch.ones_like(expected))
        assert (grad[0].double() - expected_grad[0]).abs().max() < 1e-2


def test_fused_dropout_rate_seed_and_backward_mask():
    from bertsmith.model.kernels.add_norm import fused_add_norm

    sublayer_out, weight = (
        torch.ones(4096, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True),
        random_tensor(768, dtype=torch.float32),
    )
    torch.manual_seed(3)
    total = fused_add_norm(torch.zeros_like(sublayer_out), sublayer_out, weight, None, 1e-12, 0.1, True)[1]
    keep = (total != 0).double()
    assert abs(keep.mean() - 0.9) < 5 * (0.09 / keep.numel()) ** 0.5
    assert (keep.mean(0) - 0.9).abs().max() < 6 * (0.09 / 4096) ** 0.5 and (keep.mean(1) - 0.9).abs().max() < 0.07
    (grad,) = torch.autograd.grad(total.float().sum(), sublayer_out)
    assert torch.equal(grad != 0, total != 0)
    torch.manual_seed(3)
    again = fused_add_norm(torch.zeros_like(sublayer_out), sublayer_out, weight, None, 1e-12, 0.1, True)[1]
    other = fused_add_norm(torch.zeros_like(sublayer_out), sublayer_out, weight, None, 1e-12, 0.1, True)[1]
    assert torch.equal(total, again)
    assert abs(((other != 0).double() * keep).mean() - 0.81) < 1e-3  # two draws are independent
    neighbors = (keep[:, 1:] * keep[:, :-1]).mean()
    assert abs(neighbors - 0.81) < 1e-3


@pytest.mark.parametrize("tanh", [False, True])
def test_bias_gelu_and_geglu_match_torch(tanh):
    from bertsmith.model.kernels.gelu import bias_gelu, geglu

    x, bias, grad_out = (
        random_tensor(1000, 300),
        random_tensor(300, dtype=torch.float32),
        random_tensor(1000, 300, requires_grad=False, seed=1),
    )
    approximate = "tanh" if tanh else "none"
    out, (x64, bias64) = bias_gelu(x, bias, tanh), to_float64(x, bias)
    expected = F.gelu(x64 + bias64, approximate=approximate)
    assert_relatively_close(
        [out, *torch.autograd.grad(out, (x, bias), grad_out)],
        [expected, *torch.autograd.grad(expected, (x64, bias64), grad_out.double())],
    )
    half_grad = grad_out[:, :150].contiguous()
    out = geglu(x, tanh)
    expected = F.gelu(x64[:, :150], approximate=approximate) * x64[:, 150:]
    assert_relatively_close(
        [out, *torch.autograd.grad(out, x, half_grad)], [expected, *torch.autograd.grad(expected, x64, half_grad.double())]
    )


@pytest.mark.parametrize("vocab_size", [50, 4096, 5001, 30_528])
def test_fused_linear_cross_entropy_matches_torch(vocab_size):
    from bertsmith.model.kernels.cross_entropy import fused_linear_cross_entropy

    hidden_states, weight, bias = (
        random_tensor(200, 64),
        random_tensor(vocab_size, 64, seed=1),
        random_tensor(vocab_size, seed=2),
    )
    labels = torch.randint(vocab_size, (200,), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    with torch.no_grad():
        hidden_states[:50] = 2 * weight[labels[:50]]  # no other logit comes near these
    total, correct = fused_linear_cross_entropy(hidden_states, weight, bias, labels)
    hidden64, weight64, bias64 = to_float64(hidden_states, weight, bias)
    expected = F.cross_entropy(hidden64 @ weight64.T + bias64, labels, reduction="sum")
    assert abs(total - expected) < 2e-3 * expected and 50 <= correct <= 55
    grads = torch.autograd.grad(total * 0.37, (hidden_states, weight, bias))
    assert_relatively_close(grads, torch.autograd.grad(expected * 0.37, (hidden64, weight64, bias64)), 3e-2)
    with torch.no_grad():
        assert torch.equal(fused_linear_cross_entropy(hidden_states, weight, bias, labels)[0], total)


def test_fused_linear_cross_entropy_does_not_round_the_upstream_gradient():
    from bertsmith.model.kernels.cross_entropy import fused_linear_cross_entropy

    tensors = random_tensor(200, 64), random_tensor(4096, 64, seed=1), random_tensor(4096, seed=2)
    labels = torch.randint(4096, (200,), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    total, _ = fused_linear_cross_entropy(*tensors, labels)
    upstream = 0.37205  # 0.27 % from the nearest number of bf16
    # The bias is left out: its largest gradients are all near -1, so that rounding them to bf16 has an effect of its own.
    scaled = torch.autograd.grad(total * upstream, tensors[:2], retain_graph=True)
    for grad, reference in zip(scaled, torch.autograd.grad(total, tensors[:2]), strict=True):
        ratio = (grad.double() * reference.double()).sum() / reference.double().square().sum()
        assert abs(ratio / upstream - 1) < 5e-4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("use_rope", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [30, 20, 32], [300, 20]])  # one tile, a smaller tile, flash attention
@pytest.mark.parametrize(("num_heads", "head_dim"), [(2, 32), (3, 64), (1, 128)])
def test_attend_qkv_matches_float64(causal, use_rope, lengths, num_heads, head_dim):
    layout, num_tokens = Layout.from_lengths(lengths).to("cuda"), sum(lengths)
    cos_sin = RotaryEmbedding(head_dim, 10_000).cos_sin(layout.max_seqlen, torch.device("cuda")) if use_rope else None
    qkv, grad_out = (
        random_tensor(num_tokens, 3 * num_heads * head_dim),
        random_tensor(num_tokens, num_heads * head_dim, requires_grad=False),
    )
    out = layout.attend_qkv(qkv * 1, num_heads, cos_sin, causal)
    (x,) = to_float64(qkv)
    rotated = x if cos_sin is None else apply_rope(x, cos_sin.double(), layout.position, num_heads)
    q, k, v = rotated.unflatten(-1, (3, num_heads, -1)).unbind(1)
    expected = layout.attend(q, k, v, causal).flatten(1)
    assert_relatively_close(
        [out, *torch.autograd.grad(out, qkv, grad_out)], [expected, *torch.autograd.grad(expected, x, grad_out.double())], 1e-2
    )
