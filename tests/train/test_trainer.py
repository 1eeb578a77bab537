"""The training loop: metrics, evaluation, time limits, progress display."""

import json
import re
import time
from itertools import pairwise

import msgspec
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.logging import ProgressDisplay
from bertsmith.train.progress import Clock, TimeProgress
from bertsmith.train.setup import prepare
from tests.support import toy_objective as toy


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_trainer_reduces_loss(tmp_path):
    config = TrainConfig(steps=150, learning_rate=1e-2, device="cpu", log_every=15)
    summary = toy.build_trainer(tmp_path, config, toy.Model()).fit(toy.Data())
    losses = [row["loss"] for row in read_metrics(tmp_path) if "split" not in row]
    assert losses[-1] < 0.4 * losses[0]
    assert summary["loss"] == losses[-1]
    assert summary["evaluations"]["dev"]["accuracy"] > 0.8
    assert summary["tokens"] == sum(8 + k % 5 for k in range(150))


def test_metrics_rows_average_over_log_interval(tmp_path):
    step_metrics = []
    toy.build_trainer(tmp_path, toy.CONFIG, on_step=lambda step, row: step_metrics.append(row)).fit(toy.Data())
    logged = [row for row in read_metrics(tmp_path) if "split" not in row]
    assert [row["step"] for row in logged] == [3, 6, 9, 12]
    assert [row["split"] for row in read_metrics(tmp_path) if "split" in row] == ["dev", "dev"]  # step 6, and once at the end
    assert list(logged[0]) == ["step", "loss", "mlm_loss", "nsp_loss", "learning_rate", "grad_norm", "tokens", "accuracy"]
    assert logged[1]["learning_rate"] == step_metrics[5]["learning_rate"]
    assert logged[1]["grad_norm"] == pytest.approx(sum(row["grad_norm"] for row in step_metrics[3:6]) / 3)
    counts = [sum(toy.Data()(2 * step + i, 0).target_counts["nsp"] for i in range(2)) for step in range(3)]
    expected = sum(n * row["nsp_loss"] for n, row in zip(counts, step_metrics, strict=False)) / sum(counts)
    assert logged[0]["nsp_loss"] == pytest.approx(expected)


def test_metrics_of_last_partial_interval_are_logged(tmp_path):
    config = msgspec.structs.replace(toy.CONFIG, steps=10, log_every=4)
    toy.build_trainer(tmp_path, config).fit(toy.Data())
    assert [row["step"] for row in read_metrics(tmp_path) if "split" not in row] == [4, 8, 10]


def test_evaluation_averages_over_targets_and_does_not_affect_training(tmp_path):
    config = msgspec.structs.replace(toy.CONFIG, eval_every=1)
    trainer = toy.build_trainer(tmp_path / "often", config)
    summary = trainer.fit(toy.Data())
    toy.build_trainer(tmp_path / "never", eval_sets={}).fit(toy.Data())
    name = "state/step-12/model.safetensors"
    assert (tmp_path / "often" / name).read_bytes() == (tmp_path / "never" / name).read_bytes()
    assert trainer.model.training
    trainer.model.eval()
    losses, recurrent_state = [], ()
    for batch in toy.eval_batches():
        loss = toy.Objective().compute_loss(trainer.model, batch, recurrent_state)
        recurrent_state = loss.recurrent_state
        losses.append((loss.parts["mlm"].item(), batch.target_counts["mlm"]))
    expected = sum(total for total, _ in losses) / sum(count for _, count in losses)
    assert summary["evaluations"]["dev"]["mlm_loss"] == pytest.approx(expected, rel=1e-6)


def without_targets(steps):
    """The data, without targets in the micro-batches of these steps."""

    def get_batch(k, done):
        batch, none = toy.Data()(k, done), torch.full((8 + k % 5,), -100)
        return toy.build_batch(batch.inputs.ids, none, none) if k // 2 in steps else batch

    return get_batch


@pytest.mark.parametrize(("steps", "log_every", "stopped_at"), [(40, 5, 10), (40, 1, 10), (40, 30, 30), (3, 10, 3)])
def test_run_without_any_target_ends_in_an_error(tmp_path, steps, log_every, stopped_at):
    config, done = msgspec.structs.replace(toy.CONFIG, steps=steps, log_every=log_every), []
    trainer = toy.build_trainer(tmp_path, config, on_step=lambda step, row: done.append(step))
    with pytest.raises(UserError, match=f"the first {stopped_at} updates have no target"):
        trainer.fit(without_targets(range(steps)))
    assert len(done) in (stopped_at, stopped_at - 1)  # the row is logged before on_step, or at the end


@pytest.mark.parametrize("steps", [range(9), range(8, 12)])
def test_some_updates_without_targets_are_no_error(tmp_path, steps):
    config = msgspec.structs.replace(toy.CONFIG, log_every=1)
    summary = toy.build_trainer(tmp_path, config).fit(without_targets(steps))
    assert summary["step"] == 12 and summary["loss"] > 0


def test_get_batch_receives_fraction_done(tmp_path):
    calls = []
    config = msgspec.structs.replace(toy.CONFIG, steps=4)
    toy.build_trainer(tmp_path, config).fit(lambda k, done: calls.append((k, done)) or toy.Data()(k, done))
    assert calls == [(k, k // 2 / 4) for k in range(8)]


class FakeClock:
    """A replacement of time.monotonic that advances only by `wait`."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, seconds):
        self.now += seconds


def test_train_minutes_ends_on_time_with_learning_rate_near_zero(tmp_path, monkeypatch):
    fractions, clock = [], FakeClock(monkeypatch)
    config = TrainConfig(minutes=1.5 / 60, learning_rate=1.0, warmup_steps=0.1, save_every=10_000, device="cpu")

    def get_batch(k, done):
        clock.wait(0.005)
        fractions.append(done)
        return toy.Data()(k, done)

    learning_rates = []
    trainer = toy.build_trainer(tmp_path, config, on_step=lambda step, row: learning_rates.append(row["learning_rate"]))
    summary = trainer.fit(get_batch)
    assert 0.9 <= fractions[-1] < 1 and all(a <= b for a, b in pairwise(fractions))
    assert learning_rates[-1] < 0.12 and max(learning_rates) > 0.5
    assert len(fractions) == summary["step"] + 1  # the last batch was prefetched for a step that did not fit into the time
    assert "dev" in summary["evaluations"] and (tmp_path / "state" / f"step-{summary['step']}").exists()
    again = toy.build_trainer(tmp_path, config).fit(get_batch)
    assert (again["step"], again["evaluations"]) == (summary["step"], summary["evaluations"])


def test_train_minutes_includes_earlier_sessions(tmp_path, monkeypatch):
    config, clock = TrainConfig(minutes=2 / 60, save_every=1, device="cpu"), FakeClock(monkeypatch)

    def crash(step, row):
        clock.wait(0.1)
        if trainer.progress.time.seconds > 1:
            raise toy.SimulatedCrash

    trainer = toy.build_trainer(tmp_path, config, on_step=crash)
    with pytest.raises(toy.SimulatedCrash):
        trainer.fit(toy.Data())
    fractions = []
    resumed = toy.build_trainer(tmp_path, config, on_step=lambda step, row: clock.wait(0.1))
    resumed.fit(lambda k, done: fractions.append(done) or toy.Data()(k, done))
    assert fractions[0] > 0.4


def test_unavailable_device_or_precision_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"no CUDA device; set train\.device=cpu or auto"):
        prepare(toy.Model(), TrainConfig(steps=1, device="cuda"))
    with pytest.raises(UserError, match=r"fp16 needs a CUDA device; on a CPU set train\.precision=bf16 or fp32"):
        prepare(toy.Model(), TrainConfig(steps=1, device="cpu", precision="fp16"))
    with pytest.raises(UserError, match="'gpu' is not a device"):
        prepare(toy.Model(), TrainConfig(steps=1, device="gpu"))
    assert prepare(toy.Model(), TrainConfig(steps=1)).device.type == "cpu"


def test_prepare_uses_compile_parts():
    class WithCompileParts(toy.Model):
        compiled = False

        def compile_parts(self):
            self.compiled = True

    assert prepare(WithCompileParts(), TrainConfig(steps=1, device="cpu", compile=True)).model.compiled


def test_trainer_refuses_unresolved_epochs(tmp_path):
    with pytest.raises(UserError, match="resolve_epochs"):
        toy.build_trainer(tmp_path, TrainConfig(epochs=1, device="cpu"))


def test_tensorboard_matches_metrics(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    toy.build_trainer(tmp_path, msgspec.structs.replace(toy.CONFIG, tensorboard=True)).fit(toy.Data())
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = {row["step"]: row["loss"] for row in read_metrics(tmp_path) if "split" not in row}
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(logged)
    assert [event.step for event in events.Scalars("dev/accuracy")] == [6, 12]


def test_messages_go_to_stderr_unless_quiet(tmp_path, capsys):
    toy.build_trainer(tmp_path / "loud", quiet=False).fit(toy.Data())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step 4: checkpoint saved" in captured.err and "step 6: dev: loss" in captured.err
    toy.build_trainer(tmp_path / "mute", quiet=True).fit(toy.Data())
    assert capsys.readouterr() == ("", "")


def progress_lines_of_slow_run(folder, capsys, quiet=False):
    """Progress lines of a run with a fake clock, each step of which takes four seconds."""
    seconds = [100.0]
    trainer = toy.build_trainer(folder, quiet=quiet, on_step=lambda step, row: seconds.append(seconds[-1] + 4))
    trainer.display = ProgressDisplay(quiet=quiet, baseline=("mlm_loss", 6.71), clock=lambda: seconds[-1])
    trainer.fit(toy.Data())
    return [line for line in capsys.readouterr().err.splitlines() if "tokens/s" in line]


def test_progress_lines_without_terminal_after_10_and_every_30_seconds(tmp_path, capsys):
    first, second = progress_lines_of_slow_run(tmp_path, capsys)
    loss, lr = r" +\d\.\d{3}", r"\d\.\d\de-\d\d"
    pattern = rf"  loss{loss}  mlm_loss{loss} \(unigram 6\.71\)  lr {lr}  +[\d,]+ tokens/s  ETA \d:\d\d:\d\d"
    assert re.fullmatch("step  4/12" + pattern, first)  # after 12 seconds
    assert re.fullmatch("step 12/12" + pattern, second) and second.endswith("ETA 0:00:00")  # after 44 seconds
    assert len(first) == len(second)  # columns are aligned


def test_progress_lines_are_absent_when_quiet_or_with_progress_bar(tmp_path, capsys, monkeypatch):
    assert progress_lines_of_slow_run(tmp_path / "loud", capsys)
    assert not progress_lines_of_slow_run(tmp_path / "mute", capsys, quiet=True)
    for name in ("metrics.jsonl", "state/step-12/model.safetensors"):
        assert (tmp_path / "loud" / name).read_bytes() == (tmp_path / "mute" / name).read_bytes()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(ProgressDisplay, "_print_line", lambda *_: pytest.fail("a line and a bar"))
    progress_lines_of_slow_run(tmp_path / "bar", capsys)


def test_startup_time_does_not_count_as_warmup(tmp_path, monkeypatch):
    """Compiling may take most of a minute: the second step must still have a low learning rate."""
    config, learning_rates = (
        TrainConfig(
            minutes=3 / 60, learning_rate=1.0, warmup_steps=0.3, lr_scheduler_type="constant", save_every=10_000, device="cpu"
        ),
        [],
    )
    data, clock = toy.Data(), FakeClock(monkeypatch)

    def get_batch(k, done):
        clock.wait(1.2 if k == 0 else 0.02)
        return data(k, done)

    toy.build_trainer(tmp_path, config, on_step=lambda step, row: learning_rates.append(row["learning_rate"])).fit(get_batch)
    # if startup counted, 1.2 of 3 seconds would be past the warmup of 0.9
    assert learning_rates[1] < 0.2 and max(learning_rates) > 0.95


@pytest.mark.parametrize(
    ("config", "expected"), [(TrainConfig(steps=40, device="cpu"), 60), (TrainConfig(minutes=2, device="cpu"), 70)]
)
def test_seconds_left_by_steps_or_minutes(tmp_path, monkeypatch, config, expected):
    trainer = toy.build_trainer(tmp_path, config)
    trainer.progress.step = 10
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    trainer.clock = Clock(TimeProgress(seconds=50.0, step_seconds=2.0))
    assert trainer._seconds_left() == expected


def test_progress_bar_shows_unigram_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    toy.build_trainer(tmp_path, quiet=False, baseline=("mlm_loss", 6.71)).fit(toy.Data())
    stderr = capsys.readouterr().err
    assert "step 12/12" in stderr and "(unigram" in stderr and "6.71" in stderr and "tokens/s" in stderr


def test_run_whose_every_update_was_skipped_fails(tmp_path):
    config = msgspec.structs.replace(toy.CONFIG, steps=3, max_bad_steps=10)

    def get_batch(k, fraction_done):
        batch = toy.Data()(k, fraction_done)
        batch.targets["scale"].fill_(float("inf"))
        return batch

    with pytest.raises(UserError, match=r"each of the 3 updates was skipped.*nothing was trained"):
        toy.build_trainer(tmp_path, config).fit(get_batch)
