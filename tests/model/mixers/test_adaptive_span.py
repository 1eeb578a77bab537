"""Adaptive span against full attention with the soft mask, its penalty, and its compute cost."""

import time

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import AdaptiveSpan
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import LayerMemory, SegmentMemory
from bertsmith.model.sublayers import FeedForwardConfig

HIDDEN_SIZE, NUM_HEADS = 16, 4
SPANS = [0.011, 0.112, 0.371, 0.803]  # no integer positions, where the mask has a kink


def build_mixer(spans=SPANS, **overrides):
    torch.manual_seed(0)
    mixer = (
        AdaptiveSpan(num_attention_heads=NUM_HEADS, **({"max_span": 40, "span_ramp": 8} | overrides)).build(HIDDEN_SIZE).eval()
    )
    torch.nn.init.normal_(mixer.relative_position_embeddings.weight)
    mixer.span.data.copy_(torch.tensor(spans))
    mixer.trim()
    return mixer


def dense_reference(mixer, x, past=None):
    """(length, hidden_size) of one sequence: all pairs, mask times exp(score), renormalized, as in the paper."""
    config, past = mixer.config, x[:0] if past is None else past
    inputs = torch.cat([past, x])
    q, k, v = mixer.projections(inputs)
    distance = torch.arange(len(inputs))[:, None] - torch.arange(len(inputs))
    position_embeddings = mixer.relative_position_embeddings(
        (-distance).clamp(-config.max_span, 0 if config.causal else config.max_span) + config.max_span
    )
    scores = torch.einsum("ihd,jhd->hij", q, k) + torch.einsum("ihd,ijd->hij", q, position_embeddings)
    visible = distance.abs() <= config.max_span
    if config.causal:
        visible &= distance >= 0
    numerator = (scores * (HIDDEN_SIZE // NUM_HEADS) ** -0.5).exp() * visible
    numerator = numerator * ((config.span_ramp + mixer.current_spans[:, None, None] - distance.abs()) / config.span_ramp).clamp(
        0, 1
    )
    probs = numerator / numerator.sum(-1, keepdim=True)
    return mixer.projections.project_out(torch.einsum("hij,jhd->ihd", probs, v)[len(past) :])


CASES = [{"causal": True}, {}, {"causal": True, "span_ramp": 32}, {"max_span": 300, "span_ramp": 4}]


@pytest.mark.parametrize("config", CASES, ids=str)
@pytest.mark.parametrize("lengths", [(30, 1, 77), (150,)], ids=str)
def test_adaptive_span_matches_dense_reference(config, lengths):
    mixer = build_mixer(**config)
    torch.manual_seed(1)
    x = torch.randn(sum(lengths), HIDDEN_SIZE)
    actual, expected = (
        mixer(x, Layout.from_lengths(lengths)),
        torch.cat([dense_reference(mixer, part) for part in x.split(lengths)]),
    )
    assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    grads = [torch.autograd.grad(out.square().sum(), list(mixer.parameters())) for out in (actual, expected)]
    for actual_grad, expected_grad in zip(*grads, strict=True):
        assert_close(actual_grad, expected_grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("config", CASES, ids=str)
@torch.no_grad()
def test_adaptive_span_memory_matches_longer_sequence(config):
    mixer = build_mixer(**config)
    torch.manual_seed(1)
    mixer.trim()
    lengths, num_seen, mem_len = (20, 9, 50), torch.tensor([1000, 5, 0]), mixer.mem_len
    x, rows = torch.randn(sum(lengths), HIDDEN_SIZE), torch.randn(3, mem_len, HIDDEN_SIZE)
    pasts = [rows[row, mem_len - min(count, mem_len) :] for row, count in enumerate(num_seen.tolist())]
    expected = [dense_reference(mixer, part, past) for part, past in zip(x.split(lengths), pasts, strict=True)]
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows, num_seen)), torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows[:, -3:], num_seen.clamp(max=3))),
                 torch.cat([dense_reference(mixer, part, past[-3:])
                            for part, past in zip(x.split(lengths), pasts, strict=True)]),
                 atol=1e-5, rtol=1e-4)  # fmt: skip


def build_span_model(**overrides):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=HIDDEN_SIZE,
        mixer=AdaptiveSpan(num_attention_heads=NUM_HEADS, **({"max_span": 64, "span_ramp": 8, "causal": True} | overrides)),
        feedforward=FeedForwardConfig(intermediate_size=24),
        position_embedding_type="none",
        type_vocab_size=0,
        hidden_dropout_prob=0.0,
        max_position_embeddings=4096,
        initializer_range=0.3,
        pooler_act="none",
    )
    return build_model(ModelConfig(encoder=encoder, vocab_size=50), 0).eval()


@torch.no_grad()
def test_adaptive_span_trimmed_memory_matches_full_forward():
    model = build_span_model(init_span=0.3)
    ids = torch.randint(0, 50, (120,), generator=torch.Generator().manual_seed(0))
    expected = model(Inputs(ids, Layout.from_lengths([120])))
    memory, outs = SegmentMemory.empty(1, ids.device), []
    for part in ids.split([30, 7, 50, 1, 32]):
        layout = Layout.from_lengths([len(part)])
        outs.append(model(Inputs(part, layout, state=memory)))
        memory = memory.advance(layout)
    assert_close(torch.cat(outs), expected, atol=1e-5, rtol=1e-4)
    assert [rows.shape[1] for rows in memory.layers] == [
        32,
        32,
    ]  # 0.3 * 64 + 8, rounded up to a multiple of the ramp; not the maximum, 64


def test_span_penalty_is_mean_span_per_layer_with_equal_grad_for_all_heads():
    model = build_span_model(init_span=0.25, span_loss=1e-3)
    model.aux_loss().backward()
    assert model.aux_loss().item() == pytest.approx(2 * 1e-3 * 0.25 * 64)
    for block in model.encoder.stack.layers:
        assert_close(block.mixer.span.grad, torch.full((NUM_HEADS,), 1e-3 * 64 / NUM_HEADS))


def test_span_grad_matches_finite_differences():
    mixer = build_mixer([0.21, 0.31, 0.41, 0.51]).double()
    x, layout = (
        torch.randn(60, HIDDEN_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
        Layout.from_lengths([60]),
    )

    def compute_loss(span):
        mixer.span.data = span
        mixer.trim()
        return mixer(x, layout).square().sum()

    start, step = mixer.span.data.clone(), 1e-4
    (grad,) = torch.autograd.grad(compute_loss(start), mixer.span)
    for head in range(NUM_HEADS):
        delta = torch.zeros(NUM_HEADS, dtype=torch.float64)
        delta[head] = step
        with torch.no_grad():
            assert float((compute_loss(start + delta) - compute_loss(start - delta)) / (2 * step)) == pytest.approx(
                float(grad[head]), rel=1e-4
            )


def test_span_outside_range_is_clamped_and_still_gets_grad():
    mixer = build_mixer([-0.5, 2.0, 0.1, 0.2], causal=True).train()
    mixer.trim()
    x = torch.randn(50, HIDDEN_SIZE)
    mixer(x, Layout.from_lengths([50])).square().sum().backward()
    assert mixer.span.tolist()[:2] == [0.0, 1.0]
    assert mixer.span.grad[0] != 0


def measure_cpu_seconds(mixer, x, layout):
    start = time.process_time()
    mixer(x, layout)
    return time.process_time() - start


@torch.no_grad()
def test_adaptive_span_compute_time_grows_with_span():
    x, layout, seconds = torch.randn(4096, HIDDEN_SIZE), Layout.from_lengths([4096]), {}
    for span in (0.0, 1.0):
        mixer = build_mixer([span] * NUM_HEADS, max_span=2048, span_ramp=32, causal=True)
        seconds[span] = min(measure_cpu_seconds(mixer, x, layout) for _ in range(4))
    assert seconds[1.0] > 4 * seconds[0.0]


def test_adaptive_span_model_follows_changed_spans():
    """Spans may change between passes, by the optimizer or by loading weights; the band grows with them."""
    model, ids = build_span_model(), torch.arange(40)
    short_out = model(Inputs(ids, Layout.from_lengths([40])))
    model.load_state_dict(
        {name: torch.ones_like(weight) if "span" in name else weight for name, weight in model.state_dict().items()}
    )
    long_out = model(Inputs(ids, Layout.from_lengths([40])))
    assert not torch.allclose(short_out, long_out)
    assert [mixer.trimmed_span for mixer in model.encoder.stack.mixers] == [64, 64]
    assert_close(long_out, build_span_model(init_span=1.0)(Inputs(ids, Layout.from_lengths([40]))))


def test_needed_span_grows_and_others_shrink_in_training():
    """The target is 24 tokens back, where a new head has a mask of a quarter; without a target, spans shrink to zero."""
    generator, max_spans, losses = torch.Generator().manual_seed(0), {}, {}
    for needs_context in (True, False):
        mixer = build_mixer([0.1] * NUM_HEADS, max_span=64, span_ramp=32, causal=True, span_loss=2e-3).train()
        head = torch.nn.Linear(HIDDEN_SIZE, 1)
        optimizer = torch.optim.Adam([*mixer.parameters(), *head.parameters()], 1e-2)
        for step in range(150):
            x = torch.randn(192, HIDDEN_SIZE, generator=generator)
            mixer.trim()
            prediction = head(mixer(x, Layout.from_lengths([192])))[24:, 0]
            loss = (prediction - (x[:-24, 0] if needs_context else 0)).square().mean() + mixer.aux_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spans = sorted(mixer.current_spans.tolist()) if step > 50 else [0.0] * NUM_HEADS
            max_spans[needs_context] = max(max_spans.get(needs_context, spans), spans, key=lambda row: row[-1])
        losses[needs_context] = loss.item()
    assert losses[True] < 0.2
    assert max_spans[True][-1] > 12 and max_spans[True][0] < 1 and max_spans[False][-1] < 1


def test_adaptive_span_refuses_torch_compile():
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        build_span_model().compile_parts()
