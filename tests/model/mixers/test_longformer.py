"""Longformer attention against full attention with an explicit mask."""

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

HIDDEN_SIZE, LENGTHS = 32, (17, 5, 90, 1, 23)
GLOBAL_TOKENS = [0, 3, 17, 22, 25, 60, 111, 112, 113, 130]  # at least one in each sequence
CONFIGS = [
    Longformer(num_attention_heads=4, attention_window=(8,)),
    Longformer(num_attention_heads=4, attention_window=(4,), dilation=(2, 3, 3)),
    Longformer(num_attention_heads=4, attention_window=(6,), dilation=(3, 1, 2), bias=False),
    Longformer(num_attention_heads=4, attention_window=(12,), causal=True),
    Longformer(num_attention_heads=4, attention_window=(4,), dilation=(2, 2), causal=True),
    Longformer(num_attention_heads=4, attention_window=(8,), global_attention=False),
    Longformer(num_attention_heads=4, attention_window=(6,), dilation=(4,), global_attention=False, causal=True),
    Longformer(num_attention_heads=4, attention_window=(8,), rope_theta=100.0),
    Longformer(num_attention_heads=4, attention_window=(4,), rope_theta=100.0, dilation=(2, 3), bias=False),
    Longformer(num_attention_heads=4, attention_window=(6,), rope_theta=50.0, causal=True),
    Longformer(num_attention_heads=4, attention_window=(6,), rope_theta=50.0, global_attention=False),
]


def config_id(config):
    return "-".join(
        f"{field}={value}"
        for field, value in msgspec.structs.asdict(config).items()
        if value and field not in ("num_attention_heads", "dilated_layers")
    )


every_config = pytest.mark.parametrize("config", CONFIGS, ids=config_id)


def build_mixer(config, dtype=torch.float64):
    torch.manual_seed(1)
    mixer = config.build(HIDDEN_SIZE).eval().to(dtype)
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return mixer


def rope_scores(q, k, distance, theta):
    """(heads, tokens, tokens): RoPE by complex numbers: halves are real and imaginary parts, rotated by the distance."""
    half = q.shape[-1] // 2
    q, k = (torch.complex(*t.double().chunk(2, -1)) for t in (q, k))
    frequencies = torch.tensor([theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    return torch.einsum(
        "qhd,khd,hqkd->hqk", q, k.conj(), torch.polar(torch.ones(()).double(), distance[..., None] * frequencies)
    ).real


def dense_reference(config, mixer, x, layout):
    """The mask token by token, then an ordinary softmax; rows of global tokens with their own projections."""
    num_tokens, num_heads, half_window = len(x), config.num_attention_heads, config.attention_window[0] // 2
    global_tokens = set(layout.global_tokens.tolist()) if config.global_attention else set()
    dilations = [1] * (num_heads - len(config.dilation)) + list(config.dilation)
    seq_id, position = layout.seq_id.tolist(), layout.position.tolist()

    def sees(head, a, b):
        distance = position[a] - position[b]
        if seq_id[a] != seq_id[b] or (config.causal and distance < 0):
            return False
        in_window = abs(distance) <= half_window * dilations[head] and distance % dilations[head] == 0
        return in_window or a in global_tokens or b in global_tokens

    def distances(is_global_query):
        """(heads, tokens, tokens): relative positions, clamped to the window for global keys and for global queries."""
        distance = torch.tensor(position)[:, None] - torch.tensor(position)
        if is_global_query:
            return distance.clamp(-half_window, half_window).expand(num_heads, -1, -1)
        max_distance = half_window * torch.tensor(dilations)[:, None, None]
        in_window = (distance.abs() <= max_distance) & (distance % torch.tensor(dilations)[:, None, None] == 0)
        return torch.where(in_window, distance, distance.sign() * max_distance)

    visible = torch.tensor([[[sees(h, a, b) for b in range(num_tokens)] for a in range(num_tokens)] for h in range(num_heads)])
    outs = []
    for linear in (mixer.projections.qkv, mixer.global_qkv or mixer.projections.qkv):
        q, k, v = linear(x).unflatten(-1, (3, num_heads, -1)).unbind(-3)
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        if config.rope_theta:
            scores = rope_scores(q, k, distances(linear is mixer.global_qkv), config.rope_theta) / q.shape[-1] ** 0.5
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), v).flatten(1))
    is_global = torch.tensor([token in global_tokens for token in range(num_tokens)])
    return mixer.projections.output(torch.where(is_global[:, None], outs[1], outs[0]))


@every_config
@pytest.mark.parametrize(
    ("lengths", "global_tokens"), [(LENGTHS, None), (LENGTHS, GLOBAL_TOKENS), ((60, 40), None), ((70,), (0, 5, 50))],
    ids=["first", "explicit", "few first", "few explicit"],
)  # fmt: skip
def test_longformer_matches_dense_reference(config, lengths, global_tokens):
    mixer, x = build_mixer(config), torch.randn(sum(lengths), HIDDEN_SIZE, dtype=torch.float64, requires_grad=True)
    layout, grad_out = (
        Layout.from_lengths(lengths, global_tokens=global_tokens),
        torch.randn(sum(lengths), HIDDEN_SIZE, dtype=torch.float64),
    )
    leaves = [x, *mixer.parameters()]
    out, expected = mixer(x, layout), dense_reference(config, mixer, x, layout)
    tolerance = (
        {"atol": 1e-5, "rtol": 1e-5} if config.rope_theta else {"atol": 1e-9, "rtol": 1e-9}
    )  # RoPE is computed in float32
    assert_close(out, expected, **tolerance)
    for grad, expected_grad in zip(
        torch.autograd.grad(out, leaves, grad_out), torch.autograd.grad(expected, leaves, grad_out), strict=True
    ):
        assert_close(grad, expected_grad, **tolerance)


@every_config
def test_longformer_eager_path_matches_fused(config, monkeypatch):
    mixer, x = build_mixer(config), torch.randn(sum(LENGTHS), HIDDEN_SIZE, dtype=torch.float64)
    expected = mixer(x, Layout.from_lengths(LENGTHS, global_tokens=GLOBAL_TOKENS))
    monkeypatch.setattr(Layout, "is_packed", False)
    assert_close(mixer(x, Layout.from_lengths(LENGTHS, global_tokens=GLOBAL_TOKENS)), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("max_global", [1, 3, 1000])
def test_longformer_global_keys_in_groups_match_all_at_once(max_global, monkeypatch):
    mixer, x = build_mixer(CONFIGS[1]), torch.randn(sum(LENGTHS), HIDDEN_SIZE, dtype=torch.float64)
    expected = mixer(x, Layout.from_lengths(LENGTHS, global_tokens=GLOBAL_TOKENS))
    monkeypatch.setattr(global_attention, "MAX_GLOBAL_PER_GROUP", max_global)
    assert_close(mixer(x, Layout.from_lengths(LENGTHS, global_tokens=GLOBAL_TOKENS)), expected, atol=1e-10, rtol=1e-10)


def saved_bytes(config, length):
    """Bytes that one layer saves for the backward pass, without those shared by all layers."""
    mixer, x, layout, sizes = (
        build_mixer(config, torch.float32),
        torch.randn(length, HIDDEN_SIZE),
        Layout.from_lengths([length]),
        {},
    )
    mixer(x, layout)
    shared = {t.data_ptr() for t in layout._memo.values() if isinstance(t, torch.Tensor)}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.update({t.data_ptr(): t.nbytes}) or t, lambda t: t):
        mixer(x.requires_grad_(), layout)
    return sum(size for pointer, size in sizes.items() if pointer not in shared)


@pytest.mark.parametrize("config", CONFIGS[:2], ids=config_id)
def test_longformer_saved_memory_is_linear_in_length(config):
    assert saved_bytes(config, 4096) < 2.1 * saved_bytes(config, 2048) < 2048 * HIDDEN_SIZE * 4 * 40


def test_longformer_layers_share_memoized_layout_tensors():
    layout, x = Layout.from_lengths([300, 40]), torch.randn(340, HIDDEN_SIZE)
    mixers = [build_mixer(CONFIGS[1], torch.float32) for _ in range(2)]
    mixers[0](x, layout)
    memo = dict(layout._memo)
    mixers[1](x, layout)
    assert memo and all(layout._memo[key] is value for key, value in memo.items()) and len(memo) == len(layout._memo)


def test_longformer_window_and_dilation_by_layer():
    config = Longformer(num_attention_heads=4, attention_window=(4, 8, 16), dilation=(2, 2), dilated_layers=1)
    stack = Stack(EncoderConfig(num_hidden_layers=3, hidden_size=HIDDEN_SIZE, mixer=config))
    assert [block.mixer.half_window for block in stack.layers] == [2, 4, 8]
    assert [list(block.mixer.heads_by_dilation) for block in stack.layers] == [[1], [1], [1, 2]]
    with pytest.raises(UserError, match="attention_window has 3 numbers for 2 layers"):
        Stack(EncoderConfig(num_hidden_layers=2, hidden_size=HIDDEN_SIZE, mixer=config))


def test_longformer_dilated_layers_require_dilation():
    with pytest.raises(UserError, match=r"dilated_layers=1 has no effect without dilation; set it, such as dilation=\[2, 2\]"):
        Stack(
            EncoderConfig(
                num_hidden_layers=3, hidden_size=HIDDEN_SIZE, mixer=Longformer(num_attention_heads=4, dilated_layers=1)
            )
        )


@pytest.mark.parametrize(("config", "message"), [
    (Longformer(num_attention_heads=4, dilation=(2,) * 5), "dilation has 5 numbers for 4 heads"),
    (Longformer(num_attention_heads=5), "does not divide into 5 heads"),
    (Longformer(num_attention_heads=4, attention_window=(9,)), "attention_window=9 counts both sides together; give an even"),
])  # fmt: skip
def test_longformer_refuses_impossible_configs(config, message):
    with pytest.raises(UserError, match=message):
        config.build(HIDDEN_SIZE)


def test_longformer_refuses_prefix_lm():
    with pytest.raises(UserError, match="prefix LM"):
        build_mixer(CONFIGS[3], torch.float32)(torch.randn(10, HIDDEN_SIZE), Layout.from_lengths([10], prefix_lengths=[4]))


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [4, 16], ids=["heads of 32", "heads of 8"])
@pytest.mark.parametrize("config", CONFIGS, ids=config_id)
@pytest.mark.parametrize("global_tokens", [None, [0, 5, 9, 700, 1500, 1537, 2100]], ids=["first", "explicit"])
def test_longformer_flash_close_to_float32(config, global_tokens, heads):
    """On CUDA in bfloat16: within rounding of float32, forward and backward."""
    torch.manual_seed(0)
    config = msgspec.structs.replace(config, num_attention_heads=heads, attention_window=(config.attention_window[0] * 40,))
    mixer, x = config.build(128).cuda(), torch.randn(2200, 128, device="cuda")
    results = []
    for use_bf16 in (False, True):
        layout, inputs = (
            Layout.from_lengths([700, 37, 800, 663], global_tokens=global_tokens).to("cuda"),
            x.clone().requires_grad_(),
        )
        mixer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=use_bf16):
            out = mixer(inputs, layout)
        out.float().square().sum().backward()
        results.append(
            [
                out.float(),
                inputs.grad,
                *(parameter.grad.clone() for name, parameter in mixer.named_parameters() if "weight" in name),
            ]
        )
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() / exact.norm() < 0.03


@pytest.mark.gpu
def test_longformer_compiled_on_a_gpu_matches_eager():
    """The fused kernels stay outside of the graph (uncompiled.py), and a second shape is not compiled anew."""
    config = Longformer(num_attention_heads=4, attention_window=(64,))
    mixer, compiled = (
        build_mixer(config, torch.float32).cuda(),
        torch.compile(build_mixer(config, torch.float32).cuda(), dynamic=True),
    )
    for lengths in [(300, 37, 200), (90, 411), (64, 63, 62, 61)]:
        x = torch.randn(sum(lengths), HIDDEN_SIZE, device="cuda")
        layout, grads, outs = Layout.from_lengths(lengths).to("cuda"), [], []
        for module in (mixer, compiled):
            inputs = x.clone().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16):
                outs.append(module(inputs, layout).float())
            grads.append(torch.autograd.grad(outs[-1].square().sum(), inputs)[0])
        for eager, graph in (outs, grads):
            assert (eager - graph).norm() / eager.norm() < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize(
    "pattern",
    [AttentionPattern(5), AttentionPattern(3, 2), AttentionPattern(6, causal=True), AttentionPattern(2, 3, True)],
    ids=str,
)
@pytest.mark.parametrize("global_tokens", [None, GLOBAL_TOKENS], ids=["first", "explicit"])
@pytest.mark.parametrize("theta", [None, 50.0], ids=["", "rope"])
def test_longformer_global_kernel_matches_torch(pattern, global_tokens, theta, monkeypatch):
    """Triton's interpreter runs it too: TRITON_INTERPRET=1 python -m pytest -m gpu -k global_kernel."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layout = Layout.from_lengths(LENGTHS, global_tokens=global_tokens).to(device)
    qkv, grad = torch.randn(2, sum(LENGTHS), 3 * 64, device=device).half()
    results, cos_sin = [], None if theta is None else RotaryEmbedding(32, theta).cos_sin(200, torch.device(device))
    for use_kernel in (True, False):
        monkeypatch.setattr(
            global_attention.GlobalAttention, "_can_use_kernel", lambda self, q, use_kernel=use_kernel: use_kernel
        )
        leaf, qkv_bias = qkv.clone().requires_grad_(), torch.zeros(3, 2, 32, device=device, requires_grad=True)
        out = longformer_attention(
            leaf.unflatten(-1, (3, 2, 32)), None, qkv_bias, layout, replace(pattern, has_global_tokens=True), cos_sin=cos_sin
        )
        out.backward(grad[:, :64].unflatten(-1, (2, 32)))
        assert (qkv_bias.grad is not None) == (use_kernel and cos_sin is None)
        bias_grad = leaf.grad.float().sum(0) if qkv_bias.grad is None else qkv_bias.grad.flatten()
        results.append((out.detach().float(), leaf.grad.float(), bias_grad))
    for kernel_result, torch_result in zip(*results, strict=True):
        assert (kernel_result - torch_result).norm() / torch_result.norm() < 2e-3


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor created in the context."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


@pytest.mark.parametrize("batch_kind", ["packed", "padded", "compiled", "uneven", "explicit"])
@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[7]], ids=config_id)
def test_longformer_global_attention_memory_is_linear(config, batch_kind, monkeypatch):
    lengths = [9] * 400 if batch_kind != "uneven" else [200, *[9] * 400]
    num_tokens, layout = (
        sum(lengths),
        Layout.from_lengths(lengths, global_tokens=range(0, 3600, 9) if batch_kind == "explicit" else None),
    )
    if batch_kind == "padded":
        layout = PaddedLayout.from_mask(layout.padding_mask())
    if batch_kind == "compiled":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mixer, x = build_mixer(config, torch.float32), torch.randn(num_tokens, HIDDEN_SIZE)
    with LargestTensor() as largest, torch.no_grad():
        mixer._global_attention(x, layout)
    assert (
        largest.numel
        <= max(3 * HIDDEN_SIZE, config.num_attention_heads * global_attention.MAX_GLOBAL_PER_GROUP) * num_tokens
        < 400 * num_tokens
    )


def test_longformer_dropout_applies_to_global_tokens():
    mixer, x, layout = (
        build_mixer(Longformer(num_attention_heads=4, attention_window=(4,), attention_dropout=0.5), torch.float32),
        torch.randn(40, HIDDEN_SIZE),
        Layout.from_lengths([40]),
    )
    expected = mixer(x, layout)[0]
    mixer.train()
    samples = torch.stack([mixer(x, layout)[0] for _ in range(400)])
    assert not torch.allclose(samples[0], samples[1])
    assert_close(samples.mean(0), expected, atol=0.15, rtol=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_block_band_key_grads_match_autograd(causal):
    band = BlockBand(23, 5, causal)
    x, key_grads = torch.randn(2, 23, 3, requires_grad=True), torch.randn(2, band.num_blocks, band.keys_per_block, 3)
    total = torch.zeros(2, band.num_blocks + -(-band.keys_per_block // band.block_size), band.block_size, 3)
    for first_block in (0, 2):
        band.add_key_blocks(total, key_grads[:, first_block : first_block + 2 if first_block == 0 else None], first_block)
    (expected,) = torch.autograd.grad(band.to_key_blocks(x), x, key_grads)
    assert_close(total.flatten(1, 2)[:, band.half_window :][:, : band.num_tokens], expected)


@pytest.mark.parametrize(
    ("max_global", "expected"), [(1, [(0, 1), (1, 2), (3, 4), (4, 5)]), (3, [(0, 1), (1, 2), (3, 5)]), (9, [(0, 2), (3, 5)])]
)
def test_group_sequences_limits_global_tokens_per_group(max_global, expected):
    assert list(group_sequences([0, 1, 3, 4], [0, 2, 6, 6, 7, 9], max_global)) == expected
