"""Long documents: Longformer against truncated, hierarchical and overlapping-window reading, on two long-text tasks.

python -m benchmarks long_documents reviews=FILE.jsonl covid=FILE.json squad=FILE.json texts=FILE,... out=FOLDER
       [device=cuda] [precision=bf16] [jobs=12] [minutes=1] [seconds=600] [model=mini-en] [folds=5,3]
       [max_length=4096] [short_length=512] [attention_window=512] [learning_rate=5e-4] [steps=N]

reviews    classification: a JSON object per line, {"text": ..., "label": ..., "fold": 0}; folds are assigned if absent
covid      question answering, SQuAD's JSON: data > paragraphs > context and qas > id, question, answers > text, answer_start
squad      the same with short passages: models are fine-tuned on it before the articles
texts      long documents for continued MLM training, as `prepare` takes them; all files may be compressed (.xz .gz)
minutes    of that training, during which at most a third of the jobs run
seconds    time limit (saving may take 30 more); 0: only the table, from existing results
folds      of reviews and of articles, 0 for none; `steps` replaces epochs and minutes, for a quick test

Arms: `longformer`, the model converted by `convert-long` and trained further, at the full length; `truncate`, the original
model, truncated to the short length; `longformer-truncate`, the model trained further, truncated; `hierarchical`, a small
network over the vectors of chunks; `window`, the best answer of overlapping windows. The same command resumes. In out:
models/, folds/ (training and test files), results/ and predictions/ of each step, and table.json, computed from these.
"""

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

from bertsmith.errors import Interrupted
from bertsmith.processes import Job, run_jobs
from bertsmith.signals import raise_on_stop
from bertsmith.writing import write_json

from . import long_folds
from .inputs import BenchmarkInputs
from .long_arms import MLM_STEP, ExperimentConfig, ExperimentStep, plan_steps, result_path, run_step
from .long_table import Row, format_rows, pool_folds


def run(bench: BenchmarkInputs) -> list[Row]:
    deadline = time.monotonic() + float(bench.options.get("seconds", "1e6"))
    config = _read_config(bench)
    if time.monotonic() < deadline:
        long_folds.write_review_folds(Path(bench.options["reviews"]), config.folds["reviews"], config.out)
        long_folds.write_article_folds(Path(bench.options["covid"]), config.folds["covid"], config.out)
        scheduler = StepScheduler(config, bench.int_option("jobs", 1))
        with _stop_at(deadline):
            run_jobs(scheduler.start_ready(), scheduler.max_jobs, scheduler.on_job_end)
    table = pool_folds(config.out, config.folds)
    write_json(config.out / "table.json", table)
    return format_rows(table)


def _read_config(bench: BenchmarkInputs) -> ExperimentConfig:
    options = bench.options
    device = options.get("device", "cpu")
    reviews, covid = map(int, options.get("folds", "5,3").split(","))
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    return ExperimentConfig(
        out=out, model=options.get("model", "mini-en"), texts=options["texts"].split(","), squad=options["squad"],
        folds={"reviews": reviews, "covid": covid}, device=device,
        precision=options.get("precision", "bf16" if device.startswith("cuda") else "fp32"),
        long_length=bench.int_option("max_length", 4096), short_length=bench.int_option("short_length", 512),
        attention_window=bench.int_option("attention_window", 512), minutes=float(options.get("minutes", 1)),
        learning_rate=float(options.get("learning_rate", 5e-4)), steps=bench.int_option("steps", 0) or None,
    )  # fmt: skip


class StepScheduler:
    """Starts steps by priority, when their dependencies are done and a job slot is free."""

    def __init__(self, config: ExperimentConfig, max_jobs: int) -> None:
        self.config, self.max_jobs, self.start_time = config, max_jobs, time.monotonic()
        self.waiting = plan_steps(config)
        self.running, self.done, self.failed = set[str](), set[str](), set[str]()

    @property
    def job_limit(self) -> int:
        """A third of the jobs until the continued training, which is limited by minutes, has ended; then all."""
        return self.max_jobs if MLM_STEP in self.done | self.failed else max(1, self.max_jobs // 3)

    def start_ready(self) -> list[Job]:
        ready = [step for step in self.waiting if self.done.issuperset(step.depends_on)]
        return [self._start_step(step) for step in ready[: self.job_limit - len(self.running)]]

    def on_job_end(self, job: Job, error: str | None) -> Sequence[Job]:
        self.running.remove(job.name)
        if error is None:
            self.done.add(job.name)
            self._print(json.dumps(json.loads(result_path(self.config.out, job.name).read_bytes())))
        else:
            self._fail_step(job.name, error)
        return self.start_ready()

    def _start_step(self, step: ExperimentStep) -> Job:
        self.waiting.remove(step)
        self.running.add(step.name)
        return Job(step.name, run_step, (step, self.config.out, self.config.device))

    def _fail_step(self, name: str, error: str) -> None:
        """Fail the step and all that depend on it; their results of earlier settings are removed, so as not to be pooled."""
        self._give_up(name, f"failed: {error}")
        for step in list(self.waiting):
            if missing := self.failed.intersection(step.depends_on):
                self.waiting.remove(step)
                self._give_up(step.name, f"is skipped: it needs {min(missing)}")

    def _give_up(self, name: str, reason: str) -> None:
        self.failed.add(name)
        result_path(self.config.out, name).unlink(missing_ok=True)
        self._print(f"{name} {reason}")

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self.start_time:.0f} s  {text}", flush=True)


@contextmanager
def _stop_at(deadline: float) -> Iterator[None]:
    """At the deadline, send SIGTERM to this process: running jobs are saved, and no exception is raised."""
    timed_out = Event()

    def stop(signal_number: int, frame: FrameType | None) -> None:
        timed_out.set()
        signal.raise_signal(signal.SIGTERM)

    previous_handler = signal.signal(signal.SIGALRM, stop)
    try:
        with raise_on_stop():
            signal.setitimer(signal.ITIMER_REAL, max(0.01, deadline - time.monotonic()))
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Interrupted, KeyboardInterrupt):
        if not timed_out.is_set():
            raise
        print("time limit reached; run the same command again to resume", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
