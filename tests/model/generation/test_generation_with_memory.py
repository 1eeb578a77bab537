"""Generation with segment memory (Transformer-XL, Adaptive-Span) equals running the whole text again."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.generation.config import Beam, Greedy
from bertsmith.model.generation.incremental import SegmentMemoryDecoder, UncachedDecoder, can_use_segment_memory
from bertsmith.model.generation.search import generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention, TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import SegmentMemory
from bertsmith.model.sublayers import FeedForwardConfig

MIXERS = [
    TransformerXL(num_attention_heads=2, mem_len=3),
    TransformerXL(num_attention_heads=2, mem_len=3, eval_mem_len=5, same_length=True),
    AdaptiveSpan(num_attention_heads=2, max_span=32, span_ramp=4, causal=True, init_span=0.1),
]
PROMPTS = [np.array([3, 1, 4, 1, 5, 9, 2, 6]), np.array([7]), np.array([2, 7, 1])]


def build_small_model(mixer, **overrides):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=16,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=24),
        type_vocab_size=0,
        embedding_norm=False,
        hidden_dropout_prob=0.0,
        initializer_range=0.4,
        pooler_act="none",
        **({"position_embedding_type": "none"} | overrides),
    )
    return build_model(
        ModelConfig(encoder=encoder, vocab_size=30, heads={"lm": LMHeadConfig(transform=False, bias=False)}), 0
    ).eval()


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
@torch.no_grad()
def test_segment_memory_steps_match_full_forward(mixer):
    model = build_small_model(mixer)
    with_memory, uncached = SegmentMemoryDecoder(model), UncachedDecoder(model)
    (state, logits), (texts, expected) = with_memory.prefill(PROMPTS), uncached.prefill(PROMPTS)
    for step in range(14):
        assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        tokens = logits.argmax(-1)
        if step == 5:
            rows = torch.tensor([2, 0, 0])
            state, texts, tokens = with_memory.reorder_state(state, rows), uncached.reorder_state(texts, rows), tokens[rows]
        (state, logits), (texts, expected) = with_memory.decode_step(state, tokens), uncached.decode_step(texts, tokens)
    if mixer is MIXERS[2]:
        assert [rows.shape[1] for rows in state.layers] == [8, 8]  # 0.1 * 32 + 4, rounded up to the ramp


@pytest.mark.parametrize("search", [Greedy(max_new_tokens=9), Beam(max_new_tokens=9, num_beams=3)], ids=["greedy", "beam"])
@torch.no_grad()
def test_segment_memory_generation_matches_uncached(search):
    model = build_small_model(MIXERS[0])
    actual, expected = (
        generate(decoder, PROMPTS, search, eos_token_id=0) for decoder in (SegmentMemoryDecoder(model), UncachedDecoder(model))
    )
    assert [result.tokens for result in actual] == [result.tokens for result in expected]


def test_segment_memory_support_needs_relative_positions_and_memory_in_all_layers():
    assert all(can_use_segment_memory(build_small_model(mixer)) for mixer in MIXERS)
    assert not can_use_segment_memory(build_small_model(MIXERS[0], position_embedding_type="absolute"))
    assert not can_use_segment_memory(build_small_model(TransformerXL(num_attention_heads=2, mem_len=0)))
    assert not can_use_segment_memory(build_small_model(Attention(num_attention_heads=2, causal=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_segment_memory_on_gpu_matches_cpu(mixer, half):
    """Forward and backward over two segments of different lengths: within rounding of the CPU."""
    results = {}
    for device in ("cpu", "cuda"):
        model = build_small_model(mixer).to(device)
        memory = SegmentMemory.empty(3, torch.device(device))
        for segment, lengths in enumerate(((9, 4, 12), (70, 2, 33))):
            layout = Layout.from_lengths(lengths).to(device)
            ids = torch.randint(0, 30, (sum(lengths),), generator=torch.Generator().manual_seed(segment)).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=half and device == "cuda"):
                out = model(Inputs(ids, layout, state=memory))
            memory = memory.advance(layout)
        out.float().square().sum().backward()
        grads = [
            weight.grad.flatten() for name, weight in model.named_parameters() if "heads" not in name and "span" not in name
        ]
        results[device] = out.detach().float().cpu(), torch.cat(grads).cpu()
    for expected, actual in zip(results["cpu"], results["cuda"], strict=True):
        assert (expected - actual).norm() / expected.norm() < (0.05 if half else 2e-3)
