"""GloVe: loss and gradients against autograd on the formula, the step against torch's AdaGrad."""

import pytest
import torch

from bertsmith.word_vectors.glove import GloveTables, batch_slices

torch.manual_seed(0)
WORDS, VECTOR_SIZE = 30, 6


def random_pairs(count=500):
    generator = torch.Generator().manual_seed(1)
    i, j = torch.randint(WORDS, (2, count), generator=generator)
    return i, j, torch.rand(count, generator=generator) * 200 + 0.1


def split_parameters(tables):
    """w, v, b and c as separate tensors."""
    w, v = tables.centres[:, :VECTOR_SIZE].clone(), tables.contexts[:, :VECTOR_SIZE].clone()
    b, c = tables.centres[:, VECTOR_SIZE].clone(), tables.contexts[:, VECTOR_SIZE + 1].clone()
    return [part.requires_grad_() for part in (w, v, b, c)]


def reference_loss(w, v, b, c, i, j, x):
    weight = torch.where(x < 100, (x / 100) ** 0.75, torch.ones_like(x))
    return (weight * ((w[i] * v[j]).sum(1) + b[i] + c[j] - x.log()) ** 2).sum()


def test_glove_loss_matches_paper():
    tables, (i, j, x) = GloveTables(WORDS, VECTOR_SIZE), random_pairs()
    expected = reference_loss(*split_parameters(tables), i, j, x)
    assert tables.step(i, j, x, 0.0) == pytest.approx(expected.item(), rel=1e-6)
    zero = GloveTables(WORDS, VECTOR_SIZE)
    zero.centres[:, :-1], zero.contexts[:, :-2], zero.contexts[:, -1] = 0, 0, 0
    assert zero.step(i, j, x, 0.0) == pytest.approx(float(((x / 100).clamp(max=1) ** 0.75 * x.log() ** 2).sum()), rel=1e-6)


def test_glove_step_matches_torch_adagrad():
    tables, (i, j, x) = GloveTables(WORDS, VECTOR_SIZE), random_pairs()
    reference = split_parameters(tables)
    optimizer = torch.optim.Adagrad(reference, lr=1.0, initial_accumulator_value=1 / 0.05**2, eps=1e-10)
    for _ in range(3):
        optimizer.zero_grad()
        reference_loss(*reference, i, j, x).backward()
        optimizer.step()
        tables.step(i, j, x, 0.05)
    for result, expected in zip(split_parameters(tables), reference, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert (tables.centres[:, -1] == 1).all() and (tables.contexts[:, -2] == 1).all()


def test_glove_step_updates_only_words_of_pairs():
    tables = GloveTables(WORDS, VECTOR_SIZE)
    before = tables.centres.clone()
    tables.step(torch.tensor([3, 3]), torch.tensor([4, 3]), torch.tensor([5.0, 1.0]), 0.05)
    assert (tables.centres != before).any(1).nonzero().ravel().tolist() == [3]


def test_glove_fits_low_rank_counts():
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(WORDS, 3, generator=generator), torch.randn(WORDS, 3, generator=generator)
    x = (left @ right.T).exp().clamp(0.01, 1000)
    i, j = (index.ravel() for index in torch.meshgrid(torch.arange(WORDS), torch.arange(WORDS), indexing="ij"))
    tables = GloveTables(WORDS, 8)
    losses = [float(tables.step(i, j, x.ravel(), 0.05)) for _ in range(400)]
    assert losses[-1] < 0.02 * losses[0]


def test_glove_vectors_are_sum_of_center_and_context():
    tables = GloveTables(WORDS, VECTOR_SIZE, seed=5)
    assert torch.equal(tables.vectors, tables.centres[:, :VECTOR_SIZE] + tables.contexts[:, :VECTOR_SIZE])
    restored = GloveTables(WORDS, VECTOR_SIZE, seed=6)
    restored.load_state_dict(tables.state_dict())
    assert torch.equal(restored.vectors, tables.vectors)


def test_glove_batch_slices_cover_all_pairs():
    for num_pairs, batch_size in ((10, 3), (9, 3), (1, 100), (65_537, 65_536)):
        slices = batch_slices(num_pairs, batch_size)
        assert [i for part in slices for i in range(num_pairs)[part]] == list(range(num_pairs))
        assert max(part.stop - part.start for part in slices) <= batch_size
