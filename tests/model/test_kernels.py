"""Every kernel does what plain torch does in float64, there and back."""

import pytest
import torch
import torch.nn.functional as F

from bertsmith.model.packing import Layout
from bertsmith.model.positions import RotaryEmbedding, apply_rope

pytestmark = pytest.mark.gpu
LENGTHS = [5, 128, 1, 77]


def drawn(*shape, grad=True, kind=torch.bfloat16, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to("cuda", kind)
    return values.requires_grad_(grad)


def exact(*tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def near(ours, theirs, limit=8e-3):
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other).norm() <= limit * other.norm(), (one, other)


@pytest.mark.parametrize("width", [48, 384, 768])
@pytest.mark.parametrize("sum_too", [False, True])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_joining_is_adding_and_norming(width, sum_too, told, shifted):
    from bertsmith.model.kernels.add_norm import fused_add_norm

    stream, said = drawn(300, width), drawn(300, width, seed=1) if told else None
    gain, shift = drawn(width, kind=torch.float32), drawn(width, kind=torch.float32, seed=2) if shifted else None
    first, second = drawn(300, width, grad=False, seed=3), drawn(300, width, grad=False, seed=4)
    normed, on = fused_add_norm(stream, said, gain, shift, 1e-12, 0.0, sum_too)
    given = [t for t in (stream, said, gain, shift) if t is not None]
    ours = torch.autograd.grad([normed, on], given, [first, second])
    x, more, g, s = exact(stream, said, gain, shift)
    total = x if more is None else x + more
    right = F.layer_norm(total, (width,), g, s, 1e-12)
    theirs = torch.autograd.grad(
        [right, total if sum_too else right], [t for t in (x, more, g, s) if t is not None], [first.double(), second.double()]
    )
    near([normed, on, *ours], [right, total if sum_too else right, *theirs])


def test_one_of_the_two_may_be_unused():
    from bertsmith.model.kernels.add_norm import fused_add_norm

    stream, said, gain = drawn(10, 64), drawn(10, 64, seed=1), drawn(64, kind=torch.float32)
    for used in (0, 1):
        out = fused_add_norm(stream, said, gain, None, 1e-12, 0.0, True)[used]
        ours = torch.autograd.grad(out, stream, torch.ones_like(out))
        (x, more, g) = exact(stream, said, gain)
        right = (F.layer_norm(x + more, (64,), g, None, 1e-12), x + more)[used]
        theirs = torch.autograd.grad(right, x, torch.ones_like(right))
        assert (ours[0].double() - theirs[0]).abs().max() < 1e-2


def test_dropout_drops_its_share_and_the_same_on_the_way_back():
    from bertsmith.model.kernels.add_norm import fused_add_norm

    said, gain = torch.ones(4096, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True), drawn(768, kind=torch.float32)
    torch.manual_seed(3)
    total = fused_add_norm(torch.zeros_like(said), said, gain, None, 1e-12, 0.1, True)[1]
    left = (total != 0).double()
    assert abs(left.mean() - 0.9) < 5 * (0.09 / left.numel()) ** 0.5
    assert (left.mean(0) - 0.9).abs().max() < 6 * (0.09 / 4096) ** 0.5 and (left.mean(1) - 0.9).abs().max() < 0.07
    (back,) = torch.autograd.grad(total.float().sum(), said)
    assert torch.equal(back != 0, total != 0)
    torch.manual_seed(3)
    again = fused_add_norm(torch.zeros_like(said), said, gain, None, 1e-12, 0.1, True)[1]
    other = fused_add_norm(torch.zeros_like(said), said, gain, None, 1e-12, 0.1, True)[1]
    assert torch.equal(total, again)
    assert abs(((other != 0).double() * left).mean() - 0.81) < 1e-3  # two draws have nothing to do with each other
    shifted = (left[:, 1:] * left[:, :-1]).mean()
    assert abs(shifted - 0.81) < 1e-3


@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_of_a_biased_product_and_as_a_gate(tanh):
    from bertsmith.model.kernels.gelu import bias_gelu, geglu

    x, bias, slope = drawn(1000, 300), drawn(300, kind=torch.float32), drawn(1000, 300, grad=False, seed=1)
    kind = "tanh" if tanh else "none"
    ours, (a, b) = bias_gelu(x, bias, tanh), exact(x, bias)
    theirs = F.gelu(a + b, approximate=kind)
    near([ours, *torch.autograd.grad(ours, (x, bias), slope)], [theirs, *torch.autograd.grad(theirs, (a, b), slope.double())])
    half = slope[:, :150].contiguous()
    ours = geglu(x, tanh)
    theirs = F.gelu(a[:, :150], approximate=kind) * a[:, 150:]
    near([ours, *torch.autograd.grad(ours, x, half)], [theirs, *torch.autograd.grad(theirs, a, half.double())])


@pytest.mark.parametrize("words", [50, 4096, 5001, 30_528])
def test_entropy_of_a_tables_scores(words):
    from bertsmith.model.kernels.cross_entropy import fused_linear_cross_entropy

    rows, table, bias = drawn(200, 64), drawn(words, 64, seed=1), drawn(words, seed=2)
    answers = torch.randint(words, (200,), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    with torch.no_grad():
        rows[:50] = 2 * table[answers[:50]]  # nothing comes near these
    total, right = fused_linear_cross_entropy(rows, table, bias, answers)
    a, b, c = exact(rows, table, bias)
    theirs = F.cross_entropy(a @ b.T + c, answers, reduction="sum")
    assert abs(total - theirs) < 2e-3 * theirs and 50 <= right <= 55
    ours = torch.autograd.grad(total * 0.37, (rows, table, bias))
    near(ours, torch.autograd.grad(theirs * 0.37, (a, b, c)), 3e-2)
    with torch.no_grad():
        assert torch.equal(fused_linear_cross_entropy(rows, table, bias, answers)[0], total)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [30, 20, 32], [300, 20]])  # one tile, a smaller one, and none: flash attention
@pytest.mark.parametrize(("heads", "width"), [(2, 32), (3, 64), (1, 128)])
def test_attention_within_sequences(causal, turning, lengths, heads, width):
    layout, tokens = Layout.from_lengths(lengths).to("cuda"), sum(lengths)
    turns = RotaryEmbedding(width, 10_000).cos_sin(layout.max_seqlen, torch.device("cuda")) if turning else None
    qkv, slope = drawn(tokens, 3 * heads * width), drawn(tokens, heads * width, grad=False)
    ours = layout.attend_qkv(qkv * 1, heads, turns, causal)
    (x,) = exact(qkv)
    right = x if turns is None else apply_rope(x, turns.double(), layout.position, heads)
    q, k, v = right.unflatten(-1, (3, heads, -1)).unbind(1)
    theirs = layout.attend(q, k, v, causal).flatten(1)
    near([ours, *torch.autograd.grad(ours, qkv, slope)], [theirs, *torch.autograd.grad(theirs, x, slope.double())], 1e-2)
