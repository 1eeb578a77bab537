"""Generation: each strategy against exhaustive search, independence of the batch, KV cache against full forward passes."""

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from bertsmith.model import linear
from bertsmith.model.checkpoint import save_weights
from bertsmith.model.config import EncoderConfig
from bertsmith.model.generation.config import Beam, Greedy, Sample
from bertsmith.model.generation.incremental import KVCacheDecoder, UncachedDecoder
from bertsmith.model.generation.sampling import ban_ngrams, sample_tokens
from bertsmith.model.generation.search import beam_search, generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig

VOCAB_SIZE = 30


def build_small_model(norm="pre", rope_theta=None, vocab_size=VOCAB_SIZE, num_hidden_groups=None):
    encoder = EncoderConfig(
        num_hidden_layers=3,
        num_hidden_groups=num_hidden_groups,
        hidden_size=32,
        mixer=Attention(num_attention_heads=4, causal=True, rope_theta=rope_theta),
        norm=norm,
        position_embedding_type="absolute" if rope_theta is None else "none",
        feedforward=FeedForwardConfig(intermediate_size=64),
        type_vocab_size=0,
        embedding_norm=False,
        max_position_embeddings=64,
        initializer_range=0.3,
        layer_norm_eps=1e-5,
    )
    heads = {"lm": LMHeadConfig(transform=False, bias=False)}
    return build_model(ModelConfig(encoder=encoder, vocab_size=vocab_size, heads=heads), 1).eval()


def random_prompts(lengths=(5, 1, 9, 9, 2), vocab_size=VOCAB_SIZE):
    rng = np.random.default_rng(0)
    return [rng.integers(5 if vocab_size > 5 else 0, vocab_size, length) for length in lengths]


class TableDecoder:
    """An incremental decoder whose logits depend on the last two tokens: small enough to enumerate every text."""

    def __init__(self, vocab_size=4, seed=0):
        self.table = torch.from_numpy(np.random.default_rng(seed).normal(size=(vocab_size, vocab_size, vocab_size)) * 2).float()

    def prefill(self, prompts):
        state = torch.tensor([[0, int(model[-1])] for model in prompts])
        return state, self.table[state[:, 0], state[:, 1]]

    def decode_step(self, state, input_ids):
        state = torch.stack([state[:, 1], input_ids], 1)
        return state, self.table[state[:, 0], state[:, 1]]

    def reorder_state(self, state, row_indices):
        return state.index_select(0, row_indices)

    def log_prob(self, prompt, tokens):
        state, logits = self.prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(logits.log_softmax(-1)[0, token])
            state, logits = self.decode_step(state, torch.tensor([token]))
        return total


def every_text(vocab_size, max_tokens, eos):
    """All continuations of a prompt of up to `max_tokens` tokens, ended by `eos` (counted as one of them) or cut off."""
    others = [word for word in range(vocab_size) if word != eos]
    for length in range(max_tokens):
        yield from ((*body, eos) for body in itertools.product(others, repeat=length))
    yield from itertools.product(others, repeat=max_tokens)


MODELS = {"post": {"norm": "post"}, "pre": {}, "rope": {"rope_theta": 100.0}, "shared": {"num_hidden_groups": 1}}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_kv_cache_matches_full_forward(settings):
    model = build_small_model(**settings)
    cached, uncached = KVCacheDecoder(model, 20), UncachedDecoder(model)
    (state, logits), (uncached_state, expected) = cached.prefill(random_prompts()), uncached.prefill(random_prompts())
    for step in range(20):
        assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        if step == 7:  # drop, repeat and reorder rows
            rows = torch.tensor([4, 0, 0, 2])
            state, uncached_state, expected = (
                cached.reorder_state(state, rows),
                uncached.reorder_state(uncached_state, rows),
                expected[rows],
            )
        tokens = expected.argmax(-1)
        (state, logits), (uncached_state, expected) = (
            cached.decode_step(state, tokens),
            uncached.decode_step(uncached_state, tokens),
        )


@pytest.mark.parametrize(
    "search",
    [
        Greedy(max_new_tokens=25),
        Sample(max_new_tokens=25, seed=5),
        Sample(max_new_tokens=25, top_p=0.8, temperature=0.7),
        Beam(max_new_tokens=12, num_beams=3),
    ],
    ids=["greedy", "sample", "top-p", "beam"],
)
@torch.inference_mode()
def test_generation_is_independent_of_batch_and_cache(search):
    model = build_small_model()
    eos = generate(KVCacheDecoder(model, search.max_new_tokens), random_prompts(), search)[2].tokens[
        search.max_new_tokens // 2
    ]  # a token that is generated
    batched = generate(KVCacheDecoder(model, search.max_new_tokens), random_prompts(), search, eos)
    assert {len(result.tokens) for result in batched} != {search.max_new_tokens}  # some finish before others
    for prompt, result in zip(random_prompts(), batched, strict=True):
        separately = generate(KVCacheDecoder(model, search.max_new_tokens), [prompt], search, eos)[0]
        uncached = generate(UncachedDecoder(model), [prompt], search, eos)[0]
        assert separately.tokens == uncached.tokens == result.tokens and eos not in separately.tokens
        assert separately.log_prob == pytest.approx(uncached.log_prob, abs=1e-4) == pytest.approx(result.log_prob, abs=1e-4)
    reversed_batch = generate(KVCacheDecoder(model, search.max_new_tokens), random_prompts()[::-1], search, eos)[::-1]
    assert [result.tokens for result in reversed_batch] == [result.tokens for result in batched]


@torch.inference_mode()
def test_generation_log_prob_is_that_of_the_tokens():
    model, search = build_small_model(), Sample(max_new_tokens=10, seed=2)
    eos = generate(KVCacheDecoder(model, 10), random_prompts(), search)[0].tokens[4]
    for prompt, result in zip(
        random_prompts(), generate(KVCacheDecoder(model, 10), random_prompts(), search, eos), strict=True
    ):
        tokens = [*result.tokens, *([eos] if result.is_finished else [])]
        state, logits = UncachedDecoder(model).prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(logits.log_softmax(-1)[0, token])
            state, logits = UncachedDecoder(model).decode_step(state, torch.tensor([token]))
        assert result.log_prob == pytest.approx(total, abs=1e-4)
        assert result.is_finished or len(tokens) == 10


@pytest.mark.parametrize(
    "search",
    [
        Greedy(max_new_tokens=6, no_repeat_ngram_size=1),
        Sample(max_new_tokens=6, no_repeat_ngram_size=1),
        Beam(max_new_tokens=6, no_repeat_ngram_size=1, num_beams=3),
    ],
    ids=["greedy", "sample", "beam"],
)
def test_generation_log_prob_ignores_the_ngram_ban(search):
    result = generate(TableDecoder(9), [[1]], search, eos_token_id=None)[0]
    assert result.log_prob == pytest.approx(TableDecoder(9).log_prob([1], result.tokens), abs=1e-4)


def test_generation_respects_max_lengths():
    results = generate(TableDecoder(), [[1], [2], [0]], Greedy(max_new_tokens=6), eos_token_id=None, max_lengths=[0, 2, 100])
    assert [len(model.tokens) for model in results] == [0, 2, 6] and not any(model.is_finished for model in results)
    results = generate(TableDecoder(), [[1], [2], [0]], Beam(max_new_tokens=6), eos_token_id=None, max_lengths=[0, 2, 100])
    assert [len(model.tokens) for model in results] == [0, 2, 6]
    assert generate(TableDecoder(), [], Greedy()) == []


@pytest.mark.parametrize(
    ("penalty_type", "exponent"), [("gnmt", 0.6), ("gnmt", 2.0), ("power", 0.0), ("power", 1.0), ("power", -1.0)]
)
@pytest.mark.parametrize("seed", range(4))
def test_beam_search_finds_the_best_of_all_texts(penalty_type, exponent, seed):
    table, max_tokens, eos = TableDecoder(seed=seed), 5, 2
    config = Beam(num_beams=100, length_penalty=exponent, length_penalty_type=penalty_type, max_new_tokens=max_tokens)
    penalty = {"gnmt": lambda length: ((5 + length) / 6) ** exponent, "power": lambda length: length**exponent}[penalty_type]
    for prompt in ([1], [3]):
        scores = {text: table.log_prob(prompt, text) / penalty(len(text)) for text in every_text(4, max_tokens, eos)}
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        hypotheses = beam_search(table, [prompt], config, eos, [max_tokens])[0]
        assert [tuple([*model.tokens, *[eos] * model.is_finished]) for model in hypotheses[:10]] == ranked[:10]
        assert [model.score for model in hypotheses[:10]] == pytest.approx([scores[text] for text in ranked[:10]], abs=1e-4)


def test_beam_search_of_size_one_is_greedy():
    for seed in range(6):
        greedy = generate(TableDecoder(8, seed), [[1], [5]], Greedy(max_new_tokens=7), eos_token_id=None)
        beam = generate(TableDecoder(8, seed), [[1], [5]], Beam(num_beams=1, max_new_tokens=7), eos_token_id=None)
        assert [model.tokens for model in greedy] == [model.tokens for model in beam]


def test_beam_search_prefers_longer_texts_with_higher_alpha():
    lengths = [
        len(
            generate(TableDecoder(6, 1), [[1]], Beam(num_beams=30, max_new_tokens=8, length_penalty=alpha), eos_token_id=4)[
                0
            ].tokens
        )
        for alpha in (0.0, 5.0)
    ]
    assert lengths[0] < lengths[1]


def sample_frequencies(count=40_000, **search):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -5.0]]).expand(count, -1)
    uniforms = torch.from_numpy((np.arange(count) + 0.5) / count)
    return logits[0], torch.bincount(sample_tokens(logits, uniforms, **search), minlength=5) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_sampling_frequencies_match_softmax(temperature):
    logits, frequencies = sample_frequencies(temperature=temperature, top_k=None, top_p=1.0)
    assert_close(frequencies, (logits / temperature).softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("filters", [{"top_k": None, "top_p": 1.0}, {"top_k": 3, "top_p": 0.9}])
def test_sampling_at_tiny_temperature_is_greedy(filters):
    _, frequencies = sample_frequencies(temperature=1e-40, **filters)
    assert frequencies[0] == 1


def test_sampling_top_k_and_top_p():
    probs = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0]).softmax(-1)
    _, frequencies = sample_frequencies(temperature=1.0, top_k=2, top_p=1.0)
    assert_close(frequencies, torch.cat([probs[:2] / probs[:2].sum(), torch.zeros(3)]), atol=1e-4, rtol=0)
    for top_p, num_kept in ((0.01, 1), (float(probs[0]) - 1e-3, 1), (float(probs[0]) + 1e-3, 2), (0.95, 3), (1.0, 5)):
        _, frequencies = sample_frequencies(temperature=1.0, top_k=None, top_p=top_p)
        assert_close(
            frequencies, torch.cat([probs[:num_kept] / probs[:num_kept].sum(), torch.zeros(5 - num_kept)]), atol=1e-4, rtol=0
        )
    _, frequencies = sample_frequencies(temperature=1.0, top_k=2, top_p=0.7)  # after top_k the first has 0.73
    assert frequencies[0] == 1


def test_sampling_top_p_is_exact_for_large_vocabularies():
    logits = torch.zeros(1, 5000)
    logits[0, 77] = 3.0
    uniforms = torch.linspace(0, 0.999, 1000).double()
    counts = torch.bincount(sample_tokens(logits.expand(1000, -1), uniforms, 1.0, None, 0.9), minlength=5000)
    probs = logits[0].softmax(-1)
    max_kept = math.ceil((0.9 - float(probs[77])) / float(probs[0])) + 1
    assert counts[77] > 1 and (counts > 0).sum() <= max_kept and max_kept > 4000


def test_generation_repeats_no_ngram():
    model = generate(TableDecoder(3), [[1]], Greedy(max_new_tokens=12), eos_token_id=None)[0].tokens
    assert len(set(itertools.pairwise(model))) < 11  # without the ban it loops
    for search in (
        Greedy(max_new_tokens=30, no_repeat_ngram_size=2),
        Sample(max_new_tokens=30, no_repeat_ngram_size=2, seed=1),
        Beam(max_new_tokens=30, no_repeat_ngram_size=2, num_beams=2),
    ):
        tokens = generate(TableDecoder(9), [[1]], search, eos_token_id=None)[0].tokens
        assert len(set(itertools.pairwise(tokens))) == len(tokens) - 1 == 29
    assert ban_ngrams(torch.zeros(1, 4), [[1, 2, 1]], 1)[0].isinf().tolist() == [False, True, True, False]
    assert ban_ngrams(torch.zeros(1, 2), [[0, 1]], 1)[0].isinf().tolist() == [False, False]  # nothing is banned if all would be


@torch.inference_mode()
def test_sampling_depends_on_seed_prompt_and_copy_only():
    model, (first, second, *_), search = build_small_model(), random_prompts(), Sample(max_new_tokens=20)
    alone = generate(KVCacheDecoder(model, 20), [first], search, None)[0]
    copies = generate(KVCacheDecoder(model, 20), [first, second, first, first], search, None)
    assert copies[0].tokens == alone.tokens and len({tuple(copies[i].tokens) for i in (0, 2, 3)}) == 3
    alone_of_batch = generate(KVCacheDecoder(model, 20), [first], search, None, copy_numbers=[2])[0]
    assert alone_of_batch.tokens == copies[3].tokens
    assert generate(KVCacheDecoder(model, 20), [first], Sample(max_new_tokens=20, seed=1), None)[0].tokens != alone.tokens


@torch.inference_mode()
def test_generation_with_small_linear_is_unchanged_and_saves_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(linear, "MIN_WEIGHT_NUMEL", 1)
    model = build_small_model()
    before = generate(KVCacheDecoder(model, 12), random_prompts(), Greedy(max_new_tokens=12))
    weights, shapes = {name: weight.clone() for name, weight in model.state_dict().items()}, []
    assert linear.use_small_linear(model) is model
    small_linear = linear.small_linear
    monkeypatch.setattr(linear, "small_linear", lambda *args: shapes.append(args[0].shape) or small_linear(*args))
    after = generate(KVCacheDecoder(model, 12), random_prompts(), Greedy(max_new_tokens=12))
    assert [result.tokens for result in after] == [result.tokens for result in before] and shapes
    save_weights(tmp_path, model.state_dict())
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())
