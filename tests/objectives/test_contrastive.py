"""Contrastive learning against sums written out in loops, and the texts that would be pushed away from themselves."""

import math

import numpy as np
import pytest
import torch

from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.contrastive import Contrastive, false_negative_mask, pool_tokens
from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TextSimilarity
from bertsmith.tasks.similarity import SimilarityExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)
CONFIG = EncoderConfig(
    layers=2, width=16, mixer=Attention(heads=2), feedforward=FeedForwardConfig(inner=32), positions=32, deviation=0.2
)
PAIRS = [("the people", "now"), ("she said", "of and one"), ("many", "the way"), ("the people", "all"), ("one", "many")]


@pytest.fixture(scope="module")
def model():
    return build_model(ModelConfig(encoder=CONFIG, vocabulary=len(TOKENIZER)), 0)


def vector(model, text, pool):
    """One text by itself: no batch, no packing with others."""
    from bertsmith.model.batch import Inputs
    from bertsmith.model.packing import Layout

    ids = [TOKENIZER.cls_token_id, *TOKENIZER.encode(text).ids, TOKENIZER.sep_token_id]
    hidden = model(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
    return (hidden[0] if pool == "first" else hidden.mean(0)).tolist()


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def spelt_out(model, rows, pool, temperature):
    """The loss of SimCSE with one sum an anchor, in plain Python; a text that means the same is left out of the sum."""
    vectors = {text: vector(model, text, pool) for row in rows for text in row}
    total = 0.0
    for i, row in enumerate(rows):
        like = lambda text, row=row: math.exp(cosine(vectors[row[0]], vectors[text]) / temperature)
        below = like(row[1])
        for j, other in enumerate(rows):
            partner_too = other[1] in (row[0], row[1]) or other[0] == row[0]
            below += like(other[1]) if j != i and not partner_too else 0.0
            below += sum(like(text) for text in other[2:] if text not in (row[0], row[1]))
        total -= math.log(like(row[1]) / below)
    return total


@pytest.mark.parametrize("pool", ["mean", "first"])
@pytest.mark.parametrize("negatives", [False, True])
def test_the_loss_is_that_of_loops_in_plain_python(model, pool, negatives):
    rows = [(*pair, ("now", "water", "was", "the way", "she said")[i]) if negatives else pair for i, pair in enumerate(PAIRS)]
    examples = [SimilarityExample(row[0], row[1], None, row[2] if negatives else None) for row in rows]
    task = TextSimilarity(pool=pool, temperature=0.1).fit(examples)
    reading = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=1)
    batch = reading(0)
    assert reading.batches_per_epoch == 1 and batch.target_counts == {"task": 5}
    loss = build_task_objective(task).compute_loss(model.eval(), batch)
    assert loss.parts["task"].item() == pytest.approx(spelt_out(model, rows, pool, 0.1), rel=1e-4)


def test_a_text_that_comes_twice_is_not_pushed_from_itself():
    """Rows: 0 and 2 begin alike, 1's partner is 0's first text, 3's partner is 0's partner."""
    texts = torch.tensor([[0, 1], [2, 0], [0, 3], [4, 1]])
    assert false_negative_mask(texts).int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    lone = torch.tensor([[0, 0], [1, 1], [0, 0]])
    assert false_negative_mask(lone).int().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    hard = torch.tensor([[0, 1, 2], [3, 4, 1]])  # the negative of the second is the first's partner
    assert false_negative_mask(hard).int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_pairs_with_scores_pay_the_square_of_what_their_cosine_misses(model):
    examples = [SimilarityExample(a, b, float(i)) for i, (a, b) in enumerate(PAIRS)]
    task = TextSimilarity().fit(examples)
    batch = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=0)(0)
    wanted = sum(
        (cosine(vector(model.eval(), a, "mean"), vector(model, b, "mean")) - i / 4) ** 2 for i, (a, b) in enumerate(PAIRS)
    )
    loss = Contrastive(task).compute_loss(model, batch)
    assert loss.parts["task"].item() == pytest.approx(wanted, rel=1e-4)


def test_two_readings_of_one_text_differ_by_dropout_alone(model):
    task = TextSimilarity()
    batch = ExampleBatches(
        task, task.encode([SimilarityExample("the people"), SimilarityExample("now and one")], TOKENIZER, 16), 4096, seed=0
    )(0)
    still = Contrastive(task).compute_outputs(model.eval(), batch)
    torch.testing.assert_close(still[0], still[1])
    moving = Contrastive(task).compute_outputs(model.train(), batch)
    assert (moving[0] - moving[1]).abs().max() > 1e-3
    model.eval()


def test_what_belongs_together_shares_a_batch(model):
    examples = [SimilarityExample(a, b) for a, b in PAIRS] * 20
    task = TextSimilarity()
    reading = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 40, seed=3)
    counts = [reading(k).target_counts["task"] for k in range(reading.batches_per_epoch)]
    assert sum(counts) == 100 and reading.batches_per_epoch > 10
    sizes = [reading(k).inputs.layout.num_sequences for k in range(reading.batches_per_epoch)]
    assert sizes == [2 * count for count in counts]


def test_vectors_are_pooled_without_their_neighbours(model):
    from bertsmith.model.packing import Layout

    hidden = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32))
    layout = Layout.from_lengths([3, 4])
    torch.testing.assert_close(pool_tokens(hidden, layout, "mean"), torch.stack([hidden[:3].mean(0), hidden[3:].mean(0)]))
    assert torch.equal(pool_tokens(hidden, layout, "first"), hidden[[0, 3]])
