"""Transformer-XL against a loop over the paper's equation, and its segment memory."""

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

HIDDEN_SIZE, NUM_HEADS = 16, 2


def encoder_config(**options):
    encoder_options = {"num_hidden_layers": 2, "norm": "post"} | {
        key: options.pop(key) for key in ("num_hidden_layers", "norm", "num_hidden_groups") if key in options
    }
    return EncoderConfig(
        hidden_size=HIDDEN_SIZE,
        mixer=TransformerXL(num_attention_heads=NUM_HEADS, **({"mem_len": 6} | options)),
        position_embedding_type="none",
        type_vocab_size=0,
        feedforward=FeedForwardConfig(intermediate_size=24, hidden_act="relu"),
        embedding_norm=False,
        hidden_dropout_prob=0.0,
        max_position_embeddings=4096,
        pooler_act="none",
        initializer_range=0.3,
        **encoder_options,
    )


def build_xl_model(**options):
    model = build_model(ModelConfig(encoder=encoder_config(**options), vocab_size=50), 0).eval()
    for block in model.encoder.stack.layers:
        for weight in (block.mixer.content_bias, block.mixer.position_bias):
            if weight is not None:
                torch.nn.init.normal_(weight, std=0.5)
    return model


def random_tokens(lengths, seed=3):
    return torch.randint(0, 50, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def equation_reference(mixer, x, past, max_distance=None):
    """(length, hidden_size) of one sequence with `past` rows before it: pair by pair, as in the paper."""
    config, head_dim = mixer.config, HIDDEN_SIZE // NUM_HEADS
    query, key, value = mixer.projections.qkv.weight.split(HIDDEN_SIZE)
    keys_in, past_len, out = torch.cat([past, x]), len(past), torch.zeros(len(x), HIDDEN_SIZE)
    u, v = (
        (mixer.tied_to[0] if mixer.tied_to else mixer).content_bias,
        (mixer.tied_to[0] if mixer.tied_to else mixer).position_bias,
    )
    for head in range(NUM_HEADS):
        part = slice(head * head_dim, (head + 1) * head_dim)
        for i in range(len(x)):
            q, scores, values = (query @ x[i])[part], [], []
            for j in range(len(keys_in)):
                distance = i + past_len - j
                if (config.causal and distance < 0) or (max_distance is not None and distance >= max_distance):
                    continue
                clamped = distance if config.clamp_len is None else max(-config.clamp_len, min(config.clamp_len, distance))
                frequencies = [10000 ** (-2 * n / HIDDEN_SIZE) for n in range(HIDDEN_SIZE // 2)]
                sinusoid = torch.tensor(
                    [math.sin(clamped * s) for s in frequencies] + [math.cos(clamped * s) for s in frequencies]
                )
                k, r = (key @ keys_in[j])[part], (mixer.relative_key.weight @ sinusoid)[part]
                scores.append((q @ k + q @ r + u[head, 0] @ k + v[head, 0] @ r) / math.sqrt(head_dim))
                values.append((value @ keys_in[j])[part])
            out[i, part] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return mixer.projections.output(out)


CASES = [
    {},
    {"causal": False},
    {"clamp_len": 4},
    {"clamp_len": 3, "causal": False},
    {"same_length": True},
    {"tie_biases": True},
]


@pytest.mark.parametrize("config", CASES, ids=str)
@torch.no_grad()
def test_transformer_xl_matches_paper_equation(config):
    mixer = build_xl_model(**config).encoder.stack.layers[1].mixer
    torch.manual_seed(1)
    lengths, num_seen = (7, 3, 5), torch.tensor([6, 2, 0])
    x, rows = torch.randn(sum(lengths), HIDDEN_SIZE), torch.randn(3, 6, HIDDEN_SIZE)
    max_distance = mixer.mem_len if mixer.config.same_length else None
    pasts = [rows[row, 6 - count :] for row, count in enumerate(num_seen.tolist())]
    expected = [equation_reference(mixer, part, past, max_distance) for part, past in zip(x.split(lengths), pasts, strict=True)]
    assert_close(mixer(x, Layout.from_lengths(lengths), LayerMemory(rows, num_seen)), torch.cat(expected), atol=1e-5, rtol=1e-4)
    without_memory = [equation_reference(mixer, part, rows[0, :0], max_distance) for part in x.split(lengths)]
    assert_close(mixer(x, Layout.from_lengths(lengths)), torch.cat(without_memory), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_transformer_xl_segments_match_one_pass(norm):
    """Segment by segment equals one pass in which layer n sees 6 positions back in layer n - 1."""
    model = build_xl_model(norm=norm, same_length=True, mem_len=6)
    ids = random_tokens([40])
    expected = model(Inputs(ids, Layout.from_lengths([40])))  # same_length: every token sees the last 6, itself included
    memory, outs = SegmentMemory.empty(1, ids.device), []
    for part in ids.split([6, 6, 9, 1, 1, 10, 7]):
        layout = Layout.from_lengths([len(part)])
        outs.append(model(Inputs(part, layout, state=memory)))
        memory = memory.advance(layout)
    assert_close(torch.cat(outs), expected, atol=1e-5, rtol=1e-4)
    assert memory.num_seen.tolist() == [40] and [rows.shape for rows in memory.layers] == [(1, 6, HIDDEN_SIZE)] * 2


@torch.no_grad()
def test_transformer_xl_memory_of_rows_with_different_lengths():
    model = build_xl_model(mem_len=5)
    rows = [random_tokens([n], seed) for seed, n in enumerate((9, 4, 12))]
    segment_lengths = [(2, 7), (1, 3), (8, 4)]
    expected = []
    for row, split in zip(rows, segment_lengths, strict=True):
        memory = SegmentMemory.empty(1, row.device)
        for part in row.split(split):
            expected.append(model(Inputs(part, Layout.from_lengths([len(part)]), state=memory)))
            memory = memory.advance(Layout.from_lengths([len(part)]))
    memory, outs = SegmentMemory.empty(3, rows[0].device), []
    for segment in range(2):
        parts = [row.split(split)[segment] for row, split in zip(rows, segment_lengths, strict=True)]
        layout = Layout.from_lengths([len(part) for part in parts])
        outs.append(model(Inputs(torch.cat(parts), layout, state=memory)).split(layout.lengths.tolist()))
        memory = memory.advance(layout)
    assert_close(
        torch.cat([part for row_outs in zip(*outs, strict=True) for part in row_outs]),
        torch.cat(expected),
        atol=1e-5,
        rtol=1e-4,
    )


def test_transformer_xl_memory_gets_no_grad():
    model = build_xl_model().train()
    embedding = model.encoder.word_embeddings.weight
    first, second = torch.arange(8), torch.arange(20, 28)
    layout, memory = Layout.from_lengths([8]), SegmentMemory.empty(1, embedding.device)
    model(Inputs(first, layout, state=memory))
    model(Inputs(second, layout, state=memory.advance(layout))).square().sum().backward()
    assert embedding.grad[20:28].any() and not embedding.grad[:8].any()


@torch.no_grad()
def test_transformer_xl_longer_eval_mem_len_with_same_weights():
    short, long = build_xl_model(mem_len=4), build_xl_model(mem_len=4, eval_mem_len=30)
    long.load_state_dict(short.state_dict())
    ids = random_tokens([40])

    def run_segments(model, ids):
        memory = SegmentMemory.empty(1, ids.device)
        for part in ids.split(5):
            out = model(Inputs(part, Layout.from_lengths([5]), state=memory))
            memory = memory.advance(Layout.from_lengths([5]))
        return out, memory

    changed = ids.clone()
    changed[12] = (changed[12] + 1) % 50
    assert_close(run_segments(short, ids)[0], run_segments(short, changed)[0])  # 2 layers of 4 positions do not reach that far
    assert not torch.allclose(run_segments(long, ids)[0], run_segments(long, changed)[0])
    assert [rows.shape[1] for rows in run_segments(long, ids)[1].layers] == [30, 30]
    long.train()
    assert [rows.shape[1] for rows in run_segments(long, ids)[1].layers] == [4, 4]
    assert_close(run_segments(long, ids)[0], run_segments(short, ids)[0])


def test_transformer_xl_shared_biases_belong_to_first_block(tmp_path):
    model = build_xl_model(tie_biases=True, num_hidden_layers=3)
    names = [name for name in model.state_dict() if "content_bias" in name or "position_bias" in name]
    assert names == ["encoder.stack.layers.0.mixer.content_bias", "encoder.stack.layers.0.mixer.position_bias"]
    u = model.encoder.stack.layers[0].mixer.content_bias
    assert model.encoder.stack.layers[2].mixer.content_and_position_bias(u)[0] is u


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_transformer_xl_compile_and_gradient_checkpointing_with_memory(causal):
    torch._dynamo.reset()
    model = build_xl_model(causal=causal)
    layout, ids = Layout.from_lengths([6, 6]), random_tokens([12, 12])

    def run_segments():
        memory = SegmentMemory.empty(2, ids.device)
        for part in ids.split(12):
            out = model(Inputs(part, layout, state=memory))
            memory = memory.advance(layout)
        return out

    expected = run_segments().detach()
    model.train()
    model.encoder.stack.gradient_checkpointing = True
    checkpointed = run_segments()
    assert_close(checkpointed.detach(), expected, atol=1e-5, rtol=1e-4)
    checkpointed.sum().backward()
    model.eval().encoder.stack.gradient_checkpointing = False
    model.encoder.stack.compile(dynamic=True, backend="aot_eager")
    assert_close(run_segments().detach(), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_transformer_xl_memory_is_faster_than_recomputing():
    """Seconds per token, at an attention length of 1,000 to be quick."""
    context, segment = 1000, 100
    model = build_xl_model(mem_len=context, num_hidden_layers=2)
    memory, seconds_per_token = SegmentMemory.empty(1, torch.device("cpu")), []
    for i in range(15):  # the memory is full after ten
        start = time.process_time()
        model(Inputs(random_tokens([segment], i), Layout.from_lengths([segment]), state=memory))
        seconds_per_token.append((time.process_time() - start) / segment)
        memory = memory.advance(Layout.from_lengths([segment]))
    start = time.process_time()
    model(Inputs(random_tokens([context]), Layout.from_lengths([context])))  # without memory, for one more token
    assert time.process_time() - start > 25 * min(
        seconds_per_token[10:]
    )  # over 100 at 3,800; the margin allows for a loaded machine
