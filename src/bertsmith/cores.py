"""CPU cores that are free for this process, and the threads that torch computes with.

torch starts a thread for each core it may use. Where other processes have the cores, the threads of an operation wait for the
one that does not run. GNU OpenMP's wait is to spin, for up to milliseconds: with busy neighbours on two cores, forward passes
took ten times as long as with threads that sleep, and six times the CPU time. `sleep_between_operations` makes them sleep;
where it comes too late, `limit_threads` computes with fewer threads.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WINDOW = 0.5  # seconds over which the load is measured, at least
CGROUPS = Path("/sys/fs/cgroup")
PROC_STAT = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = ("avx512_bf16", "amx_bf16")
INT8_FLAGS = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp")  # the last one of ARM
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", 1000  # of GNU OpenMP: iterations of a wait, some microseconds, before it sleeps
WAIT_VARIABLES = ("OMP_WAIT_POLICY", SPIN_VARIABLE)


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of CPU time at one moment: of the whole machine on the cores this process may use, and of this process."""

    clock: float
    busy: float
    own: float

    @classmethod
    def read(cls, stat: str | None = None) -> "CpuTimes | None":
        """None where there is no /proc/stat (outside Linux)."""
        try:
            lines = (PROC_STAT.read_text() if stat is None else stat).splitlines()
            cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        except (OSError, AttributeError):
            return None
        ticks = 0
        for name, *values in (line.split() for line in lines if line.startswith("cpu")):
            if name in cores:
                user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, values)  # steal is time of other machines
                ticks += user + nice + system + irq + softirq
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


def count_allowed_cores(cgroups: Path = CGROUPS) -> float:
    """Cores of the process's affinity, or fewer if a container limits its CPU time (cgroup quota, version 1 or 2)."""
    with suppress(AttributeError):  # outside Linux
        return min(len(os.sched_getaffinity(0)), _read_quota(cgroups))
    return float(os.cpu_count() or 1)


def count_threads() -> int:
    """Threads for an engine: OMP_NUM_THREADS if the user set it, else one for each allowed core."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(chosen) if chosen.isdecimal() else math.floor(count_allowed_cores()))


def _read_quota(cgroups: Path) -> float:
    """Quota over period in cores; infinite without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (cgroups / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if int(quota) <= 0 else int(quota) / int(period)
    return math.inf


def count_free_cores(before: CpuTimes, after: CpuTimes, num_cores: float) -> float:
    """Cores that other processes left between the two moments."""
    seconds = after.clock - before.clock
    others = (after.busy - before.busy) - (after.own - before.own)
    return num_cores - max(0.0, others) / seconds


class FreeCores:
    """The free cores of the last half second or more; measured when they are asked for, without waiting."""

    def __init__(self) -> None:
        self.before, self.value, self.lock = CpuTimes.read(), math.inf, threading.Lock()

    def __call__(self) -> float:
        """Infinite until half a second has passed, and outside Linux."""
        with self.lock:
            if self.before and time.monotonic() - self.before.clock >= WINDOW and (after := CpuTimes.read()):
                self.value, self.before = count_free_cores(self.before, after, count_allowed_cores()), after
            return self.value


free_cores = FreeCores()


@cache
def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU multiplies bf16 matrices faster than fp32 (AVX512-BF16 or AMX)."""
    return _has_flag(BF16_FLAGS, cpuinfo)


def has_vnni(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU adds products of int8 in 32 bits in one instruction (VNNI, AMX, or ARM's dot product)."""
    return _has_flag(INT8_FLAGS, cpuinfo)


def _has_flag(flags: tuple[str, ...], cpuinfo: Path) -> bool:
    with suppress(OSError):
        return any(f" {flag} " in f" {cpuinfo.read_text()} ".replace("\n", " ") for flag in flags)
    return False


def sleep_between_operations() -> None:
    """Let the threads of GNU OpenMP sleep when they wait, unless the user chose how they do. Without effect once torch, which
    loads OpenMP, is imported."""
    if "torch" not in sys.modules and not any(map(os.environ.get, WAIT_VARIABLES)):
        os.environ[SPIN_VARIABLE] = str(SPIN_COUNT)


def do_threads_sleep() -> bool:
    """Whether the environment says that OpenMP's threads sleep when they wait."""
    count = os.environ.get(SPIN_VARIABLE, "")
    is_passive = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
    return int(count) <= SPIN_COUNT if count.isdecimal() else is_passive


@contextmanager
def limit_threads(count: Callable[[], float] = free_cores) -> Iterator[None]:
    """Inside the block, torch computes with one thread for each allowed core, at least one and at most as many as before; for
    each free core where its threads spin.

    A number of threads that the user chose stays: by OMP_NUM_THREADS, MKL_NUM_THREADS or `torch.set_num_threads`. Training
    keeps torch's number, since a run must not depend on the load.
    """
    import torch

    current = torch.get_num_threads()
    is_chosen = any(map(os.environ.get, THREAD_VARIABLES)) or current not in default_thread_counts()
    cores = count_allowed_cores() if do_threads_sleep() else count()
    limit = current if is_chosen else min(current, max(1, round(min(cores, current))))
    if limit == current:
        yield
        return
    torch.set_num_threads(limit)
    try:
        yield
    finally:
        torch.set_num_threads(current)


@cache
def default_thread_counts() -> set[int]:
    """What torch starts with: the cores of the affinity mask, or where each runs several threads, the physical ones."""
    with suppress(AttributeError):
        cores = os.sched_getaffinity(0)
        siblings = {_read_siblings(core) for core in cores}
        return {len(cores), len(siblings)}
    return set()


def _read_siblings(core: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(core)
