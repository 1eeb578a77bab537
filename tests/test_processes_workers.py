"""`WorkerPool`: scripts without a main guard, killed parents, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.errors import UserError
from bertsmith.processes import WorkerPool
from tests.support.job_functions import kill_self, kill_self_once, raise_bug, raise_user_error
from tests.support.texts import make_english_text


def test_worker_pool_in_a_script_without_main_guard(tmp_path, vocabulary):
    (tmp_path / "text.txt").write_text(make_english_text(30), encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        "import bertsmith\n"
        f"print('once', bertsmith.prepare(texts={str(tmp_path / 'text.txt')!r}, tokenizer={str(vocabulary)!r}, "
        f"out={str(tmp_path / 'corpus')!r}, workers=2, quiet=True)['documents'])\n"
    )
    completed = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120
    )
    assert (completed.returncode, completed.stdout) == (0, "once 30\n"), completed.stderr


IDLE_SCRIPT = """
import sys, time
from bertsmith.processes import WorkerPool
with WorkerPool(2, print, ()) as pool:
    futures = [pool.submit(time.sleep, 0.01) for _ in range(4)]
    [future.result() for future in futures]
    print(*[worker.process.pid for worker in pool.workers], flush=True)
    time.sleep(60)
"""

# Prints the pids before the workers can have run our code; the results are requested after the signals.
EARLY_SIGNAL_SCRIPT = """
import sys
from bertsmith.processes import WorkerPool
with WorkerPool(2, print, ()) as pool:
    futures = [pool.submit(abs, -k) for k in range(2)]
    print(*[worker.process.pid for worker in pool.workers], flush=True)
    sys.stdin.readline()
    print(*[future.result() for future in futures], flush=True)
"""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_worker_pool_ends_with_a_killed_parent(tmp_path):
    (tmp_path / "script.py").write_text(IDLE_SCRIPT)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True)
    pids = read_worker_pids(process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_worker_pool_ignores_signals_to_the_group(tmp_path):
    (tmp_path / "script.py").write_text(EARLY_SIGNAL_SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for pid in read_worker_pids(process):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    stdout, stderr = process.communicate("now\n", timeout=120)
    assert (process.returncode, stdout.split()) == (0, ["0", "1"]), stderr


def read_worker_pids(process):
    for line in process.stdout:
        if all(word.isdecimal() for word in line.split()) and line.strip():
            return [int(word) for word in line.split()]
    raise AssertionError("no workers were started")


def test_worker_pool_repeats_the_work_of_a_killed_worker(tmp_path, caplog):
    with WorkerPool(2, str, ()) as pool:
        futures = [pool.submit(kill_self_once, tmp_path / str(k), k) for k in range(6)]
        assert [future.result(60) for future in futures] == [k * 2 for k in range(6)]
    assert caplog.text.count("was killed (SIGKILL, often for lack of memory); another one repeats its work") == 6


def test_worker_pool_gives_up_work_that_kills_every_worker():
    with WorkerPool(2, str, ()) as pool:
        deadly, harmless = pool.submit(kill_self), pool.submit(abs, -3)
        with pytest.raises(UserError, match=r"was killed .SIGKILL.*; 3 workers have died at the same work: use fewer workers"):
            deadly.result(60)
        assert harmless.result(60) == 3 and pool.submit(abs, -4).result(60) == 4


def test_worker_pool_notices_a_worker_killed_while_it_answers():
    """A pipe shared by all workers would stay blocked by half an answer."""
    with WorkerPool(2, str, ()) as pool:
        futures = [pool.submit(bytes, 30_000_000) for _ in range(6)]
        for _ in range(3):
            time.sleep(0.3)
            os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        assert [len(future.result(60)) for future in futures] == [30_000_000] * 6


def test_worker_pool_reports_errors_of_calls_and_of_its_initializer():
    with WorkerPool(1, str, ()) as pool:
        with pytest.raises(ZeroDivisionError, match="a programmer's") as caught:
            pool.submit(raise_bug).result(60)
        assert "job_functions.py" in caught.value.__notes__[0]
        assert pool.submit(abs, -1).result(60) == 1
    with WorkerPool(1, raise_user_error, ()) as pool, pytest.raises(UserError, match="a person's mistake"):
        pool.submit(abs, -1).result(60)


def test_a_pool_that_is_not_closed_ends_with_its_program(tmp_path):
    (tmp_path / "script.py").write_text(
        "from bertsmith.processes import WorkerPool\npool = WorkerPool(2, print, ())\nprint(pool.submit(abs, -1).result())\n"
    )
    completed = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60)
    assert completed.stdout.split() == ["1"], completed.stderr
