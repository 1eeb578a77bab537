"""Parts of word vector training: random bits on the device, Huffman tree, hierarchical softmax, character n-grams."""

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


def test_device_random_bits_match_numpy():
    bits = device_random_bits(-5, "noise", 3, 10, 1000, torch.device("cpu"))
    expected = random_bits(-5, "noise", 3, np.arange(10, 1010))
    assert (bits.numpy().view(np.uint64) == expected).all()
    assert (top_bits(bits, 31).numpy() == (expected >> np.uint64(33)).astype(np.int64)).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(lambda counts: sum(n > 0 for n in counts) > 1))
def test_huffman_paths_are_optimal_and_prefix_free(counts):
    paths = build_huffman_paths(counts)
    heap, expected_length = [count for count in counts if count], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        expected_length += merged
        heapq.heappush(heap, merged)
    assert int((paths.lengths * np.array(counts)).sum()) == expected_length
    codes = [
        "".join(map(str, path_codes[path_codes >= 0])) for path_codes, count in zip(paths.codes, counts, strict=True) if count
    ]
    assert sum(2.0 ** -len(code) for code in codes) == 1.0  # Kraft equality: the code is complete
    assert not any(a != b and b.startswith(a) for a in codes for b in codes) and len(set(codes)) == len(codes)
    for nodes, path_codes, count in zip(paths.nodes, paths.codes, counts, strict=True):
        assert (path_codes >= 0).any() == (count > 0) and (nodes[path_codes < 0] == len(counts)).all()
        assert (nodes[path_codes >= 0] < sum(c > 0 for c in counts) - 1).all()


def test_hierarchical_softmax_head_gives_log_probs():
    paths, hidden_size = build_huffman_paths([5, 0, 2, 2, 9]), 4
    config = EncoderConfig(num_hidden_layers=0, hidden_size=hidden_size)
    head = HierarchicalSoftmaxHeadConfig(max_path_length=paths.nodes.shape[1]).build(config, 5)
    head.load_state_dict({
        "node_embeddings.weight": torch.randn(6, hidden_size, generator=torch.Generator().manual_seed(0)),
        "path_nodes": torch.from_numpy(paths.nodes), "path_codes": torch.from_numpy(paths.codes),
    })  # fmt: skip
    probs = head(torch.randn(7, hidden_size), None).exp()
    assert probs.shape == (7, 5) and (probs[:, 1] == 0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(7))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=5), st.integers(1, 4), st.integers(0, 4))
def test_ngram_hashes_match_loop(words, min_n, extra):
    hashes, offsets = hash_ngrams(words, min_n, min_n + extra, 1000)
    assert len(offsets) == len(words) + 1
    for i, word in enumerate(words):
        assert sorted(hashes[offsets[i] : offsets[i + 1]]) == sorted(reference_ngram_hashes(word, min_n, min_n + extra, 1000))


def reference_ngram_hashes(word, min_n, max_n, buckets):
    marked, hashes = f"<{word}>", []
    for i in range(len(marked)):
        for n in range(min_n, max_n + 1):
            if i + n <= len(marked) and not (n == 1 and (i == 0 or i + n == len(marked))):
                hashes.append(fnv1a(marked[i : i + n]) % buckets)
    return hashes


def fnv1a(text):
    hash_value = 2166136261
    for byte in text.encode():
        hash_value = ((hash_value ^ (byte | 0xFFFFFF00 if byte > 127 else byte)) * 16777619) % 2**32
    return hash_value


def test_fasttext_embedding_of_known_and_unknown_words():
    config = FastTextConfig(vector_size=6, ngrams=CharNgramConfig(min_n=2, max_n=3, bucket=50))
    lexicon = Lexicon(["[UNK]", "cat", "dog"])
    embedding, table = config.build(6, 3, lexicon), torch.nn.Embedding(3, 6)
    ids = torch.tensor([1, lexicon.get_id("cats"), 2, lexicon.get_id("öl"), lexicon.get_id("cats")])
    vectors = embedding(ids, Layout.from_lengths([5]), table)
    assert torch.equal(vectors[0], table.weight[1]) and torch.equal(vectors[2], table.weight[2])
    for row, word in ((1, "cats"), (3, "öl"), (4, "cats")):
        torch.testing.assert_close(
            vectors[row], embedding.ngram_embeddings.weight[reference_ngram_hashes(word, 2, 3, 50)].mean(0)
        )
    vectors.sum().backward()
    assert embedding.ngram_embeddings.weight.grad.abs().sum() > 0 and table.weight.grad.abs().sum() > 0


def test_fasttext_embedding_rows_are_word_and_ngrams():
    config = CharNgramConfig(min_n=3, max_n=4, bucket=10)
    row_ids, offsets = config.embedding_rows(["[UNK]", "a", "bcd"], np.array([True, False, False]))
    assert row_ids[: offsets[1]].tolist() == [0]
    assert row_ids[offsets[1] : offsets[2]].tolist() == [1, 3 + reference_ngram_hashes("a", 3, 4, 10)[0]]
    assert row_ids[offsets[2]] == 2 and sorted(row_ids[offsets[2] + 1 :] - 3) == sorted(reference_ngram_hashes("bcd", 3, 4, 10))
    with pytest.raises(UserError, match="min_n=4 is more than max_n=3"):
        CharNgramConfig(min_n=4, max_n=3).embedding_rows(["a"], np.array([False]))
