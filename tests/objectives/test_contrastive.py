"""Contrastive learning (SimCSE) against plain Python, false negatives, batches and pooling."""

import math

import msgspec
import numpy as np
import pytest
import torch

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import contrastive
from bertsmith.objectives.contrastive import Contrastive, false_negative_mask, pool_tokens
from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TextSimilarity
from bertsmith.tasks.similarity import SimilarityExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
CONFIG = EncoderConfig(
    num_hidden_layers=2,
    hidden_size=16,
    mixer=Attention(num_attention_heads=2),
    feedforward=FeedForwardConfig(intermediate_size=32),
    max_position_embeddings=32,
    initializer_range=0.2,
)
PAIRS = [("the people", "now"), ("she said", "of and one"), ("many", "the way"), ("the people", "all"), ("one", "many")]


@pytest.fixture(scope="module")
def model():
    return build_model(ModelConfig(encoder=CONFIG, vocab_size=len(TOKENIZER)), 0)


def embed_alone(model, text, pooling):
    """Embedding of one text in a batch of its own."""
    ids = [TOKENIZER.cls_token_id, *TOKENIZER.encode(text).ids, TOKENIZER.sep_token_id]
    hidden_states = model(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
    return (hidden_states[0] if pooling == "cls" else hidden_states.mean(0)).tolist()


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def reference_simcse_loss(model, rows, pooling, temperature):
    """SimCSE loss in plain Python, one sum per anchor, without false negatives."""
    embeddings = {text: embed_alone(model, text, pooling) for row in rows for text in row}
    total = 0.0
    for i, row in enumerate(rows):
        exp_similarity = lambda text, row=row: math.exp(cosine(embeddings[row[0]], embeddings[text]) / temperature)
        denominator = exp_similarity(row[1])
        for j, other in enumerate(rows):
            is_false_negative = other[1] in (row[0], row[1]) or other[0] == row[0]
            denominator += exp_similarity(other[1]) if j != i and not is_false_negative else 0.0
            denominator += sum(exp_similarity(text) for text in other[2:] if text not in (row[0], row[1]))
        total -= math.log(exp_similarity(row[1]) / denominator)
    return total


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("negatives", [False, True])
def test_simcse_loss_matches_plain_python(model, pooling, negatives):
    rows = [(*pair, ("now", "water", "was", "the way", "she said")[i]) if negatives else pair for i, pair in enumerate(PAIRS)]
    examples = [SimilarityExample(row[0], row[1], None, row[2] if negatives else None) for row in rows]
    task = TextSimilarity(pooling=pooling, temperature=0.1).fit(examples)
    batches = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=1)
    batch = batches(0)
    assert batches.batches_per_epoch == 1 and batch.target_counts == {"task": 5}
    loss = build_task_objective(task).compute_loss(model.eval(), batch)
    assert loss.parts["task"].item() == pytest.approx(reference_simcse_loss(model, rows, pooling, 0.1), rel=1e-4)


def test_false_negative_mask():
    """Rows 0 and 2 have the same anchor, the positive of 1 is the anchor of 0, the positive of 3 is that of 0."""
    text_ids = torch.tensor([[0, 1], [2, 0], [0, 3], [4, 1]])
    assert false_negative_mask(text_ids).int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    single_texts = torch.tensor([[0, 0], [1, 1], [0, 0]])
    assert false_negative_mask(single_texts).int().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    with_negatives = torch.tensor([[0, 1, 2], [3, 4, 1]])  # the hard negative of the second is the positive of the first
    assert false_negative_mask(with_negatives).int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_scored_pairs_loss_is_squared_error_of_cosine(model):
    examples = [SimilarityExample(a, b, float(i)) for i, (a, b) in enumerate(PAIRS)]
    task = TextSimilarity().fit(examples)
    batch = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=0)(0)
    expected = sum(
        (cosine(embed_alone(model.eval(), a, "mean"), embed_alone(model, b, "mean")) - i / 4) ** 2
        for i, (a, b) in enumerate(PAIRS)
    )
    loss = Contrastive(task).compute_loss(model, batch)
    assert loss.parts["task"].item() == pytest.approx(expected, rel=1e-4)


def test_simcse_positives_differ_only_by_dropout(model):
    task = TextSimilarity()
    batch = ExampleBatches(
        task, task.encode([SimilarityExample("the people"), SimilarityExample("now and one")], TOKENIZER, 16), 4096, seed=0
    )(0)
    without_dropout = Contrastive(task).compute_outputs(model.eval(), batch)
    torch.testing.assert_close(without_dropout[0], without_dropout[1])
    with_dropout = Contrastive(task).compute_outputs(model.train(), batch)
    assert (with_dropout[0] - with_dropout[1]).abs().max() > 1e-3
    model.eval()


def test_similarity_pairs_are_in_one_batch(model):
    examples = [SimilarityExample(a, b) for a, b in PAIRS] * 20
    task = TextSimilarity()
    batches = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 40, seed=3)
    counts = [batches(k).target_counts["task"] for k in range(batches.batches_per_epoch)]
    assert sum(counts) == 100 and batches.batches_per_epoch > 10
    num_sequences = [batches(k).inputs.layout.num_sequences for k in range(batches.batches_per_epoch)]
    assert num_sequences == [2 * count for count in counts]


def test_pool_tokens_pools_each_sequence(model):
    from bertsmith.model.packing import Layout

    hidden_states = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32))
    layout = Layout.from_lengths([3, 4])
    torch.testing.assert_close(
        pool_tokens(hidden_states, layout, "mean"), torch.stack([hidden_states[:3].mean(0), hidden_states[3:].mean(0)])
    )
    assert torch.equal(pool_tokens(hidden_states, layout, "cls"), hidden_states[[0, 3]])


def compute_gradients(model, task, examples, seed=5):
    """Loss and gradients of one batch of all examples."""
    batch = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=1)(0)
    model.zero_grad()
    torch.manual_seed(seed)
    loss = build_task_objective(task).compute_loss(model, batch).parts["task"]
    loss.backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("fields", ["texts", "pairs", "negatives", "windows"])
def test_gradients_in_parts_are_those_of_the_whole_batch(monkeypatch, dropout, fields):
    config = msgspec.structs.replace(CONFIG, hidden_dropout_prob=dropout)
    model = build_model(ModelConfig(encoder=config, vocab_size=len(TOKENIZER)), 0).train()
    second, third = fields != "texts", "water" if fields == "negatives" else None
    texts = [(" ".join([a] * 12) if fields == "windows" else a, b) for a, b in PAIRS]
    examples = [SimilarityExample(a, b if second else None, None, third) for a, b in texts * 3]
    long_text = {"long_text": "hierarchical", "doc_stride": 7} if fields == "windows" else {}
    task = TextSimilarity(temperature=0.2, matryoshka_dims=(4, 8), mini_batch_tokens=20, **long_text).fit(examples)
    loss, gradients = compute_gradients(model, task, examples)
    if dropout:  # the same parts, with the same dropout, but with the activations of all of them stored
        monkeypatch.setattr(contrastive, "checkpoint", lambda function, *arguments, use_reentrant: function(*arguments))
        whole = task
    else:
        whole = msgspec.structs.replace(task, mini_batch_tokens=4096)
    whole_loss, whole_gradients = compute_gradients(model, whole, examples)
    assert loss == pytest.approx(whole_loss, rel=1e-6) and gradients.keys() == whole_gradients.keys()
    scale = max(gradient.abs().max() for gradient in whole_gradients.values())
    for name, gradient in whole_gradients.items():
        assert (gradients[name] - gradient).abs().max() <= 1e-5 * scale, name
    if dropout:  # another seed is another dropout
        assert compute_gradients(model, whole, examples, seed=6)[0] != pytest.approx(whole_loss, rel=1e-4)


def test_parts_hold_whole_sequences_of_at_most_so_many_tokens():
    lengths = [3, 9, 2, 2, 30, 1, 1, 5]
    layout = Layout.from_lengths(lengths, global_tokens=np.array([0, 4, 16, 50]))
    inputs = Inputs(torch.arange(sum(lengths)), layout, torch.arange(sum(lengths)) % 2)
    parts = list(contrastive.split_sequences(inputs, 12))
    assert [part.layout.lengths.tolist() for part in parts] == [[3, 9], [2, 2], [30], [1, 1, 5]]
    assert torch.equal(torch.cat([part.input_ids for part in parts]), inputs.input_ids)
    assert torch.equal(torch.cat([part.token_type_ids for part in parts]), inputs.token_type_ids)
    starts = [part.input_ids[0].item() for part in parts]
    tokens = [part.layout.explicit_global_tokens.tolist() for part in parts]
    assert [first + token for first, part in zip(starts, tokens, strict=True) for token in part] == [0, 4, 16, 50]


def test_matryoshka_loss_is_the_sum_over_nested_sizes(model):
    examples = [SimilarityExample(*pair) for pair in PAIRS]
    task = TextSimilarity(matryoshka_dims=(4, 8, 16, 99)).fit(examples)  # 16 is the whole vector, 99 more than it
    batch = ExampleBatches(task, task.encode(examples, TOKENIZER, 16), 4096, seed=1)(0)
    embeddings = build_task_objective(task).compute_outputs(model.eval(), batch)
    plain = Contrastive(msgspec.structs.replace(task, matryoshka_dims=()))
    losses = [plain.loss_from_embeddings(embeddings[:, :size], batch).parts["task"] for size in (4, 8, 16)]
    torch.testing.assert_close(Contrastive(task).loss_from_embeddings(embeddings, batch).parts["task"], sum(losses))
