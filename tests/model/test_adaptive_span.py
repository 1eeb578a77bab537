"""Adaptive span against the whole square of scores, its price, and that nothing is computed beyond the span."""

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

WIDTH, HEADS = 16, 4
SPANS = [0.011, 0.112, 0.371, 0.803]  # no whole positions: there a slope has two sides


def mixer_of(spans=SPANS, **more):
    torch.manual_seed(0)
    mixer = AdaptiveSpan(heads=HEADS, **({"longest": 40, "ramp": 8} | more)).build(WIDTH).eval()
    torch.nn.init.normal_(mixer.places.weight)
    mixer.span.data.copy_(torch.tensor(spans))
    mixer.prepare_forward()
    return mixer


def by_the_square(mixer, x, past=None):
    """(length, width) of one sequence: all pairs, the mask times the numerator, renormalised, as the paper writes it."""
    config, past = mixer.config, x[:0] if past is None else past
    seen = torch.cat([past, x])
    q, k, v = mixer.project(seen)
    apart = torch.arange(len(seen))[:, None] - torch.arange(len(seen))
    places = mixer.places((-apart).clamp(-config.longest, 0 if config.causal else config.longest) + config.longest)
    scores = torch.einsum("ihd,jhd->hij", q, k) + torch.einsum("ihd,ijd->hij", q, places)
    visible = apart.abs() <= config.longest
    if config.causal:
        visible &= apart >= 0
    numerator = (scores * (WIDTH // HEADS) ** -0.5).exp() * visible
    numerator = numerator * ((config.ramp + mixer.spans[:, None, None] - apart.abs()) / config.ramp).clamp(0, 1)
    weights = numerator / numerator.sum(-1, keepdim=True)
    return mixer.project.join(torch.einsum("hij,jhd->ihd", weights, v)[len(past) :])


CASES = [{"causal": True}, {}, {"causal": True, "ramp": 32}, {"longest": 300, "ramp": 4}]


@pytest.mark.parametrize("config", CASES, ids=str)
@pytest.mark.parametrize("lengths", [(30, 1, 77), (150,)], ids=str)
def test_a_mixer_agrees_with_the_whole_square(config, lengths):
    mixer = mixer_of(**config)
    torch.manual_seed(1)
    x = torch.randn(sum(lengths), WIDTH)
    found, slow = mixer(x, Layout.from_lengths(lengths)), torch.cat([by_the_square(mixer, part) for part in x.split(lengths)])
    assert_close(found, slow, atol=1e-5, rtol=1e-4)
    slopes = [torch.autograd.grad(out.square().sum(), list(mixer.parameters())) for out in (found, slow)]
    for mine, theirs in zip(*slopes, strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("config", CASES, ids=str)
@torch.no_grad()
def test_what_is_remembered_is_seen_as_if_it_stood_there(config):
    mixer = mixer_of(**config)
    torch.manual_seed(1)
    mixer.prepare_forward()
    lengths, seen, reach = (20, 9, 50), torch.tensor([1000, 5, 0]), mixer.mem_len
    x, rows = torch.randn(sum(lengths), WIDTH), torch.randn(3, reach, WIDTH)
    pasts = [rows[row, reach - min(n, reach) :] for row, n in enumerate(seen.tolist())]
    slow = [by_the_square(mixer, part, past) for part, past in zip(x.split(lengths), pasts, strict=True)]
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows, seen)), torch.cat(slow), atol=1e-5, rtol=1e-4)
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows[:, -3:], seen.clamp(max=3))),
                 torch.cat([by_the_square(mixer, a, b[-3:]) for a, b in zip(x.split(lengths), pasts, strict=True)]),
                 atol=1e-5, rtol=1e-4)  # fmt: skip


def model_of(**more):
    encoder = EncoderConfig(
        layers=2, width=WIDTH, mixer=AdaptiveSpan(heads=HEADS, **({"longest": 64, "ramp": 8, "causal": True} | more)),
        feedforward=FeedForwardConfig(inner=24), table=False, segments=0, dropout=0.0, positions=4096, deviation=0.3, pooler="none",
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocabulary=50), 0).eval()


@torch.no_grad()
def test_a_trimmed_memory_loses_nothing():
    model = model_of(begin=0.3)
    ids = torch.randint(0, 50, (120,), generator=torch.Generator().manual_seed(0))
    whole = model(Inputs(ids, Layout.from_lengths([120])))
    memory, found = SegmentMemory.empty(1, ids.device), []
    for part in ids.split([30, 7, 50, 1, 32]):
        layout = Layout.from_lengths([len(part)])
        found.append(model(Inputs(part, layout, memory=memory)))
        memory = memory.advance(layout)
    assert_close(torch.cat(found), whole, atol=1e-5, rtol=1e-4)
    assert [rows.shape[1] for rows in memory.layers] == [32, 32]  # 0.3 * 64 + 8, in steps of a ramp; never the longest, 64


def test_the_price_is_that_of_the_mean_span_of_each_layer_and_pulls_every_head_alike():
    model = model_of(begin=0.25, price=1e-3)
    model.penalty().backward()
    assert model.penalty().item() == pytest.approx(2 * 1e-3 * 0.25 * 64)
    for block in model.encoder.stack.blocks:
        assert_close(block.mixer.span.grad, torch.full((HEADS,), 1e-3 * 64 / HEADS))


def test_the_slope_of_a_span_is_that_of_a_small_step():
    mixer = mixer_of([0.21, 0.31, 0.41, 0.51]).double()
    x, layout = (
        torch.randn(60, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
        Layout.from_lengths([60]),
    )

    def price(span):
        mixer.span.data = span
        mixer.prepare_forward()
        return mixer(x, layout).square().sum()

    start, step = mixer.span.data.clone(), 1e-4
    (slope,) = torch.autograd.grad(price(start), mixer.span)
    for head in range(HEADS):
        nudge = torch.zeros(HEADS, dtype=torch.float64)
        nudge[head] = step
        with torch.no_grad():
            assert float((price(start + nudge) - price(start - nudge)) / (2 * step)) == pytest.approx(
                float(slope[head]), rel=1e-4
            )


def test_a_span_that_was_pushed_below_zero_comes_back_and_can_grow_again():
    mixer = mixer_of([-0.5, 2.0, 0.1, 0.2], causal=True).train()
    mixer.prepare_forward()
    x = torch.randn(50, WIDTH)
    mixer(x, Layout.from_lengths([50])).square().sum().backward()
    assert mixer.span.tolist()[:2] == [0.0, 1.0]
    assert mixer.span.grad[0] != 0


def processor_seconds(mixer, x, layout):
    began = time.process_time()
    mixer(x, layout)
    return time.process_time() - began


@torch.no_grad()
def test_time_follows_the_span():
    x, layout, took = torch.randn(4096, WIDTH), Layout.from_lengths([4096]), {}
    for share in (0.0, 1.0):
        mixer = mixer_of([share] * HEADS, longest=2048, ramp=32, causal=True)
        took[share] = min(processor_seconds(mixer, x, layout) for _ in range(4))
    assert took[1.0] > 4 * took[0.0]


def test_a_model_follows_spans_that_change():
    """Between passes, by an optimizer or by weights that were loaded: what is computed grows with them."""
    model, ids = model_of(), torch.arange(40)
    near = model(Inputs(ids, Layout.from_lengths([40])))
    model.load_state_dict({name: torch.ones_like(w) if "span" in name else w for name, w in model.state_dict().items()})
    far = model(Inputs(ids, Layout.from_lengths([40])))
    assert not torch.allclose(near, far)
    assert [mixer.reach for mixer in model.encoder.stack.mixers] == [64, 64]
    assert_close(far, model_of(begin=1.0)(Inputs(ids, Layout.from_lengths([40]))))


def test_a_span_grows_to_where_the_answer_is_and_others_shrink():
    """What is asked stands 24 tokens back, where a new head sees a quarter of it; without a question nothing is looked at."""
    dice, widest, losses = torch.Generator().manual_seed(0), {}, {}
    for asks in (True, False):
        mixer = mixer_of([0.1] * HEADS, longest=64, ramp=32, causal=True, price=2e-3).train()
        head = torch.nn.Linear(WIDTH, 1)
        optimizer = torch.optim.Adam([*mixer.parameters(), *head.parameters()], 1e-2)
        for step in range(150):
            x = torch.randn(192, WIDTH, generator=dice)
            mixer.prepare_forward()
            said = head(mixer(x, Layout.from_lengths([192])))[24:, 0]
            loss = (said - (x[:-24, 0] if asks else 0)).square().mean() + mixer.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spans = sorted(mixer.spans.tolist()) if step > 50 else [0.0] * HEADS
            widest[asks] = max(widest.get(asks, spans), spans, key=lambda some: some[-1])
        losses[asks] = loss.item()
    assert losses[True] < 0.2
    assert widest[True][-1] > 12 and widest[True][0] < 1 and widest[False][-1] < 1


def test_a_model_that_learns_how_far_it_looks_is_not_compiled():
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        model_of().compile_parts()
