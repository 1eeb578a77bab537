"""The fused QKV projection and global attention against the same by ordinary autograd."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from bertsmith.model.mixers import Longformer
from bertsmith.model.mixers.longformer.global_attention import GlobalAttention
from bertsmith.model.mixers.longformer.global_queries import fused_qkv_and_global
from bertsmith.model.packing import Layout, PaddedLayout

HIDDEN_SIZE, NUM_HEADS = 32, 2
FIRST_TOKEN_LENGTHS = [
    [17, 5, 90, 1, 23],
    [40, 30],
    [9] * 20,
    [9, 8, 7, 9] * 5,
    [64],
]  # groups of packed sequences; many sequences padded, of equal length and not
EXPLICIT_GLOBAL = [
    ([17, 5, 90, 1, 23], [0, 3, 17, 22, 25, 60, 111, 112, 130]),
    ([70, 20, 9], [0, 5, 50, 95]),
    ([30, 12], [3, 20, 29]),
]
LAYOUTS = [(lengths, None) for lengths in FIRST_TOKEN_LENGTHS] + EXPLICIT_GLOBAL
every_layout = pytest.mark.parametrize(("lengths", "global_tokens"), LAYOUTS, ids=str)


def build_mixer(dtype=torch.float64, **options):
    torch.manual_seed(1)
    mixer = Longformer(num_attention_heads=NUM_HEADS, attention_window=(8,), **options).build(HIDDEN_SIZE).to(dtype)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def run_fused(mixer, x, layout):
    groups, use_folded = mixer._global_groups(x, layout)
    assert use_folded
    return fused_qkv_and_global(x, mixer.projections.qkv, mixer.global_qkv, groups, layout, NUM_HEADS)[:2]


def run_autograd(mixer, x, layout):
    return mixer.projections.qkv(x), mixer._global_attention(x, layout)


def random_inputs(lengths, global_tokens, dtype=torch.float64):
    x = torch.randn(sum(lengths), HIDDEN_SIZE, dtype=dtype, requires_grad=True)
    return x, Layout.from_lengths(lengths, global_tokens=global_tokens)


def outputs_and_grads(run, mixer, x, layout, grad_outs):
    """The outputs, and the gradients of all leaves that require one."""
    outs = run(mixer, x, layout)
    leaves = [t for t in (x, *mixer.projections.qkv.parameters(), *mixer.global_qkv.parameters()) if t.requires_grad]
    total = sum((out * grad).sum() for out, grad in zip(outs, grad_outs, strict=True))
    return [*outs, *torch.autograd.grad(total, leaves)]


def assert_fused_matches_autograd(mixer, x, layout, **tolerance):
    grad_outs = [
        torch.randn(len(x), 3 * HIDDEN_SIZE, dtype=x.dtype),
        torch.randn(len(layout.global_tokens), HIDDEN_SIZE, dtype=x.dtype),
    ]
    fused, expected = (outputs_and_grads(run, mixer, x, layout, grad_outs) for run in (run_fused, run_autograd))
    for value, expected_value in zip(fused, expected, strict=True):
        assert_close(value, expected_value, **({"atol": 1e-12, "rtol": 1e-12} | tolerance))


@every_layout
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_fused_global_queries_match_autograd(lengths, global_tokens, causal, bias):
    assert_fused_matches_autograd(build_mixer(causal=causal, bias=bias), *random_inputs(lengths, global_tokens))


@pytest.mark.parametrize("lengths", [[17, 5, 9], [9, 8, 7, 9] * 5], ids=["packed", "padded"])
def test_fused_global_queries_match_autograd_on_padded_batch(lengths):
    layout = PaddedLayout.from_mask(Layout.from_lengths(lengths).padding_mask())
    assert_fused_matches_autograd(
        build_mixer(), torch.randn(len(layout.seq_id), HIDDEN_SIZE, dtype=torch.float64, requires_grad=True), layout
    )


@pytest.mark.parametrize(
    "frozen", ["x", "qkv", "qkv.bias", "global_qkv", "global_qkv.weight", "x global_qkv", "qkv global_qkv"]
)
def test_fused_global_queries_with_frozen_parameters(frozen):
    mixer, (x, layout) = build_mixer(), random_inputs([17, 5, 90], None)
    for name in frozen.split():
        if name == "x":
            x.requires_grad_(False)
        for parameter_name, weight in mixer.named_parameters():
            weight.requires_grad_(weight.requires_grad and not parameter_name.removeprefix("projections.").startswith(name))
    assert_fused_matches_autograd(mixer, x, layout)


def test_fused_global_queries_bias_takes_given_grad():
    mixer, (x, layout) = build_mixer(), random_inputs([17, 5, 90], None)
    outs = fused_qkv_and_global(
        x, mixer.projections.qkv, mixer.global_qkv, mixer._global_groups(x, layout)[0], layout, NUM_HEADS
    )
    grad_outs = [torch.randn_like(out) for out in outs]
    for expected, num_outs in ((grad_outs[0].sum(0), 2), (grad_outs[2], 3)):
        (grad,) = torch.autograd.grad(outs[:num_outs], mixer.projections.qkv.bias, grad_outs[:num_outs], retain_graph=True)
        assert_close(grad, expected)


@pytest.mark.parametrize("used", [0, 1], ids=["qkv", "global_out"])
def test_fused_global_queries_with_one_output_unused(used):
    mixer, (x, layout) = build_mixer(), random_inputs([17, 5, 90], [2, 20])
    fused, expected = (
        torch.autograd.grad(run(mixer, x, layout)[used].square().sum(), x)[0] for run in (run_fused, run_autograd)
    )
    assert_close(fused, expected, atol=1e-11, rtol=1e-11)


def test_fused_global_queries_gradcheck():
    mixer, (x, layout) = build_mixer(), random_inputs([7, 5], [0, 3, 9])
    assert torch.autograd.gradcheck(lambda x, *_: run_fused(mixer, x, layout), (x, *mixer.parameters()))


@pytest.mark.parametrize(("lengths", "global_tokens"), [LAYOUTS[0], LAYOUTS[3], LAYOUTS[5]], ids=str)
def test_fused_global_queries_bf16_error_is_that_of_autograd(lengths, global_tokens):
    """Autocast on a CPU: as close to float64 as ordinary autograd is."""
    mixer, (x, layout) = build_mixer(torch.float32), random_inputs(lengths, global_tokens, torch.float32)
    grad_outs = [torch.randn(len(x), 3 * HIDDEN_SIZE), torch.randn(len(layout.global_tokens), HIDDEN_SIZE)]
    with torch.autocast("cpu", torch.bfloat16):
        results = [outputs_and_grads(run, mixer, x, layout, grad_outs) for run in (run_fused, run_autograd)]
    assert all(result.dtype == torch.float32 for result in results[0][2:])
    exact = outputs_and_grads(run_autograd, mixer.double(), x.detach().double().requires_grad_(), layout, grad_outs)
    for fused, autograd, exact_value in zip(*results, exact, strict=True):
        fused_error, autograd_error = (
            (result.double() - exact_value).norm() / exact_value.norm() for result in (fused, autograd)
        )
        assert fused_error < 1.5 * autograd_error + 2e-3, (fused_error, autograd_error)


@pytest.mark.parametrize("use_bf16", [False, True], ids=["float32", "autocast"])
def test_fused_global_queries_with_gradient_checkpointing(use_bf16):
    mixer, (x, layout) = build_mixer(torch.float32), random_inputs([17, 5, 90], None, torch.float32)
    results = []
    for use_checkpoint in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            out = checkpoint(mixer, x, layout, use_reentrant=False) if use_checkpoint else mixer(x, layout)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), [x, *mixer.parameters()])])
    for direct, recomputed in zip(*results, strict=True):
        assert torch.equal(direct, recomputed)


@pytest.mark.parametrize("mode", ["grad", "no_grad", "dropout", "rope"])
def test_fused_global_queries_only_with_grad_and_without_dropout_or_rope(mode, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "bertsmith.model.mixers.longformer.layer.fused_qkv_and_global",
        lambda *args: calls.append(1) or fused_qkv_and_global(*args),
    )
    mixer = build_mixer(
        attention_dropout=0.1 if mode == "dropout" else 0.0, rope_theta=100.0 if mode == "rope" else None
    ).train()
    with torch.set_grad_enabled(mode != "no_grad"):
        mixer(*random_inputs([17, 5, 90], None))
    assert bool(calls) == (mode == "grad")


@pytest.mark.parametrize("dilation", [(), (2,)], ids=["plain", "dilated"])
@pytest.mark.parametrize("lengths", [[17, 5, 90, 1, 23], [5, 4, 3]], ids=["longer than the window", "within the window"])
def test_qkv_bias_grad_matches_when_summed_by_global_attention(lengths, dilation, monkeypatch):
    """As the Triton kernel does on a GPU, if it computes all heads."""
    mixer, (x, layout) = build_mixer(dilation=dilation), random_inputs(lengths, None)
    grad_out = torch.randn(len(x), HIDDEN_SIZE, dtype=x.dtype)
    expected = torch.autograd.grad((mixer(x, layout) * grad_out).sum(), mixer.projections.qkv.bias)
    original, flags = GlobalAttention.backward, []

    def backward_with_sum(self, *args):
        grad_qkv, _ = original(self, *args)
        flags.append(args[-1])
        return grad_qkv, grad_qkv.sum(0) if args[-1] else None

    monkeypatch.setattr(GlobalAttention, "backward", backward_with_sum)
    actual = torch.autograd.grad((mixer(x, layout) * grad_out).sum(), mixer.projections.qkv.bias)
    assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert any(flags) == (not dilation and max(lengths) > 5)
