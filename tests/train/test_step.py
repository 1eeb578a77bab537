"""One update: every target weighs the same, however the update is cut into micro-batches."""

import json
from itertools import pairwise

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bertsmith.errors import UserError
from bertsmith.train import Loss, TrainConfig
from bertsmith.train.optim import Adamw, Muon, build_param_groups, optimizer_state_by_name

from . import toy_objective as toy

ONE = TrainConfig(steps=1, rate=1e-2, warmup=0, log_every=1, device="cpu")


def big():
    """64 rows whose targets lie unevenly: quarters of it have different counts of each part."""
    dice = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 20, (64,), generator=dice)
    words = torch.where(torch.rand(64, generator=dice) < torch.linspace(0.1, 1, 64), ids, -100)
    return toy.Batch(ids, words, torch.where(torch.arange(64) > 40, ids % 2, -100))


@pytest.mark.parametrize("cuts", [(16, 32, 48), (5, 30, 41)])
def test_accumulating_unequal_micro_batches_equals_one_large_batch(cuts, tmp_path):
    whole, bounds = big(), [0, *cuts, 64]
    parts = [whole.part(a, b) for a, b in pairwise(bounds)]
    assert len({tuple(part.target_counts.items()) for part in parts}) == 4  # otherwise a mean of means would pass
    rows, weights = [], []
    for name, data in (("whole", [whole]), ("parts", parts)):
        config = msgspec.structs.replace(ONE, accumulate=len(data), steps=3)
        trainer = toy.trainer(tmp_path / name, config, toy.Model(), objective=toy.Forgetful())
        trainer.fit(lambda k, done, data=data: data[k % len(data)])
        found = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        rows.append([row for row in found if "trial" not in row])
        weights.append(load_file(tmp_path / name / "state" / "step-3" / "model.safetensors"))
    for one, four in zip(*rows, strict=True):
        assert one == pytest.approx(four, rel=1e-6)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-6, atol=1e-6)


def test_the_loss_is_the_sum_of_the_means_of_its_parts(tmp_path):
    model, batch = toy.Model(), big()
    loss = toy.Objective().compute_loss(model, batch, ())
    expected = {f"loss.{name}": part.item() / batch.target_counts[name] for name, part in loss.parts.items()}
    toy.trainer(tmp_path, ONE, toy.Model()).fit(lambda k, done: batch)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert row["loss"] == pytest.approx(sum(expected.values()), rel=1e-6)
    assert (row["tokens"], row["accuracy"]) == (64, loss.metrics["accuracy"][0].item() / batch.target_counts["words"])


@pytest.mark.parametrize("clip", [0.1, 0.0])
def test_gradients_are_clipped_as_torch_clips_them(clip, tmp_path):
    batch, config = big(), msgspec.structs.replace(ONE, clip=clip, decay=0.0)
    model = toy.Model()
    loss = toy.Objective().compute_loss(model, batch, ())
    sum(part / batch.target_counts[name] for name, part in loss.parts.items()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
    trainer = toy.trainer(tmp_path, config, toy.Model())
    outcome = trainer.update_step.fetch_result(trainer.update_step.compute_grads([(0, batch)], ()))
    assert outcome.metrics.means()["norm"] == pytest.approx(norm.item(), rel=1e-6)
    assert norm > 0.2  # so that there was something to clip
    for mine, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)


def held(trainer):
    """Every weight, and what the optimizer remembers."""
    tensors = {**dict(trainer.model.named_parameters()), **optimizer_state_by_name(trainer.optimizer, trainer.model)}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", [Adamw(), Muon()], ids=["adamw", "muon"])
def test_an_attempt_is_an_update_unless_it_is_spoilt_or_too_long(kind, tmp_path):
    """The device decides what the host would: a bad update between good ones leaves no trace."""
    config, data = msgspec.structs.replace(ONE, optimizer=kind), toy.Data(wild=frozenset({7}))
    asking, trying = (toy.trainer(tmp_path / name, config, toy.Model(), trials={}) for name in ("asking", "trying"))
    for k in range(4):
        asking.update_step.compute_grads([(k, data(k, 0.0))], ())
        asking.update_step.apply(1e-2)
        pending = trying.update_step.compute_grads([(k, data(k, 0.0))], ())
        trying.update_step.apply_unless_anomalous(pending, 1e-2, float(pending.grad_norm))  # as long as may be, and no longer
        same, before = held(asking), held(trying)
        assert same.keys() == before.keys() and all(torch.equal(same[name], before[name]) for name in same)
        for number in (k, 7):  # a spike, and a loss that is no number
            again = trying.update_step.compute_grads([(k, data(number, 0.0))], ())
            trying.update_step.apply_unless_anomalous(
                again, 1e-2, float("inf") if number == 7 else 0.99 * float(again.grad_norm)
            )
            after = held(trying)
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert all(weight.grad is None for weight in trying.model.parameters())


def test_a_batch_without_targets_changes_no_weight(tmp_path):
    class Silent(toy.Objective):
        def compute_loss(self, model, batch, recurrent_state):
            return Loss({"words": torch.zeros(())})

    model = toy.Model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    toy.trainer(tmp_path, ONE, model, objective=Silent()).fit(toy.Data())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_a_part_that_nobody_counted_is_refused(tmp_path):
    class Uncounted(toy.Objective):
        def compute_loss(self, model, batch, recurrent_state):
            return Loss({"letters": model(batch.ids).sum()})

    with pytest.raises(ValueError, match=r"\['letters'\].*\['next', 'words'\]"):
        toy.trainer(tmp_path, ONE, objective=Uncounted()).fit(toy.Data())


def test_frozen_weights_stay_and_only_matrices_decay(tmp_path):
    model = toy.Model()
    model.inner.weight.requires_grad_(False)
    tables, matrices, vectors = build_param_groups(model, 0.1)
    assert [id(w) for w in tables["params"]] == [id(model.tokens.weight)] and not tables["matrices"]
    assert {id(w) for w in matrices["params"]} == {id(w) for w in (model.words.weight, model.next.weight)} and matrices[
        "matrices"
    ]
    assert tables["weight_decay"] == 0.1
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert len(vectors["params"]) == 5 and all(w.ndim == 1 for w in vectors["params"])
    before = model.inner.weight.clone()
    toy.trainer(tmp_path, ONE, model).fit(toy.Data())
    assert torch.equal(model.inner.weight, before)
    for weight in model.parameters():
        weight.requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        build_param_groups(model, 0.1)


def test_bf16_trains_and_keeps_its_weights_in_fp32(tmp_path):
    config = msgspec.structs.replace(ONE, steps=30, precision="bf16")
    seen = []
    trainer = toy.trainer(tmp_path, config, toy.Model(), on_step=lambda step, row: seen.append(row["loss"]))
    trainer.fit(lambda k, done: big())
    assert seen[-1] < 0.8 * seen[0]
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
