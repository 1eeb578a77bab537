"""word2vec and fastText against gensim: updates of hierarchical softmax, n-gram hashes, vectors of unknown words."""

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
LEARNING_RATE = 2e-4  # gensim updates pair by pair: with small steps the order does not matter
WORDS = ["cat", "cats", "über", "苹果", "a", "naïve", "don't"]


def build_gensim_model(sg: int):
    """A gensim model with random vectors; a window of 1 has no random size."""
    model = Word2Vec(vector_size=8, window=1, sg=sg, hs=1, negative=0, min_count=1, sample=0, seed=3, workers=1, cbow_mean=1)
    model.build_vocab([SENTENCE])
    rng = np.random.default_rng(0)
    model.wv.vectors[:] = rng.normal(size=model.wv.vectors.shape) * 0.7  # logits stay below 6, where gensim clips
    model.syn1[:] = rng.normal(size=model.syn1.shape) * 0.7
    return model


def sentence_chunks(model):
    ids = [model.wv.key_to_index[word] for word in SENTENCE]
    extents = [1, *[3] * (len(ids) - 2), 2]  # one to the right, one on each side, one to the left
    return Chunks(torch.tensor([[0, *ids, 0]]), torch.tensor([extents]), torch.zeros(1, 0, dtype=torch.long))


def hierarchical_softmax_of(model):
    """Output layer with gensim's paths, padded: a Huffman tree with ties is not unique."""
    vocab_size = len(model.wv)
    codes, points = ([model.wv.get_vecattr(word, name) for word in range(vocab_size)] for name in ("code", "point"))
    max_length = max(map(len, codes))
    padded_codes, padded_nodes = torch.full((vocab_size, max_length), -1), torch.full((vocab_size, max_length), vocab_size)
    for word, (code, point) in enumerate(zip(codes, points, strict=True)):
        padded_codes[word, : len(code)], padded_nodes[word, : len(code)] = (
            torch.tensor(code.tolist()),
            torch.tensor(point[: len(code)].tolist()),
        )
    rows = torch.zeros(vocab_size + 1, model.vector_size)
    rows[: len(model.syn1)] = torch.from_numpy(model.syn1)
    return HierarchicalSoftmax(VectorTable(rows), padded_nodes, padded_codes)


def reference_updates(model, algorithm, sigmoid, divided):
    """Updates of the input vectors and of the nodes, word by word, at the current vectors."""
    rows, nodes = model.wv.vectors, model.syn1
    input_updates, node_updates = np.zeros_like(rows), np.zeros_like(nodes)
    ids = [model.wv.key_to_index[word] for word in SENTENCE]
    for i, word in enumerate(ids):
        context = ids[max(0, i - 1) : i] + ids[i + 1 : i + 2]
        code = model.wv.get_vecattr(word, "code").astype(np.float32)
        path = model.wv.get_vecattr(word, "point")[: len(code)]
        for group in [[context_word] for context_word in context] if algorithm == "skip_gram" else [context]:
            mean = rows[group].mean(0)
            grad = 1 - code - sigmoid(nodes[path] @ mean)
            np.add.at(input_updates, group, grad @ nodes[path] / (len(group) if divided else 1))
            node_updates[path] += np.outer(grad, mean)
    return input_updates, node_updates


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gensim_sigmoid(x):
    """gensim's lookup table: 1000 entries from -6 to 6, indexed by 83 steps per unit (integer division)."""
    return sigmoid(np.floor((x + 6) * 83) / 1000 * 12 - 6)


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
def test_hierarchical_softmax_step_matches_gensim(algorithm):
    """Both match a plain loop. gensim differs in two ways: its sigmoid is a lookup table, and in CBOW the update of the mean
    is added to each context word undivided."""
    model = build_gensim_model(int(algorithm == "skip_gram"))
    layer, inputs = hierarchical_softmax_of(model), VectorTable(torch.from_numpy(model.wv.vectors.copy()))
    vectors_before, nodes_before = model.wv.vectors.copy(), model.syn1.copy()
    expected_gensim, expected = (
        reference_updates(model, algorithm, gensim_sigmoid, divided=False),
        reference_updates(model, algorithm, sigmoid, divided=True),
    )
    step = getattr(layer, algorithm)(sentence_chunks(model), WindowMasks(1, len(SENTENCE)), inputs, 1.0, False)
    for apply_update in step.input_updates + step.output_updates:
        apply_update()
    model.train([SENTENCE], total_examples=1, epochs=1, start_alpha=LEARNING_RATE, end_alpha=LEARNING_RATE)
    np.testing.assert_allclose(inputs.rows.numpy() - vectors_before, expected[0], atol=1e-5)
    np.testing.assert_allclose(layer.outputs.rows[: len(nodes_before)].numpy() - nodes_before, expected[1], atol=1e-5)
    assert np.abs(expected_gensim[0]).max() > 1
    np.testing.assert_allclose((model.wv.vectors - vectors_before) / LEARNING_RATE, expected_gensim[0], atol=0.01)
    np.testing.assert_allclose((model.syn1 - nodes_before) / LEARNING_RATE, expected_gensim[1], atol=0.01)


def test_huffman_path_lengths_match_gensim():
    rng = np.random.default_rng(1)
    text = [[f"w{n}" for n in rng.zipf(1.3, 2000) if n < 300]]
    model = Word2Vec(text, vector_size=4, hs=1, negative=0, min_count=1, epochs=1)
    counts = [model.wv.get_vecattr(word, "count") for word in model.wv.index_to_key]
    lengths = [len(model.wv.get_vecattr(word, "code")) for word in model.wv.index_to_key]
    assert (build_huffman_paths(counts).lengths * counts).sum() == np.dot(lengths, counts)


@pytest.mark.parametrize(("min_n", "max_n"), [(3, 6), (1, 2), (2, 2)])
def test_ngram_hashes_match_gensim(min_n, max_n):
    hashes, offsets = hash_ngrams(WORDS, min_n, max_n, 5000)
    for i, word in enumerate(WORDS):
        expected = ft_ngram_hashes(word, min_n, max_n, 5000)
        assert min_n == 1 or len(expected) == len(compute_ngrams(word, min_n, max_n))  # compute_ngrams includes < and > alone
        assert sorted(hashes[offsets[i] : offsets[i + 1]]) == sorted(expected)


def test_fasttext_vector_of_unknown_word_matches_gensim():
    model = FastText([SENTENCE] * 3, vector_size=8, min_count=1, bucket=300, epochs=2, seed=1, workers=1)
    embedding = FastTextEmbedding(CharNgramConfig(min_n=3, max_n=6, bucket=300), 8, len(model.wv))
    embedding.ngram_embeddings.weight.data = torch.from_numpy(model.wv.vectors_ngrams.copy())
    unknown_words = ["cats", "birdsong", "über", "苹果树"]
    expected = np.stack([model.wv.get_vector(word) for word in unknown_words])
    np.testing.assert_allclose(embedding.embed_words(unknown_words).detach().numpy(), expected, rtol=1e-5, atol=1e-7)


def test_fasttext_vector_of_known_word_matches_gensim():
    from bertsmith.word_vectors.tables import NgramRows

    model = FastText([SENTENCE] * 3, vector_size=8, min_count=1, bucket=300, epochs=2, seed=1, workers=1)
    words = model.wv.index_to_key
    row_ids, offsets = CharNgramConfig(bucket=300).embedding_rows(words, np.zeros(len(words), bool))
    rows = torch.from_numpy(np.concatenate([model.wv.vectors_vocab, model.wv.vectors_ngrams]))
    source = NgramRows(VectorTable(rows), torch.from_numpy(row_ids), torch.from_numpy(offsets))
    vectors = source.gather(torch.arange(len(words)))[0]
    np.testing.assert_allclose(vectors.numpy(), model.wv.vectors, rtol=1e-5, atol=1e-7)
