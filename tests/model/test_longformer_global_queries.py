"""What anchors see by one step of autograd is what they see by many."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from bertsmith.model.mixers import Longformer
from bertsmith.model.mixers.longformer.global_attention import GlobalAttention
from bertsmith.model.mixers.longformer.global_queries import fused_qkv_and_global
from bertsmith.model.packing import Layout, PaddedLayout

WIDTH, HEADS = 32, 2
FIRSTS = [[17, 5, 90, 1, 23], [40, 30], [9] * 20, [9, 8, 7, 9] * 5, [64]]  # runs; many in a rectangle, even and not
CHOSEN = [([17, 5, 90, 1, 23], [0, 3, 17, 22, 25, 60, 111, 112, 130]), ([70, 20, 9], [0, 5, 50, 95]), ([30, 12], [3, 20, 29])]
LAYOUTS = [(lengths, None) for lengths in FIRSTS] + CHOSEN
every_layout = pytest.mark.parametrize(("lengths", "anchors"), LAYOUTS, ids=str)


def built(kind=torch.float64, **more):
    torch.manual_seed(1)
    mixer = Longformer(heads=HEADS, reach=(4,), **more).build(WIDTH).to(kind)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def by_one(mixer, x, layout):
    found, folds = mixer._global_groups(x, layout)
    assert folds
    return fused_qkv_and_global(x, mixer.project.qkv, mixer.anchored, found, layout, HEADS)[:2]


def by_many(mixer, x, layout):
    return mixer.project.qkv(x), mixer._global_attention(x, layout)


def drawn(lengths, anchors, kind=torch.float64):
    x = torch.randn(sum(lengths), WIDTH, dtype=kind, requires_grad=True)
    return x, Layout.from_lengths(lengths, global_tokens=anchors)


def slopes(way, mixer, x, layout, down):
    """What is said, and the gradients of all that learns."""
    said = way(mixer, x, layout)
    wanted = [t for t in (x, *mixer.project.qkv.parameters(), *mixer.anchored.parameters()) if t.requires_grad]
    total = sum((one * slope).sum() for one, slope in zip(said, down, strict=True))
    return [*said, *torch.autograd.grad(total, wanted)]


def same(mixer, x, layout, **close):
    down = [torch.randn(len(x), 3 * WIDTH, dtype=x.dtype), torch.randn(len(layout.anchored), WIDTH, dtype=x.dtype)]
    ours, theirs = (slopes(way, mixer, x, layout, down) for way in (by_one, by_many))
    for got, want in zip(ours, theirs, strict=True):
        assert_close(got, want, **({"atol": 1e-12, "rtol": 1e-12} | close))


@every_layout
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_one_step_is_as_many(lengths, anchors, causal, bias):
    same(built(causal=causal, bias=bias), *drawn(lengths, anchors))


@pytest.mark.parametrize("lengths", [[17, 5, 9], [9, 8, 7, 9] * 5], ids=["run", "rectangle"])
def test_a_padded_rectangle_too(lengths):
    layout = PaddedLayout.from_mask(Layout.from_lengths(lengths).padding_mask())
    same(built(), torch.randn(len(layout.seq_id), WIDTH, dtype=torch.float64, requires_grad=True), layout)


@pytest.mark.parametrize("frozen", ["x", "qkv", "qkv.bias", "anchored", "anchored.weight", "x anchored", "qkv anchored"])
def test_what_is_frozen_learns_nothing_and_changes_nothing_else(frozen):
    mixer, (x, layout) = built(), drawn([17, 5, 90], None)
    for name in frozen.split():
        if name == "x":
            x.requires_grad_(False)
        for known, weight in mixer.named_parameters():
            weight.requires_grad_(weight.requires_grad and not known.removeprefix("project.").startswith(name))
    same(mixer, x, layout)


def test_a_bias_takes_the_sum_that_another_found():
    mixer, (x, layout) = built(), drawn([17, 5, 90], None)
    said = fused_qkv_and_global(x, mixer.project.qkv, mixer.anchored, mixer._global_groups(x, layout)[0], layout, HEADS)
    down = [torch.randn_like(one) for one in said]
    for wanted, given in ((down[0].sum(0), 2), (down[2], 3)):
        (got,) = torch.autograd.grad(said[:given], mixer.project.qkv.bias, down[:given], retain_graph=True)
        assert_close(got, wanted)


@pytest.mark.parametrize("used", [0, 1], ids=["qkv", "rows"])
def test_one_of_the_two_may_be_unused(used):
    mixer, (x, layout) = built(), drawn([17, 5, 90], [2, 20])
    ours, theirs = (torch.autograd.grad(way(mixer, x, layout)[used].square().sum(), x)[0] for way in (by_one, by_many))
    assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


def test_gradients_are_those_of_small_steps():
    mixer, (x, layout) = built(), drawn([7, 5], [0, 3, 9])
    assert torch.autograd.gradcheck(lambda x, *_: by_one(mixer, x, layout), (x, *mixer.parameters()))


@pytest.mark.parametrize(("lengths", "anchors"), [LAYOUTS[0], LAYOUTS[3], LAYOUTS[5]], ids=str)
def test_half_precision_is_within_rounding(lengths, anchors):
    """Autocast on a CPU: as near to float64 as torch's own way is."""
    mixer, (x, layout) = built(torch.float32), drawn(lengths, anchors, torch.float32)
    down = [torch.randn(len(x), 3 * WIDTH), torch.randn(len(layout.global_tokens), WIDTH)]
    with torch.autocast("cpu", torch.bfloat16):
        results = [slopes(way, mixer, x, layout, down) for way in (by_one, by_many)]
    assert all(one.dtype == torch.float32 for one in results[0][2:])
    right = slopes(by_many, mixer.double(), x.detach().double().requires_grad_(), layout, down)
    for ours, theirs, true in zip(*results, right, strict=True):
        off, usual = ((one.double() - true).norm() / true.norm() for one in (ours, theirs))
        assert off < 1.5 * usual + 2e-3, (off, usual)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
def test_a_mixer_computed_again_comes_to_the_same(half):
    mixer, (x, layout) = built(torch.float32), drawn([17, 5, 90], None, torch.float32)
    found = []
    for again in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = checkpoint(mixer, x, layout, use_reentrant=False) if again else mixer(x, layout)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), [x, *mixer.parameters()])])
    for once, twice in zip(*found, strict=True):
        assert torch.equal(once, twice)


@pytest.mark.parametrize("how", ["learns", "asks", "drops", "turns"])
def test_only_what_learns_and_drops_nothing_goes_this_way(how, monkeypatch):
    used = []
    monkeypatch.setattr(
        "bertsmith.model.mixers.longformer.layer.fused_qkv_and_global",
        lambda *given: used.append(1) or fused_qkv_and_global(*given),
    )
    mixer = built(dropout=0.1 if how == "drops" else 0.0, rotary=100.0 if how == "turns" else None).train()
    with torch.set_grad_enabled(how != "asks"):
        mixer(*drawn([17, 5, 90], None))
    assert bool(used) == (how == "learns")


@pytest.mark.parametrize("dilation", [(), (2,)], ids=["plain", "dilated"])
@pytest.mark.parametrize("lengths", [[17, 5, 90, 1, 23], [5, 4, 3]], ids=["longer than windows", "within them"])
def test_a_bias_learns_the_same_if_the_slopes_are_added_up_on_the_way(lengths, dilation, monkeypatch):
    """As the kernel of anchors does on a GPU, for as many heads as it has and no more."""
    mixer, (x, layout) = built(dilation=dilation), drawn(lengths, None)
    down = torch.randn(len(x), WIDTH, dtype=x.dtype)
    wanted = torch.autograd.grad((mixer(x, layout) * down).sum(), mixer.project.qkv.bias)
    plain, told = GlobalAttention.backward, []

    def summed(self, *given):
        slope, _ = plain(self, *given)
        told.append(given[-1])
        return slope, slope.sum(0) if given[-1] else None

    monkeypatch.setattr(GlobalAttention, "backward", summed)
    found = torch.autograd.grad((mixer(x, layout) * down).sum(), mixer.project.qkv.bias)
    assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert any(told) == (not dilation and max(lengths) > 5)
