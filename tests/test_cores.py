"""Free cores from /proc/stat and cgroup quotas, and torch's threads by them."""

import math
import os
import subprocess
import sys

import pytest
import torch

from bertsmith import cores
from bertsmith.cores import CpuTimes, count_allowed_cores, count_free_cores, count_threads, limit_threads
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.model.model import Model
from bertsmith.word_vectors.models import bag_of_vectors

has_bf16_of = cores.has_bf16.__wrapped__  # before a fixture replaces it
STAT = """cpu  900 0 90 9000 5 0 0 40
cpu0 400 50 30 1000 2 1 2 20
cpu1 100 0 10 1000 1 0 0 20
intr 12345
"""


@pytest.fixture
def default_threads(monkeypatch):
    """torch with two threads, as if by default, and no variable that says otherwise."""
    for name in (*cores.THREAD_VARIABLES, *cores.WAIT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "default_thread_counts", lambda: {2})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_cpu_times_are_those_of_the_allowed_cores_without_idle_and_steal(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    times = CpuTimes.read(STAT)
    assert times is not None and times.busy == pytest.approx(4.83)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert CpuTimes.read(STAT).busy == pytest.approx(5.93)


@pytest.mark.parametrize(("busy", "own", "free"), [(0, 0, 4), (4, 4, 4), (6, 2, 2), (8, 0.4, 0.2), (1, 1.2, 4)])
def test_free_cores_are_those_that_other_processes_leave(busy, own, free):
    before, after = CpuTimes(10.0, 100.0, 5.0), CpuTimes(12.0, 100.0 + busy, 5.0 + own)
    assert count_free_cores(before, after, 4) == pytest.approx(free)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_allowed_cores_are_limited_by_the_quota_of_a_container(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert count_allowed_cores(tmp_path) == expected


@pytest.mark.parametrize(("free", "threads"), [(2.0, 2), (1.2, 1), (0.0, 1), (-0.5, 1), (math.inf, 2), (16.0, 2)])
def test_threads_are_the_free_cores_inside_the_block_alone(default_threads, free, threads):
    with limit_threads(lambda: free):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_threads_that_the_user_chose_stay(default_threads, monkeypatch):
    torch.set_num_threads(3)
    with limit_threads(lambda: 0.0):
        assert torch.get_num_threads() == 3
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with limit_threads(lambda: 0.0):
        assert torch.get_num_threads() == 2


def test_free_cores_are_measured_again_after_half_a_second(monkeypatch):
    measurements = iter([CpuTimes(0.0, 0.0, 0.0), CpuTimes(1.0, 2.0, 0.5), CpuTimes(2.0, 2.5, 1.0)])
    monkeypatch.setattr(CpuTimes, "read", lambda: next(measurements))
    monkeypatch.setattr(cores, "count_allowed_cores", lambda: 2.0)
    times = iter([0.2, 1.0, 1.3, 2.0])
    monkeypatch.setattr(cores.time, "monotonic", lambda: next(times))
    free_cores = cores.FreeCores()
    assert [free_cores() for _ in range(4)] == [math.inf, 0.5, 0.5, 2.0]


def test_sleeping_threads_are_limited_by_the_allowed_cores_alone(default_threads, monkeypatch):
    monkeypatch.setattr(cores, "count_allowed_cores", lambda: 2.0)
    for name, value in (("GOMP_SPINCOUNT", "1000"), ("OMP_WAIT_POLICY", "passive")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with limit_threads(lambda: 0.0):
                assert torch.get_num_threads() == 2
            patch.setattr(cores, "count_allowed_cores", lambda: 1.0)
            with limit_threads(lambda: 2.0):
                assert torch.get_num_threads() == 1
    monkeypatch.setenv("GOMP_SPINCOUNT", "300000")
    with limit_threads(lambda: 0.0):
        assert torch.get_num_threads() == 1


def test_threads_sleep_unless_the_user_chose_how_they_wait_or_torch_is_there():
    code = (
        "import os, sys\nfrom bertsmith.cores import sleep_between_operations\n"
        "{}\nsleep_between_operations()\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    )
    for before, expected in {
        "": "1000", "os.environ['GOMP_SPINCOUNT'] = '7'": "7", "os.environ['OMP_WAIT_POLICY'] = 'active'": "None",
        "sys.modules['torch'] = None": "None",
    }.items():  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name not in cores.WAIT_VARIABLES}
        command = [sys.executable, "-c", code.format(before)]
        completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert completed.stdout.strip() == expected


def test_threads_of_an_engine_are_the_allowed_cores_or_those_the_user_chose(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for allowed, expected in ((4.0, 4), (1.5, 1), (0.5, 1)):
        monkeypatch.setattr(cores, "count_allowed_cores", lambda allowed=allowed: allowed)
        assert count_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert count_threads() == 3


def test_bf16_is_known_from_the_flags_of_the_cpu(tmp_path):
    for flags, expected in (("avx512_bf16 clzero", True), ("fpu amx_bf16", True), ("avx512f avx512_bf16x", False)):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n")
        assert has_bf16_of(tmp_path / "cpuinfo") is expected
    assert not has_bf16_of(tmp_path / "absent")


def test_runs_compute_with_the_same_threads_on_a_busy_machine(default_threads, monkeypatch):
    monkeypatch.setattr(cores, "count_allowed_cores", lambda: 1.0)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    model = Model(bag_of_vectors(10, 4))
    with TorchEngine(model, "fp32").inference_context():
        assert torch.get_num_threads() == 1
    with TorchEngine(model, "fp32", fixed_threads=True).inference_context():
        assert torch.get_num_threads() == 2
