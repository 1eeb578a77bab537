"""The loop: what it learns, what it writes down, and when it ends."""

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
from bertsmith.train.precision import prepare_model
from bertsmith.train.progress import Clock

from . import toy_objective as toy


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_learns(tmp_path):
    config = TrainConfig(steps=150, rate=1e-2, device="cpu", log_every=15)
    summary = toy.trainer(tmp_path, config, toy.Model()).fit(toy.Data())
    losses = [row["loss"] for row in rows(tmp_path) if "trial" not in row]
    assert losses[-1] < 0.4 * losses[0]
    assert summary["loss"] == losses[-1]
    assert summary["trials"]["dev"]["accuracy"] > 0.8
    assert summary["tokens"] == sum(8 + k % 5 for k in range(150))


def test_rows_sum_up_the_steps_between_them(tmp_path):
    seen = []
    toy.trainer(tmp_path, toy.RECIPE, on_step=lambda step, row: seen.append(row)).fit(toy.Data())
    logged = [row for row in rows(tmp_path) if "trial" not in row]
    assert [row["step"] for row in logged] == [3, 6, 9, 12]
    assert [row["trial"] for row in rows(tmp_path) if "trial" in row] == ["dev", "dev"]  # step 6, and once at the end
    assert list(logged[0]) == ["step", "loss", "loss.words", "loss.next", "rate", "norm", "tokens", "accuracy"]
    assert logged[1]["rate"] == seen[5]["rate"]
    assert logged[1]["norm"] == pytest.approx(sum(row["norm"] for row in seen[3:6]) / 3)
    counts = [sum(toy.Data()(2 * step + i, 0).target_counts["next"] for i in range(2)) for step in range(3)]
    expected = sum(n * row["loss.next"] for n, row in zip(counts, seen, strict=False)) / sum(counts)
    assert logged[0]["loss.next"] == pytest.approx(expected)


def test_a_remainder_of_steps_is_logged_too(tmp_path):
    config = msgspec.structs.replace(toy.RECIPE, steps=10, log_every=4)
    toy.trainer(tmp_path, config).fit(toy.Data())
    assert [row["step"] for row in rows(tmp_path) if "trial" not in row] == [4, 8, 10]


def test_evaluation_sums_over_its_batches_and_disturbs_nothing(tmp_path):
    often = msgspec.structs.replace(toy.RECIPE, eval_every=1)
    trainer = toy.trainer(tmp_path / "often", often)
    summary = trainer.fit(toy.Data())
    toy.trainer(tmp_path / "never", trials={}).fit(toy.Data())
    name = "state/step-12/model.safetensors"
    assert (tmp_path / "often" / name).read_bytes() == (tmp_path / "never" / name).read_bytes()
    assert trainer.model.training
    trainer.model.eval()
    losses, carry = [], ()
    for batch in toy.trial():
        loss = toy.Objective().compute_loss(trainer.model, batch, carry)
        carry = loss.recurrent_state
        losses.append((loss.parts["words"].item(), batch.target_counts["words"]))
    expected = sum(a for a, _ in losses) / sum(b for _, b in losses)
    assert summary["trials"]["dev"]["loss.words"] == pytest.approx(expected, rel=1e-6)


def test_batches_are_told_how_far_the_run_is(tmp_path):
    told = []
    config = msgspec.structs.replace(toy.RECIPE, steps=4)
    toy.trainer(tmp_path, config).fit(lambda k, done: told.append((k, done)) or toy.Data()(k, done))
    assert told == [(k, k // 2 / 4) for k in range(8)]


class Watch:
    """A clock that goes on when it is told to, however busy the machine is."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, seconds):
        self.now += seconds


def test_a_run_by_the_clock_ends_on_time_at_a_rate_near_zero(tmp_path, monkeypatch):
    seen, watch = [], Watch(monkeypatch)
    config = TrainConfig(minutes=1.5 / 60, rate=1.0, warmup=0.1, save_every=10_000, device="cpu")

    def slowly(k, done):
        watch.wait(0.005)
        seen.append(done)
        return toy.Data()(k, done)

    rates = []
    trainer = toy.trainer(tmp_path, config, on_step=lambda step, row: rates.append(row["rate"]))
    summary = trainer.fit(slowly)
    assert 0.9 <= seen[-1] < 1 and all(a <= b for a, b in pairwise(seen))
    assert rates[-1] < 0.12 and max(rates) > 0.5
    assert len(seen) == summary["step"] + 1  # the last was fetched for a step that the clock left no time for
    assert "dev" in summary["trials"] and (tmp_path / "state" / f"step-{summary['step']}").exists()
    again = toy.trainer(tmp_path, config).fit(slowly)
    assert (again["step"], again["trials"]) == (summary["step"], summary["trials"])


def test_the_time_of_earlier_sittings_counts(tmp_path, monkeypatch):
    config, watch = TrainConfig(minutes=2 / 60, save_every=1, device="cpu"), Watch(monkeypatch)

    def die(step, row):
        watch.wait(0.1)
        if trainer.progress.elapsed > 1:
            raise toy.Died

    trainer = toy.trainer(tmp_path, config, on_step=die)
    with pytest.raises(toy.Died):
        trainer.fit(toy.Data())
    told = []
    again = toy.trainer(tmp_path, config, on_step=lambda step, row: watch.wait(0.1))
    again.fit(lambda k, done: told.append(done) or toy.Data()(k, done))
    assert told[0] > 0.4


def test_what_this_machine_lacks_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device here; write device=cpu, or auto"):
        prepare_model(toy.Model(), TrainConfig(steps=1, device="cuda"))
    with pytest.raises(UserError, match="fp16 needs a CUDA device; on the CPU take bf16 or fp32"):
        prepare_model(toy.Model(), TrainConfig(steps=1, device="cpu", precision="fp16"))
    with pytest.raises(UserError, match="'gpu' is not known"):
        prepare_model(toy.Model(), TrainConfig(steps=1, device="gpu"))
    assert prepare_model(toy.Model(), TrainConfig(steps=1)).device.type == "cpu"


def test_a_model_may_say_which_parts_to_compile():
    class Choosy(toy.Model):
        chosen = False

        def compile_parts(self):
            self.chosen = True

    assert prepare_model(Choosy(), TrainConfig(steps=1, device="cpu", compile=True)).model.chosen


def test_epochs_must_be_counted_first(tmp_path):
    with pytest.raises(UserError, match="resolved"):
        toy.trainer(tmp_path, TrainConfig(epochs=1, device="cpu"))


def test_tensorboard_gets_the_same_numbers(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    toy.trainer(tmp_path, msgspec.structs.replace(toy.RECIPE, tensorboard=True)).fit(toy.Data())
    events = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    logged = {row["step"]: row["loss"] for row in rows(tmp_path) if "trial" not in row}
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(logged)
    assert [event.step for event in events.Scalars("dev/accuracy")] == [6, 12]


def test_words_go_to_stderr_and_quiet_is_quiet(tmp_path, capsys):
    toy.trainer(tmp_path / "loud", quiet=False).fit(toy.Data())
    heard = capsys.readouterr()
    assert heard.out == ""
    assert "step 4: saved" in heard.err and "step 6: dev: loss" in heard.err
    toy.trainer(tmp_path / "mute", quiet=True).fit(toy.Data())
    assert capsys.readouterr() == ("", "")


def told_by_a_slow_run(folder, capsys, quiet=False):
    """Lines about steps of a run on a clock of its own, each step of which takes four seconds."""
    seconds = [100.0]
    trainer = toy.trainer(folder, quiet=quiet, on_step=lambda step, row: seconds.append(seconds[-1] + 4))
    trainer.display = ProgressDisplay(quiet=quiet, baseline=("words", 6.71), clock=lambda: seconds[-1])
    trainer.fit(toy.Data())
    return [line for line in capsys.readouterr().err.splitlines() if "tokens/s" in line]


def test_without_a_terminal_there_is_a_line_after_ten_seconds_and_then_every_thirty(tmp_path, capsys):
    first, second = told_by_a_slow_run(tmp_path, capsys)
    words = r"  loss \d\.\d{3}  words \d\.\d{3} \(unigram 6\.71\)  [\d,]+ tokens/s  \d:\d\d:\d\d left"
    assert re.fullmatch("step 4/12" + words, first)  # twelve seconds after the beginning
    assert re.fullmatch("step 12/12" + words, second) and second.endswith("0:00:00 left")  # and forty-four


def test_lines_change_no_file_and_are_not_there_when_quiet_or_beside_a_bar(tmp_path, capsys, monkeypatch):
    assert told_by_a_slow_run(tmp_path / "loud", capsys)
    assert not told_by_a_slow_run(tmp_path / "mute", capsys, quiet=True)
    for name in ("metrics.jsonl", "state/step-12/model.safetensors"):
        assert (tmp_path / "loud" / name).read_bytes() == (tmp_path / "mute" / name).read_bytes()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(ProgressDisplay, "_print_line", lambda *_: pytest.fail("a line and a bar"))
    told_by_a_slow_run(tmp_path / "bar", capsys)


def test_a_slow_start_does_not_use_up_the_warm_up(tmp_path, monkeypatch):
    """Compiling takes most of a minute: the second step must still be at the foot of the slope."""
    config, rates = TrainConfig(minutes=3 / 60, rate=1.0, warmup=0.3, schedule="constant", save_every=10_000, device="cpu"), []
    data, watch = toy.Data(), Watch(monkeypatch)

    def slow(k, done):
        watch.wait(1.2 if k == 0 else 0.02)
        return data(k, done)

    toy.trainer(tmp_path, config, on_step=lambda step, row: rates.append(row["rate"])).fit(slow)
    assert rates[1] < 0.2 and max(rates) > 0.95  # 1.2 of 3 seconds, without care, is past the warm-up of 0.9


@pytest.mark.parametrize(
    ("config", "left"), [(TrainConfig(steps=40, device="cpu"), 60), (TrainConfig(minutes=2, device="cpu"), 70)]
)
def test_the_time_left_is_that_of_the_steps_or_of_the_minutes(tmp_path, monkeypatch, config, left):
    trainer = toy.trainer(tmp_path, config)
    trainer.progress.step = 10
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    trainer.clock = Clock(elapsed=50.0, step_seconds=2.0)
    assert trainer._seconds_left() == left


def test_the_bar_shows_the_baseline_beside_the_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    toy.trainer(tmp_path, quiet=False, baseline=("words", 6.71)).fit(toy.Data())
    shown = capsys.readouterr().err
    assert "step 12/12" in shown and "(unigram" in shown and "6.71" in shown and "tokens/s" in shown
