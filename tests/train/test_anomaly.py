"""Anomalous updates are skipped; several in a row cause a rollback; both are reproducible."""

import json
import math

import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.anomaly import AnomalyDetector
from tests.support import toy_objective as toy

CONFIG = TrainConfig(steps=40, learning_rate=1e-3, warmup_steps=0, save_every=10, log_every=4, max_bad_steps=3, device="cpu")


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_anomaly_detector_compares_grad_norm_with_recent_median():
    detector = AnomalyDetector(spike_factor=10, max_bad_steps=2)
    assert [detector.check(1.0, 1.0) for _ in range(15)] == [None] * 15
    assert detector.check(1.0, 1000.0) is None  # too little history for a threshold
    assert detector.check(1.0, 9.9) is None
    assert (
        "over 10 times its median of 1" in detector.check(1.0, 10.1)
        and detector.bad_steps == 1
        and not detector.should_roll_back
    )
    assert 10.1 not in detector.grad_norms
    assert "loss is nan" in detector.check(math.nan, 1.0) and detector.should_roll_back
    assert "norm is inf" in detector.check(1.0, math.inf)
    assert detector.check(1.0, 1.0) is None and detector.bad_steps == 0
    disabled = AnomalyDetector(spike_factor=0, max_bad_steps=2, grad_norms=[1.0] * 64)
    assert disabled.check(1.0, 1e9) is None


def test_nan_batch_is_skipped_and_logged(tmp_path, capsys):
    weights_after = {}

    def record(step, row):
        weights_after[step] = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    trainer = toy.build_trainer(tmp_path, CONFIG, on_step=record)
    summary = trainer.fit(toy.Data(bad_batches=frozenset({6})))
    assert (summary["skipped_steps"], summary["rollbacks"], summary["step"]) == (1, 0, 40)
    assert all(torch.equal(weights_after[7][name], weight) for name, weight in weights_after[6].items())
    assert any(not torch.equal(weights_after[8][name], weight) for name, weight in weights_after[7].items())
    assert {"step": 7, "skip_reason": "loss is nan"} in read_metrics(tmp_path)
    assert "step 7: update skipped: loss is nan" in capsys.readouterr().err
    assert all(math.isfinite(row["loss"]) for row in read_metrics(tmp_path) if "loss" in row)
    assert torch.isfinite(trainer.recurrent_state[0])


def test_grad_norm_spike_is_skipped(tmp_path):
    toy.build_trainer(tmp_path, CONFIG).fit(toy.Data(bad_batches=frozenset({25}), scale=1e4))
    assert [row["step"] for row in read_metrics(tmp_path) if "times its median" in row.get("skip_reason", "")] == [26]


def test_rollback_skips_batches_and_halves_learning_rate(tmp_path, capsys):
    data = toy.Data(bad_batches=frozenset({23, 24, 25}))
    rates = {}
    trainer = toy.build_trainer(
        tmp_path, CONFIG, on_step=lambda step, row: rates.setdefault(step, []).append(row["learning_rate"])
    )
    summary = trainer.fit(data)
    assert (summary["skipped_steps"], summary["rollbacks"], summary["step"]) == (3, 1, 40)
    assert data.requested == list(range(46))  # steps 20 to 39 read micro-batches 26 to 45: none twice
    assert {"step": 26, "rollback_to": 20, "lr_scale": 0.5, "batch_offset": 6} in read_metrics(tmp_path)
    first, again = rates[22]
    assert again == first / 2
    assert "back to step 20" in capsys.readouterr().err


def test_rollback_before_first_checkpoint_restarts_from_step_0(tmp_path):
    summary = toy.build_trainer(tmp_path, CONFIG).fit(toy.Data(bad_batches=frozenset({2, 3, 4})))
    assert (summary["rollbacks"], summary["step"]) == (1, 40)


@pytest.mark.parametrize("at", [22, 24, 33])
def test_run_with_rollback_resumes_exactly(at, tmp_path):
    data = toy.Data(bad_batches=frozenset({15, 23, 24, 25}))
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    toy.build_trainer(uninterrupted, CONFIG).fit(data)
    with pytest.raises(toy.SimulatedCrash):
        toy.build_trainer(killed, CONFIG, on_step=toy.crash_at(at)).fit(data)
    toy.build_trainer(killed, CONFIG).fit(data)
    for name in ("metrics.jsonl", "state/step-40/model.safetensors", "state/step-40/optimizer.safetensors"):
        assert (uninterrupted / name).read_bytes() == (killed / name).read_bytes(), name


def test_training_fails_with_explanation_after_three_rollbacks(tmp_path):
    data = toy.Data(bad_batches=frozenset(range(12, 1000)))
    with pytest.raises(UserError, match=r"after 3 rollbacks \(last losses: .*nan.*train\.learning_rate.*train\.warmup_steps"):
        toy.build_trainer(tmp_path, CONFIG).fit(data)
    assert data.requested == list(range(25))  # 10 good, 2 good, 3 bad in each of 4 tries, 1 prefetched; none twice
