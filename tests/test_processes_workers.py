"""Worker processes of a script without a guard do the work, and not the script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import prose


def test_a_plain_script_may_use_workers(tmp_path, vocabulary):
    (tmp_path / "text.txt").write_text(prose(30), encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        "import bertsmith\n"
        f"print('once', bertsmith.prepare(texts={str(tmp_path / 'text.txt')!r}, tokenizer={str(vocabulary)!r}, "
        f"out={str(tmp_path / 'corpus')!r}, workers=2, quiet=True)['documents'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    assert (done.returncode, done.stdout) == (0, "once 30\n"), done.stderr


STUBBORN = """
import sys, time
from bertsmith.processes import Workers
with Workers(2, print, ()) as workers:
    futures = [workers.submit(time.sleep, 0.01) for _ in range(4)]
    [future.result() for future in futures]
    print(*workers.pool._processes, flush=True)
    time.sleep(60)
"""

# The workers are named before they can have come to their first line of ours, and asked for work after the signals.
EARLY = """
import sys
from bertsmith.processes import Workers
with Workers(2, print, ()) as workers:
    futures = [workers.submit(abs, -k) for k in range(2)]
    print(*workers.pool._processes, flush=True)
    sys.stdin.readline()
    print(*[future.result() for future in futures], flush=True)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_workers_end_with_a_parent_that_was_killed(tmp_path):
    (tmp_path / "script.py").write_text(STUBBORN)
    process = subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True)
    pids = _pids(process)
    process.kill()
    process.wait()
    patience = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_a_signal_to_the_whole_group_leaves_workers_to_the_parent(tmp_path):
    (tmp_path / "script.py").write_text(EARLY)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for pid in _pids(process):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    said, faults = process.communicate("now\n", timeout=120)
    assert (process.returncode, said.split()) == (0, ["0", "1"]), faults


def _pids(process):
    for line in process.stdout:
        if all(word.isdecimal() for word in line.split()) and line.strip():
            return [int(word) for word in line.split()]
    raise AssertionError("no workers were started")
