"""Long documents: whole, by windows, against cut, in parts and by strides, on reviews and on questions about articles.

python -m benchmarks long_documents reviews=FILE.jsonl covid=FILE.json squad=FILE.json texts=FILE,... out=FOLDER
       [device=cuda] [precision=bf16] [jobs=12] [minutes=1] [seconds=600] [model=mini-en] [folds=5,3]
       [length=4096] [short=512] [reach=256] [rate=5e-4] [steps=N]

reviews    a JSON object a line, {"text": ..., "label": ..., "fold": 0}; without folds they are dealt out in turn
covid      SQuAD's JSON: data > paragraphs > context and qas > id, question, answers > text, answer_start
squad      the same, of short passages: what models learn from before they meet the articles
texts      long documents for further reading, words hidden, as `prepare` takes them; all files may be packed (.xz .gz)
minutes    of that reading, beside which no more than a third of the jobs are at work
seconds    after which work is stopped, which may take 30 more to save; 0: the table alone, from what is there
folds      of reviews and of articles, 0 for none; `steps` replaces epochs and minutes, for a trial

Arms: `window`, the model made long by `convert-long` and read on, at the whole length; `cut`, the model as it is, at the
short one; `near`, the one that read on, cut; `parts`, a small network over the vectors of parts; `strided`, the best answer of
windows that overlap. The same command goes on where it was stopped. In out: made/ (models), folds/ (what they
learn from and are judged on), told/ and answers/ (of each step), and table.json, which is made of those three.
"""

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

from bertsmith.artifacts import write_json
from bertsmith.errors import Interrupted
from bertsmith.processes import Job, run_jobs, sigterm_as_interrupt

from . import long_folds
from .long_arms import MLM_STEP, ExperimentConfig, ExperimentStep, facts_path, plan_steps, run_step
from .long_table import Row, format_rows, pool_folds
from .material import BenchmarkInputs

REQUIRED_KEYS = ("reviews", "covid", "squad", "texts", "out")


def run(bench: BenchmarkInputs) -> list[Row]:
    end = time.monotonic() + float(bench.options.get("seconds", "1e6"))
    asked = _read_config(bench)
    if time.monotonic() < end:
        long_folds.write_review_folds(Path(bench.options["reviews"]), asked.folds["reviews"], asked.out)
        long_folds.write_article_folds(Path(bench.options["covid"]), asked.folds["covid"], asked.out)
        course = StepScheduler(asked, bench.int_option("jobs", 1))
        with _stop_at(end):
            run_jobs(course.start_ready(), course.max_jobs, course.on_job_end)
    table = pool_folds(asked.out, asked.folds)
    write_json(asked.out / "table.json", table)
    return format_rows(table)


def _read_config(bench: BenchmarkInputs) -> ExperimentConfig:
    given = bench.options
    if missing := [name for name in REQUIRED_KEYS if name not in given]:
        sys.exit(f"long_documents needs {'=... '.join(missing)}=...; see benchmarks/long_documents.py")
    device = given.get("device", "cpu")
    reviews, covid = map(int, given.get("folds", "5,3").split(","))
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    return ExperimentConfig(
        out=out, model=given.get("model", "mini-en"), texts=given["texts"].split(","), squad=given["squad"],
        folds={"reviews": reviews, "covid": covid}, device=device,
        precision=given.get("precision", "bf16" if device.startswith("cuda") else "fp32"), long_length=bench.int_option("length", 4096),
        short_length=bench.int_option("short", 512), window_per_side=bench.int_option("reach", 256), minutes=float(given.get("minutes", 1)),
        learning_rate=float(given.get("rate", 5e-4)), steps=bench.int_option("steps", 0) or None,
    )  # fmt: skip


class StepScheduler:
    """Steps in the order of their need: one is begun when all it waits for is done and a place is free."""

    def __init__(self, config: ExperimentConfig, max_jobs: int) -> None:
        self.config, self.max_jobs, self.start_time = config, max_jobs, time.monotonic()
        self.waiting = plan_steps(config)
        self.running, self.done, self.failed = set[str](), set[str](), set[str]()

    @property
    def job_limit(self) -> int:
        """Until windows can begin, most are kept free: the reading that they wait for has its minutes nearly for itself."""
        return self.max_jobs if MLM_STEP in self.done | self.failed else max(1, self.max_jobs // 3)

    def start_ready(self) -> list[Job]:
        ready = [step for step in self.waiting if self.done.issuperset(step.depends_on)]
        return [self._start_step(step) for step in ready[: self.job_limit - len(self.running)]]

    def on_job_end(self, job: Job, error: str | None) -> Sequence[Job]:
        self.running.remove(job.name)
        if error is None:
            self.done.add(job.name)
            self._print(json.dumps(json.loads(facts_path(self.config.out, job.name).read_bytes())))
        else:
            self._fail_step(job.name, error)
        return self.start_ready()

    def _start_step(self, step: ExperimentStep) -> Job:
        self.waiting.remove(step)
        self.running.add(step.name)
        return Job(step.name, run_step, (step, self.config.out, self.config.device))

    def _fail_step(self, name: str, error: str) -> None:
        """With all that waits for it, which stands behind it; what they told under other settings is not pooled."""
        self._give_up(name, f"failed: {error}")
        for step in list(self.waiting):
            if lost := self.failed.intersection(step.depends_on):
                self.waiting.remove(step)
                self._give_up(step.name, f"is left out, for want of {min(lost)}")

    def _give_up(self, name: str, reason: str) -> None:
        self.failed.add(name)
        facts_path(self.config.out, name).unlink(missing_ok=True)
        self._print(f"{name} {reason}")

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self.start_time:.0f} s  {text}", flush=True)


@contextmanager
def _stop_at(deadline: float) -> Iterator[None]:
    """When the time is up, it is as if somebody had asked to stop: what is at work is saved, and nothing is raised."""
    up = Event()

    def stop(signal_number: int, frame: FrameType | None) -> None:
        up.set()
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with sigterm_as_interrupt():
            signal.setitimer(signal.ITIMER_REAL, max(0.01, deadline - time.monotonic()))
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Interrupted, KeyboardInterrupt):
        if not up.is_set():
            raise
        print("the time is up; the same command goes on", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
