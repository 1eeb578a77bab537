"""Batches read against the model, and read twice: what is paid, and that it is what the papers say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Batch, Inputs
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.objectives.regularizers import AdversarialConfig, AdversarialObjective, RDrop
from bertsmith.objectives.supervised import Supervised
from bertsmith.tasks import MultipleChoice, QuestionAnswering, TextClassification, TextRegression, TokenClassification
from tests.model.test_lora import ENCODER

TASK = Supervised(TextClassification(labels=("a", "b")))
INPUTS = Inputs(torch.arange(12) % 30, Layout.from_lengths([5, 7]))
BATCH = Batch(INPUTS, {"label": torch.tensor([0, 1])}, {"task": 2})


def model(dropout=0.0):
    encoder = type(ENCODER)(**{f: getattr(ENCODER, f) for f in ENCODER.__struct_fields__} | {"dropout": dropout})
    return build_model(
        ModelConfig(encoder=encoder, vocabulary=30, heads={"task": SequenceHeadConfig(outputs=2, dropout=dropout)}), 0
    ).train()


def moved(one, nudge):
    return TASK.compute_loss(one, replace(BATCH, inputs=replace(INPUTS, embedding_delta=nudge))).parts["task"]


def test_one_step_goes_along_the_gradient_by_its_size_in_each_sequence():
    one, size = model(), 0.05
    zero = torch.zeros(12, 16, requires_grad=True)
    (slope,) = torch.autograd.grad(moved(one, zero), zero)
    parts = [size * part / part.norm() for part in slope.split([5, 7])]
    expected = moved(one, zero) + moved(one, torch.cat(parts))
    found = AdversarialObjective(TASK, AdversarialConfig(size=size, stride=size)).compute_loss(one, BATCH).parts["task"]
    assert_close(found, expected)
    assert found > 2 * moved(one, zero)  # the moved batch hurts more than the clean one


def test_more_steps_hurt_more_and_stay_near():
    one, seen = model(), []

    class Watching:
        def compute_loss(self, model, batch, carry=()):
            seen.append(batch.inputs.nudge.detach())
            return TASK.compute_loss(model, batch, carry)

    few = AdversarialObjective(TASK, AdversarialConfig(size=1.0, steps=1, stride=0.1)).compute_loss(one, BATCH).parts["task"]
    many = (
        AdversarialObjective(Watching(), AdversarialConfig(size=0.25, steps=6, stride=0.1))
        .compute_loss(one, BATCH)
        .parts["task"]
    )
    assert many > few
    assert len(seen) == 7
    assert max(part.norm() for nudge in seen for part in nudge.split([5, 7])) <= 0.25 + 1e-6


@pytest.mark.parametrize("wrapped", [AdversarialObjective(TASK, AdversarialConfig()), RDrop(TASK, 1.0)])
def test_judging_is_as_before_and_learning_reaches_every_weight(wrapped):
    one = model(dropout=0.1)
    one.eval()
    assert_close(wrapped.loss(one, BATCH).parts["task"], TASK.compute_loss(one, BATCH).parts["task"])
    one.train()
    wrapped.loss(one, BATCH).parts["task"].backward()
    lost = {name for name, weight in one.named_parameters() if weight.grad is None or not torch.isfinite(weight.grad).all()}
    assert not lost


def test_reading_twice_pays_for_the_mean_and_the_difference():
    one = model(dropout=0.3)
    torch.manual_seed(7)
    first, second = (TASK.compute_outputs(one, BATCH) for _ in range(2))
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    divergence = (torch.nn.functional.kl_div(p, q, log_target=True, reduction="sum")
                  + torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum")) / 2  # fmt: skip
    price = sum(torch.nn.functional.cross_entropy(x, BATCH.targets["label"], reduction="sum") for x in (first, second)) / 2
    torch.manual_seed(7)
    assert_close(RDrop(TASK, 4.0).compute_loss(one, BATCH).parts["task"], price + 4 * divergence)
    assert divergence > 0
    dry = model()
    assert_close(RDrop(TASK, 4.0).compute_loss(dry, BATCH).parts["task"], TASK.compute_loss(dry, BATCH).parts["task"])


LABEL = torch.tensor([-100, 0, 1, -100, 1, -100, 0, 0, 1, -100, -100, -100])
KINDS = {
    "regress": (TextRegression(), (2, 1), {"label": torch.zeros(2)}),
    "many": (TextClassification(labels=("a", "b", "c"), many=True), (2, 3), {"label": torch.zeros(2, 3)}),
    "tag": (TokenClassification(labels=("O", "B")), (12, 2), {"label": LABEL}),
    "choose": (MultipleChoice(), (5, 1), {"label": torch.tensor([0, 2]), "group": torch.tensor([0, 0, 1, 1, 1])}),
    "answer": (QuestionAnswering(), (12, 2), {"start": torch.tensor([1, 2]), "end": torch.tensor([2, 3])}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_knows_how_far_two_readings_are_apart(kind):
    task, shape, targets = KINDS[kind]
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=shape), requires_grad=True)
    others = torch.tensor(rng.normal(size=shape))
    batch = Batch(INPUTS, targets, {"task": 2})
    objective = Supervised(task)
    assert objective.consistency_loss(scores, scores.detach(), batch).item() == pytest.approx(0, abs=1e-12)
    apart = objective.consistency_loss(scores, others, batch)
    apart.backward()
    assert apart > 0 and torch.isfinite(scores.grad).all() and scores.grad.abs().sum() > 0
    assert_close(objective.consistency_loss(others, scores.detach(), batch), apart.detach())
