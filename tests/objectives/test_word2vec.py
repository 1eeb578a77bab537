"""word2vec: a step is the gradient of its formula, text is read as the paper reads it, a run goes on bit for bit."""

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

WORDS, WIDTH, WINDOW, PLACES, RATE = 30, 8, 3, 6, 0.05
CPU = torch.device("cpu")


def made(seed=0, chunks=4):
    """Chunks of a random text, and each pair (word, seen word) of them, one by one: places in `around`."""
    drawn = np.random.default_rng(seed)
    around = drawn.integers(0, WORDS, (chunks, PLACES + 2 * WINDOW))
    left, right = drawn.integers(0, WINDOW + 1, (2, chunks, PLACES))
    noise = drawn.integers(0, WORDS, (chunks, 5))
    pairs = [
        (chunk, place + WINDOW, place + WINDOW + step)
        for chunk in range(chunks)
        for place in range(PLACES)
        for step in range(-left[chunk, place], right[chunk, place] + 1)
        if step
    ]
    found = Chunks(*(torch.from_numpy(one) for one in (around, left * (WINDOW + 1) + right, noise)))
    return found, pairs


def tables(rows=WORDS):
    drawn = torch.Generator().manual_seed(2)
    return [torch.randn(size, WIDTH, generator=drawn).requires_grad_() for size in (WORDS, rows)]


def skip_gram_by_pairs(u, v, chunks, pairs):
    total = torch.zeros(())
    for chunk, i, j in pairs:
        word, other, noise = chunks.around[chunk, i], chunks.around[chunk, j], chunks.noise[chunk]
        total = total - F.logsigmoid(u[word] @ v[other]) - 2 * F.logsigmoid(-(v[noise] @ u[word])).mean()
    return total, len(pairs)


def cbow_by_pairs(u, v, chunks, pairs):
    seen = {}
    for chunk, i, j in pairs:
        seen.setdefault((chunk, i), []).append(chunks.around[chunk, j])
    total = torch.zeros(())
    for (chunk, i), others in seen.items():
        mean, noise = u[torch.stack(others)].mean(0), chunks.noise[chunk]
        total = total - F.logsigmoid(mean @ v[chunks.around[chunk, i]]) - 2 * F.logsigmoid(-(v[noise] @ mean)).mean()
    return total, len(seen)


def down_the_tree(vector, word, v, paths):
    nodes, turns = (torch.from_numpy(one[int(word)]).long() for one in paths)
    real = turns >= 0
    return -F.logsigmoid((v[nodes[real]] @ vector) * (1 - 2 * turns[real])).sum()


def skip_gram_by_tree(u, v, chunks, pairs, paths):
    return sum(down_the_tree(u[chunks.around[c, j]], chunks.around[c, i], v, paths) for c, i, j in pairs), len(pairs)


def cbow_by_tree(u, v, chunks, pairs, paths):
    seen = {}
    for chunk, i, j in pairs:
        seen.setdefault((chunk, i), []).append(chunks.around[chunk, j])
    found = [down_the_tree(u[torch.stack(o)].mean(0), chunks.around[c, i], v, paths) for (c, i), o in seen.items()]
    return sum(found), len(seen)


@pytest.mark.parametrize("way", ["skip_gram", "cbow"])
@pytest.mark.parametrize("against", ["negatives", "tree"])
def test_a_step_goes_down_the_gradient_of_the_formula(way, against):
    chunks, pairs = made()
    paths = build_huffman_paths(np.arange(WORDS) + 1)
    u, v = tables(WORDS + (against == "tree"))
    rest = () if against == "negatives" else (paths,)
    formula = globals()[f"{way}_by_{'pairs' if against == 'negatives' else 'tree'}"]
    loss, count = formula(u, v, chunks, pairs, *rest)
    loss.backward()
    inputs, outputs = VectorTable(u.detach().clone()), VectorTable(v.detach().clone())
    target = (
        HierarchicalSoftmax(outputs, *(torch.from_numpy(one).long() for one in paths)) if rest else NegativeSampling(outputs, 2)
    )
    step = getattr(target, way)(chunks, WindowMasks(WINDOW, PLACES), inputs, RATE, True)
    assert torch.equal(inputs.rows, u) and torch.equal(outputs.rows, v)  # until it is taken
    for change in step.inputs + step.outputs:
        change()
    assert step.loss == pytest.approx(loss.item() / count, rel=1e-5)
    torch.testing.assert_close(inputs.rows, u.detach() - RATE * u.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs.rows, v.detach() - RATE * v.grad, rtol=1e-5, atol=1e-5)


def test_chances_of_all_words_add_up_to_one_down_a_tree():
    paths, (u, v) = build_huffman_paths([3, 0, 9, 1, 1, 4, 7]), tables(8)
    words = [0, 2, 3, 4, 5, 6]  # no text has word 1
    chances = [torch.exp(-down_the_tree(u[4], word, v, paths)) for word in words]
    assert sum(chances).item() == pytest.approx(1, abs=1e-5)


def test_a_word_is_the_mean_of_its_parts_and_each_of_them_takes_the_step():
    rows = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(0))
    parts, starts = torch.tensor([0, 5, 6, 1, 2, 5, 5]), torch.tensor([0, 3, 4, 7])
    spelt = NgramRows(VectorTable(rows.clone()), parts, starts)
    vectors, put = spelt.gather(torch.tensor([2, 0, 2]))
    want = torch.stack([rows[[2, 5, 5]].mean(0), rows[[0, 5, 6]].mean(0), rows[[2, 5, 5]].mean(0)])
    torch.testing.assert_close(vectors, want)
    change = torch.arange(3.0)[:, None].expand(3, WIDTH) + 1  # word 2 is moved by 1 + 3, word 0 by 2
    put(change.clone())
    moved = (spelt.table.rows - rows)[:, 0]
    want = torch.zeros(12).index_add(0, torch.tensor([2, 5, 5, 0, 5, 6]), torch.tensor([4.0, 4, 4, 2, 2, 2]))
    torch.testing.assert_close(moved, want)


def test_rows_that_move_too_often_at_once_take_shorter_steps():
    rows = VectorTable(torch.zeros(3, 1), torch.tensor([1.0, 10.0, 100.0]))
    rows.batch_words = 10
    rows.set_lr(MAX_ROW_STEPS / 100)
    rows.add(torch.tensor([0, 1, 2, 2]), torch.ones(4, 1))
    torch.testing.assert_close(rows.rows[:, 0], torch.tensor([1, 1, 0.2]))
    rows.set_lr(MAX_ROW_STEPS / 1000)
    assert rows.step_scale is None


class Text:
    """As much of a corpus as is read here."""

    def __init__(self, tokens, sentences):
        self.tokens, self.sentences = np.asarray(tokens, np.uint16), np.asarray(sentences, np.int64)


def read(corpus, counts, seed=0, **changed):
    return CorpusShards(corpus, np.asarray(counts), SamplingConfig(**{"window": 2, "words": 4, "noise": 3, "sample": 0.0} | changed),
                     seed, CPU)  # fmt: skip


def test_windows_reach_from_one_to_all_and_cross_no_sentence():
    corpus = Text(np.arange(12) % 11 + 1, [0, 5, 6, 12])
    seen = set()
    for seed in range(40):
        chunks, words = read(corpus, [0, *[1] * 11], seed, noise=0)(0)
        assert words == 12 and chunks.center_ids.flatten().tolist() == corpus.tokens.tolist()
        left, right = chunks.extents.flatten() // 3, chunks.extents.flatten() % 3
        start, end = [0] * 5 + [5] + [6] * 6, [4] * 5 + [5] + [11] * 6
        for i in range(12):
            assert left[i] <= i - start[i] and right[i] <= end[i] - i
            assert left[i] == right[i] or left[i] == i - start[i] or right[i] == end[i] - i
        seen.add(int(left[2]))
    assert seen == {1, 2}


def test_words_that_are_not_counted_are_as_if_they_were_not_there():
    corpus = Text([1, 7, 2, 7, 3, 1, 2], [0, 7])
    chunks, words = read(corpus, [0, 2, 2, 1, 0, 0, 0, 0], window=1)(0)
    assert chunks.center_ids.flatten().tolist()[:5] == [1, 2, 3, 1, 2] and words == 7
    assert chunks.extents.flatten().tolist()[:5] == [1, 3, 3, 3, 2] and chunks.extents.flatten()[5:].sum() == 0


def test_frequent_words_stay_with_the_chance_of_the_paper():
    tokens = np.where(np.arange(40_000) % 10 < 9, 1, 2)
    counts = np.bincount(tokens, minlength=3)
    want = np.sqrt(0.1 / 0.9) + 0.1 / 0.9
    assert (
        keep_probabilities(counts, 0.1)[1] == pytest.approx(want)
        and keep_probabilities(counts, 0.1)[2] == 1
        and keep_probabilities(counts, 0.1)[0] == 0
    )
    stretches = read(Text(tokens, [0, 40_000]), counts, sample=0.1)
    chunks = [stretches(k)[0] for k in range(stretches.shards_per_epoch)]
    found = torch.cat([one.center_ids[one.extents > 0] for one in chunks])
    assert (found == 1).sum().item() / 36_000 == pytest.approx(want, abs=0.01)
    assert abs((found == 2).sum().item() - 4_000) <= len(chunks)


def test_noise_is_drawn_by_the_power_of_the_counts():
    counts = np.array([0, 1, 16, 81])
    share = counts**0.75 / (counts**0.75).sum()
    assert np.bincount(build_noise_table(share), minlength=4) / 2**22 == pytest.approx(share, abs=1e-6)
    chunks, _ = read(Text([1, 2, 3] * 1000, [0, 3000]), counts, noise=64)(0)
    assert np.bincount(chunks.noise_ids.flatten(), minlength=4) / chunks.noise_ids.numel() == pytest.approx(share, abs=0.01)


def test_a_stretch_is_the_same_whoever_asks_and_another_in_the_next_epoch():
    tokens = np.random.default_rng(0).integers(1, 9, 20_000)
    stretches = read(Text(tokens, [0, 10_000, 20_000]), [0, *[100] * 8], sample=0.05)
    again = read(Text(tokens, [0, 10_000, 20_000]), [0, *[100] * 8], sample=0.05)
    assert stretches.shards_per_epoch > 1
    for part, same in zip(again(1)[0], stretches(1)[0], strict=True):
        assert torch.equal(part, same)
    later = stretches(1 + stretches.shards_per_epoch)[0]
    assert later.extents.shape != again(1)[0].extents.shape or not torch.equal(later.extents, again(1)[0].extents)
