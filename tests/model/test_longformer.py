"""Longformer's window against a slow reading of its paper, over the whole square of scores."""

from dataclasses import replace

import msgspec
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Longformer
from bertsmith.model.mixers.block_band import BlockBand
from bertsmith.model.mixers.longformer import global_attention
from bertsmith.model.mixers.longformer.attention import longformer_attention
from bertsmith.model.mixers.longformer.global_attention import AttentionPattern, group_sequences
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.positions import RotaryEmbedding
from bertsmith.model.transformer import Stack

WIDTH, LENGTHS = 32, (17, 5, 90, 1, 23)
SOME = [0, 3, 17, 22, 25, 60, 111, 112, 113, 130]  # of every sequence one, of some several
CONFIGS = [
    Longformer(heads=4, reach=(4,)),
    Longformer(heads=4, reach=(2,), dilation=(2, 3, 3)),
    Longformer(heads=4, reach=(3,), dilation=(3, 1, 2), bias=False),
    Longformer(heads=4, reach=(6,), causal=True),
    Longformer(heads=4, reach=(2,), dilation=(2, 2), causal=True),
    Longformer(heads=4, reach=(4,), anchors=False),
    Longformer(heads=4, reach=(3,), dilation=(4,), anchors=False, causal=True),
    Longformer(heads=4, reach=(4,), rotary=100.0),
    Longformer(heads=4, reach=(2,), rotary=100.0, dilation=(2, 3), bias=False),
    Longformer(heads=4, reach=(3,), rotary=50.0, causal=True),
    Longformer(heads=4, reach=(3,), rotary=50.0, anchors=False),
]


def name(config):
    return "-".join(f"{n}={v}" for n, v in msgspec.structs.asdict(config).items() if v and n not in ("heads", "dilated"))


every_window = pytest.mark.parametrize("config", CONFIGS, ids=name)


def built(config, kind=torch.float64):
    torch.manual_seed(1)
    mixer = config.build(WIDTH).eval().to(kind)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return mixer


def turned_scores(q, k, apart, period):
    """(heads, tokens, tokens): halves are real and imaginary parts, and a distance turns their product."""
    half = q.shape[-1] // 2
    q, k = (torch.complex(*t.double().chunk(2, -1)) for t in (q, k))
    speeds = torch.tensor([period ** (-i / half) for i in range(half)], dtype=torch.float64)
    return torch.einsum("qhd,khd,hqkd->hqk", q, k.conj(), torch.polar(torch.ones(()).double(), apart[..., None] * speeds)).real


def whole_square(config, mixer, x, layout):
    """Who sees whom, spelled out token by token; then an ordinary softmax with anchors' rows from their own matrices."""
    count, heads, anchors = len(x), config.heads, set(layout.anchored.tolist()) if config.anchors else set()
    steps = [1] * (heads - len(config.dilation)) + list(config.dilation)
    owner, place = layout.owner.tolist(), layout.place.tolist()

    def sees(head, a, b):
        apart = place[a] - place[b]
        if owner[a] != owner[b] or (config.causal and apart < 0):
            return False
        near = abs(apart) <= config.reach[0] * steps[head] and apart % steps[head] == 0
        return near or a in anchors or b in anchors

    def distances(own):
        """(heads, tokens, tokens): an anchor that no window shows stands at the window's edge, and so do tokens to it."""
        apart = torch.tensor(place)[:, None] - torch.tensor(place)
        if own:
            return apart.clamp(-config.reach[0], config.reach[0]).expand(heads, -1, -1)
        edges = config.reach[0] * torch.tensor(steps)[:, None, None]
        near = (apart.abs() <= edges) & (apart % torch.tensor(steps)[:, None, None] == 0)
        return torch.where(near, apart, apart.sign() * edges)

    visible = torch.tensor([[[sees(h, a, b) for b in range(count)] for a in range(count)] for h in range(heads)])
    rows = []
    for linear in (mixer.project.qkv, mixer.anchored or mixer.project.qkv):
        q, k, v = linear(x).unflatten(-1, (3, heads, -1)).unbind(-3)
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        if config.rotary:
            scores = turned_scores(q, k, distances(linear is mixer.anchored), config.rotary) / q.shape[-1] ** 0.5
        rows.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), v).flatten(1))
    own = torch.tensor([token in anchors for token in range(count)])
    return mixer.project.out(torch.where(own[:, None], rows[1], rows[0]))


@every_window
@pytest.mark.parametrize(
    ("lengths", "anchors"), [(LENGTHS, None), (LENGTHS, SOME), ((60, 40), None), ((70,), (0, 5, 50))],
    ids=["firsts", "chosen", "few firsts", "few chosen"],
)  # fmt: skip
def test_a_window_is_the_whole_square_with_most_of_it_hidden(config, lengths, anchors):
    mixer, x = built(config), torch.randn(sum(lengths), WIDTH, dtype=torch.float64, requires_grad=True)
    layout, down = Layout.from_lengths(lengths, global_tokens=anchors), torch.randn(sum(lengths), WIDTH, dtype=torch.float64)
    wanted = [x, *mixer.parameters()]
    ours, theirs = mixer(x, layout), whole_square(config, mixer, x, layout)
    close = {"atol": 1e-5, "rtol": 1e-5} if config.rotary else {"atol": 1e-9, "rtol": 1e-9}  # which turns in float32
    assert_close(ours, theirs, **close)
    for got, want in zip(torch.autograd.grad(ours, wanted, down), torch.autograd.grad(theirs, wanted, down), strict=True):
        assert_close(got, want, **close)


@every_window
def test_the_slow_way_comes_to_the_same_end(config, monkeypatch):
    mixer, x = built(config), torch.randn(sum(LENGTHS), WIDTH, dtype=torch.float64)
    quick = mixer(x, Layout.from_lengths(LENGTHS, global_tokens=SOME))
    monkeypatch.setattr(Layout, "is_packed", False)
    assert_close(mixer(x, Layout.from_lengths(LENGTHS, global_tokens=SOME)), quick, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("many", [1, 3, 1000])
def test_anchors_are_joined_some_at_a_time(many, monkeypatch):
    mixer, x = built(CONFIGS[1]), torch.randn(sum(LENGTHS), WIDTH, dtype=torch.float64)
    wanted = mixer(x, Layout.from_lengths(LENGTHS, global_tokens=SOME))
    monkeypatch.setattr(global_attention, "MAX_GLOBAL_PER_GROUP", many)
    assert_close(mixer(x, Layout.from_lengths(LENGTHS, global_tokens=SOME)), wanted, atol=1e-10, rtol=1e-10)


def kept(config, length):
    """Bytes that one layer keeps for the way back, what many layers share not counted."""
    mixer, x, layout, seen = built(config, torch.float32), torch.randn(length, WIDTH), Layout.from_lengths([length]), {}
    mixer(x, layout)
    shared = {t.data_ptr() for t in layout._memo.values() if isinstance(t, torch.Tensor)}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.update({t.data_ptr(): t.nbytes}) or t, lambda t: t):
        mixer(x.requires_grad_(), layout)
    return sum(size for place, size in seen.items() if place not in shared)


@pytest.mark.parametrize("config", CONFIGS[:2], ids=name)
def test_what_is_kept_grows_with_the_text_and_not_with_its_square(config):
    assert kept(config, 4096) < 2.1 * kept(config, 2048) < 2048 * WIDTH * 4 * 40


def test_what_a_layer_finds_out_about_a_batch_serves_those_above():
    layout, x = Layout.from_lengths([300, 40]), torch.randn(340, WIDTH)
    mixers = [built(CONFIGS[1], torch.float32) for _ in range(2)]
    mixers[0](x, layout)
    found = dict(layout._memo)
    mixers[1](x, layout)
    assert found and all(layout._memo[name] is value for name, value in found.items()) and len(found) == len(layout._memo)


def test_reach_and_dilation_may_grow_with_the_layers():
    config = Longformer(heads=4, reach=(2, 4, 8), dilation=(2, 2), dilated=1)
    stack = Stack(EncoderConfig(layers=3, width=WIDTH, mixer=config))
    assert [block.mixer.reach for block in stack.blocks] == [2, 4, 8]
    assert [list(block.mixer.steps) for block in stack.blocks] == [[1], [1], [1, 2]]
    with pytest.raises(UserError, match="reach has 3 numbers for 2 layers"):
        Stack(EncoderConfig(layers=2, width=WIDTH, mixer=config))


def test_layers_of_dilated_heads_want_dilated_heads():
    with pytest.raises(UserError, match=r"dilated=1 says which layers .* name some, such as dilation=\[2, 2\]"):
        Stack(EncoderConfig(layers=3, width=WIDTH, mixer=Longformer(heads=4, dilated=1)))


@pytest.mark.parametrize(("config", "said"), [
    (Longformer(heads=4, dilation=(2,) * 5), "dilation has 5 numbers for 4 heads"),
    (Longformer(heads=5), "does not divide into 5 heads"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused(config, said):
    with pytest.raises(UserError, match=said):
        config.build(WIDTH)


def test_prefixes_are_refused():
    with pytest.raises(UserError, match="prefixes"):
        built(CONFIGS[3], torch.float32)(torch.randn(10, WIDTH), Layout.from_lengths([10], prefix_lengths=[4]))


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [4, 16], ids=["heads of 32", "heads of 8"])
@pytest.mark.parametrize("config", CONFIGS, ids=name)
@pytest.mark.parametrize("anchors", [None, [0, 5, 9, 700, 1500, 1537, 2100]], ids=["firsts", "chosen"])
def test_flash_agrees_with_float32(config, anchors, heads):
    """On CUDA in half precision: within rounding of the plain way, there and back."""
    torch.manual_seed(0)
    config = msgspec.structs.replace(config, heads=heads, reach=(config.reach[0] * 40,))
    mixer, x = config.build(128).cuda(), torch.randn(2200, 128, device="cuda")
    results = []
    for half in (False, True):
        layout, inputs = Layout.from_lengths([700, 37, 800, 663], global_tokens=anchors).to("cuda"), x.clone().requires_grad_()
        mixer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            out = mixer(inputs, layout)
        out.float().square().sum().backward()
        results.append([out.float(), inputs.grad, *(p.grad.clone() for n, p in mixer.named_parameters() if "weight" in n)])
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() / exact.norm() < 0.03


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sight",
    [AttentionPattern(5), AttentionPattern(3, 2), AttentionPattern(6, causal=True), AttentionPattern(2, 3, True)],
    ids=str,
)
@pytest.mark.parametrize("anchors", [None, SOME], ids=["firsts", "chosen"])
@pytest.mark.parametrize("period", [None, 50.0], ids=["", "rotary"])
def test_the_kernel_joins_anchors_as_torch_does(sight, anchors, period, monkeypatch):
    """Triton's interpreter runs it, too: TRITON_INTERPRET=1 python -m pytest -m gpu -k kernel_joins."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layout = Layout.from_lengths(LENGTHS, global_tokens=anchors).to(device)
    qkv, grad = torch.randn(2, sum(LENGTHS), 3 * 64, device=device).half()
    results, turns = [], None if period is None else RotaryEmbedding(32, period).cos_sin(200, torch.device(device))
    for quick in (True, False):
        monkeypatch.setattr(global_attention.GlobalAttention, "_can_use_kernel", lambda self, q, quick=quick: quick)
        given, shift = qkv.clone().requires_grad_(), torch.zeros(3, 2, 32, device=device, requires_grad=True)
        out = longformer_attention(
            given.unflatten(-1, (3, 2, 32)), None, shift, layout, replace(sight, anchored=True), cos_sin=turns
        )
        out.backward(grad[:, :64].unflatten(-1, (2, 32)))
        assert (shift.grad is not None) == (quick and turns is None)
        total = given.grad.float().sum(0) if shift.grad is None else shift.grad.flatten()
        results.append((out.detach().float(), given.grad.float(), total))
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 2e-3


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [one.numel() for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        self.numbers = max([self.numbers, *made])
        return out


@pytest.mark.parametrize("how", ["packed", "rectangle", "compiled", "uneven", "chosen"])
@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[7]], ids=name)
def test_what_anchors_see_never_grows_with_sequences_times_tokens(config, how, monkeypatch):
    lengths = [9] * 400 if how != "uneven" else [200, *[9] * 400]
    tokens, layout = sum(lengths), Layout.from_lengths(lengths, global_tokens=range(0, 3600, 9) if how == "chosen" else None)
    if how == "rectangle":
        layout = PaddedLayout.from_mask(layout.padding_mask())
    if how == "compiled":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mixer, x = built(config, torch.float32), torch.randn(tokens, WIDTH)
    with Largest() as largest, torch.no_grad():
        mixer._global_attention(x, layout)
    assert largest.numbers <= max(3 * WIDTH, config.heads * global_attention.MAX_GLOBAL_PER_GROUP) * tokens < 400 * tokens


def test_dropout_falls_on_what_anchors_see_too():
    mixer, x, layout = (
        built(Longformer(heads=4, reach=(2,), dropout=0.5), torch.float32),
        torch.randn(40, WIDTH),
        Layout.from_lengths([40]),
    )
    still = mixer(x, layout)[0]
    mixer.train()
    draws = torch.stack([mixer(x, layout)[0] for _ in range(400)])
    assert not torch.allclose(draws[0], draws[1])
    assert_close(draws.mean(0), still, atol=0.15, rtol=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_slopes_go_back_to_the_keys_of_a_band(causal):
    band = BlockBand(23, 5, causal)
    x, slopes = torch.randn(2, 23, 3, requires_grad=True), torch.randn(2, band.num_blocks, band.keys_per_block, 3)
    whole = torch.zeros(2, band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, 3)
    for first in (0, 2):
        band.add_key_blocks(whole, slopes[:, first : first + 2 if first == 0 else None], first)
    (wanted,) = torch.autograd.grad(band.to_key_blocks(x), x, slopes)
    assert_close(whole.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens], wanted)


@pytest.mark.parametrize(
    ("most", "found"), [(1, [(0, 1), (1, 2), (3, 4), (4, 5)]), (3, [(0, 1), (1, 2), (3, 5)]), (9, [(0, 2), (3, 5)])]
)
def test_neighbours_share_a_run_as_long_as_their_anchors_are_few(most, found):
    assert list(group_sequences([0, 1, 3, 4], [0, 2, 6, 6, 7, 9], most)) == found
