"""Bad updates are skipped, many in a row are left behind, and all of it is repeatable."""

import json
import math

import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.anomaly import AnomalyDetector

from . import toy_objective as toy

CALM = TrainConfig(steps=40, rate=1e-3, warmup=0, save_every=10, log_every=4, patience=3, device="cpu")


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_spike_is_measured_against_the_usual_norm():
    guard = AnomalyDetector(spike_factor=10, max_bad_steps=2)
    assert [guard.check(1.0, 1.0) for _ in range(15)] == [None] * 15
    assert guard.check(1.0, 1000.0) is None  # too little history to tell
    assert guard.check(1.0, 9.9) is None
    assert "spike" in guard.check(1.0, 10.1) and guard.bad_steps == 1 and not guard.should_roll_back
    assert 10.1 not in guard.grad_norms
    assert "loss is nan" in guard.check(math.nan, 1.0) and guard.should_roll_back
    assert "norm is inf" in guard.check(1.0, math.inf)
    assert guard.check(1.0, 1.0) is None and guard.bad_steps == 0
    off = AnomalyDetector(spike_factor=0, max_bad_steps=2, grad_norms=[1.0] * 64)
    assert off.check(1.0, 1e9) is None


def test_a_bad_batch_is_skipped_and_told(tmp_path, capsys):
    before = {}

    def watch(step, row):
        before[step] = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    trainer = toy.trainer(tmp_path, CALM, on_step=watch)
    summary = trainer.fit(toy.Data(wild=frozenset({6})))
    assert (summary["skipped"], summary["rollbacks"], summary["step"]) == (1, 0, 40)
    assert all(torch.equal(before[7][name], weight) for name, weight in before[6].items())
    assert any(not torch.equal(before[8][name], weight) for name, weight in before[7].items())
    assert {"step": 7, "skipped": "the loss is nan"} in rows(tmp_path)
    assert "step 7: skipped, the loss is nan" in capsys.readouterr().err
    assert all(math.isfinite(row["loss"]) for row in rows(tmp_path) if "loss" in row)
    assert torch.isfinite(trainer.recurrent_state[0])


def test_a_spike_is_skipped(tmp_path):
    toy.trainer(tmp_path, CALM).fit(toy.Data(wild=frozenset({25}), scale=1e4))
    assert [row["step"] for row in rows(tmp_path) if "spike" in row.get("skipped", "")] == [26]


def test_many_bad_updates_go_back_past_the_data_at_half_the_rate(tmp_path, capsys):
    data = toy.Data(wild=frozenset({23, 24, 25}))
    rates = {}
    trainer = toy.trainer(tmp_path, CALM, on_step=lambda step, row: rates.setdefault(step, []).append(row["rate"]))
    summary = trainer.fit(data)
    assert (summary["skipped"], summary["rollbacks"], summary["step"]) == (3, 1, 40)
    assert data.asked == list(range(46))  # steps 20 to 39 read micro-batches 26 to 45: none is met twice
    assert {"step": 26, "rollback": 20, "rate_factor": 0.5, "jump": 6} in rows(tmp_path)
    first, again = rates[22]
    assert again == first / 2
    assert "back to step 20" in capsys.readouterr().err


def test_a_rollback_before_the_first_checkpoint_goes_back_to_the_beginning(tmp_path):
    summary = toy.trainer(tmp_path, CALM).fit(toy.Data(wild=frozenset({2, 3, 4})))
    assert (summary["rollbacks"], summary["step"]) == (1, 40)


@pytest.mark.parametrize("at", [22, 24, 33])
def test_a_run_that_rolled_back_is_resumed_exactly(at, tmp_path):
    data = toy.Data(wild=frozenset({15, 23, 24, 25}))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    toy.trainer(whole, CALM).fit(data)
    with pytest.raises(toy.Died):
        toy.trainer(killed, CALM, on_step=toy.fail_at(at)).fit(data)
    toy.trainer(killed, CALM).fit(data)
    for name in ("metrics.jsonl", "state/step-40/model.safetensors", "state/step-40/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name


def test_after_three_rollbacks_the_run_explains_itself(tmp_path):
    data = toy.Data(wild=frozenset(range(12, 1000)))
    with pytest.raises(UserError, match=r"after 3 rollbacks: the last losses were .*nan.*train\.rate.*train\.warmup"):
        toy.trainer(tmp_path, CALM).fit(data)
    assert data.asked == list(range(25))  # ten good, two good, three bad for each of four tries, one ahead; none met twice
