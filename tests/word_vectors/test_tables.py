"""What vectors of words are learnt with: dice, the Huffman tree, its head, and words made of their n-grams."""

import heapq

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.embeddings.fasttext import CharNgramConfig, FastTextConfig
from bertsmith.model.heads.hierarchical_softmax import HierarchicalSoftmaxHeadConfig
from bertsmith.model.packing import Layout
from bertsmith.rng import random_bits
from bertsmith.tokenization.characters import Lexicon, hash_ngrams
from bertsmith.word_vectors.hierarchical_softmax import build_huffman_paths
from bertsmith.word_vectors.windows import device_random_bits, top_bits


def test_dice_on_tensors_are_those_of_numpy():
    found = device_random_bits(-5, "noise", 3, 10, 1000, torch.device("cpu"))
    want = random_bits(-5, "noise", 3, np.arange(10, 1010))
    assert (found.numpy().view(np.uint64) == want).all()
    assert (top_bits(found, 31).numpy() == (want >> np.uint64(33)).astype(np.int64)).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(lambda counts: sum(n > 0 for n in counts) > 1))
def test_paths_are_as_short_as_a_heap_makes_them_and_none_begins_another(counts):
    paths = build_huffman_paths(counts)
    heap, total = [n for n in counts if n], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    assert int((paths.lengths * np.array(counts)).sum()) == total
    codes = ["".join(map(str, turns[turns >= 0])) for turns, n in zip(paths.codes, counts, strict=True) if n]
    assert sum(2.0 ** -len(code) for code in codes) == 1.0  # Kraft: nothing is left over
    assert not any(a != b and b.startswith(a) for a in codes for b in codes) and len(set(codes)) == len(codes)
    for nodes, turns, n in zip(paths.nodes, paths.codes, counts, strict=True):
        assert (turns >= 0).any() == (n > 0) and (nodes[turns < 0] == len(counts)).all()
        assert (nodes[turns >= 0] < sum(c > 0 for c in counts) - 1).all()


def test_the_scores_of_a_tree_are_chances():
    paths, width = build_huffman_paths([5, 0, 2, 2, 9]), 4
    config = EncoderConfig(layers=0, width=width)
    head = HierarchicalSoftmaxHeadConfig(longest=paths.nodes.shape[1]).build(config, 5)
    head.load_state_dict({
        "table.weight": torch.randn(6, width, generator=torch.Generator().manual_seed(0)),
        "nodes": torch.from_numpy(paths.nodes), "turns": torch.from_numpy(paths.codes),
    })  # fmt: skip
    chances = head(torch.randn(7, width), None).exp()
    assert chances.shape == (7, 5) and (chances[:, 1] == 0).all()
    torch.testing.assert_close(chances.sum(1), torch.ones(7))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=5), st.integers(1, 4), st.integers(0, 4))
def test_n_grams_are_those_that_a_loop_finds(words, least, more):
    found, starts = hash_ngrams(words, least, least + more, 1000)
    assert len(starts) == len(words) + 1
    for i, word in enumerate(words):
        assert sorted(found[starts[i] : starts[i + 1]]) == sorted(by_loop(word, least, least + more, 1000))


def by_loop(word, least, most, buckets):
    spelt, found = f"<{word}>", []
    for i in range(len(spelt)):
        for n in range(least, most + 1):
            if i + n <= len(spelt) and not (n == 1 and (i == 0 or i + n == len(spelt))):
                found.append(fnv(spelt[i : i + n]) % buckets)
    return found


def fnv(text):
    state = 2166136261
    for byte in text.encode():
        state = ((state ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) % 2**32
    return state


def test_a_new_word_is_the_mean_of_its_n_grams_and_a_known_one_its_row():
    config = FastTextConfig(numbers=6, grams=CharNgramConfig(least=2, most=3, buckets=50))
    front, table = config.build(6, 3), torch.nn.Embedding(3, 6)
    lexicon = Lexicon(["[UNK]", "cat", "dog"])
    front.attach_lexicon(lexicon)
    ids = torch.tensor([1, lexicon.get_id("cats"), 2, lexicon.get_id("öl"), lexicon.get_id("cats")])
    vectors = front(ids, Layout.from_lengths([5]), table)
    assert torch.equal(vectors[0], table.weight[1]) and torch.equal(vectors[2], table.weight[2])
    for row, word in ((1, "cats"), (3, "öl"), (4, "cats")):
        torch.testing.assert_close(vectors[row], front.buckets.weight[by_loop(word, 2, 3, 50)].mean(0))
    vectors.sum().backward()
    assert front.buckets.weight.grad.abs().sum() > 0 and table.weight.grad.abs().sum() > 0


def test_the_parts_of_words_are_their_own_row_and_those_of_their_n_grams():
    some = CharNgramConfig(least=3, most=4, buckets=10)
    parts, starts = some.embedding_rows(["[UNK]", "a", "bcd"], np.array([True, False, False]))
    assert parts[: starts[1]].tolist() == [0]
    assert parts[starts[1] : starts[2]].tolist() == [1, 3 + by_loop("a", 3, 4, 10)[0]]
    assert parts[starts[2]] == 2 and sorted(parts[starts[2] + 1 :] - 3) == sorted(by_loop("bcd", 3, 4, 10))
    with pytest.raises(UserError, match="4 to 3 characters are none"):
        CharNgramConfig(least=4, most=3).embedding_rows(["a"], np.array([False]))
