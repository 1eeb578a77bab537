"""`WorkerPool`: scripts without a main guard, killed parents, signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
    print(*pool.executor._processes, flush=True)
    time.sleep(60)
"""

# Prints the pids before the workers can have run our code; the results are requested after the signals.
EARLY_SIGNAL_SCRIPT = """
import sys
from bertsmith.processes import WorkerPool
with WorkerPool(2, print, ()) as pool:
    futures = [pool.submit(abs, -k) for k in range(2)]
    print(*pool.executor._processes, flush=True)
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
