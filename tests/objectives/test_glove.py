"""GloVe's loss and gradients against the formula by autograd, a step against torch's own AdaGrad."""

import pytest
import torch

from bertsmith.word_vectors.glove import GloveTables, batch_slices

torch.manual_seed(0)
WORDS, WIDTH = 30, 6


def pairs(count=500):
    drawn = torch.Generator().manual_seed(1)
    i, j = torch.randint(WORDS, (2, count), generator=drawn)
    return i, j, torch.rand(count, generator=drawn) * 200 + 0.1


def parts(tables):
    """w, v, b and c as tensors of their own."""
    w, v = tables.centres[:, :WIDTH].clone(), tables.contexts[:, :WIDTH].clone()
    b, c = tables.centres[:, WIDTH].clone(), tables.contexts[:, WIDTH + 1].clone()
    return [part.requires_grad_() for part in (w, v, b, c)]


def formula(w, v, b, c, i, j, x):
    weight = torch.where(x < 100, (x / 100) ** 0.75, torch.ones_like(x))
    return (weight * ((w[i] * v[j]).sum(1) + b[i] + c[j] - x.log()) ** 2).sum()


def test_the_loss_is_the_paper_s():
    tables, (i, j, x) = GloveTables(WORDS, WIDTH), pairs()
    want = formula(*parts(tables), i, j, x)
    assert tables.step(i, j, x, 0.0) == pytest.approx(want.item(), rel=1e-6)
    zero = GloveTables(WORDS, WIDTH)
    zero.centres[:, :-1], zero.contexts[:, :-2], zero.contexts[:, -1] = 0, 0, 0
    assert zero.step(i, j, x, 0.0) == pytest.approx(float(((x / 100).clamp(max=1) ** 0.75 * x.log() ** 2).sum()), rel=1e-6)


def test_steps_are_those_of_torch_on_the_formula_s_gradients():
    tables, (i, j, x) = GloveTables(WORDS, WIDTH), pairs()
    mine = parts(tables)
    optimizer = torch.optim.Adagrad(mine, lr=1.0, initial_accumulator_value=1 / 0.05**2, eps=1e-10)
    for _ in range(3):
        optimizer.zero_grad()
        formula(*mine, i, j, x).backward()
        optimizer.step()
        tables.step(i, j, x, 0.05)
    for found, want in zip(parts(tables), mine, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    assert (tables.centres[:, -1] == 1).all() and (tables.contexts[:, -2] == 1).all()


def test_words_without_a_pair_stay_as_they_are():
    tables = GloveTables(WORDS, WIDTH)
    before = tables.centres.clone()
    tables.step(torch.tensor([3, 3]), torch.tensor([4, 3]), torch.tensor([5.0, 1.0]), 0.05)
    assert (tables.centres != before).any(1).nonzero().ravel().tolist() == [3]


def test_a_table_of_low_rank_is_fitted():
    drawn = torch.Generator().manual_seed(3)
    left, right = torch.randn(WORDS, 3, generator=drawn), torch.randn(WORDS, 3, generator=drawn)
    x = (left @ right.T).exp().clamp(0.01, 1000)
    i, j = (index.ravel() for index in torch.meshgrid(torch.arange(WORDS), torch.arange(WORDS), indexing="ij"))
    tables = GloveTables(WORDS, 8)
    losses = [float(tables.step(i, j, x.ravel(), 0.05)) for _ in range(400)]
    assert losses[-1] < 0.02 * losses[0]


def test_what_is_given_away_is_the_sum_of_both_tables():
    tables = GloveTables(WORDS, WIDTH, seed=5)
    assert torch.equal(tables.vectors, tables.centres[:, :WIDTH] + tables.contexts[:, :WIDTH])
    again = GloveTables(WORDS, WIDTH, seed=6)
    again.load_state_dict(tables.state_dict())
    assert torch.equal(again.vectors, tables.vectors)


def test_batches_are_even_and_whole():
    for pairs_, most in ((10, 3), (9, 3), (1, 100), (65_537, 65_536)):
        cut = batch_slices(pairs_, most)
        assert [n for one in cut for n in range(pairs_)[one]] == list(range(pairs_))
        assert max(one.stop - one.start for one in cut) <= most
