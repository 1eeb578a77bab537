"""Calls leave the state of the importing program as it was: csv's field limit, `__main__`, environment, signals, logging."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bertsmith.processes import Job, WorkerPool, run_jobs
from bertsmith.tokenization.tables import LineReader, TableRecord, read_records
from tests.support.job_functions import write_threads
from tests.support.texts import make_english_text

LONG_TEXT = "word " * 50_000  # csv's default limit of a field is 131,072 characters


@pytest.fixture
def table(tmp_path) -> Path:
    """A .csv file with long fields in both of its rows."""
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], [LONG_TEXT, "a"], [f'{LONG_TEXT}"\n', "b"]])
    return tmp_path / "table.csv"


def test_csv_field_limit_is_not_changed(table):
    limit = csv.field_size_limit(70_000)
    try:
        records = read_records(LineReader(table))
        for record, text in zip(records, (LONG_TEXT, f'{LONG_TEXT}"\n'), strict=True):
            assert isinstance(record, TableRecord) and record.values["text"] == text
            assert csv.field_size_limit() == 70_000  # also between rows
        table.write_text('text,label\n"not closed,a\n')
        assert [type(record).__name__ for record in read_records(LineReader(table))] == ["InvalidRecord"]
        assert csv.field_size_limit() == 70_000
    finally:
        csv.field_size_limit(limit)


def test_csv_files_are_read_in_several_threads(table):
    """No thread restores the limit while another reads a long field."""
    limit, errors = csv.field_size_limit(), []

    def read() -> None:
        for _ in range(20):
            errors.extend(record for record in read_records(LineReader(table)) if not isinstance(record, TableRecord))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and csv.field_size_limit() == limit


def test_jobs_leave_main_module_environment_and_signals(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    main, environment, handler = sys.modules["__main__"], dict(os.environ), signal.getsignal(signal.SIGTERM)
    files = [tmp_path / "a", tmp_path / "b"]
    run_jobs([Job(path.name, write_threads, (path,)) for path in files], 2, lambda job, error: [])
    assert [path.read_text() for path in files] == ["2", "2"]  # the workers share the cores
    assert sys.modules["__main__"] is main and os.environ == environment and signal.getsignal(signal.SIGTERM) == handler


def test_worker_pools_of_several_threads_restore_the_main_module():
    main = sys.modules["__main__"]

    def submit() -> None:
        with WorkerPool(1, str, ()) as pool:
            results.append(pool.submit(abs, -1).result())

    results: list[int] = []
    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1, 1, 1] and sys.modules["__main__"] is main


PROGRAM = """
import csv, json, logging, os, signal, sys, threading, warnings

def state():
    modules = ("__main__", "csv", "json", "logging", "signal", "threading")
    return {
        "csv": csv.field_size_limit(),
        "modules": [id(sys.modules[name]) for name in modules],
        # torch's optimizers import its compiler, which sets the first; OpenMP reads the second when torch is imported
        "environment": {key: os.environ[key] for key in os.environ.keys() - {"TORCHINDUCTOR_CACHE_DIR", "GOMP_SPINCOUNT"}},
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "handlers": [len(logging.getLogger(name).handlers) for name in ("", "bertsmith")],
        "level": logging.getLogger("bertsmith").level,
        "cwd": os.getcwd(),
        "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }

def torch_state():
    import torch
    return {
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()],
        "random numbers": torch.get_rng_state().tolist(),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "modes": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")],
        "precision": torch.get_float32_matmul_precision(),
        "warnings": [str(entry) for entry in warnings.filters],
    }

before = state()
import bertsmith
folder = sys.argv[1]
bertsmith.train_tokenizer(texts=f"{folder}/text.csv", vocab_size=200, out=f"{folder}/tokenizer", quiet=True)
bertsmith.prepare(texts=f"{folder}/text.csv", tokenizer=f"{folder}/tokenizer", out=f"{folder}/corpus", workers=2, quiet=True)
bertsmith.show(kind="corpus", corpus=f"{folder}/corpus", out=f"{folder}/corpus.html", quiet=True)
after = state()
import torch
after_import = state()
torch.use_deterministic_algorithms(True, warn_only=True)
before_training = torch_state()
tiny = {"num_hidden_layers": 1, "hidden_size": 16, "mixer": {"num_attention_heads": 2}, "feedforward": {"intermediate_size": 8}}
bertsmith.pretrain(corpus=f"{folder}/corpus", out=f"{folder}/model", model=tiny, objective="mlm", max_length=32, quiet=True,
                   train={"steps": 2, "batch_tokens": 64, "full_determinism": True})
with open(f"{folder}/rows.csv", "w") as file:
    print("text,label", *(f"word {i},{i % 2}" for i in range(8)), sep=chr(10), file=file)
bertsmith.finetune(task="classify", model=f"{folder}/model", out=f"{folder}/classifier", quiet=True,
                   data={"train": f"{folder}/rows.csv", "dev": f"{folder}/rows.csv"},
                   train={"steps": 2, "full_determinism": True, "early_stopping_patience": 1, "eval_every": 1})
bertsmith.load(f"{folder}/classifier")("word 1")
print(json.dumps([[before, after_import, before_training], [after, state(), torch_state()]]))
"""


def test_functions_leave_the_state_of_a_program(tmp_path):
    with (tmp_path / "text.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in make_english_text(30).split("\n\n"))])
    (tmp_path / "program.py").write_text(PROGRAM)
    completed = subprocess.run([sys.executable, tmp_path / "program.py", tmp_path], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    before, after = json.loads(completed.stdout)
    for state_before, state_after in zip(before, after, strict=True):
        changed = {name: (value, state_after[name]) for name, value in state_before.items() if value != state_after[name]}
        assert not changed
