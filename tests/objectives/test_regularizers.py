"""Adversarial training (FGM, PGD) and R-Drop against their formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.objectives.regularizers import AdversarialConfig, AdversarialObjective, RDrop
from bertsmith.objectives.supervised import Supervised
from bertsmith.tasks import MultipleChoice, QuestionAnswering, TextClassification, TextRegression, TokenClassification
from bertsmith.train.objective import Batch, Loss
from tests.support.models import SMALL_ENCODER

OBJECTIVE = Supervised(TextClassification(labels=("a", "b")))
INPUTS = Inputs(torch.arange(12) % 30, Layout.from_lengths([5, 7]))
BATCH = Batch(INPUTS, {"label": torch.tensor([0, 1])}, {"task": 2})


def build_test_model(dropout=0.0):
    encoder = type(SMALL_ENCODER)(
        **{f: getattr(SMALL_ENCODER, f) for f in SMALL_ENCODER.__struct_fields__} | {"hidden_dropout_prob": dropout}
    )
    return build_model(
        ModelConfig(encoder=encoder, vocab_size=30, heads={"task": SequenceHeadConfig(outputs=2, dropout=dropout)}), 0
    ).train()


def perturbed_loss(model, delta):
    return OBJECTIVE.compute_loss(model, replace(BATCH, inputs=replace(INPUTS, embedding_delta=delta))).parts["task"]


def test_fgm_perturbs_along_normalized_gradient():
    model, epsilon = build_test_model(), 0.05
    zero = torch.zeros(12, 16, requires_grad=True)
    (grad,) = torch.autograd.grad(perturbed_loss(model, zero), zero)
    deltas = [epsilon * part / part.norm() for part in grad.split([5, 7])]
    expected = perturbed_loss(model, zero) + perturbed_loss(model, torch.cat(deltas))
    loss = (
        AdversarialObjective(OBJECTIVE, AdversarialConfig(epsilon=epsilon, step_size=epsilon))
        .compute_loss(model, BATCH)
        .parts["task"]
    )
    assert_close(loss, expected)
    assert loss > 2 * perturbed_loss(model, zero)  # the perturbed batch has a higher loss than the clean one


class TinyLoss:
    """A loss whose gradient with respect to the perturbation is `scale`, on a path through `dtype`."""

    def __init__(self, scale, dtype):
        self.scale, self.dtype, self.deltas = scale, dtype, []

    def compute_loss(self, model, batch, recurrent_state=()):
        self.deltas.append(batch.inputs.embedding_delta.detach())
        return Loss({"task": (batch.inputs.embedding_delta.to(self.dtype) * 1.0).float().sum() * self.scale}, {})


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-8, torch.float16), (1.0, torch.float16), (3e4, torch.float16), (1e-30, torch.float32)]
)
def test_fgm_perturbs_by_its_step_size_however_small_the_gradient(scale, dtype):
    objective = TinyLoss(scale, dtype)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.float16):
        AdversarialObjective(objective, AdversarialConfig(epsilon=0.5, step_size=0.5)).compute_loss(build_test_model(), BATCH)
    clean, perturbed = objective.deltas
    assert not clean.any()
    assert_close(perturbed, torch.cat([torch.full((n, 16), 0.5 / (16 * n) ** 0.5) for n in (5, 7)]))


def test_pgd_increases_loss_within_epsilon():
    model, deltas = build_test_model(), []

    class Recorder:
        def compute_loss(self, model, batch, recurrent_state=()):
            deltas.append(batch.inputs.embedding_delta.detach())
            return OBJECTIVE.compute_loss(model, batch, recurrent_state)

    fgm_loss = (
        AdversarialObjective(OBJECTIVE, AdversarialConfig(epsilon=1.0, steps=1, step_size=0.1))
        .compute_loss(model, BATCH)
        .parts["task"]
    )
    pgd_loss = (
        AdversarialObjective(Recorder(), AdversarialConfig(epsilon=0.25, steps=6, step_size=0.1))
        .compute_loss(model, BATCH)
        .parts["task"]
    )
    assert pgd_loss > fgm_loss
    assert len(deltas) == 7
    assert max(part.norm() for delta in deltas for part in delta.split([5, 7])) <= 0.25 + 1e-6


@pytest.mark.parametrize("wrapped", [AdversarialObjective(OBJECTIVE, AdversarialConfig()), RDrop(OBJECTIVE, 1.0)])
def test_regularizer_is_inactive_in_eval_and_trains_all_weights(wrapped):
    model = build_test_model(dropout=0.1)
    model.eval()
    assert_close(wrapped.compute_loss(model, BATCH).parts["task"], OBJECTIVE.compute_loss(model, BATCH).parts["task"])
    model.train()
    wrapped.compute_loss(model, BATCH).parts["task"].backward()
    without_grad = {
        name for name, weight in model.named_parameters() if weight.grad is None or not torch.isfinite(weight.grad).all()
    }
    assert not without_grad


def test_rdrop_loss_is_mean_plus_symmetric_kl():
    model = build_test_model(dropout=0.3)
    torch.manual_seed(7)
    logits, other_logits = (OBJECTIVE.compute_outputs(model, BATCH) for _ in range(2))
    p, q = logits.log_softmax(-1), other_logits.log_softmax(-1)
    divergence = (torch.nn.functional.kl_div(p, q, log_target=True, reduction="sum")
                  + torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum")) / 2  # fmt: skip
    mean_loss = (
        sum(torch.nn.functional.cross_entropy(x, BATCH.targets["label"], reduction="sum") for x in (logits, other_logits)) / 2
    )
    torch.manual_seed(7)
    assert_close(RDrop(OBJECTIVE, 4.0).compute_loss(model, BATCH).parts["task"], mean_loss + 4 * divergence)
    assert divergence > 0
    without_dropout = build_test_model()
    assert_close(
        RDrop(OBJECTIVE, 4.0).compute_loss(without_dropout, BATCH).parts["task"],
        OBJECTIVE.compute_loss(without_dropout, BATCH).parts["task"],
    )


LABEL = torch.tensor([-100, 0, 1, -100, 1, -100, 0, 0, 1, -100, -100, -100])
CASES = {
    "regress": (TextRegression(), (2, 1), {"label": torch.zeros(2)}),
    "many": (TextClassification(labels=("a", "b", "c"), multi_label=True), (2, 3), {"label": torch.zeros(2, 3)}),
    "tag": (TokenClassification(labels=("O", "B")), (12, 2), {"label": LABEL}),
    "choose": (MultipleChoice(), (5, 1), {"label": torch.tensor([0, 2]), "group": torch.tensor([0, 0, 1, 1, 1])}),
    "answer": (QuestionAnswering(), (12, 2), {"start": torch.tensor([1, 2]), "end": torch.tensor([2, 3])}),
}


@pytest.mark.parametrize("kind", CASES)
def test_rdrop_consistency_loss_of_every_task(kind):
    task, shape, targets = CASES[kind]
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=shape), requires_grad=True)
    other_logits = torch.tensor(rng.normal(size=shape))
    batch = Batch(INPUTS, targets, {"task": 2})
    objective = Supervised(task)
    assert objective.consistency_loss(logits, logits.detach(), batch).item() == pytest.approx(0, abs=1e-12)
    divergence = objective.consistency_loss(logits, other_logits, batch)
    divergence.backward()
    assert divergence > 0 and torch.isfinite(logits.grad).all() and logits.grad.abs().sum() > 0
    assert_close(objective.consistency_loss(other_logits, logits.detach(), batch), divergence.detach())
