"""Jobs side by side: what fails or dies is told of, and processes that did well go on to the next."""

import time

import pytest

from bertsmith.errors import Interrupted
from bertsmith.processes import SHUTDOWN_TIMEOUT, Job, run_jobs
from tests.job_functions import dies, fault, noted, persists, signed, stops, stops_after, wrong


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_fails_is_told_of_and_the_others_go_on(tmp_path, count):
    told = {}

    def ended(job, said):
        told[job.name] = said
        return [Job("after", noted, (tmp_path / "after", "b"))] if job.name == "first" else []

    jobs = [Job("wrong", wrong, ()), Job("first", noted, (tmp_path / "first", "a")), Job("fault", fault, ())]
    run_jobs(jobs, count, ended)
    assert told.pop("fault").startswith("ZeroDivisionError: a programmer's (job_functions.py:")
    assert told == {"wrong": "a person's mistake", "first": None, "after": None}
    assert (tmp_path / "after").read_text() == "b"


def test_a_process_that_dies_is_told_of():
    told = {}
    run_jobs([Job("dies", dies, ())], 2, lambda job, said: told.setdefault(job.name, said) and [])
    assert "its process died (SIGKILL" in told["dies"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_was_asked_to_stop_stops_all(count):
    with pytest.raises(Interrupted):
        run_jobs([Job("stops", stops, ())], count, lambda job, said: pytest.fail("it did not end"))


def test_a_process_does_several_jobs_and_goes_when_one_fails(tmp_path):
    first, then = ([Job(f"{part}{k}", signed, (tmp_path / f"{part}{k}",)) for k in range(3)] for part in "ab")
    jobs = [*first, Job("fault", fault, ()), *then]

    def ended(job, said):
        left.discard(job.name)
        return [] if not jobs else [jobs.pop(0)]  # one at a time, though two could be

    left = {job.name for job in jobs}
    run_jobs([jobs.pop(0)], 2, ended)
    before, after = ({(tmp_path / f"{part}{k}").read_text() for k in range(3)} for part in "ab")
    assert not left and len(before) == len(after) == 1 and before != after


def test_work_that_ends_though_it_was_to_stop_is_not_waited_for(tmp_path):
    jobs, begun = [Job("persists", persists, (tmp_path / "a",)), Job("stops", stops_after, (tmp_path / "a",))], time.monotonic()
    with pytest.raises(Interrupted):
        run_jobs(jobs, 2, lambda job, said: [])
    assert (tmp_path / "a").read_text() == "done" and time.monotonic() - begun < SHUTDOWN_TIMEOUT
