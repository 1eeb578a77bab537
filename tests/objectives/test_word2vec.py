"""word2vec: updates against autograd on the formulas, and the sampling of windows, subsampling and noise words."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.word_vectors.hierarchical_softmax import HierarchicalSoftmax, build_huffman_paths
from bertsmith.word_vectors.negative_sampling import NegativeSampling
from bertsmith.word_vectors.tables import MAX_ROW_STEPS, NgramRows, VectorTable
from bertsmith.word_vectors.windows import (
    Chunks,
    CorpusShards,
    SamplingConfig,
    WindowMasks,
    build_noise_table,
    keep_probabilities,
)

VOCAB_SIZE, VECTOR_SIZE, WINDOW, CHUNK_WORDS, LEARNING_RATE = 30, 8, 3, 6, 0.05
CPU = torch.device("cpu")


def random_chunks(seed=0, chunks=4):
    """Chunks of a random text, and all their pairs: (chunk, center, context) with positions in `context_ids`."""
    rng = np.random.default_rng(seed)
    context_ids = rng.integers(0, VOCAB_SIZE, (chunks, CHUNK_WORDS + 2 * WINDOW))
    left, right = rng.integers(0, WINDOW + 1, (2, chunks, CHUNK_WORDS))
    noise_ids = rng.integers(0, VOCAB_SIZE, (chunks, 5))
    pairs = [
        (chunk, position + WINDOW, position + WINDOW + offset)
        for chunk in range(chunks)
        for position in range(CHUNK_WORDS)
        for offset in range(-left[chunk, position], right[chunk, position] + 1)
        if offset
    ]
    result = Chunks(*(torch.from_numpy(array) for array in (context_ids, left * (WINDOW + 1) + right, noise_ids)))
    return result, pairs


def random_tables(rows=VOCAB_SIZE):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, VECTOR_SIZE, generator=generator).requires_grad_() for size in (VOCAB_SIZE, rows)]


def skip_gram_by_negatives(u, v, chunks, pairs):
    loss = torch.zeros(())
    for chunk, center, context in pairs:
        word, other, noise = chunks.context_ids[chunk, center], chunks.context_ids[chunk, context], chunks.noise_ids[chunk]
        loss = loss - F.logsigmoid(u[word] @ v[other]) - 2 * F.logsigmoid(-(v[noise] @ u[word])).mean()
    return loss, len(pairs)


def cbow_by_negatives(u, v, chunks, pairs):
    contexts = {}
    for chunk, i, j in pairs:
        contexts.setdefault((chunk, i), []).append(chunks.context_ids[chunk, j])
    loss = torch.zeros(())
    for (chunk, i), context_ids in contexts.items():
        mean, noise = u[torch.stack(context_ids)].mean(0), chunks.noise_ids[chunk]
        loss = loss - F.logsigmoid(mean @ v[chunks.context_ids[chunk, i]]) - 2 * F.logsigmoid(-(v[noise] @ mean)).mean()
    return loss, len(contexts)


def path_nll(vector, word, v, paths):
    nodes, codes = (torch.from_numpy(array[int(word)]).long() for array in paths)
    is_node = codes >= 0
    return -F.logsigmoid((v[nodes[is_node]] @ vector) * (1 - 2 * codes[is_node])).sum()


def skip_gram_by_tree(u, v, chunks, pairs, paths):
    return sum(path_nll(u[chunks.context_ids[chunk, j]], chunks.context_ids[chunk, i], v, paths) for chunk, i, j in pairs), len(
        pairs
    )


def cbow_by_tree(u, v, chunks, pairs, paths):
    contexts = {}
    for chunk, i, j in pairs:
        contexts.setdefault((chunk, i), []).append(chunks.context_ids[chunk, j])
    losses = [path_nll(u[torch.stack(o)].mean(0), chunks.context_ids[c, i], v, paths) for (c, i), o in contexts.items()]
    return sum(losses), len(contexts)


@pytest.mark.parametrize("algorithm", ["skip_gram", "cbow"])
@pytest.mark.parametrize("output_layer", ["negatives", "tree"])
def test_word2vec_step_is_gradient_of_formula(algorithm, output_layer):
    chunks, pairs = random_chunks()
    paths = build_huffman_paths(np.arange(VOCAB_SIZE) + 1)
    u, v = random_tables(VOCAB_SIZE + (output_layer == "tree"))
    extra = () if output_layer == "negatives" else (paths,)
    formula = globals()[f"{algorithm}_by_{output_layer}"]
    loss, count = formula(u, v, chunks, pairs, *extra)
    loss.backward()
    inputs, outputs = VectorTable(u.detach().clone()), VectorTable(v.detach().clone())
    layer = (
        HierarchicalSoftmax(outputs, *(torch.from_numpy(array).long() for array in paths))
        if extra
        else NegativeSampling(outputs, 2)
    )
    step = getattr(layer, algorithm)(chunks, WindowMasks(WINDOW, CHUNK_WORDS), inputs, LEARNING_RATE, True)
    assert torch.equal(inputs.rows, u) and torch.equal(outputs.rows, v)  # not applied yet
    for apply_update in step.input_updates + step.output_updates:
        apply_update()
    assert step.loss == pytest.approx(loss.item() / count, rel=1e-5)
    torch.testing.assert_close(inputs.rows, u.detach() - LEARNING_RATE * u.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs.rows, v.detach() - LEARNING_RATE * v.grad, rtol=1e-5, atol=1e-5)


def test_hierarchical_softmax_probs_sum_to_one():
    paths, (u, v) = build_huffman_paths([3, 0, 9, 1, 1, 4, 7]), random_tables(8)
    words = [0, 2, 3, 4, 5, 6]  # word 1 has count 0
    probs = [torch.exp(-path_nll(u[4], word, v, paths)) for word in words]
    assert sum(probs).item() == pytest.approx(1, abs=1e-5)


def test_fasttext_rows_are_averaged_and_get_full_update():
    rows = torch.randn(12, VECTOR_SIZE, generator=torch.Generator().manual_seed(0))
    row_ids, offsets = torch.tensor([0, 5, 6, 1, 2, 5, 5]), torch.tensor([0, 3, 4, 7])
    source = NgramRows(VectorTable(rows.clone()), row_ids, offsets)
    vectors, apply_update = source.gather(torch.tensor([2, 0, 2]))
    expected = torch.stack([rows[[2, 5, 5]].mean(0), rows[[0, 5, 6]].mean(0), rows[[2, 5, 5]].mean(0)])
    torch.testing.assert_close(vectors, expected)
    update = torch.arange(3.0)[:, None].expand(3, VECTOR_SIZE) + 1  # word 2 is updated by 1 + 3, word 0 by 2
    apply_update(update.clone())
    change = (source.table.rows - rows)[:, 0]
    expected = torch.zeros(12).index_add(0, torch.tensor([2, 5, 5, 0, 5, 6]), torch.tensor([4.0, 4, 4, 2, 2, 2]))
    torch.testing.assert_close(change, expected)


def test_vector_table_scales_down_frequent_updates():
    table = VectorTable(torch.zeros(3, 1), torch.tensor([1.0, 10.0, 100.0]))
    table.batch_words = 10
    table.set_lr(MAX_ROW_STEPS / 100)
    table.add(torch.tensor([0, 1, 2, 2]), torch.ones(4, 1))
    torch.testing.assert_close(table.rows[:, 0], torch.tensor([1, 1, 0.2]))
    table.set_lr(MAX_ROW_STEPS / 1000)
    assert table.step_scale is None


class FakeCorpus:
    """The attributes of Corpus that CorpusShards uses."""

    def __init__(self, tokens, sentences):
        self.tokens, self.sentence_offsets = np.asarray(tokens, np.uint16), np.asarray(sentences, np.int64)


def build_shards(corpus, counts, seed=0, **options):
    defaults = {"window": 2, "chunk_words": 4, "noise_words": 3, "sample": 0.0}
    return CorpusShards(corpus, np.asarray(counts), SamplingConfig(**defaults | options), seed, CPU)


def test_word2vec_windows_are_random_and_within_sentences():
    corpus = FakeCorpus(np.arange(12) % 11 + 1, [0, 5, 6, 12])
    extents = set()
    for seed in range(40):
        chunks, num_words = build_shards(corpus, [0, *[1] * 11], seed, noise_words=0)(0)
        assert num_words == 12 and chunks.center_ids.flatten().tolist() == corpus.tokens.tolist()
        left, right = chunks.extents.flatten() // 3, chunks.extents.flatten() % 3
        start, end = [0] * 5 + [5] + [6] * 6, [4] * 5 + [5] + [11] * 6
        for i in range(12):
            assert left[i] <= i - start[i] and right[i] <= end[i] - i
            assert left[i] == right[i] or left[i] == i - start[i] or right[i] == end[i] - i
        extents.add(int(left[2]))
    assert extents == {1, 2}


def test_word2vec_drops_words_with_count_zero():
    corpus = FakeCorpus([1, 7, 2, 7, 3, 1, 2], [0, 7])
    chunks, num_words = build_shards(corpus, [0, 2, 2, 1, 0, 0, 0, 0], window=1)(0)
    assert chunks.center_ids.flatten().tolist()[:5] == [1, 2, 3, 1, 2] and num_words == 7
    assert chunks.extents.flatten().tolist()[:5] == [1, 3, 3, 3, 2] and chunks.extents.flatten()[5:].sum() == 0


def test_word2vec_subsampling_matches_formula():
    tokens = np.where(np.arange(40_000) % 10 < 9, 1, 2)
    counts = np.bincount(tokens, minlength=3)
    expected = np.sqrt(0.1 / 0.9) + 0.1 / 0.9
    assert (
        keep_probabilities(counts, 0.1)[1] == pytest.approx(expected)
        and keep_probabilities(counts, 0.1)[2] == 1
        and keep_probabilities(counts, 0.1)[0] == 0
    )
    shards = build_shards(FakeCorpus(tokens, [0, 40_000]), counts, sample=0.1)
    chunks = [shards(k)[0] for k in range(shards.shards_per_epoch)]
    sampled = torch.cat([chunk.center_ids[chunk.extents > 0] for chunk in chunks])
    assert (sampled == 1).sum().item() / 36_000 == pytest.approx(expected, abs=0.01)
    assert abs((sampled == 2).sum().item() - 4_000) <= len(chunks)


def test_word2vec_noise_distribution():
    counts = np.array([0, 1, 16, 81])
    expected = counts**0.75 / (counts**0.75).sum()
    assert np.bincount(build_noise_table(expected), minlength=4) / 2**22 == pytest.approx(expected, abs=1e-6)
    chunks, _ = build_shards(FakeCorpus([1, 2, 3] * 1000, [0, 3000]), counts, noise_words=64)(0)
    assert np.bincount(chunks.noise_ids.flatten(), minlength=4) / chunks.noise_ids.numel() == pytest.approx(expected, abs=0.01)


def test_word2vec_shards_are_reproducible_and_differ_by_epoch():
    tokens = np.random.default_rng(0).integers(1, 9, 20_000)
    shards = build_shards(FakeCorpus(tokens, [0, 10_000, 20_000]), [0, *[100] * 8], sample=0.05)
    same_shards = build_shards(FakeCorpus(tokens, [0, 10_000, 20_000]), [0, *[100] * 8], sample=0.05)
    assert shards.shards_per_epoch > 1
    for array, expected in zip(same_shards(1)[0], shards(1)[0], strict=True):
        assert torch.equal(array, expected)
    next_epoch = shards(1 + shards.shards_per_epoch)[0]
    assert next_epoch.extents.shape != same_shards(1)[0].extents.shape or not torch.equal(
        next_epoch.extents, same_shards(1)[0].extents
    )
