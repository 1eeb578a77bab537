"""Transformer-XL against a slow loop over the paper's equation, its memory, and what it may not see."""

import math
import time

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import LayerMemory, SegmentMemory
from bertsmith.model.sublayers import FeedForwardConfig

WIDTH, HEADS = 16, 2


def xl(**more):
    given = {"layers": 2, "norm": "after"} | {key: more.pop(key) for key in ("layers", "norm", "groups") if key in more}
    return EncoderConfig(
        width=WIDTH, mixer=TransformerXL(heads=HEADS, **({"remembers": 6} | more)), table=False, segments=0,
        feedforward=FeedForwardConfig(inner=24, activation="relu"), embedding_norm=False, dropout=0.0, positions=4096,
        pooler="none", deviation=0.3, **given,
    )  # fmt: skip


def model_of(**more):
    model = build_model(ModelConfig(encoder=xl(**more), vocabulary=50), 0).eval()
    for block in model.encoder.stack.blocks:
        for weight in (block.mixer.content, block.mixer.distant):
            if weight is not None:
                torch.nn.init.normal_(weight, std=0.5)
    return model


def texts(lengths, seed=3):
    return torch.randint(0, 50, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def by_the_equation(mixer, x, past, same=None):
    """(length, width) of one sequence, after rows that stood before it: every pair by itself, as the paper writes it."""
    config, each = mixer.config, WIDTH // HEADS
    query, key, value = mixer.project.qkv.weight.split(WIDTH)
    seen, back, out = torch.cat([past, x]), len(past), torch.zeros(len(x), WIDTH)
    u, v = (mixer.owner[0] if mixer.owner else mixer).content, (mixer.owner[0] if mixer.owner else mixer).distant
    for head in range(HEADS):
        part = slice(head * each, (head + 1) * each)
        for i in range(len(x)):
            q, scores, values = (query @ x[i])[part], [], []
            for j in range(len(seen)):
                apart = i + back - j
                if (config.causal and apart < 0) or (same is not None and apart >= same):
                    continue
                far = apart if config.clamp is None else max(-config.clamp, min(config.clamp, apart))
                speeds = [10000 ** (-2 * n / WIDTH) for n in range(WIDTH // 2)]
                wave = torch.tensor([math.sin(far * s) for s in speeds] + [math.cos(far * s) for s in speeds])
                k, r = (key @ seen[j])[part], (mixer.distance.weight @ wave)[part]
                scores.append((q @ k + q @ r + u[head, 0] @ k + v[head, 0] @ r) / math.sqrt(each))
                values.append((value @ seen[j])[part])
            out[i, part] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return mixer.project.out(out)


CASES = [{}, {"causal": False}, {"clamp": 4}, {"clamp": 3, "causal": False}, {"same_length": True}, {"shared": True}]


@pytest.mark.parametrize("config", CASES, ids=str)
@torch.no_grad()
def test_a_mixer_agrees_with_the_papers_equation(config):
    mixer = model_of(**config).encoder.stack.blocks[1].mixer
    torch.manual_seed(1)
    lengths, seen = (7, 3, 5), torch.tensor([6, 2, 0])
    x, rows = torch.randn(sum(lengths), WIDTH), torch.randn(3, 6, WIDTH)
    same = mixer.remembers if mixer.config.same_length else None
    pasts = [rows[row, 6 - n :] for row, n in enumerate(seen.tolist())]
    slow = [by_the_equation(mixer, part, past, same) for part, past in zip(x.split(lengths), pasts, strict=True)]
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows, seen)), torch.cat(slow), atol=1e-5, rtol=1e-4)
    alone = [by_the_equation(mixer, part, rows[0, :0], same) for part in x.split(lengths)]
    assert_close(mixer(x, Layout.from_lengths(lengths)), torch.cat(alone), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["after", "before"])
@torch.no_grad()
def test_a_stack_remembers_what_each_layer_read(norm):
    """Segments of a text, one after another, as if it were one pass in which layer n sees 6 positions of layer n - 1 back."""
    model = model_of(norm=norm, same_length=True, remembers=6)
    ids = texts([40])
    whole = model(Inputs(ids, Layout.from_lengths([40])))  # same_length: every token sees exactly the 6 last, itself among them
    memory, found = SegmentMemory.empty(1, ids.device), []
    for part in ids.split([6, 6, 9, 1, 1, 10, 7]):
        layout = Layout.from_lengths([len(part)])
        found.append(model(Inputs(part, layout, memory=memory)))
        memory = memory.advance(layout)
    assert_close(torch.cat(found), whole, atol=1e-5, rtol=1e-4)
    assert memory.num_seen.tolist() == [40] and [rows.shape for rows in memory.layers] == [(1, 6, WIDTH)] * 2


@torch.no_grad()
def test_ragged_rows_remember_each_its_own():
    model = model_of(remembers=5)
    rows = [texts([n], seed) for seed, n in enumerate((9, 4, 12))]
    cuts = [(2, 7), (1, 3), (8, 4)]
    alone = []
    for row, cut in zip(rows, cuts, strict=True):
        memory = SegmentMemory.empty(1, row.device)
        for part in row.split(cut):
            alone.append(model(Inputs(part, Layout.from_lengths([len(part)]), memory=memory)))
            memory = memory.advance(Layout.from_lengths([len(part)]))
    memory, found = SegmentMemory.empty(3, rows[0].device), []
    for turn in range(2):
        parts = [row.split(cut)[turn] for row, cut in zip(rows, cuts, strict=True)]
        layout = Layout.from_lengths([len(part) for part in parts])
        found.append(model(Inputs(torch.cat(parts), layout, memory=memory)).split(layout.lengths.tolist()))
        memory = memory.advance(layout)
    assert_close(
        torch.cat([part for both in zip(*found, strict=True) for part in both]), torch.cat(alone), atol=1e-5, rtol=1e-4
    )


def test_no_gradient_goes_back_into_the_memory():
    model = model_of().train()
    table = model.encoder.tokens.weight
    first, second = torch.arange(8), torch.arange(20, 28)
    layout, memory = Layout.from_lengths([8]), SegmentMemory.empty(1, table.device)
    model(Inputs(first, layout, memory=memory))
    model(Inputs(second, layout, memory=memory.advance(layout))).square().sum().backward()
    assert table.grad[20:28].any() and not table.grad[:8].any()


@torch.no_grad()
def test_a_longer_memory_at_evaluation_sees_further_and_wants_no_other_weights():
    short, long = model_of(remembers=4), model_of(remembers=4, recalls=30)
    long.load_state_dict(short.state_dict())
    ids = texts([40])

    def read(model, ids):
        memory = SegmentMemory.empty(1, ids.device)
        for part in ids.split(5):
            out = model(Inputs(part, Layout.from_lengths([5]), memory=memory))
            memory = memory.advance(Layout.from_lengths([5]))
        return out, memory

    changed = ids.clone()
    changed[12] = (changed[12] + 1) % 50
    assert_close(read(short, ids)[0], read(short, changed)[0])  # 2 layers of 4 back do not reach so far
    assert not torch.allclose(read(long, ids)[0], read(long, changed)[0])
    assert [rows.shape[1] for rows in read(long, ids)[1].layers] == [30, 30]
    long.train()
    assert [rows.shape[1] for rows in read(long, ids)[1].layers] == [4, 4]
    assert_close(read(long, ids)[0], read(short, ids)[0])


def test_shared_biases_are_of_one_block_and_learn_from_all(tmp_path):
    model = model_of(shared=True, layers=3)
    names = [name for name in model.state_dict() if "content" in name or "distant" in name]
    assert names == ["encoder.stack.blocks.0.mixer.content", "encoder.stack.blocks.0.mixer.distant"]
    u = model.encoder.stack.blocks[0].mixer.content
    assert model.encoder.stack.blocks[2].mixer._content_and_position_bias(u)[0] is u


@pytest.mark.parametrize("causal", [True, False])
def test_a_stack_that_remembers_compiles_and_recomputes(causal):
    torch._dynamo.reset()
    model = model_of(causal=causal)
    layout, ids = Layout.from_lengths([6, 6]), texts([12, 12])

    def steps():
        memory = SegmentMemory.empty(2, ids.device)
        for part in ids.split(12):
            out = model(Inputs(part, layout, memory=memory))
            memory = memory.advance(layout)
        return out

    plain = steps().detach()
    model.train()
    model.encoder.stack.gradient_checkpointing = True
    again = steps()
    assert_close(again.detach(), plain, atol=1e-5, rtol=1e-4)
    again.sum().backward()
    model.eval().encoder.stack.gradient_checkpointing = False
    model.encoder.stack.compile(dynamic=True, backend="aot_eager")
    assert_close(steps().detach(), plain, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_remembering_is_far_faster_than_reading_again():
    """Per token, at an attention length of 1,000 here, to be quick."""
    context, segment = 1000, 100
    model = model_of(remembers=context, layers=2)
    memory, turns = SegmentMemory.empty(1, torch.device("cpu")), []
    for turn in range(15):  # the memory is full after ten
        began = time.process_time()
        model(Inputs(texts([segment], turn), Layout.from_lengths([segment]), memory=memory))
        turns.append((time.process_time() - began) / segment)
        memory = memory.advance(Layout.from_lengths([segment]))
    began = time.process_time()
    model(Inputs(texts([context]), Layout.from_lengths([context])))  # for one more token
    assert time.process_time() - began > 25 * min(turns[10:])  # 100 and more at 3,800; a loaded machine is no stopwatch
