"""Decoders: what is written step by step is what is learnt at once, and no answer knows of another."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.decoders import RNNDecoderConfig, TransformerDecoderConfig
from bertsmith.model.decoders.rnn import SourceAttention
from bertsmith.model.generation.search import Beam, Greedy, generate
from bertsmith.model.generation.seq2seq import build_incremental_decoder, decoder_hidden_states
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention, LiteTransformer, Longformer, Lstm, Reformer, ReformerChunked
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig
from bertsmith.model.sublayers import FeedForwardConfig

WORDS, START, END = 20, 2, 3
SOURCES, ANSWER = [5, 2, 7], 6
KINDS = {
    "attention": TransformerDecoderConfig(),
    "one block": TransformerDecoderConfig(layers=1, heads=2, feedforward=FeedForwardConfig(inner=20, activation="relu"), norm="before"),
    "shared": TransformerDecoderConfig(shared=True),
    **{f"{cell} {score}": RNNDecoderConfig(cell=cell, score=score, layers=1 + (cell == "lstm"))
       for cell, score in product(("gru", "lstm"), ("additive", "dot", "general", "none"))},
}  # fmt: skip


def model(decoder=None, **settings):
    given = {"layers": 2, "width": 16, "mixer": Attention(heads=4), "feedforward": FeedForwardConfig(inner=24), "positions": 24}
    encoder = EncoderConfig(**{**given, "deviation": 0.3, "eps": 1e-5, **settings})
    heads = {"words": LMHeadConfig(transform=False, bias=False, tied=False)}  # a tied table would repeat what it reads
    return build_model(ModelConfig(encoder=encoder, vocabulary=WORDS, heads=heads, decoder=decoder), 0).eval()


def texts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, WORDS, length) for length in lengths]


def packed(parts, prefix=None):
    return Inputs(torch.from_numpy(np.concatenate(parts)), Layout.from_lengths([len(one) for one in parts], prefix))


def stepped(decoder, made, answers, state):
    rows = []
    for column in torch.from_numpy(np.stack(answers, 1)):
        state, found = decoder.step(state, column, made.encoder)
        rows.append(found)
    return state, torch.stack(rows, 1)


ENCODERS = [
    {}, {"norm": "before"}, {"mixer": Attention(heads=4, rotary=100.0), "table": False}, {"table": "sinusoid", "scaled": True},
    {"mixer": Lstm(), "norm": "none", "feedforward": None, "embedding": 8}, {"groups": 1, "norm_bias": False},
    {"mixer": LiteTransformer(heads=2, kernels=(3, 5))}, {"mixer": LiteTransformer(heads=2, kernels=(4,), dynamic=True), "norm": "before"},
    {"mixer": Attention(heads=4, distance=T5BiasConfig(buckets=8, furthest=10)), "table": False},
    {"mixer": Attention(heads=4, distance=AlibiConfig()), "table": False},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", ENCODERS)
def test_what_is_written_step_by_step_is_what_is_read_at_once(kind, settings):
    if kind == "shared" and isinstance(settings.get("mixer"), Lstm | LiteTransformer):
        with pytest.raises(UserError, match="this encoder has others"):
            model(KINDS[kind], **settings)
        return
    made = model(KINDS[kind], **settings)
    source, answers = packed(texts(*SOURCES)), texts(*[ANSWER] * 3, seed=1)
    with torch.no_grad():
        seen = made(source)
        state = made.decoder.init_state(seen, source.layout, made.encoder)
        _, rows = stepped(made.decoder, made, answers, state)
        whole = made.decoder(packed(answers), seen, source.layout, made.encoder)
    torch.testing.assert_close(rows.flatten(0, 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_state_can_be_dropped_doubled_and_swapped(kind):
    made = model(KINDS[kind])
    source, answers, rows = packed(texts(*SOURCES)), texts(*[ANSWER] * 3, seed=1), torch.tensor([2, 0, 2, 2])
    begun, more = [one[:3] for one in answers], [one[3:] for one in answers]
    with torch.no_grad():
        first = made.decoder.init_state(made(source), source.layout, made.encoder)
        state, _ = stepped(made.decoder, made, begun, first)
        _, plain = stepped(made.decoder, made, more, state)
        moved = made.decoder.reorder_state(state, rows)
        _, found = stepped(made.decoder, made, [more[row] for row in rows], moved)
        early = made.decoder.reorder_state(first, rows)
        _, anew = stepped(made.decoder, made, [answers[row] for row in rows], early)
    torch.testing.assert_close(found, plain[rows], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(anew[:, 3:], plain[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_knows_of_another_or_of_what_follows(kind):
    made = model(KINDS[kind])
    sources, answers = texts(*SOURCES), texts(4, 6, 3, seed=1)
    with torch.no_grad():
        source = packed(sources)
        together = packed(answers).layout.pad(made.decoder(packed(answers), made(source), source.layout, made.encoder))
        for number, (one, said) in enumerate(zip(sources, answers, strict=True)):
            alone = packed([one])
            found = made.decoder(packed([said[:2]]), made(alone), alone.layout, made.encoder)
            torch.testing.assert_close(found, together[number, :2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", ["additive", "dot", "general"])
def test_scores_are_those_of_the_papers(score):
    torch.manual_seed(0)
    look, layout, states, asked = (
        SourceAttention(score, 6),
        Layout.from_lengths([3, 5]),
        torch.randn(8, 6),
        torch.randn(2, 4, 6),
    )
    found = look(asked, look.prepare_source(states, layout))
    for text, (start, end) in enumerate(((0, 3), (3, 8))):
        for step in range(4):
            q, weights = asked[text, step], []
            for h in states[start:end]:
                if score == "additive":
                    weights.append(look.value.weight[0] @ torch.tanh(look.query.weight @ q + look.key.weight @ h))
                else:
                    weights.append((q if score == "dot" else look.query.weight @ q) @ h)
            share = torch.stack(weights).softmax(0)
            torch.testing.assert_close(found[text, step], share @ states[start:end], atol=1e-5, rtol=1e-5)


def test_without_attention_the_source_is_one_vector():
    look, layout = SourceAttention("none", 4), Layout.from_lengths([3])
    states = torch.randn(3, 4)
    found = look(torch.randn(1, 5, 4), look.prepare_source(states, layout))
    torch.testing.assert_close(found, states.mean(0).expand(1, 5, 4))


def test_a_decoder_begins_as_its_encoder_but_for_attention_to_the_source():
    made = model(TransformerDecoderConfig(), norm="before")
    made.decoder.init_from_encoder(made.encoder)
    theirs = made.encoder.stack.state_dict()
    for name, weight in made.decoder.state_dict().items():
        if not name.startswith("crossings."):
            assert torch.equal(weight, theirs[name]), name
    assert any(name.startswith("crossings.") for name in made.decoder.state_dict())


@pytest.mark.parametrize(
    ("decoder", "words"),
    [(TransformerDecoderConfig(layers=3), "decoder.layers=3"), (TransformerDecoderConfig(norm="before"), "begin as those"),
     (TransformerDecoderConfig(feedforward=FeedForwardConfig(inner=8)), "begin as those")],
)  # fmt: skip
def test_a_decoder_of_another_kind_cannot_begin_as_its_encoder(decoder, words):
    made = model(decoder)
    with pytest.raises(UserError, match=words):
        made.decoder.init_from_encoder(made.encoder)


TURNED = Longformer(heads=4, reach=(3,), rotary=100.0, bias=False)


@pytest.mark.parametrize(("mixer", "new"), [
    (TURNED, None), (Reformer(heads=4), "what its tokens see of each other"), (LiteTransformer(heads=2), "what its tokens see"),
    (AdaptiveSpan(heads=4, longest=16), "what its tokens see"), (ReformerChunked(heads=3, size=4), "what its tokens see"),
], ids=str)  # fmt: skip
def test_a_decoder_beside_another_mixer_begins_as_far_as_both_are_alike(mixer, new):
    made = model(TransformerDecoderConfig(), mixer=mixer, table=False)
    before, theirs = made.decoder.state_dict(), made.encoder.stack.state_dict()
    before = {name: weight.clone() for name, weight in before.items()}
    told = made.decoder.init_from_encoder(made.encoder)
    assert told == new or (new and told.startswith(new))
    for name, weight in made.decoder.state_dict().items():
        same = not name.startswith("crossings.") and (new is None or ".mixer." not in name)
        assert torch.equal(weight, theirs[name] if same else before[name]), name


def test_a_decoder_tells_places_apart_whatever_its_encoder_does():
    assert model(TransformerDecoderConfig(), mixer=TURNED, table=False).decoder.own.mixer == Attention(
        heads=4, rotary=100.0, bias=False, causal=True
    )
    for mixer in (Reformer(heads=4), AdaptiveSpan(heads=4), Lstm()):
        assert model(TransformerDecoderConfig(), mixer=mixer).decoder.own.mixer.rotary is None  # the table tells
        made = model(TransformerDecoderConfig(), mixer=mixer, table=False)
        source, words = texts(4), texts(5, seed=1)[0]
        with torch.no_grad():  # of all words but the last in another order, the last row is another
            rows = [
                decoder_hidden_states(made, packed(source), packed([given]))[-1] for given in (words, words[[3, 2, 1, 0, 4]])
            ]
        assert not torch.allclose(*rows, atol=1e-4)


def test_shared_blocks_are_one_tensor_each_and_are_taken_as_they_are():
    made, apart = model(TransformerDecoderConfig(shared=True)), model(TransformerDecoderConfig())
    assert not any(name.startswith("decoder.blocks") for name in made.state_dict())
    assert sum(p.numel() for p in made.parameters()) < sum(p.numel() for p in apart.parameters())
    apart.decoder.init_from_encoder(apart.encoder)
    apart.load_state_dict(made.state_dict() | {n: w for n, w in apart.state_dict().items() if n.startswith("decoder.blocks")})
    apart.decoder.init_from_encoder(apart.encoder)
    source, answer = packed(texts(4)), packed(texts(3, seed=1))
    with torch.no_grad():
        left, right = (decoder_hidden_states(one, source, answer) for one in (made, apart))
    torch.testing.assert_close(left, right)
    with pytest.raises(UserError, match="leave out the decoder's own settings"):
        model(TransformerDecoderConfig(shared=True, layers=1))


def reread(made, source, search_tokens):
    """Greedy, every text read from its beginning for every token: the slow way."""
    said = []
    while len(said) < search_tokens:
        if made.decoder is None:
            inputs = packed([np.concatenate([source, np.array(said, np.int64)])], [len(source)])
            kinds = torch.from_numpy((np.arange(len(inputs.input_ids)) >= len(source)).astype(np.int64))
            rows = made(replace(inputs, token_type_ids=kinds))
        else:
            rows = decoder_hidden_states(made, packed([source]), packed([np.array([START, *said])]))
        token = int(made.scores("words", rows)[-1].argmax())
        said.append(token)
    return said


@pytest.mark.parametrize("kind", [*KINDS, "one stack"])
def test_cached_writing_is_the_same_as_reading_again(kind):
    made = model(KINDS[kind]) if kind != "one stack" else model(mixer=Attention(heads=4, causal=True))
    sources = texts(*SOURCES, 1, 6, seed=3)
    with torch.no_grad():
        found = generate(build_incremental_decoder(made, START, 10), sources, Greedy(tokens=10))
        assert [one.tokens for one in found] == [reread(made, one, 10) for one in sources]
        beams = generate(build_incremental_decoder(made, START, 10), sources, Beam(tokens=10, size=3), END)
        alone = [
            generate(build_incremental_decoder(made, START, 10), [one], Beam(tokens=10, size=3), END)[0] for one in sources
        ]
    assert [one.tokens for one in beams] == [one.tokens for one in alone]
    assert len({tuple(one.tokens) for one in found}) > 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", [name for name in KINDS if name.startswith(("gru", "lstm"))])
def test_cells_keep_all_digits_where_others_take_half(device, kind):
    made = model(KINDS[kind], dropout=0.0).to(device)
    source, answer = packed(texts(*SOURCES)).to(device), packed(texts(*[ANSWER] * len(SOURCES), seed=1)).to(device)
    seen = made.encoder(source).bfloat16()
    exact = made.decoder(answer, seen.float(), source.layout, made.encoder)
    made.train()
    with torch.autocast(device, torch.bfloat16):
        said = made.decoder(answer, seen, source.layout, made.encoder)
    torch.testing.assert_close(said.float(), exact, atol=0.03, rtol=0.1)
    said.float().sum().backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in made.decoder.cell.parameters())
