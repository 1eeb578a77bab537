"""Resuming: a run that was killed, stopped or damaged ends with the same bytes as an uninterrupted one."""

import json
import signal
import time

import msgspec
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from tests.support import toy_objective as toy

COMPARED_FILES = ("metrics.jsonl", *(f"state/step-12/{name}.safetensors" for name in ("model", "optimizer", "recurrent_state")))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    toy.build_trainer(folder).fit(toy.Data())
    return folder


def assert_same_files(folder, uninterrupted):
    for name in COMPARED_FILES:
        assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes(), name


def test_toy_objective_depends_on_dropout_and_recurrent_state(uninterrupted, tmp_path):
    """Otherwise the tests below would prove too little."""
    toy.build_trainer(tmp_path / "dry", model=toy.Model(dropout=0.0)).fit(toy.Data())
    toy.build_trainer(tmp_path / "blank", objective=toy.StatelessObjective()).fit(toy.Data())
    for other in ("dry", "blank"):
        assert (tmp_path / other / COMPARED_FILES[1]).read_bytes() != (uninterrupted / COMPARED_FILES[1]).read_bytes()


@pytest.mark.parametrize(("call", "resumed_at"), [("run_and_exit({!r}, 7)", 4), ("run_and_exit_while_saving({!r}, 8)", 4)])
def test_killed_run_resumes_exactly(call, resumed_at, uninterrupted, tmp_path):
    assert toy.run_in_subprocess(call.format(str(tmp_path))).returncode == 9
    summary = toy.build_trainer(tmp_path).fit(toy.Data())
    assert summary["resumed_at"] == resumed_at
    assert_same_files(tmp_path, uninterrupted)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-12", "step-8"]


def test_run_killed_at_every_step_resumes_exactly(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    config = msgspec.structs.replace(toy.CONFIG, save_every=1)
    for _ in range(11):
        with pytest.raises(toy.SimulatedCrash):
            toy.build_trainer(folder, config, on_step=toy.crash_at(1)).fit(toy.Data())
    toy.build_trainer(folder, config).fit(toy.Data())
    assert_same_files(folder, uninterrupted)


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
def test_resume_skips_damaged_checkpoint(name, uninterrupted, tmp_path, capsys):
    toy.build_trainer(tmp_path).fit(toy.Data())
    flip_bit(tmp_path / "state" / "step-12" / name)
    summary = toy.build_trainer(tmp_path).fit(toy.Data())
    warning = capsys.readouterr().err
    assert summary["resumed_at"] == 8
    assert str(tmp_path / "state" / "step-12") in warning and "trying the checkpoint before it" in warning
    assert name == "manifest.json" or name in warning
    assert_same_files(tmp_path, uninterrupted)


def test_resume_fails_if_all_checkpoints_are_damaged(tmp_path):
    toy.build_trainer(tmp_path).fit(toy.Data())
    for step in (8, 12):
        flip_bit(tmp_path / "state" / f"step-{step}" / "model.safetensors")
    with pytest.raises(UserError, match=r"every checkpoint .* is damaged: .*step-12/model\.safetensors is damaged.*remove"):
        toy.build_trainer(tmp_path).fit(toy.Data())


def test_resume_of_finished_run_trains_nothing(uninterrupted):
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    data = toy.Data()
    summary = toy.build_trainer(uninterrupted).fit(data)
    assert data.requested == []
    assert (summary["step"], summary["resumed_at"]) == (12, 12)
    assert summary["loss"] > 0 and summary["evaluations"]["dev"]["loss"] > 0
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_resume_refuses_another_fingerprint(tmp_path):
    toy.build_trainer(tmp_path, fingerprint="a1").fit(toy.Data())
    with pytest.raises(UserError, match=r"another recipe \(a1, not b2\); choose another `out`, or remove"):
        toy.build_trainer(tmp_path, fingerprint="b2").fit(toy.Data())


def test_resume_refuses_checkpoint_of_another_model(tmp_path):
    toy.build_trainer(tmp_path).fit(toy.Data())
    with pytest.raises(UserError, match=r"model\.safetensors does not match this model"):
        toy.build_trainer(tmp_path, model=torch.nn.Linear(2, 2)).fit(toy.Data())


def test_checkpoints_hold_progress_and_are_pruned(tmp_path):
    toy.build_trainer(tmp_path, fingerprint="a1").fit(toy.Data())
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-12", "step-8"]
    progress = json.loads((tmp_path / "state" / "step-12" / "progress.json").read_text())
    assert (progress["step"], progress["fingerprint"], progress["anomalies"]["rollbacks"]) == (12, "a1", 0)
    assert not list((tmp_path / "state").rglob("*.p[tk]*"))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_saves_checkpoint(signal_number, tmp_path):
    process = toy.run_in_subprocess(f"run_until_signal({str(tmp_path)!r})", wait=False)
    metrics_path = tmp_path / "metrics.jsonl"
    for _ in range(1200):
        if metrics_path.exists() and metrics_path.stat().st_size > 500:
            break
        time.sleep(0.05)
    process.send_signal(signal_number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    step = len(metrics_path.read_text().splitlines())
    assert f"checkpoint saved at step {step};" in stderr and "same command again" in stderr
    assert (tmp_path / "state" / f"step-{step}" / "manifest.json").exists()
    config = TrainConfig(steps=100_000, learning_rate=1e-3, save_every=100_000, log_every=1, device="cpu")
    trainer = toy.build_trainer(tmp_path, config)
    assert trainer.progress.step == 0  # nothing is read from the disk yet
    trainer.resume()
    assert trainer.progress.step == step


def test_signal_handlers_are_restored(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    toy.build_trainer(tmp_path).fit(toy.Data())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
