"""`run_jobs`: failures and deaths of processes are reported, healthy processes are reused."""

import re
import time

import pytest

from bertsmith.errors import Interrupted
from bertsmith.processes import SHUTDOWN_TIMEOUT, Job, run_jobs
from tests.support.job_functions import (
    ignore_stop,
    interrupt,
    interrupt_when_exists,
    kill_self,
    raise_bug,
    raise_user_error,
    write_pid,
    write_text,
)


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_continue_after_a_failed_one(tmp_path, count):
    errors = {}

    def on_end(job, error):
        errors[job.name] = error
        return [Job("after", write_text, (tmp_path / "after", "b"))] if job.name == "first" else []

    jobs = [
        Job("wrong", raise_user_error, ()),
        Job("first", write_text, (tmp_path / "first", "a")),
        Job("fault", raise_bug, ()),
    ]
    run_jobs(jobs, count, on_end)
    assert errors.pop("fault").startswith("ZeroDivisionError: a programmer's (job_functions.py:")
    assert errors == {"wrong": "a person's mistake", "first": None, "after": None}
    assert (tmp_path / "after").read_text() == "b"


def test_jobs_report_a_killed_process():
    errors = {}
    run_jobs([Job("dies", kill_self, ())], 2, lambda job, error: errors.setdefault(job.name, error) and [])
    assert re.fullmatch(r"its process \d+ was killed \(SIGKILL, often for lack of memory\): try fewer jobs", errors["dies"])


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_interrupted_one_stops_all(count):
    with pytest.raises(Interrupted):
        run_jobs([Job("stops", interrupt, ())], count, lambda job, error: pytest.fail("it did not end"))


def test_jobs_reuse_a_process_until_one_fails(tmp_path):
    before_failure, after_failure = (
        [Job(f"{group}{i}", write_pid, (tmp_path / f"{group}{i}",)) for i in range(3)] for group in "ab"
    )
    jobs = [*before_failure, Job("fault", raise_bug, ()), *after_failure]

    def on_end(job, error):
        remaining.discard(job.name)
        return [] if not jobs else [jobs.pop(0)]  # one at a time, although two workers are allowed

    remaining = {job.name for job in jobs}
    run_jobs([jobs.pop(0)], 2, on_end)
    pids_before, pids_after = ({(tmp_path / f"{group}{i}").read_text() for i in range(3)} for group in "ab")
    assert not remaining and len(pids_before) == len(pids_after) == 1 and pids_before != pids_after


def test_jobs_that_finish_during_shutdown_are_not_waited_for(tmp_path):
    jobs, start = (
        [Job("persists", ignore_stop, (tmp_path / "a",)), Job("stops", interrupt_when_exists, (tmp_path / "a",))],
        time.monotonic(),
    )
    with pytest.raises(Interrupted):
        run_jobs(jobs, 2, lambda job, error: [])
    assert (tmp_path / "a").read_text() == "done" and time.monotonic() - start < SHUTDOWN_TIMEOUT
