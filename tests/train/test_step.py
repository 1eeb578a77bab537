"""One update: gradient accumulation, clipping, skipped updates, parameter groups, mixed precision."""

import json
import math
from itertools import pairwise

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bertsmith.errors import UserError
from bertsmith.train import Loss, TrainConfig
from bertsmith.train.optim import Adamw, Muon, build_param_groups, optimizer_state_by_name
from tests.support import toy_objective as toy

ONE_STEP = TrainConfig(steps=1, learning_rate=1e-2, warmup_steps=0, log_every=1, device="cpu")


def large_batch():
    """64 tokens with unevenly distributed targets: quarters of it have different target counts of each part."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 20, (64,), generator=generator)
    words = torch.where(torch.rand(64, generator=generator) < torch.linspace(0.1, 1, 64), ids, -100)
    return toy.build_batch(ids, words, torch.where(torch.arange(64) > 40, ids % 2, -100))


@pytest.mark.parametrize("cuts", [(16, 32, 48), (5, 30, 41)])
def test_gradient_accumulation_matches_one_large_batch(cuts, tmp_path):
    full_batch, bounds = large_batch(), [0, *cuts, 64]
    parts = [toy.slice_batch(full_batch, a, b) for a, b in pairwise(bounds)]
    assert len({tuple(part.target_counts.items()) for part in parts}) == 4  # otherwise a mean of means would pass, too
    metrics, weights = [], []
    for name, data in (("whole", [full_batch]), ("parts", parts)):
        config = msgspec.structs.replace(ONE_STEP, gradient_accumulation_steps=len(data), steps=3)
        trainer = toy.build_trainer(tmp_path / name, config, toy.Model(), objective=toy.StatelessObjective())
        trainer.fit(lambda k, done, data=data: data[k % len(data)])
        logged = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        metrics.append([row for row in logged if "split" not in row])
        weights.append(load_file(tmp_path / name / "state" / "step-3" / "model.safetensors"))
    for expected, accumulated in zip(*metrics, strict=True):
        assert expected == pytest.approx(accumulated, rel=1e-6)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-6, atol=1e-6)


def test_loss_is_sum_of_means_of_parts(tmp_path):
    model, batch = toy.Model(), large_batch()
    loss = toy.Objective().compute_loss(model, batch, ())
    expected = {f"{name}_loss": part.item() / batch.target_counts[name] for name, part in loss.parts.items()}
    toy.build_trainer(tmp_path, ONE_STEP, toy.Model()).fit(lambda k, done: batch)
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert row["loss"] == pytest.approx(sum(expected.values()), rel=1e-6)
    assert (row["tokens"], row["accuracy"]) == (64, loss.metrics["accuracy"][0].item() / batch.target_counts["mlm"])


@pytest.mark.parametrize("clip", [0.1, 0.0])
def test_gradient_clipping_matches_torch(clip, tmp_path):
    batch, config = large_batch(), msgspec.structs.replace(ONE_STEP, max_grad_norm=clip, weight_decay=0.0)
    model = toy.Model()
    loss = toy.Objective().compute_loss(model, batch, ())
    sum(part / batch.target_counts[name] for name, part in loss.parts.items()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
    trainer = toy.build_trainer(tmp_path, config, toy.Model())
    result, grads = record_grads(trainer, lambda: run_step(trainer, batch))
    assert result.metrics.means()["grad_norm"] == pytest.approx(norm.item(), rel=1e-6)
    assert norm > 0.2  # so that there was something to clip
    for grad, reference in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(grad, reference.grad, rtol=1e-5, atol=1e-7)


class AcceptUpTo:
    """Stands for an AnomalyDetector with a fixed limit of the gradient norm."""

    def __init__(self, spike_threshold=math.inf):
        self.spike_threshold = spike_threshold

    def check(self, loss, grad_norm):
        return None if math.isfinite(loss) and grad_norm <= self.spike_threshold else "anomalous"


def run_step(trainer, batch, detector=None, seed=0):
    """One update, without recurrent state."""
    return trainer.update_step([(seed, batch)], 1e-2, (), detector or AcceptUpTo())


def record_grads(trainer, step):
    """The result of a step, and the gradients that the optimizer was given."""
    grads = []
    record = lambda *_: grads.extend(param.grad.clone() for param in trainer.model.parameters())
    with trainer.setup.optimizer.register_step_pre_hook(record):
        result = step()
    return result, grads


def copy_state(trainer):
    """Copies of all weights and of the optimizer state."""
    tensors = {**dict(trainer.model.named_parameters()), **optimizer_state_by_name(trainer.setup.optimizer, trainer.model)}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("optimizer", [Adamw(), Muon()], ids=["adamw", "muon"])
def test_device_skips_nan_and_spikes(optimizer, tmp_path):
    """The device decides as the host would: an anomalous update between good ones has no effect."""
    config, data = msgspec.structs.replace(ONE_STEP, optimizer=optimizer), toy.Data(bad_batches=frozenset({7}))
    host, device = (toy.build_trainer(tmp_path / name, config, toy.Model(), eval_sets={}) for name in ("asking", "trying"))
    device.update_step.device_decides = True
    for k in range(4):
        norm = run_step(host, data(k, 0.0), seed=k).means()["grad_norm"]
        result = run_step(device, data(k, 0.0), AcceptUpTo(norm), seed=k)  # exactly at the limit
        assert result.skip_reason is None and result.means()["grad_norm"] == norm
        expected, before = copy_state(host), copy_state(device)
        assert expected.keys() == before.keys() and all(torch.equal(expected[name], before[name]) for name in expected)
        for index, detector in ((k, AcceptUpTo(0.0)), (7, AcceptUpTo())):  # a spike, and a NaN loss
            assert run_step(device, data(index, 0.0), detector, seed=k).skip_reason == "anomalous"
            after = copy_state(device)
            assert all(torch.equal(before[name], after[name]) for name in before)
            assert all(weight.grad is None for weight in device.model.parameters())


def test_skipped_update_changes_neither_weights_nor_recurrent_state(tmp_path):
    trainer, prefetched = toy.build_trainer(tmp_path, ONE_STEP, toy.Model()), []
    before, state = copy_state(trainer), (torch.tensor(3.0),)
    batches = [(0, large_batch())]
    skipped = trainer.update_step(batches, 1e-2, state, AcceptUpTo(0.0), lambda: prefetched.append(1))
    assert skipped.skip_reason == "anomalous" and skipped.recurrent_state is state and prefetched == [1]
    assert all(torch.equal(before[name], value) for name, value in copy_state(trainer).items())
    applied = trainer.update_step(batches, 1e-2, state, AcceptUpTo())
    assert applied.skip_reason is None and applied.recurrent_state[0] == 4
    assert not torch.equal(before["inner.weight"], trainer.model.inner.weight)


def test_batch_without_targets_changes_no_weight(tmp_path):
    class NoLoss(toy.Objective):
        def compute_loss(self, model, batch, recurrent_state):
            return Loss({"mlm": torch.zeros(())})

    model = toy.Model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    toy.build_trainer(tmp_path, ONE_STEP, model, objective=NoLoss()).fit(toy.Data())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_loss_part_without_target_count_is_refused(tmp_path):
    class Uncounted(toy.Objective):
        def compute_loss(self, model, batch, recurrent_state):
            return Loss({"letters": model(batch.inputs.ids).sum()})

    with pytest.raises(ValueError, match=r"\['letters'\].*\['mlm', 'nsp'\]"):
        toy.build_trainer(tmp_path, ONE_STEP, objective=Uncounted()).fit(toy.Data())


def test_param_groups_skip_frozen_weights_and_decay_only_matrices(tmp_path):
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
    toy.build_trainer(tmp_path, ONE_STEP, model).fit(toy.Data())
    assert torch.equal(model.inner.weight, before)
    for weight in model.parameters():
        weight.requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        build_param_groups(model, 0.1)


def test_bf16_training_keeps_weights_in_fp32(tmp_path):
    config = msgspec.structs.replace(ONE_STEP, steps=30, precision="bf16")
    losses = []
    trainer = toy.build_trainer(tmp_path, config, toy.Model(), on_step=lambda step, row: losses.append(row["loss"]))
    trainer.fit(lambda k, done: large_batch())
    assert losses[-1] < 0.8 * losses[0]
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
