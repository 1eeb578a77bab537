"""Lite Transformer's mixer: filters as slow loops from the papers have them, and kernels that grow with depth."""

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

WIDTH, LENGTHS = 32, (17, 5, 40, 1, 23)


def mixer_of(**more):
    torch.manual_seed(1)
    mixer = LiteTransformer(**{"heads": 2, "filters": 4, **more}).build(WIDTH).eval()
    for weight in mixer.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return mixer


def slow(part, x, causal):
    """Wu et al. 2019, equations 4 and 5, and section 4: one text, one token, one channel, one neighbour at a time."""
    read = x @ part.gate.weight.T + (0 if part.gate.bias is None else part.gate.bias)
    value, gate = read.chunk(2, -1)
    value = value * gate.sigmoid()
    length, width = value.shape
    filters, seen = part.filters, part.seen
    out = torch.zeros_like(value)
    for i in range(length):
        for channel in range(width):
            head = channel * filters // width
            if part.made is None:
                weights = part.kernel[head].softmax(-1)
            else:
                weights = (part.made.weight.view(filters, seen, width)[head] @ value[i]).softmax(-1)
            for j in range(seen):
                other = i + j - (seen - 1 if causal else seen // 2)
                if 0 <= other < length:
                    out[i, channel] += weights[j] * value[other, channel]
    return out @ part.out.weight.T + (0 if part.out.bias is None else part.out.bias)


@pytest.mark.parametrize("dynamic", [False, True], ids=["lightweight", "dynamic"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("kernel", [1, 3, 4, 31])
@torch.no_grad()
def test_half_of_the_channels_attend_and_half_are_filtered_as_loops_have_it(dynamic, causal, kernel):
    mixer, x = mixer_of(kernels=(kernel,), dynamic=dynamic, causal=causal), torch.randn(sum(LENGTHS), WIDTH)
    found = mixer(x, Layout.from_lengths(LENGTHS))
    for text, ours in zip(x.split(LENGTHS), found.split(LENGTHS), strict=True):
        q, k, v = mixer.far.project(text[:, : WIDTH // 2])
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(torch.ones(len(text), len(text)).triu(1).bool(), float("-inf"))
        far = mixer.far.project.join(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        near = slow(mixer.near, text[:, WIDTH // 2 :], causal)
        assert_close(ours, torch.cat([far, near], -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("before", [0, 1, 4])
def test_slopes_of_weighted_means_are_right(before):
    torch.manual_seed(0)
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(7, 2, 5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, weights: _LightweightConvFunction.apply(x, weights, before), (x, weights))


def test_weights_of_filters_are_dropped_in_training_only():
    mixer, x, layout = mixer_of(kernels=(5,), dropout=0.5), torch.randn(sum(LENGTHS), WIDTH), Layout.from_lengths(LENGTHS)
    assert_close(mixer(x, layout), mixer_of(kernels=(5,))(x, layout))
    mixer.train()
    near = x[:, WIDTH // 2 :]
    draws = torch.stack([mixer.near(near, layout) for _ in range(300)])
    assert not torch.allclose(draws[0], draws[1])
    assert_close(draws.mean(0), mixer.eval().near(near, layout), atol=0.35, rtol=0.1)


def test_kernels_grow_with_depth_and_a_folder_keeps_them(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    mixer = {"kind": "long-short", "heads": 2, "kernels": [3, 7, 15], "filters": 4, "dynamic": True}
    config = from_dict(EncoderConfig, {"layers": 5, "width": WIDTH, "mixer": mixer, "feedforward": {"inner": WIDTH}})
    model = build_model(ModelConfig(encoder=config, vocabulary=len(tokenizer)), 0).eval()
    assert [block.mixer.near.seen for block in model.encoder.stack.blocks] == [3, 7, 15, 15, 15]
    checkpoint.save(tmp_path / "model", model, tokenizer, {}, {"stage": "test"})
    back, _, _ = checkpoint.load(tmp_path / "model")
    inputs = Inputs(torch.arange(30) % len(tokenizer), Layout.from_lengths([9, 21]))
    assert back.config == model.config and torch.equal(back(inputs), model(inputs))


def test_the_flattened_block_is_a_third_as_large_as_berts():
    sizes = []
    for preset in ("bert-base", "lite-base"):
        with torch.device("meta"):
            block = build_model(ModelConfig(encoder=EncoderConfig.presets[preset], vocabulary=9), 0).encoder.stack.blocks[0]
        sizes.append(sum(weight.numel() for weight in block.parameters()))
    assert sizes[1] < 0.35 * sizes[0]


def test_a_width_that_does_not_split_is_refused():
    with pytest.raises(UserError, match=r"half of a width of 36 does not divide into 4 filters"):
        LiteTransformer(heads=2).build(36)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["lightweight", "dynamic"])
def test_half_precision_on_a_gpu_is_within_rounding(dynamic):
    mixer, x = mixer_of(kernels=(15,), dynamic=dynamic).cuda(), torch.randn(sum(LENGTHS), WIDTH).cuda()
    results = []
    for half in (False, True):
        given = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            out = mixer(given, Layout.from_lengths(LENGTHS).to("cuda"))
        out.float().square().sum().backward()
        results.append((out.float(), given.grad))
    for exact, other in zip(*results, strict=True):
        assert F.mse_loss(exact, other).sqrt() / exact.square().mean().sqrt() < 0.02
