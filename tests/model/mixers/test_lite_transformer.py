"""Lite Transformer: attention and lightweight convolution against loops over the papers' equations; kernel size by layer."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import LiteTransformer
from bertsmith.model.mixers.lite_transformer import _LightweightConvFunction
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tokenization.tokenizer import Tokenizer

HIDDEN_SIZE, LENGTHS = 32, (17, 5, 40, 1, 23)


def build_mixer(**overrides):
    torch.manual_seed(1)
    mixer = LiteTransformer(**{"num_attention_heads": 2, "num_filters": 4, **overrides}).build(HIDDEN_SIZE).eval()
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def loop_reference(conv, x, causal):
    """Wu et al. 2019, equations 4 and 5, and section 4, over one sequence: token by token, channel by channel."""
    projected = x @ conv.glu.weight.T + (0 if conv.glu.bias is None else conv.glu.bias)
    value, gate = projected.chunk(2, -1)
    value = value * gate.sigmoid()
    length, num_channels = value.shape
    num_filters, kernel_size = conv.num_filters, conv.kernel_size
    out = torch.zeros_like(value)
    for i in range(length):
        for channel in range(num_channels):
            head = channel * num_filters // num_channels
            if conv.kernel_projection is None:
                weights = conv.kernel[head].softmax(-1)
            else:
                weights = (conv.kernel_projection.weight.view(num_filters, kernel_size, num_channels)[head] @ value[i]).softmax(
                    -1
                )
            for j in range(kernel_size):
                neighbor = i + j - (kernel_size - 1 if causal else kernel_size // 2)
                if 0 <= neighbor < length:
                    out[i, channel] += weights[j] * value[neighbor, channel]
    return out @ conv.output.weight.T + (0 if conv.output.bias is None else conv.output.bias)


@pytest.mark.parametrize("dynamic", [False, True], ids=["lightweight", "dynamic"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kernel_size", [1, 3, 4, 31])
@torch.no_grad()
def test_lite_transformer_matches_loop_reference(dynamic, causal, kernel_size):
    mixer, x = build_mixer(kernel_sizes=(kernel_size,), dynamic=dynamic, causal=causal), torch.randn(sum(LENGTHS), HIDDEN_SIZE)
    out = mixer(x, Layout.from_lengths(LENGTHS))
    for part, part_out in zip(x.split(LENGTHS), out.split(LENGTHS), strict=True):
        q, k, v = mixer.attention.projections(part[:, : HIDDEN_SIZE // 2])
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones(len(part), len(part)).triu(1).bool(), float("-inf"))
        attention_out = mixer.attention.projections.project_out(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        conv_out = loop_reference(mixer.convolution, part[:, HIDDEN_SIZE // 2 :], causal)
        assert_close(part_out, torch.cat([attention_out, conv_out], -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("left_padding", [0, 1, 4])
def test_lightweight_conv_gradcheck(left_padding):
    torch.manual_seed(0)
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(7, 2, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, weights: _LightweightConvFunction.apply(x, weights, left_padding), (x, weights))


def test_lightweight_conv_weight_dropout_in_training_only():
    mixer, x, layout = (
        build_mixer(kernel_sizes=(5,), attention_dropout=0.5),
        torch.randn(sum(LENGTHS), HIDDEN_SIZE),
        Layout.from_lengths(LENGTHS),
    )
    assert_close(mixer(x, layout), build_mixer(kernel_sizes=(5,))(x, layout))
    mixer.train()
    conv_input = x[:, HIDDEN_SIZE // 2 :]
    samples = torch.stack([mixer.convolution(conv_input, layout) for _ in range(300)])
    assert not torch.allclose(samples[0], samples[1])
    assert_close(samples.mean(0), mixer.eval().convolution(conv_input, layout), atol=0.35, rtol=0.1)


def test_lite_transformer_kernel_sizes_by_layer_survive_checkpoint(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    mixer = {
        "kind": "lite-transformer",
        "num_attention_heads": 2,
        "kernel_sizes": [3, 7, 15],
        "num_filters": 4,
        "dynamic": True,
    }
    config = from_dict(
        EncoderConfig,
        {"num_hidden_layers": 5, "hidden_size": HIDDEN_SIZE, "mixer": mixer, "feedforward": {"intermediate_size": HIDDEN_SIZE}},
    )
    model = build_model(ModelConfig(encoder=config, vocab_size=len(tokenizer)), 0).eval()
    assert [block.mixer.convolution.kernel_size for block in model.encoder.stack.layers] == [3, 7, 15, 15, 15]
    checkpoint.save(tmp_path / "model", model, tokenizer, {}, {"stage": "test"})
    reloaded, _, _ = checkpoint.load(tmp_path / "model")
    inputs = Inputs(torch.arange(30) % len(tokenizer), Layout.from_lengths([9, 21]))
    assert reloaded.config == model.config and torch.equal(reloaded(inputs), model(inputs))


def test_lite_transformer_block_has_a_third_of_bert_parameters():
    parameter_counts = []
    for preset in ("bert-base", "lite-base"):
        with torch.device("meta"):
            block = build_model(ModelConfig(encoder=EncoderConfig.presets()[preset], vocab_size=9), 0).encoder.stack.layers[0]
        parameter_counts.append(sum(weight.numel() for weight in block.parameters()))
    assert parameter_counts[1] < 0.35 * parameter_counts[0]


def test_lite_transformer_refuses_indivisible_hidden_size():
    with pytest.raises(UserError, match=r"half of a hidden_size of 36 does not divide into 4 filters"):
        LiteTransformer(num_attention_heads=2).build(36)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["lightweight", "dynamic"])
def test_lite_transformer_bf16_on_gpu_close_to_float32(dynamic):
    mixer, x = build_mixer(kernel_sizes=(15,), dynamic=dynamic).cuda(), torch.randn(sum(LENGTHS), HIDDEN_SIZE).cuda()
    results = []
    for use_bf16 in (False, True):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=use_bf16):
            out = mixer(leaf, Layout.from_lengths(LENGTHS).to("cuda"))
        out.float().square().sum().backward()
        results.append((out.float(), leaf.grad))
    for exact, rounded in zip(*results, strict=True):
        assert F.mse_loss(exact, rounded).sqrt() / exact.square().mean().sqrt() < 0.02
