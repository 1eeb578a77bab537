"""One attack: a command in a forked child or in a process of its own, what it printed, and what it left behind.

A forked child has the package imported already, so that a case takes milliseconds. It is limited in memory and time. A case
fails on a traceback, a time limit (a hang), an error without a line that says what happened, memory above its limit, or a
change of a file that it must not change.
"""

import contextlib
import ctypes
import hashlib
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CRASHED = 70  # exit status of a child whose command raised
MEGABYTE = 1 << 20
MOMENT = 0.05  # seconds between two looks at a process
C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int  # exit status; negative: killed by that signal
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool
    peak_memory: int  # bytes of resident memory, the imported package included


@dataclass(frozen=True)
class Case:
    """A command and what it may do.

    statuses: exit statuses that are right; 0 done, 2 one-line error, 130 interrupted.
    protected: files and folders that must not change.
    patch: called in the child before the command, to break something there (an operation that dies, a full disk).
    check: looks at the outcome and at what was left behind; returns problems.
    as_process: run `python -m bertsmith` in a new process instead of a fork; `wrapper`: by this command, in another namespace.
    after_process: a process was disturbed before, and this is the same command again; memory_before: the peak of that one.
    """

    name: str
    args: Sequence[str]
    cwd: Path
    statuses: frozenset[int] = frozenset({0, 2})
    protected: tuple[Path, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 20.0
    max_memory: int = 1500 * MEGABYTE
    patch: Callable[[], None] | None = None
    check: Callable[[Outcome], list[str]] | None = None
    as_process: bool = False
    wrapper: tuple[str, ...] = ()
    after_process: bool = False
    memory_before: int = 0


def run_case(case: Case) -> tuple[Outcome, list[str]]:
    """The outcome of a case and its problems; none: it held."""
    before = {path: digest_tree(path) for path in case.protected}
    outcome = run_command(case)
    problems = list(find_problems(case, outcome))
    problems += [f"changed: {path}" for path, digest in before.items() if digest_tree(path) != digest]
    return outcome, problems + (case.check(outcome) if case.check else [])


def find_problems(case: Case, outcome: Outcome) -> Iterator[str]:
    if outcome.timed_out:
        yield f"hang: no end after {case.timeout:g} s"
        return
    if "Traceback (most recent call last)" in outcome.stderr or outcome.status == CRASHED:
        yield "traceback: " + (outcome.stderr.strip().splitlines() or ["?"])[-1][:300]
    elif outcome.status not in case.statuses:
        yield f"exit status {outcome.status}: {outcome.stderr.strip()[-300:]}"
    elif outcome.status == 2 and not any(line.startswith("error: ") and len(line) > 12 for line in outcome.stderr.splitlines()):
        yield f"no error line: {outcome.stderr[-300:]!r}"
    if any(ord(char) < 32 and char not in "\n\t\r" for char in outcome.stdout + outcome.stderr):
        yield "control characters in the output"
    if outcome.peak_memory > case.max_memory:
        yield f"memory: {outcome.peak_memory / MEGABYTE:.0f} MB"


def run_command(case: Case) -> Outcome:
    """Run the command of a case in a child process group, which is killed at the time limit."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write(case.stdin)
        stdin.seek(0)
        start, parent = time.monotonic(), os.getpid()
        pid = os.fork()
        if pid == 0:
            _run_child(case, out.fileno(), err.fileno(), stdin.fileno(), parent)
        status, timed_out, peak_memory = wait_limited(pid, case.timeout, is_fork=not case.as_process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(4 * MEGABYTE).decode("utf-8", "replace"))
        return Outcome(status, *texts, time.monotonic() - start, timed_out, peak_memory)


def wait_limited(pid: int, seconds: float, is_fork: bool = False) -> tuple[int, bool, int]:
    """Exit status of a child process that leads a group, whether it was killed at its limit, and its peak memory in bytes.

    Time in which it waits for a core, or in which this process is stopped, does not count: a busy machine is no hang. The peak
    of a forked child is exact; after `exec` the system's figure has that of this process too, so VmHWM is read instead.
    """
    used, delay, last, peak_memory, timed_out = 0.0, 0.0, time.monotonic(), 0, False
    with os.fdopen(os.pidfd_open(pid)) as end:
        while not select.select([end], [], [], MOMENT)[0]:
            now = time.monotonic()
            used, last = used + min(now - last, 4 * MOMENT), now
            with contextlib.suppress(OSError, IndexError, ValueError):
                delay = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
                if not is_fork:
                    peak_memory = max(peak_memory, _read_peak(pid))
            if used - delay > seconds and not timed_out:
                timed_out = True
                kill_group(pid)
    _, status, usage = os.wait4(pid, 0)
    kill_group(pid)  # what it left running
    return os.waitstatus_to_exitcode(status), timed_out, usage.ru_maxrss * 1024 if is_fork else peak_memory


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _read_peak(pid: int) -> int:
    """VmHWM of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _run_child(case: Case, out: int, err: int, stdin: int, parent: int) -> None:
    """Never returns."""
    status = CRASHED
    try:
        os.setpgid(0, 0)
        end_with_parent(parent)
        for source, target in ((stdin, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        os.chdir(case.cwd)
        os.environ.update(case.environment)
        if case.as_process:
            command = [*case.wrapper, sys.executable, "-m", "bertsmith", *case.args]
            os.execvp(command[0], command)
        limit = virtual_memory() + case.max_memory + 512 * MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for number, mode, errors in ((0, "r", "surrogateescape"), (1, "w", "strict"), (2, "w", "backslashreplace"))
        )
        from bertsmith.cli import main

        if case.patch:
            case.patch()
        status = main(list(case.args))
        sys.stdout.flush()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = CRASHED
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status & 255)


def end_with_parent(parent: int) -> None:
    """This process is killed when its parent ends, however that ends (Linux)."""
    if C_LIBRARY is not None:
        C_LIBRARY.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(CRASHED)


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def digest_tree(path: Path) -> str:
    """Hash of names, kinds, link targets, and of files the inode with its size and times, which every write changes.

    "absent" if there is none.
    """
    if not os.path.lexists(path):
        return "absent"
    digest = hashlib.sha256()
    for item in sorted([path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]):
        digest.update(f"{item.relative_to(path)}|".encode("utf-8", "surrogateescape"))
        if item.is_symlink():
            digest.update(b"link " + os.fsencode(os.readlink(item)))
        elif item.is_file():
            status = item.stat()
            digest.update(f"file {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".encode())
        else:
            digest.update(b"other")
    return digest.hexdigest()
