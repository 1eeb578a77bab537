"""Writing on from memory is writing on: what is written, and what each token costs, is as if all were read again."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.generation.kv_cache import SegmentMemoryDecoder, UncachedDecoder, supports_segment_memory
from bertsmith.model.generation.search import Beam, Greedy, generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention, TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import SegmentMemory
from bertsmith.model.sublayers import FeedForwardConfig

MIXERS = [
    TransformerXL(heads=2, remembers=3), TransformerXL(heads=2, remembers=3, recalls=5, same_length=True),
    AdaptiveSpan(heads=2, longest=32, ramp=4, causal=True, begin=0.1),
]  # fmt: skip
PROMPTS = [np.array([3, 1, 4, 1, 5, 9, 2, 6]), np.array([7]), np.array([2, 7, 1])]


def model_of(mixer, **more):
    encoder = EncoderConfig(
        layers=2, width=16, mixer=mixer, feedforward=FeedForwardConfig(inner=24), segments=0, embedding_norm=False,
        dropout=0.0, deviation=0.4, pooler="none", **({"table": False} | more),
    )  # fmt: skip
    return build_model(
        ModelConfig(encoder=encoder, vocabulary=30, heads={"words": LMHeadConfig(transform=False, bias=False)}), 0
    ).eval()


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
@torch.no_grad()
def test_every_step_scores_as_if_all_were_read_again(mixer):
    model = model_of(mixer)
    fast, slow = SegmentMemoryDecoder(model), UncachedDecoder(model)
    (state, scores), (texts, again) = fast.prefill(PROMPTS), slow.prefill(PROMPTS)
    for turn in range(14):
        assert_close(scores, again, atol=1e-4, rtol=1e-4)
        tokens = scores.argmax(-1)
        if turn == 5:
            rows = torch.tensor([2, 0, 0])
            state, texts, tokens = fast.reorder_state(state, rows), slow.reorder_state(texts, rows), tokens[rows]
        (state, scores), (texts, again) = fast.decode_step(state, tokens), slow.decode_step(texts, tokens)
    if mixer is MIXERS[2]:
        assert [rows.shape[1] for rows in state.layers] == [8, 8]  # 0.1 * 32 + 4, in steps of a ramp


@pytest.mark.parametrize("search", [Greedy(tokens=9), Beam(tokens=9, size=3)], ids=["greedy", "beam"])
@torch.no_grad()
def test_texts_come_out_the_same(search):
    model = model_of(MIXERS[0])
    mine, theirs = (
        generate(stepper, PROMPTS, search, eos_token_id=0) for stepper in (SegmentMemoryDecoder(model), UncachedDecoder(model))
    )
    assert [one.tokens for one in mine] == [one.tokens for one in theirs]


def test_a_model_that_must_be_told_positions_or_forgets_a_layer_reads_again():
    assert all(supports_segment_memory(model_of(mixer)) for mixer in MIXERS)
    assert not supports_segment_memory(model_of(MIXERS[0], table=True))
    assert not supports_segment_memory(model_of(TransformerXL(heads=2, remembers=0)))
    assert not supports_segment_memory(model_of(Attention(heads=2, causal=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_gpu_remembers_and_learns_the_same(mixer, half):
    """Two segments of ragged rows, there and back: within rounding of the CPU."""
    found = {}
    for device in ("cpu", "cuda"):
        model = model_of(mixer).to(device)
        memory = SegmentMemory.empty(3, torch.device(device))
        for turn, lengths in enumerate(((9, 4, 12), (70, 2, 33))):
            layout = Layout.from_lengths(lengths).to(device)
            ids = torch.randint(0, 30, (sum(lengths),), generator=torch.Generator().manual_seed(turn)).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=half and device == "cuda"):
                out = model(Inputs(ids, layout, memory=memory))
            memory = memory.advance(layout)
        out.float().square().sum().backward()
        slopes = [
            weight.grad.flatten() for name, weight in model.named_parameters() if "heads" not in name and "span" not in name
        ]
        found[device] = out.detach().float().cpu(), torch.cat(slopes).cpu()
    for exact, other in zip(found["cpu"], found["cuda"], strict=True):
        assert (exact - other).norm() / exact.norm() < (0.05 if half else 2e-3)
