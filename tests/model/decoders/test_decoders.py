"""Decoders: step-by-step decoding equals the parallel forward pass; initialization from the encoder; generation."""

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
from bertsmith.model.decoders.transformer import CrossAttention
from bertsmith.model.generation.config import Beam, Greedy
from bertsmith.model.generation.incremental import build_seq2seq_decoder
from bertsmith.model.generation.search import generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention, LiteTransformer, Longformer, Lstm, Reformer, ReformerChunked
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig
from bertsmith.model.sublayers import FeedForwardConfig

VOCAB_SIZE, START, END = 20, 2, 3
SOURCE_LENGTHS, TARGET_LENGTH = [5, 2, 7], 6
DECODERS = {
    "attention": TransformerDecoderConfig(),
    "one block": TransformerDecoderConfig(
        num_hidden_layers=1,
        num_attention_heads=2,
        feedforward=FeedForwardConfig(intermediate_size=20, hidden_act="relu"),
        norm="pre",
    ),
    "shared": TransformerDecoderConfig(shared=True),
    **{
        f"{cell} {score}": RNNDecoderConfig(cell=cell, score=score, num_hidden_layers=1 + (cell == "lstm"))
        for cell, score in product(("gru", "lstm"), ("additive", "dot", "general", "cosine", "none"))
    },
    "rnn cosine": RNNDecoderConfig(cell="rnn", score="cosine"),
}


def build_small_model(decoder=None, **settings):
    defaults = {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "mixer": Attention(num_attention_heads=4),
        "feedforward": FeedForwardConfig(intermediate_size=24),
        "max_position_embeddings": 24,
    }
    encoder = EncoderConfig(**{**defaults, "initializer_range": 0.3, "layer_norm_eps": 1e-5, **settings})
    heads = {"lm": LMHeadConfig(transform=False, bias=False, tied=False)}  # a tied head would repeat its input
    return build_model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads=heads, decoder=decoder), 0).eval()


def random_texts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCAB_SIZE, length) for length in lengths]


def pack(texts, prefix=None):
    return Inputs(torch.from_numpy(np.concatenate(texts)), Layout.from_lengths([len(text) for text in texts], prefix))


def decode_steps(decoder, model, targets, state):
    outputs = []
    for input_ids in torch.from_numpy(np.stack(targets, 1)):
        state, output = decoder.decode_step(state, input_ids, model.encoder)
        outputs.append(output)
    return state, torch.stack(outputs, 1)


ENCODERS = [
    {},
    {"norm": "pre"},
    {"mixer": Attention(num_attention_heads=4, rope_theta=100.0), "position_embedding_type": "none"},
    {"position_embedding_type": "sinusoidal", "scale_embeddings": True},
    {"mixer": Lstm(), "norm": "none", "feedforward": None, "embedding_size": 8},
    {"num_hidden_groups": 1, "norm_bias": False},
    {"mixer": LiteTransformer(num_attention_heads=2, kernel_sizes=(3, 5))},
    {"mixer": LiteTransformer(num_attention_heads=2, kernel_sizes=(4,), dynamic=True), "norm": "pre"},
    {
        "mixer": Attention(num_attention_heads=4, position_bias=T5BiasConfig(num_buckets=8, max_distance=10)),
        "position_embedding_type": "none",
    },
    {"mixer": Attention(num_attention_heads=4, position_bias=AlibiConfig()), "position_embedding_type": "none"},
]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("settings", ENCODERS)
def test_decoder_steps_match_parallel_forward(kind, settings):
    if kind == "shared" and isinstance(settings.get("mixer"), Lstm | LiteTransformer):
        with pytest.raises(UserError, match="needs an encoder with mixer=attention"):
            build_small_model(DECODERS[kind], **settings)
        return
    model = build_small_model(DECODERS[kind], **settings)
    source, targets = pack(random_texts(*SOURCE_LENGTHS)), random_texts(*[TARGET_LENGTH] * 3, seed=1)
    with torch.no_grad():
        encoded = model(source)
        state = model.decoder.init_state(encoded, source.layout, model.encoder, TARGET_LENGTH)
        _, stepwise = decode_steps(model.decoder, model, targets, state)
        parallel = model.decoder(pack(targets), encoded, source.layout, model.encoder)
    torch.testing.assert_close(stepwise.flatten(0, 1), parallel, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoder_reorder_state_drops_repeats_and_swaps_rows(kind):
    model = build_small_model(DECODERS[kind])
    source, targets, rows = (
        pack(random_texts(*SOURCE_LENGTHS)),
        random_texts(*[TARGET_LENGTH] * 3, seed=1),
        torch.tensor([2, 0, 2, 2]),
    )
    beginnings, rests = [target[:3] for target in targets], [target[3:] for target in targets]
    with torch.no_grad():
        initial_state = model.decoder.init_state(model(source), source.layout, model.encoder, TARGET_LENGTH)
        state, _ = decode_steps(model.decoder, model, beginnings, initial_state)
        _, expected = decode_steps(model.decoder, model, rests, state)
        reordered = model.decoder.reorder_state(state, rows)
        _, actual = decode_steps(model.decoder, model, [rests[row] for row in rows], reordered)
        reordered_initial = model.decoder.reorder_state(initial_state, rows)
        _, from_start = decode_steps(model.decoder, model, [targets[row] for row in rows], reordered_initial)
    torch.testing.assert_close(actual, expected[rows], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(from_start[:, 3:], expected[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoder_targets_are_independent_and_causal(kind):
    model = build_small_model(DECODERS[kind])
    sources, targets = random_texts(*SOURCE_LENGTHS), random_texts(4, 6, 3, seed=1)
    with torch.no_grad():
        source = pack(sources)
        together = pack(targets).layout.pad(model.decoder(pack(targets), model(source), source.layout, model.encoder))
        for i, (source_text, target) in enumerate(zip(sources, targets, strict=True)):
            single_source = pack([source_text])
            single = model.decoder(pack([target[:2]]), model(single_source), single_source.layout, model.encoder)
            torch.testing.assert_close(single, together[i, :2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", ["additive", "dot", "general", "cosine"])
def test_rnn_decoder_attention_scores_match_formulas(score):
    torch.manual_seed(0)
    attention, layout, states, queries = (
        SourceAttention(score, 6),
        Layout.from_lengths([3, 5]),
        torch.randn(8, 6),
        torch.randn(2, 4, 6),
    )
    context = attention(queries, attention.prepare_source(states, layout))
    for text, (start, end) in enumerate(((0, 3), (3, 8))):
        for step in range(4):
            q, weights = queries[text, step], []
            for h in states[start:end]:
                if score == "additive":
                    weights.append(
                        attention.value.weight[0] @ torch.tanh(attention.query.weight @ q + attention.key.weight @ h)
                    )
                elif score == "cosine":
                    weights.append(attention.sharpness * (q @ h) / (q.square().sum() * h.square().sum()).sqrt())
                else:
                    weights.append((q if score == "dot" else attention.query.weight @ q) @ h)
            probs = torch.stack(weights).softmax(0)
            torch.testing.assert_close(context[text, step], probs @ states[start:end], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_cross_attention_weights_times_values_are_its_output():
    torch.manual_seed(0)
    attention = CrossAttention(EncoderConfig(hidden_size=32, mixer=Attention(num_attention_heads=4))).eval()
    layout, source = Layout.from_lengths((4, 9, 1)), Layout.from_lengths((7, 3, 12))
    x, hidden = torch.randn(14, 32), torch.randn(22, 32)
    values = source.pad(attention._project_kv(hidden)[1]).transpose(1, 2)
    out = attention.attention_weights(x, layout, hidden, source) @ values
    expected = attention(x, layout, hidden, source)
    torch.testing.assert_close(attention.output(layout.unpad(out.transpose(1, 2)).flatten(1)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", ["additive", "dot", "general", "cosine"])
@torch.no_grad()
def test_rnn_alignments_times_source_states_are_the_context(score):
    torch.manual_seed(0)
    attention, layout = SourceAttention(score, 6), Layout.from_lengths([3, 5])
    source, queries = attention.prepare_source(torch.randn(8, 6), layout), torch.randn(2, 4, 6)
    weights = attention.attention_weights(queries, source)
    assert weights.shape == (2, 1, 4, 5) and not weights[0, ..., 3:].any()
    torch.testing.assert_close(weights[:, 0] @ source.hidden_states, attention(queries, source))


def test_rnn_decoder_without_attention_uses_the_mean():
    attention, layout = SourceAttention("none", 4), Layout.from_lengths([3])
    states = torch.randn(3, 4)
    context = attention(torch.randn(1, 5, 4), attention.prepare_source(states, layout))
    torch.testing.assert_close(context, states.mean(0).expand(1, 5, 4))


def test_decoder_init_from_encoder_copies_all_but_cross_attention():
    model = build_small_model(TransformerDecoderConfig(), norm="pre")
    model.decoder.init_from_encoder(model.encoder)
    encoder_weights = model.encoder.stack.state_dict()
    for name, weight in model.decoder.state_dict().items():
        if not name.startswith("cross_attentions."):
            assert torch.equal(weight, encoder_weights[name]), name
    assert any(name.startswith("cross_attentions.") for name in model.decoder.state_dict())


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (TransformerDecoderConfig(num_hidden_layers=3), "decoder.num_hidden_layers=3"),
        (TransformerDecoderConfig(norm="pre"), "cannot be initialized from them"),
        (TransformerDecoderConfig(feedforward=FeedForwardConfig(intermediate_size=8)), "cannot be initialized from them"),
    ],
)
def test_decoder_init_from_encoder_rejects_other_blocks(decoder, message):
    model = build_small_model(decoder)
    with pytest.raises(UserError, match=message):
        model.decoder.init_from_encoder(model.encoder)


LONGFORMER_ROPE = Longformer(num_attention_heads=4, attention_window=(6,), rope_theta=100.0, bias=False)


@pytest.mark.parametrize(
    ("mixer", "new"),
    [
        (LONGFORMER_ROPE, None),
        (Reformer(num_attention_heads=4), "self-attention"),
        (LiteTransformer(num_attention_heads=2), "self-attention"),
        (AdaptiveSpan(num_attention_heads=4, max_span=16), "self-attention"),
        (ReformerChunked(num_attention_heads=3, attention_head_size=4), "self-attention"),
    ],
    ids=str,
)
def test_decoder_init_from_encoder_with_other_mixer_copies_matching_parts(mixer, new):
    model = build_small_model(TransformerDecoderConfig(), mixer=mixer, position_embedding_type="none")
    before, encoder_weights = model.decoder.state_dict(), model.encoder.stack.state_dict()
    before = {name: weight.clone() for name, weight in before.items()}
    description = model.decoder.init_from_encoder(model.encoder)
    assert description == new or (new and description.startswith(new))
    for name, weight in model.decoder.state_dict().items():
        is_copied = not name.startswith("cross_attentions.") and (new is None or ".mixer." not in name)
        assert torch.equal(weight, encoder_weights[name] if is_copied else before[name]), name


def test_decoder_has_position_information_with_any_encoder_mixer():
    assert build_small_model(
        TransformerDecoderConfig(), mixer=LONGFORMER_ROPE, position_embedding_type="none"
    ).decoder.block_config.mixer == Attention(num_attention_heads=4, rope_theta=100.0, bias=False, causal=True)
    for mixer in (Reformer(num_attention_heads=4), AdaptiveSpan(num_attention_heads=4), Lstm()):
        assert (
            build_small_model(TransformerDecoderConfig(), mixer=mixer).decoder.block_config.mixer.rope_theta is None
        )  # position embeddings suffice
        model = build_small_model(TransformerDecoderConfig(), mixer=mixer, position_embedding_type="none")
        source, target = random_texts(4), random_texts(5, seed=1)[0]
        with torch.no_grad():  # reordering all but the last word changes the last row
            last_rows = [model.decode(pack(source), pack([order]))[-1] for order in (target, target[[3, 2, 1, 0, 4]])]
        assert not torch.allclose(*last_rows, atol=1e-4)


def test_decoder_shared_blocks_are_stored_once_and_match_copies():
    shared, separate = build_small_model(TransformerDecoderConfig(shared=True)), build_small_model(TransformerDecoderConfig())
    assert not any(name.startswith("decoder.layers") for name in shared.state_dict())
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in separate.parameters())
    separate.decoder.init_from_encoder(separate.encoder)
    separate.load_state_dict(
        shared.state_dict() | {n: weight for n, weight in separate.state_dict().items() if n.startswith("decoder.layers")}
    )
    separate.decoder.init_from_encoder(separate.encoder)
    source, answer = pack(random_texts(4)), pack(random_texts(3, seed=1))
    with torch.no_grad():
        shared_out, separate_out = (model.decode(source, answer) for model in (shared, separate))
    torch.testing.assert_close(shared_out, separate_out)
    with pytest.raises(UserError, match="leave out the decoder's other settings"):
        build_small_model(TransformerDecoderConfig(shared=True, num_hidden_layers=1))


def greedy_without_cache(model, source, search_tokens):
    """Greedy decoding that runs the whole model again for every token."""
    generated = []
    while len(generated) < search_tokens:
        if model.decoder is None:
            inputs = pack([np.concatenate([source, np.array(generated, np.int64)])], [len(source)])
            token_type_ids = torch.from_numpy((np.arange(len(inputs.input_ids)) >= len(source)).astype(np.int64))
            hidden_states = model(replace(inputs, token_type_ids=token_type_ids))
        else:
            hidden_states = model.decode(pack([source]), pack([np.array([START, *generated])]))
        token = int(model.compute_logits("lm", hidden_states)[-1].argmax())
        generated.append(token)
    return generated


@pytest.mark.parametrize("kind", [*DECODERS, "one stack"])
def test_seq2seq_kv_cache_generation_matches_uncached(kind):
    model = (
        build_small_model(DECODERS[kind])
        if kind != "one stack"
        else build_small_model(mixer=Attention(num_attention_heads=4, causal=True))
    )
    sources = random_texts(*SOURCE_LENGTHS, 1, 6, seed=3)
    with torch.no_grad():
        greedy = generate(build_seq2seq_decoder(model, 10, START), sources, Greedy(max_new_tokens=10))
        assert [x.tokens for x in greedy] == [greedy_without_cache(model, x, 10) for x in sources]
        beams = generate(build_seq2seq_decoder(model, 10, START), sources, Beam(max_new_tokens=10, num_beams=3), END)
        separately = [
            generate(build_seq2seq_decoder(model, 10, START), [x], Beam(max_new_tokens=10, num_beams=3), END)[0]
            for x in sources
        ]
    assert [x.tokens for x in beams] == [x.tokens for x in separately]
    assert len({tuple(x.tokens) for x in greedy}) > 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", [name for name in DECODERS if name.startswith(("gru", "lstm"))])
def test_rnn_decoder_cell_runs_in_float32_under_autocast(device, kind):
    model = build_small_model(DECODERS[kind], hidden_dropout_prob=0.0).to(device)
    source, target = (
        pack(random_texts(*SOURCE_LENGTHS)).to(device),
        pack(random_texts(*[TARGET_LENGTH] * len(SOURCE_LENGTHS), seed=1)).to(device),
    )
    encoded = model.encoder(source).bfloat16()
    exact = model.decoder(target, encoded.float(), source.layout, model.encoder)
    model.train()
    with torch.autocast(device, torch.bfloat16):
        output = model.decoder(target, encoded, source.layout, model.encoder)
    torch.testing.assert_close(output.float(), exact, atol=0.03, rtol=0.1)
    output.float().sum().backward()
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in model.decoder.cell.parameters())
