"""word2vec and fastText against gensim: a step of hierarchical softmax, n-grams and their hash, words never seen."""

import numpy as np
import pytest
import torch

from bertsmith.model.embeddings.fasttext import CharNgramConfig, FastTextEmbedding
from bertsmith.tokenization.characters import hash_ngrams
from bertsmith.word_vectors.hierarchical_softmax import HierarchicalSoftmax, build_huffman_paths
from bertsmith.word_vectors.tables import VectorTable
from bertsmith.word_vectors.windows import Chunks, WindowMasks

gensim = pytest.importorskip("gensim")
from gensim.models import FastText, Word2Vec  # noqa: E402
from gensim.models.fasttext import compute_ngrams, ft_ngram_hashes  # noqa: E402

SENTENCE = ["the", "cat", "saw", "the", "dog", "and", "a", "bird", "saw", "the", "cat"]
RATE = 2e-4  # gensim moves its rows pair by pair: with short steps the order does not matter
WORDS = ["cat", "cats", "über", "苹果", "a", "naïve", "don't"]


def begun(sg: int):
    """gensim's model with random rows on both sides; window 1 is a window that nothing is drawn of."""
    model = Word2Vec(vector_size=8, window=1, sg=sg, hs=1, negative=0, min_count=1, sample=0, seed=3, workers=1, cbow_mean=1)
    model.build_vocab([SENTENCE])
    drawn = np.random.default_rng(0)
    model.wv.vectors[:] = drawn.normal(size=model.wv.vectors.shape) * 0.7  # products stay below 6, where gensim stops
    model.syn1[:] = drawn.normal(size=model.syn1.shape) * 0.7
    return model


def chunks(model):
    ids = [model.wv.key_to_index[word] for word in SENTENCE]
    sides = [1, *[3] * (len(ids) - 2), 2]  # one to the right, one each, one to the left
    return Chunks(torch.tensor([[0, *ids, 0]]), torch.tensor([sides]), torch.zeros(1, 0, dtype=torch.long))


def tree(model):
    """gensim's own paths, padded: trees with ties are as good one way as another."""
    words = len(model.wv)
    codes, points = ([model.wv.get_vecattr(word, name) for word in range(words)] for name in ("code", "point"))
    longest = max(map(len, codes))
    turns, nodes = torch.full((words, longest), -1), torch.full((words, longest), words)
    for word, (code, point) in enumerate(zip(codes, points, strict=True)):
        turns[word, : len(code)], nodes[word, : len(code)] = (
            torch.tensor(code.tolist()),
            torch.tensor(point[: len(code)].tolist()),
        )
    rows = torch.zeros(words + 1, model.vector_size)
    rows[: len(model.syn1)] = torch.from_numpy(model.syn1)
    return HierarchicalSoftmax(VectorTable(rows), nodes, turns)


def by_hand(model, way, sigmoid, divided):
    """What moves the inputs and the nodes, word by word, at the rows as they are."""
    rows, nodes = model.wv.vectors, model.syn1
    moved, turned = np.zeros_like(rows), np.zeros_like(nodes)
    ids = [model.wv.key_to_index[word] for word in SENTENCE]
    for i, word in enumerate(ids):
        seen = ids[max(0, i - 1) : i] + ids[i + 1 : i + 2]
        code = model.wv.get_vecattr(word, "code").astype(np.float32)
        path = model.wv.get_vecattr(word, "point")[: len(code)]
        for group in [[one] for one in seen] if way == "skip_gram" else [seen]:
            mean = rows[group].mean(0)
            slope = 1 - code - sigmoid(nodes[path] @ mean)
            np.add.at(moved, group, slope @ nodes[path] / (len(group) if divided else 1))
            turned[path] += np.outer(slope, mean)
    return moved, turned


def exact(x):
    return 1 / (1 + np.exp(-x))


def looked_up(x):
    """gensim's: a table of a thousand steps from -6 to 6, looked up with 83 steps to 1 (whole numbers divided)."""
    return exact(np.floor((x + 6) * 83) / 1000 * 12 - 6)


@pytest.mark.parametrize("way", ["skip_gram", "cbow"])
def test_a_step_of_hierarchical_softmax_is_gensim_s(way):
    """Both are what a loop finds, but for two ways of gensim's: its sigmoid is a table, and what moves the mean of CBOW moves
    each of its words as far, where a gradient is divided by their number."""
    model = begun(int(way == "skip_gram"))
    mine, inputs = tree(model), VectorTable(torch.from_numpy(model.wv.vectors.copy()))
    before, nodes = model.wv.vectors.copy(), model.syn1.copy()
    theirs, ours = by_hand(model, way, looked_up, divided=False), by_hand(model, way, exact, divided=True)
    step = getattr(mine, way)(chunks(model), WindowMasks(1, len(SENTENCE)), inputs, 1.0, False)
    for change in step.inputs + step.outputs:
        change()
    model.train([SENTENCE], total_examples=1, epochs=1, start_alpha=RATE, end_alpha=RATE)
    np.testing.assert_allclose(inputs.rows.numpy() - before, ours[0], atol=1e-5)
    np.testing.assert_allclose(mine.outputs.rows[: len(nodes)].numpy() - nodes, ours[1], atol=1e-5)
    assert np.abs(theirs[0]).max() > 1
    np.testing.assert_allclose((model.wv.vectors - before) / RATE, theirs[0], atol=0.01)
    np.testing.assert_allclose((model.syn1 - nodes) / RATE, theirs[1], atol=0.01)


def test_paths_are_as_long_as_gensim_s():
    drawn = np.random.default_rng(1)
    text = [[f"w{n}" for n in drawn.zipf(1.3, 2000) if n < 300]]
    model = Word2Vec(text, vector_size=4, hs=1, negative=0, min_count=1, epochs=1)
    counts = [model.wv.get_vecattr(word, "count") for word in model.wv.index_to_key]
    lengths = [len(model.wv.get_vecattr(word, "code")) for word in model.wv.index_to_key]
    assert (build_huffman_paths(counts).lengths * counts).sum() == np.dot(lengths, counts)


@pytest.mark.parametrize(("least", "most"), [(3, 6), (1, 2), (2, 2)])
def test_n_grams_and_their_buckets_are_gensim_s(least, most):
    found, starts = hash_ngrams(WORDS, least, most, 5000)
    for i, word in enumerate(WORDS):
        theirs = ft_ngram_hashes(word, least, most, 5000)
        assert least == 1 or len(theirs) == len(compute_ngrams(word, least, most))  # which has < and > alone, too
        assert sorted(found[starts[i] : starts[i + 1]]) == sorted(theirs)


def test_a_word_never_seen_has_gensim_s_vector():
    model = FastText([SENTENCE] * 3, vector_size=8, min_count=1, bucket=300, epochs=2, seed=1, workers=1)
    front = FastTextEmbedding(CharNgramConfig(least=3, most=6, buckets=300), 8, len(model.wv))
    front.buckets.weight.data = torch.from_numpy(model.wv.vectors_ngrams.copy())
    unseen = ["cats", "birdsong", "über", "苹果树"]
    want = np.stack([model.wv.get_vector(word) for word in unseen])
    np.testing.assert_allclose(front.embed_words(unseen).detach().numpy(), want, rtol=1e-5, atol=1e-7)


def test_a_known_word_has_gensim_s_vector():
    from bertsmith.word_vectors.tables import NgramRows

    model = FastText([SENTENCE] * 3, vector_size=8, min_count=1, bucket=300, epochs=2, seed=1, workers=1)
    words = model.wv.index_to_key
    parts, starts = CharNgramConfig(buckets=300).embedding_rows(words, np.zeros(len(words), bool))
    rows = torch.from_numpy(np.concatenate([model.wv.vectors_vocab, model.wv.vectors_ngrams]))
    spelt = NgramRows(VectorTable(rows), torch.from_numpy(parts), torch.from_numpy(starts))
    found = spelt.gather(torch.arange(len(words)))[0]
    np.testing.assert_allclose(found.numpy(), model.wv.vectors, rtol=1e-5, atol=1e-7)
