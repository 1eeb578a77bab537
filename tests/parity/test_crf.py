"""The CRF against brute force: every path enumerated and summed."""

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
from tests.support.texts import WORDS as ENGLISH_WORDS

BIO = ("B-X", "I-X", "B-Y", "I-Y", "O")
BIOES = ("B-X", "I-X", "E-X", "S-X", "O")
BMES = ("B", "M", "E", "S")
SCHEMES = [("any", ("DT", "NN", "VB")), ("bio", BIO), ("bioes", BIOES), ("bioes", BMES)]


def path_score(emissions, path, transitions, has_ends):
    """Sum of emissions and transitions along a path."""
    total = transitions[-1, path[0]] * has_ends[0]
    for position, tag in enumerate(path):
        total = total + emissions[position, tag]
        if position:
            total = total + transitions[path[position - 1], tag]
    return total + transitions[path[-1], -1] * has_ends[1]


def is_allowed(path, labels, scheme, has_ends):
    """Whether all transitions are allowed; a cut-off start or end allows any tag."""
    tags = [labels[tag] for tag in path]
    start_allowed, end_allowed = (
        not has_ends[0] or can_follow("O", tags[0], scheme),
        not has_ends[1] or can_follow(tags[-1], "O", scheme),
    )
    return (
        start_allowed
        and end_allowed
        and all(can_follow(previous, current, scheme) for previous, current in itertools.pairwise(tags))
    )


def brute_force_nll(emissions, tags, transitions, labels, scheme, has_ends):
    """log Z over all allowed paths, minus the score of the gold path."""
    paths = itertools.product(range(len(labels)), repeat=len(emissions))
    if is_allowed(tags, labels, scheme, has_ends):
        paths = [path for path in paths if is_allowed(path, labels, scheme, has_ends)]
    totals = torch.stack([path_score(emissions, path, transitions, has_ends) for path in paths])
    return totals.logsumexp(0) - path_score(emissions, tags, transitions, has_ends)


def random_batch(seed, labels, scheme, lengths, valid_only=True):
    rng = np.random.default_rng(seed)
    emissions = [torch.tensor(rng.normal(size=(length, len(labels))) * 2, requires_grad=True) for length in lengths]
    transitions = torch.tensor(rng.normal(size=(len(labels) + 1,) * 2), requires_grad=True)
    has_ends = [tuple(bool(end) for end in rng.integers(2, size=2)) for _ in lengths]
    tags = []
    for length, ends in zip(lengths, has_ends, strict=True):
        paths = list(itertools.product(range(len(labels)), repeat=length))
        allowed_paths = [path for path in paths if is_allowed(path, labels, scheme, ends)]
        tags.append(
            (allowed_paths if valid_only and allowed_paths else paths)[
                rng.integers(len(allowed_paths if valid_only and allowed_paths else paths))
            ]
        )
    return emissions, transitions, has_ends, tags


def crf_nll(emissions, transitions, has_ends, tags, labels, scheme):
    # Sequences with odd ids have no tagged token.
    seq_id = torch.arange(len(emissions)).repeat_interleave(torch.tensor([len(x) for x in emissions])) * 2
    padded_ends = torch.zeros(2 * len(emissions), 2, dtype=torch.bool)
    padded_ends[::2] = torch.tensor(has_ends)
    flat_tags = torch.tensor([tag for path in tags for tag in path])
    allowed = None if scheme == "any" else torch.from_numpy(transition_mask(labels, scheme).copy())
    return CRFBatch.from_tokens(torch.cat(emissions), flat_tags, seq_id, padded_ends).nll(transitions, allowed)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    which=st.sampled_from(SCHEMES),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    valid_only=st.booleans(),
)
def test_crf_nll_and_grads_match_brute_force(seed, which, lengths, valid_only):
    scheme, labels = which
    emissions, transitions, has_ends, tags = random_batch(seed, labels, scheme, lengths, valid_only)
    loss = crf_nll(emissions, transitions, has_ends, tags, labels, scheme)
    expected = torch.stack(
        [
            brute_force_nll(emission, gold, transitions, labels, scheme, ends)
            for emission, gold, ends in zip(emissions, tags, has_ends, strict=True)
        ]
    )
    assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert (loss > -1e-9).all()
    weights = [*emissions, transitions]
    for grad, expected_grad in zip(
        torch.autograd.grad(loss.sum(), weights), torch.autograd.grad(expected.sum(), weights), strict=True
    ):
        assert_close(grad, expected_grad, atol=1e-5, rtol=1e-5)


def test_crf_gradcheck():
    emissions, transitions, has_ends, tags = random_batch(3, BIO, "bio", [3, 1, 5])
    assert torch.autograd.gradcheck(lambda m, *s: crf_nll(s, m, has_ends, tags, BIO, "bio"), (transitions, *emissions))


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), which=st.sampled_from(SCHEMES), size=st.integers(1, 5), has_transitions=st.booleans())
def test_viterbi_path_matches_brute_force(seed, which, size, has_transitions):
    scheme, labels = which
    rng = np.random.default_rng(seed)
    emissions, transitions = rng.normal(size=(size, len(labels))), rng.normal(size=(len(labels) + 1,) * 2) * has_transitions
    paths = list(itertools.product(range(len(labels)), repeat=size))
    valid = [path for path in paths if is_valid_sequence([labels[tag] for tag in path], scheme)]
    tensors = torch.from_numpy(emissions), torch.from_numpy(transitions)
    best = max(valid or paths, key=lambda path: float(path_score(tensors[0], path, tensors[1], (True, True))))
    assert tuple(viterbi_decode(emissions, labels, scheme, transitions if has_transitions else None)) == best


def test_crf_path_probabilities_sum_to_one():
    emissions, transitions, _, _ = random_batch(5, BIOES, "bioes", [4])
    valid = [p for p in itertools.product(range(5), repeat=4) if is_valid_sequence([BIOES[tag] for tag in p], "bioes")]
    losses = [crf_nll(emissions, transitions, [(True, True)], [valid_path], BIOES, "bioes") for valid_path in valid]
    assert torch.cat(losses).neg().exp().sum().item() == pytest.approx(1)


def test_crf_float32_is_accurate_on_long_sequences():
    rng = np.random.default_rng(0)
    tags = torch.from_numpy(rng.choice([0, 2, 4], 3000))
    emissions = torch.from_numpy(rng.normal(size=(3000, 5)) * 5) + 8 * torch.nn.functional.one_hot(tags, 5)
    transitions = torch.from_numpy(rng.normal(size=(6, 6)))
    allowed = torch.from_numpy(transition_mask(BIO, "bio").copy())
    results = []
    for dtype in (torch.float32, torch.float64):
        transition_leaf = transitions.to(dtype).requires_grad_()
        batch = CRFBatch.from_tokens(
            emissions.to(dtype), tags, torch.zeros(3000, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)
        )
        loss = batch.nll(transition_leaf, allowed).sum()
        (grad,) = torch.autograd.grad(loss, transition_leaf)
        results.append((loss.double(), grad.double()))
    assert_close(results[0][0], results[1][0], rtol=1e-5, atol=0)
    assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-2)
    assert not results[1][1][~allowed].any()  # disallowed transitions get no gradient


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def random_sentence(rng, length):
    tags = []
    for _ in range(length):
        previous = tags[-1] if tags else "O"
        tags.append(str(rng.choice([tag for tag in BIO if can_follow(previous, tag, "bio")])))
    return Sentence(tokens=tuple(map(str, rng.choice(ENGLISH_WORDS, length))), tags=tuple(tags))


def build_objective_and_model(tokenizer, examples, **fields):
    """An objective, a model with random transitions, the encoded examples, and one batch of all of them."""
    objective = Supervised(TokenClassification(labels=BIO, **fields).fit(examples))
    encoder = from_dict(
        EncoderConfig,
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "mixer": {"num_attention_heads": 2},
            "feedforward": {"intermediate_size": 32},
            "max_position_embeddings": 64,
        },
    )
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(tokenizer), heads=objective.heads()), 0).eval()
    if "crf" in model.heads:
        torch.nn.init.normal_(model.heads["crf"].transitions)
    encoded = objective.task.encode(examples, tokenizer, 14)
    return objective, model, encoded, ExampleBatches(objective.task, encoded, 10**6, 0, shuffle=False)(0)


@torch.no_grad()
def test_crf_packed_batch_matches_sum_of_sentences_and_windows(tokenizer):
    rng = np.random.default_rng(2)
    examples = [random_sentence(rng, length) for length in (1, 3, 4, 40)]
    objective, model, encoded, packed = build_objective_and_model(tokenizer, examples, crf=True, overlap=4)
    task, transitions = objective.task, model.heads["crf"].transitions
    assert task.scheme == "bio" and len(encoded.input_ids) > 5
    total = 0.0
    for i, window in enumerate(encoded.metadata):
        if not len(window.tokens):
            continue
        gold = [task.labels.index(examples[encoded.example_index[i]].tags[token]) for token in window.tokens]
        rows = objective.compute_outputs(model, build_batch(task, encoded, [np.array([i])]))[window.positions]
        total += reference_nll(rows, gold, transitions, task.labels, window.has_ends)
    loss = objective.compute_loss(model, packed)
    assert packed.target_counts["task"] == 48
    assert float(loss.parts["task"]) == pytest.approx(total, rel=1e-5)


def reference_nll(emissions, gold, transitions, labels, has_ends):
    """The forward algorithm for one sequence in float64, leaving disallowed transitions out of the sums."""
    emissions, transitions, count = emissions.double().numpy(), transitions.double().numpy(), len(labels)
    alpha = {}
    for tag in range(count):
        if not has_ends[0] or can_follow("O", labels[tag], "bio"):
            alpha[tag] = emissions[0, tag] + transitions[-1, tag] * has_ends[0]
    for row in emissions[1:]:
        alpha = {
            tag: row[tag]
            + np.logaddexp.reduce(
                [
                    score + transitions[previous, tag]
                    for previous, score in alpha.items()
                    if can_follow(labels[previous], labels[tag], "bio")
                ]
            )
            for tag in range(count)
            if any(can_follow(labels[previous], labels[tag], "bio") for previous in alpha)
        }
    total = np.logaddexp.reduce([score + transitions[tag, -1] * has_ends[1] for tag, score in alpha.items()])
    return total - float(path_score(torch.from_numpy(emissions), gold, torch.from_numpy(transitions), has_ends))


@torch.no_grad()
def test_crf_with_zero_transitions_is_a_softmax_per_token(tokenizer):
    examples = [random_sentence(np.random.default_rng(4), size) for size in (2, 5, 30)]
    (softmax, _, _, _), (crf_objective, model, _, packed) = (
        build_objective_and_model(tokenizer, examples, constrained_decoding=False, crf=crf) for crf in (False, True)
    )
    model.heads["crf"].transitions.zero_()
    crf_loss, softmax_loss = crf_objective.compute_loss(model, packed), softmax.compute_loss(model, packed)
    assert_close(crf_loss.parts["task"], softmax_loss.parts["task"])
    assert crf_loss.metrics["accuracy"] == softmax_loss.metrics["accuracy"]


@pytest.mark.parametrize("tags", ["O I-X O", "I-Y I-X B-X"])
def test_crf_nll_of_invalid_gold_tags_is_finite(tokenizer, tags):
    rng = np.random.default_rng(1)
    invalid = Sentence(tokens=("the", "way", "people"), tags=tuple(tags.split()))
    objective, model, _, packed = build_objective_and_model(
        tokenizer, [*(random_sentence(rng, 6) for _ in range(150)), invalid], crf=True
    )
    assert objective.task.scheme == "bio"
    loss = objective.compute_loss(model, packed).parts["task"]
    loss.backward()
    assert 0 < loss.item() < 10_000
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


def test_crf_transitions_are_stored_in_the_task_and_decode(tokenizer):
    examples = [random_sentence(np.random.default_rng(6), size) for size in (3, 12, 25)]
    objective, model, encoded, _ = build_objective_and_model(tokenizer, examples, crf=True)
    task = objective.finalize_task(model)
    assert from_dict(TokenClassification, to_dict(task)) == task and task.transitions[0][1] == pytest.approx(
        model.heads["crf"].transitions[0, 1].item(), abs=1e-6
    )
    assert build_objective_and_model(tokenizer, examples)[0].finalize_task(model).transitions == ()
    emissions = [np.zeros((len(ids), task.num_outputs)) for ids in encoded.input_ids]
    with_transitions, without_transitions = (
        each.decode(emissions, encoded, examples)[0].tags for each in (task, objective.task)
    )
    table = np.array(task.transitions)
    paths = [p for p in itertools.product(range(5), repeat=3) if is_valid_sequence([task.labels[tag] for tag in p], "bio")]
    best = max(paths, key=lambda p: table[-1, p[0]] + table[p[0], p[1]] + table[p[1], p[2]] + table[p[2], -1])
    assert with_transitions == tuple(task.labels[tag] for tag in best) != without_transitions


@torch.no_grad()
def test_crf_ignores_unknown_tags_and_untagged_sentences(tokenizer):
    examples = [random_sentence(np.random.default_rng(7), 5)]
    objective, model, _, _ = build_objective_and_model(
        tokenizer, [*examples, *(random_sentence(np.random.default_rng(n), 20) for n in range(3))], crf=True
    )
    unknown = Sentence(tokens=("the", "way"), tags=("B-NEW", "I-NEW"))
    losses = []
    for sentences in ([unknown], examples, [unknown, *examples]):
        encoded = objective.task.encode(sentences, tokenizer, 14)
        losses.append(float(objective.compute_loss(model, ExampleBatches(objective.task, encoded, 10**6, 0)(0)).parts["task"]))
    assert losses[0] == 0 and losses[1] > 0 and losses[2] == pytest.approx(losses[1])
