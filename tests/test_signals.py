"""SIGINT, SIGTERM and SIGHUP: one line and exit status 130; twice at once is once, and a later one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bertsmith import signals
from bertsmith.signals import catch_stop_signals, raise_on_stop
from tests.support.cli import ROOT


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_first_stop_signal_requests_and_a_later_one_takes_effect(number, monkeypatch):
    received = []
    old = signal.signal(number, lambda number, _: received.append(number))
    try:
        with catch_stop_signals() as stop_request:
            assert not stop_request
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # `timeout` signals a process and its group
            assert stop_request and not received
            monkeypatch.setattr(signals, "SAME_REQUEST_SECONDS", 0.0)
            os.kill(os.getpid(), number)
            assert received == [number]
        os.kill(os.getpid(), number)
        assert received == [number] * 2
    finally:
        signal.signal(number, old)


def test_stop_signals_are_left_alone_in_other_threads():
    seen, handler = [], signal.getsignal(signal.SIGTERM)

    def check():
        with catch_stop_signals() as stop_request:
            seen.append((bool(stop_request), signal.getsignal(signal.SIGTERM) == handler))

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_interrupt_is_raised_once_and_handlers_are_restored(number):
    before = [signal.getsignal(number) for number in signals.STOP_SIGNALS]
    with raise_on_stop():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            time.sleep(1)
        os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in signals.STOP_SIGNALS] == before


def test_a_training_inside_an_interruptible_stage_asks_for_a_stop():
    with raise_on_stop():
        with catch_stop_signals() as stop_request:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the second of `timeout`, after a quick save
    assert stop_request


def test_ignored_signals_stay_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with catch_stop_signals() as stop_request:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop_request and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)


IMPORTING = """
import sys, time
import bertsmith.__main__
class SlowFinder:  # the next import of the command line takes long
    def find_spec(self, name, *args):
        if name == "bertsmith.cli":
            print("importing", flush=True)
            time.sleep(30)
sys.meta_path.insert(0, SlowFinder())
sys.exit(bertsmith.__main__.main())
"""


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_signal_while_the_command_line_is_imported(number):
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING, "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "interrupted: run the same command again to resume\n")


STAGE = """
import sys, time
from bertsmith import cli, signals
signals.SAME_REQUEST_SECONDS = 0.2
signals.end_process_on_stop()
class Module:
    class Recipe: pass
    @staticmethod
    def run(recipe, quiet):
        try:
            print("running", flush=True)
            time.sleep(30)
        finally:
            print("cleaning up", flush=True)
            time.sleep(float(sys.argv[1]))
            print("clean", flush=True)
cli.load_stage = lambda name: Module
cli.recipe_type = lambda *args: None
cli.from_user = lambda *args: None
cli.report_same_names = lambda *args: None
sys.exit(cli.main(["prepare"]))
"""


@pytest.mark.parametrize(("cleanup_seconds", "later", "output"), [(0.1, False, "clean\n"), (30, True, "")])
def test_a_stage_cleans_up_unless_a_later_signal_comes(cleanup_seconds, later, output):
    process = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(cleanup_seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "cleaning up\n"
    if later:
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (130, output)
    assert stderr == "interrupted: run the same command again to resume\n"


FINALIZING = """
import os, sys, time
from bertsmith import signals
signals.end_process_on_stop()
class SlowEnd:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"ending\\n")
        sleep(1)
sys.slow = SlowEnd()  # deleted after the handlers of Python
"""


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_a_signal_while_python_ends_changes_no_exit_status(number):
    process = subprocess.Popen([sys.executable, "-c", FINALIZING], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 0
