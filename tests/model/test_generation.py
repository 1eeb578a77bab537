"""Writing on: every search against an oracle, every prompt as if it were alone, cached as without a cache."""

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from bertsmith.model import small_matmul
from bertsmith.model.checkpoint import save_weights
from bertsmith.model.config import EncoderConfig
from bertsmith.model.generation.kv_cache import KVCacheDecoder, UncachedDecoder
from bertsmith.model.generation.sampling import ban_ngrams, sample_tokens
from bertsmith.model.generation.search import Beam, Greedy, Sample, beam_search, generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig

WORDS = 30


def model(norm="before", rotary=None, words=WORDS, groups=None):
    encoder = EncoderConfig(
        layers=3, groups=groups, width=32, mixer=Attention(heads=4, causal=True, rotary=rotary), norm=norm, table=rotary is None,
        feedforward=FeedForwardConfig(inner=64), segments=0, embedding_norm=False, positions=64, deviation=0.3, eps=1e-5,
    )  # fmt: skip
    heads = {"words": LMHeadConfig(transform=False, bias=False)}
    return build_model(ModelConfig(encoder=encoder, vocabulary=words, heads=heads), 1).eval()


def prompts(lengths=(5, 1, 9, 9, 2), words=WORDS):
    rng = np.random.default_rng(0)
    return [rng.integers(5 if words > 5 else 0, words, length) for length in lengths]


class Table:
    """A stepper whose next scores depend on the last two tokens: small enough to try every text."""

    def __init__(self, words=4, seed=0):
        self.table = torch.from_numpy(np.random.default_rng(seed).normal(size=(words, words, words)) * 2).float()

    def prefill(self, prompts):
        state = torch.tensor([[0, int(one[-1])] for one in prompts])
        return state, self.table[state[:, 0], state[:, 1]]

    def decode_step(self, state, tokens):
        state = torch.stack([state[:, 1], tokens], 1)
        return state, self.table[state[:, 0], state[:, 1]]

    def reorder_state(self, state, rows):
        return state.index_select(0, rows)

    def log(self, prompt, tokens):
        state, scores = self.prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(scores.log_softmax(-1)[0, token])
            state, scores = self.decode_step(state, torch.tensor([token]))
        return total


def every_text(words, most, end):
    """All that may follow a prompt: up to `most` tokens, ended by `end`, which counts as one of them, or cut off."""
    others = [word for word in range(words) if word != end]
    for length in range(most):
        yield from ((*body, end) for body in itertools.product(others, repeat=length))
    yield from itertools.product(others, repeat=most)


WAYS = {"after": {"norm": "after"}, "before": {}, "rotary": {"rotary": 100.0}, "shared": {"groups": 1}}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@torch.inference_mode()
def test_scores_with_the_cache_are_those_without(way):
    one = model(**way)
    cached, plain = KVCacheDecoder(one, 20), UncachedDecoder(one)
    (state, scores), (other, wanted) = cached.prefill(prompts()), plain.prefill(prompts())
    for nth in range(20):
        assert_close(scores, wanted, atol=1e-5, rtol=1e-5)
        if nth == 7:  # some rows go, some come twice, in another order
            rows = torch.tensor([4, 0, 0, 2])
            state, other, wanted = cached.reorder_state(state, rows), plain.reorder_state(other, rows), wanted[rows]
        tokens = wanted.argmax(-1)
        (state, scores), (other, wanted) = cached.decode_step(state, tokens), plain.decode_step(other, tokens)


@pytest.mark.parametrize(
    "search",
    [Greedy(tokens=25), Sample(tokens=25, seed=5), Sample(tokens=25, top_p=0.8, temperature=0.7), Beam(tokens=12, size=3)],
    ids=["greedy", "sample", "top-p", "beam"],
)
@torch.inference_mode()
def test_a_prompt_is_continued_alike_alone_in_any_batch_and_without_the_cache(search):
    one = model()
    end = generate(KVCacheDecoder(one, search.tokens), prompts(), search)[2].tokens[search.tokens // 2]  # a token that comes
    together = generate(KVCacheDecoder(one, search.tokens), prompts(), search, end)
    assert {len(each.tokens) for each in together} != {search.tokens}  # some end before others
    for prompt, each in zip(prompts(), together, strict=True):
        alone = generate(KVCacheDecoder(one, search.tokens), [prompt], search, end)[0]
        slow = generate(UncachedDecoder(one), [prompt], search, end)[0]
        assert alone.tokens == slow.tokens == each.tokens and end not in alone.tokens
        assert alone.log_prob == pytest.approx(slow.log_prob, abs=1e-4) == pytest.approx(each.log_prob, abs=1e-4)
    back = generate(KVCacheDecoder(one, search.tokens), prompts()[::-1], search, end)[::-1]
    assert [each.tokens for each in back] == [each.tokens for each in together]


@torch.inference_mode()
def test_the_log_is_the_probability_of_what_was_written():
    one, search = model(), Sample(tokens=10, seed=2)
    end = generate(KVCacheDecoder(one, 10), prompts(), search)[0].tokens[4]
    for prompt, each in zip(prompts(), generate(KVCacheDecoder(one, 10), prompts(), search, end), strict=True):
        tokens = [*each.tokens, *([end] if each.is_finished else [])]
        state, scores = UncachedDecoder(one).prefill([prompt])
        total = 0.0
        for token in tokens:
            total += float(scores.log_softmax(-1)[0, token])
            state, scores = UncachedDecoder(one).decode_step(state, torch.tensor([token]))
        assert each.log_prob == pytest.approx(total, abs=1e-4)
        assert each.is_finished or len(tokens) == 10


@pytest.mark.parametrize("search", [Greedy(tokens=6, repeat=1), Sample(tokens=6, repeat=1), Beam(tokens=6, repeat=1, size=3)],
                         ids=["greedy", "sample", "beam"])  # fmt: skip
def test_the_log_is_the_model_s_own_where_repeats_are_left_out(search):
    found = generate(Table(9), [[1]], search, eos_token_id=None)[0]
    assert found.log_prob == pytest.approx(Table(9).log([1], found.tokens), abs=1e-4)


def test_no_text_is_longer_than_its_room():
    found = generate(Table(), [[1], [2], [0]], Greedy(tokens=6), eos_token_id=None, max_lengths=[0, 2, 100])
    assert [len(one.tokens) for one in found] == [0, 2, 6] and not any(one.is_finished for one in found)
    found = generate(Table(), [[1], [2], [0]], Beam(tokens=6), eos_token_id=None, max_lengths=[0, 2, 100])
    assert [len(one.tokens) for one in found] == [0, 2, 6]
    assert generate(Table(), [], Greedy()) == []


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_texts(alpha, seed):
    table, most, end = Table(seed=seed), 5, 2
    for prompt in ([1], [3]):
        scored = {text: table.log(prompt, text) / ((5 + len(text)) / 6) ** alpha for text in every_text(4, most, end)}
        best = sorted(scored, key=scored.__getitem__, reverse=True)
        found = beam_search(table, [prompt], Beam(size=100, alpha=alpha, tokens=most), end, [most])[0]
        assert [tuple([*one.tokens, *[end] * one.is_finished]) for one in found[:10]] == best[:10]
        assert [one.score for one in found[:10]] == pytest.approx([scored[text] for text in best[:10]], abs=1e-4)


def test_a_beam_of_one_is_greedy():
    for seed in range(6):
        greedy = generate(Table(8, seed), [[1], [5]], Greedy(tokens=7), eos_token_id=None)
        beam = generate(Table(8, seed), [[1], [5]], Beam(size=1, tokens=7), eos_token_id=None)
        assert [one.tokens for one in greedy] == [one.tokens for one in beam]


def test_a_longer_text_wins_with_a_higher_alpha():
    lengths = [
        len(generate(Table(6, 1), [[1]], Beam(size=30, tokens=8, alpha=alpha), eos_token_id=4)[0].tokens)
        for alpha in (0.0, 5.0)
    ]
    assert lengths[0] < lengths[1]


def frequencies(count=40_000, **search):
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0, -5.0]]).expand(count, -1)
    dice = torch.from_numpy((np.arange(count) + 0.5) / count)
    return scores[0], torch.bincount(sample_tokens(scores, dice, **search), minlength=5) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_come_as_often_as_they_are_likely(temperature):
    scores, seen = frequencies(temperature=temperature, top_k=None, top_p=1.0)
    assert_close(seen, (scores / temperature).softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("more", [{"top_k": None, "top_p": 1.0}, {"top_k": 3, "top_p": 0.9}])
def test_next_to_no_temperature_is_the_likeliest(more):
    _, seen = frequencies(temperature=1e-40, **more)
    assert seen[0] == 1


def test_top_k_and_top_p_keep_the_likeliest_and_no_others():
    shares = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0]).softmax(-1)
    _, seen = frequencies(temperature=1.0, top_k=2, top_p=1.0)
    assert_close(seen, torch.cat([shares[:2] / shares[:2].sum(), torch.zeros(3)]), atol=1e-4, rtol=0)
    for top_p, kept in ((0.01, 1), (float(shares[0]) - 1e-3, 1), (float(shares[0]) + 1e-3, 2), (0.95, 3), (1.0, 5)):
        _, seen = frequencies(temperature=1.0, top_k=None, top_p=top_p)
        assert_close(seen, torch.cat([shares[:kept] / shares[:kept].sum(), torch.zeros(5 - kept)]), atol=1e-4, rtol=0)
    _, seen = frequencies(temperature=1.0, top_k=2, top_p=0.7)  # of what top_k left, the first has 0.73
    assert seen[0] == 1


def test_top_p_of_a_vocabulary_too_large_to_look_at_first_is_exact():
    scores = torch.zeros(1, 5000)
    scores[0, 77] = 3.0
    dice = torch.linspace(0, 0.999, 1000).double()
    best = torch.bincount(sample_tokens(scores.expand(1000, -1), dice, 1.0, None, 0.9), minlength=5000)
    shares = scores[0].softmax(-1)
    kept = math.ceil((0.9 - float(shares[77])) / float(shares[0])) + 1
    assert best[77] > 1 and (best > 0).sum() <= kept and kept > 4000


def test_no_run_comes_twice():
    one = generate(Table(3), [[1]], Greedy(tokens=12), eos_token_id=None)[0].tokens
    assert len(set(itertools.pairwise(one))) < 11  # left alone, it goes round
    for search in (Greedy(tokens=30, repeat=2), Sample(tokens=30, repeat=2, seed=1), Beam(tokens=30, repeat=2, size=2)):
        tokens = generate(Table(9), [[1]], search, eos_token_id=None)[0].tokens
        assert len(set(itertools.pairwise(tokens))) == len(tokens) - 1 == 29
    assert ban_ngrams(torch.zeros(1, 4), [[1, 2, 1]], 1)[0].isinf().tolist() == [False, True, True, False]
    assert ban_ngrams(torch.zeros(1, 2), [[0, 1]], 1)[0].isinf().tolist() == [False, False]  # where nothing else is left


def test_identical_prompts_are_alike_and_seeds_are_not():
    one = model()
    with torch.inference_mode():
        a, b = generate(KVCacheDecoder(one, 20), [prompts()[0], prompts()[0]], Sample(tokens=20), None)
        c = generate(KVCacheDecoder(one, 20), [prompts()[0]], Sample(tokens=20, seed=1), None)[0]
    assert a.tokens == b.tokens != c.tokens


@torch.inference_mode()
def test_a_model_that_multiplies_in_parts_writes_and_saves_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(small_matmul, "MIN_WEIGHT_NUMEL", 1)
    one = model()
    before = generate(KVCacheDecoder(one, 12), prompts(), Greedy(tokens=12))
    weights, made = {name: weight.clone() for name, weight in one.state_dict().items()}, []
    assert small_matmul.use_small_linear(one) is one
    product = small_matmul.small_linear
    monkeypatch.setattr(small_matmul, "small_linear", lambda *given: made.append(given[0].shape) or product(*given))
    after = generate(KVCacheDecoder(one, 12), prompts(), Greedy(tokens=12))
    assert [each.tokens for each in after] == [each.tokens for each in before] and made
    save_weights(tmp_path, one.state_dict())
    held = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(held[name], weight) for name, weight in weights.items())
