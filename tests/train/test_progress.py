"""Progress of a run: it survives its file, and the clock goes on where the session before stopped."""

import json

import pytest

from bertsmith.errors import UserError
from bertsmith.train import progress
from bertsmith.train.progress import AnomalyProgress, Clock, EvaluationProgress, LogProgress, TimeProgress, TrainProgress


def test_progress_round_trips_through_json():
    values = TrainProgress(
        step=7,
        tokens=1 << 40,
        log=LogProgress(0.1 + 0.2, 2.5, {"mlm_loss": (1 / 3, 7.0)}, 512),
        evaluation=EvaluationProgress({"dev": {"loss": None, "f1": 0.7}}, 6, 0.7, 6, 1),
        anomalies=AnomalyProgress(1, [0.25, 1e-9], 1, 2, 0.25, 3),
        time=TimeProgress(12.5, 0.5, 3.0),
        grad_scaler={"scale": 65536.0},
    )
    read_back = progress.parse_progress(json.loads(json.dumps(progress.progress_to_dict(values))), "progress.json")
    assert read_back == values and read_back.log.metric_sums["mlm_loss"] == (1 / 3, 7.0)


def test_progress_of_another_version_names_file_and_field():
    with pytest.raises(UserError, match=r"step-3/progress\.json cannot be read by this version.*`\$\.step`"):
        progress.parse_progress({"step": "three"}, "step-3/progress.json")


def test_clock_goes_on_over_sessions_and_counts_first_steps_as_startup(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def run_session(earlier, seconds_before_first_step, step_seconds):
        clock = Clock(earlier)
        now[0] += seconds_before_first_step
        for seconds in step_seconds:
            with clock.time_step():
                now[0] += seconds
        return clock.read()

    first = run_session(None, 10.0, [5.0, 1.0, 2.0, 1.0])
    assert first == TimeProgress(seconds=19.0, step_seconds=1.0, startup_seconds=15.0)
    now[0] += 1000.0  # between the sessions
    second = run_session(first, 4.0, [6.0, 3.0])
    assert second == TimeProgress(seconds=32.0, step_seconds=2.0, startup_seconds=25.0)  # median of 1 and 3
