"""The command line in this process or in one that is killed, and settings of runs that take seconds."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from bertsmith.cli import main

ROOT = Path(__file__).parents[2]
SMALL = """
model=bert-tiny model.hidden_size=32 model.mixer.num_attention_heads=2 model.feedforward.intermediate_size=64
model.max_position_embeddings=64 max_length=64
train.batch_tokens=512 train.learning_rate=1e-3 train.log_every=5 eval_tokens=2048 validation_split=0.1
""".split()  # noqa: SIM905
FAST = ["max_length=32", "train.batch_tokens=512", "train.learning_rate=3e-3", "train.log_every=50"]


class CliOutput(NamedTuple):
    stdout: str
    stderr: str


def run_cli(*words, code=0):
    """Run the command line in this process (importing torch in a new one takes longer than most tests)."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main([str(word) for word in words]) == code, err.getvalue()
    return CliOutput(out.getvalue(), err.getvalue())


def run_cli_json(*words):
    """The JSON that a command prints with --json."""
    return json.loads(run_cli(*words, "--json").stdout.splitlines()[-1])


def run_cli_error(*words):
    """The one-line error message of a command that fails with exit code 2."""
    output = run_cli(*words, code=2)
    assert output.stderr.count("\n") == 1, output.stderr
    return output.stderr


def kill_cli_when_exists(*words, until):
    """Run a command in a process of its own, and kill it when the path `until` exists."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *words], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not until.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
