"""The CRF against an oracle that knows no recursion: every path there is, written out and summed."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bertsmith.config import from_dict, to_dict
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads.crf import CRFBatch
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives.supervised import ExampleBatches, Supervised, build_batch
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.tag_schemes import can_follow, is_valid_sequence, transition_mask, viterbi_decode
from bertsmith.tasks.token_classification import TokenClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import WORDS as ENGLISH

BIO = ("B-X", "I-X", "B-Y", "I-Y", "O")
BIOES = ("B-X", "I-X", "E-X", "S-X", "O")
WORDS = ("B", "M", "E", "S")
SCHEMES = [("any", ("DT", "NN", "VB")), ("bio", BIO), ("bioes", BIOES), ("bioes", WORDS)]


def path_score(scores, path, moves, whole):
    """Plain addition, in the order of the sentence."""
    total = moves[-1, path[0]] * whole[0]
    for place, tag in enumerate(path):
        total = total + scores[place, tag]
        if place:
            total = total + moves[path[place - 1], tag]
    return total + moves[path[-1], -1] * whole[1]


def keeps(path, labels, scheme, whole):
    """Legal step by step; where a chain is open it may begin, or end, with anything."""
    tags = [labels[tag] for tag in path]
    begins, ends = not whole[0] or can_follow("O", tags[0], scheme), not whole[1] or can_follow(tags[-1], "O", scheme)
    return begins and ends and all(can_follow(before, here, scheme) for before, here in itertools.pairwise(tags))


def brute(scores, tags, moves, labels, scheme, whole):
    """log of the sum over every legal path, less the true one."""
    paths = itertools.product(range(len(labels)), repeat=len(scores))
    if keeps(tags, labels, scheme, whole):
        paths = [path for path in paths if keeps(path, labels, scheme, whole)]
    totals = torch.stack([path_score(scores, path, moves, whole) for path in paths])
    return totals.logsumexp(0) - path_score(scores, tags, moves, whole)


def drawn(seed, labels, scheme, sizes, legal=True):
    rng = np.random.default_rng(seed)
    scores = [torch.tensor(rng.normal(size=(size, len(labels))) * 2, requires_grad=True) for size in sizes]
    moves = torch.tensor(rng.normal(size=(len(labels) + 1,) * 2), requires_grad=True)
    whole = [tuple(bool(side) for side in rng.integers(2, size=2)) for _ in sizes]
    tags = []
    for size, sides in zip(sizes, whole, strict=True):
        paths = list(itertools.product(range(len(labels)), repeat=size))
        good = [path for path in paths if keeps(path, labels, scheme, sides)]
        tags.append((good if legal and good else paths)[rng.integers(len(good if legal and good else paths))])
    return scores, moves, whole, tags


def ours(scores, moves, whole, tags, labels, scheme):
    owner = torch.arange(len(scores)).repeat_interleave(torch.tensor([len(one) for one in scores])) * 2  # some have none
    sides = torch.zeros(2 * len(scores), 2, dtype=torch.bool)
    sides[::2] = torch.tensor(whole)
    flat = torch.tensor([tag for path in tags for tag in path])
    rule = None if scheme == "any" else torch.from_numpy(transition_mask(labels, scheme).copy())
    return CRFBatch.from_tokens(torch.cat(scores), flat, owner, sides).nll(moves, rule)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    which=st.sampled_from(SCHEMES),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    legal=st.booleans(),
)
def test_the_loss_and_its_gradients_are_those_of_all_paths(seed, which, sizes, legal):
    scheme, labels = which
    scores, moves, whole, tags = drawn(seed, labels, scheme, sizes, legal)
    loss = ours(scores, moves, whole, tags, labels, scheme)
    told = torch.stack([brute(s, t, moves, labels, scheme, w) for s, t, w in zip(scores, tags, whole, strict=True)])
    assert_close(loss, told, atol=1e-5, rtol=1e-5)
    assert (loss > -1e-9).all()
    weights = [*scores, moves]
    for mine, true in zip(torch.autograd.grad(loss.sum(), weights), torch.autograd.grad(told.sum(), weights), strict=True):
        assert_close(mine, true, atol=1e-5, rtol=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    scores, moves, whole, tags = drawn(3, BIO, "bio", [3, 1, 5])
    assert torch.autograd.gradcheck(lambda m, *s: ours(s, m, whole, tags, BIO, "bio"), (moves, *scores))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), which=st.sampled_from(SCHEMES), size=st.integers(1, 5), learnt=st.booleans())
def test_the_best_path_is_the_best_of_all(seed, which, size, learnt):
    scheme, labels = which
    rng = np.random.default_rng(seed)
    scores, moves = rng.normal(size=(size, len(labels))), rng.normal(size=(len(labels) + 1,) * 2) * learnt
    paths = list(itertools.product(range(len(labels)), repeat=size))
    legal = [path for path in paths if is_valid_sequence([labels[tag] for tag in path], scheme)]
    tensors = torch.from_numpy(scores), torch.from_numpy(moves)
    best = max(legal or paths, key=lambda path: float(path_score(tensors[0], path, tensors[1], (True, True))))
    assert tuple(viterbi_decode(scores, labels, scheme, moves if learnt else None)) == best


def test_probabilities_of_all_legal_paths_sum_to_one():
    scores, moves, _, _ = drawn(5, BIOES, "bioes", [4])
    legal = [p for p in itertools.product(range(5), repeat=4) if is_valid_sequence([BIOES[tag] for tag in p], "bioes")]
    losses = [ours(scores, moves, [(True, True)], [path], BIOES, "bioes") for path in legal]
    assert torch.cat(losses).neg().exp().sum().item() == pytest.approx(1)


def test_nothing_is_lost_in_single_precision_on_long_chains_with_illegal_steps():
    rng = np.random.default_rng(0)
    tags = torch.from_numpy(rng.choice([0, 2, 4], 3000))
    scores = torch.from_numpy(rng.normal(size=(3000, 5)) * 5) + 8 * torch.nn.functional.one_hot(tags, 5)
    moves = torch.from_numpy(rng.normal(size=(6, 6)))
    rule = torch.from_numpy(transition_mask(BIO, "bio").copy())
    found = []
    for kind in (torch.float32, torch.float64):
        leaf = moves.to(kind).requires_grad_()
        chains = CRFBatch.from_tokens(
            scores.to(kind), tags, torch.zeros(3000, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)
        )
        loss = chains.nll(leaf, rule).sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        found.append((loss.double(), slope.double()))
    assert_close(found[0][0], found[1][0], rtol=1e-5, atol=0)
    assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-2)
    assert not found[1][1][~rule].any()  # what may not be is never learnt


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def tagged(rng, size):
    tags = []
    for _ in range(size):
        before = tags[-1] if tags else "O"
        tags.append(str(rng.choice([tag for tag in BIO if can_follow(before, tag, "bio")])))
    return Sentence(tokens=tuple(map(str, rng.choice(ENGLISH, size))), tags=tuple(tags))


def taught(tokenizer, examples, **words):
    """An objective, a new model with random moves, and one batch of all examples."""
    objective = Supervised(TokenClassification(labels=BIO, **words).fit(examples))
    encoder = from_dict(
        EncoderConfig, {"width": 16, "layers": 1, "mixer": {"heads": 2}, "feedforward": {"inner": 32}, "positions": 64}
    )
    model = build_model(ModelConfig(encoder=encoder, vocabulary=len(tokenizer), heads=objective.heads()), 0).eval()
    if "chain" in model.heads:
        torch.nn.init.normal_(model.heads["chain"].moves)
    encoded = objective.task.encode(examples, tokenizer, 14)
    return objective, model, encoded, ExampleBatches(objective.task, encoded, 10**6, 0, shuffle=False)(0)


@torch.no_grad()
def test_a_packed_batch_costs_what_its_sentences_and_windows_cost_one_by_one(tokenizer):
    rng = np.random.default_rng(2)
    examples = [tagged(rng, size) for size in (1, 3, 4, 40)]
    objective, model, encoded, packed = taught(tokenizer, examples, crf=True, overlap=4)
    task, moves = objective.task, model.heads["chain"].moves
    assert task.scheme == "bio" and len(encoded.input_ids) > 5
    total = 0.0
    for number, window in enumerate(encoded.metadata):
        if not len(window.tokens):
            continue
        gold = [task.labels.index(examples[encoded.example_index[number]].tags[token]) for token in window.tokens]
        rows = objective.compute_outputs(model, build_batch(task, encoded, [np.array([number])]))[window.places]
        total += chain_alone(rows, gold, moves, task.labels, window.whole)
    loss = objective.compute_loss(model, packed)
    assert packed.target_counts["task"] == 48
    assert float(loss.parts["task"]) == pytest.approx(total, rel=1e-5)


def chain_alone(scores, gold, moves, labels, whole):
    """The forward recursion written once more, over one chain and in float64, with illegal tags left out of the sums."""
    scores, moves, count = scores.double().numpy(), moves.double().numpy(), len(labels)
    reach = {}
    for tag in range(count):
        if not whole[0] or can_follow("O", labels[tag], "bio"):
            reach[tag] = scores[0, tag] + moves[-1, tag] * whole[0]
    for row in scores[1:]:
        reach = {
            tag: row[tag]
            + np.logaddexp.reduce(
                [score + moves[a, tag] for a, score in reach.items() if can_follow(labels[a], labels[tag], "bio")]
            )
            for tag in range(count)
            if any(can_follow(labels[a], labels[tag], "bio") for a in reach)
        }
    total = np.logaddexp.reduce([score + moves[tag, -1] * whole[1] for tag, score in reach.items()])
    return total - float(path_score(torch.from_numpy(scores), gold, torch.from_numpy(moves), whole))


@torch.no_grad()
def test_a_chain_that_has_learnt_nothing_is_a_softmax_a_token(tokenizer):
    examples = [tagged(np.random.default_rng(4), size) for size in (2, 5, 30)]
    (usual, _, _, _), (chained, model, _, packed) = (taught(tokenizer, examples, legal=False, crf=crf) for crf in (False, True))
    model.heads["chain"].moves.zero_()
    mine, theirs = chained.compute_loss(model, packed), usual.compute_loss(model, packed)
    assert_close(mine.parts["task"], theirs.parts["task"])
    assert mine.metrics["accuracy"] == theirs.metrics["accuracy"]


@pytest.mark.parametrize("tags", ["O I-X O", "I-Y I-X B-X"])
def test_a_slip_in_a_file_costs_something_finite(tokenizer, tags):
    rng = np.random.default_rng(1)
    slip = Sentence(tokens=("the", "way", "people"), tags=tuple(tags.split()))
    objective, model, _, packed = taught(tokenizer, [*(tagged(rng, 6) for _ in range(150)), slip], crf=True)
    assert objective.task.scheme == "bio"
    loss = objective.compute_loss(model, packed).parts["task"]
    loss.backward()
    assert 0 < loss.item() < 10_000
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def test_what_was_learnt_is_in_the_task_and_decodes(tokenizer):
    examples = [tagged(np.random.default_rng(6), size) for size in (3, 12, 25)]
    objective, model, encoded, _ = taught(tokenizer, examples, crf=True)
    task = objective.finalize_task(model)
    assert from_dict(TokenClassification, to_dict(task)) == task and task.moves[0][1] == pytest.approx(
        model.heads["chain"].moves[0, 1].item(), abs=1e-6
    )
    assert taught(tokenizer, examples)[0].finalize_task(model).moves == ()
    scores = [np.zeros((len(ids), task.num_outputs)) for ids in encoded.input_ids]
    told, untold = (one.decode(scores, encoded, examples)[0].tags for one in (task, objective.task))
    table = np.array(task.moves)
    paths = [p for p in itertools.product(range(5), repeat=3) if is_valid_sequence([task.labels[tag] for tag in p], "bio")]
    best = max(paths, key=lambda p: table[-1, p[0]] + table[p[0], p[1]] + table[p[1], p[2]] + table[p[2], -1])
    assert told == tuple(task.labels[tag] for tag in best) != untold


@torch.no_grad()
def test_unknown_tags_and_sentences_without_any_cost_nothing(tokenizer):
    examples = [tagged(np.random.default_rng(7), 5)]
    objective, model, _, _ = taught(tokenizer, [*examples, *(tagged(np.random.default_rng(n), 20) for n in range(3))], crf=True)
    strange = Sentence(tokens=("the", "way"), tags=("B-NEW", "I-NEW"))
    costs = []
    for some in ([strange], examples, [strange, *examples]):
        encoded = objective.task.encode(some, tokenizer, 14)
        costs.append(float(objective.compute_loss(model, ExampleBatches(objective.task, encoded, 10**6, 0)(0)).parts["task"]))
    assert costs[0] == 0 and costs[1] > 0 and costs[2] == pytest.approx(costs[1])
