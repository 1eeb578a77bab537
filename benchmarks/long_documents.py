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
from bertsmith.errors import Stopped
from bertsmith.processes import Job, carried_out, interrupted_by_signals

from . import long_folds
from .long_arms import MLM, Asked, Step, steps, told_of, worked
from .long_table import Row, pooled, rows
from .material import Material

FILES = ("reviews", "covid", "squad", "texts", "out")


def run(stuff: Material) -> list[Row]:
    end = time.monotonic() + float(stuff.given.get("seconds", "1e6"))
    asked = _asked(stuff)
    if time.monotonic() < end:
        long_folds.reviews(Path(stuff.given["reviews"]), asked.folds["reviews"], asked.out)
        long_folds.articles(Path(stuff.given["covid"]), asked.folds["covid"], asked.out)
        course = Course(asked, stuff.number("jobs", 1))
        with _until(end):
            carried_out(course.begun(), course.count, course.ended)
    table = pooled(asked.out, asked.folds)
    write_json(asked.out / "table.json", table)
    return rows(table)


def _asked(stuff: Material) -> Asked:
    given = stuff.given
    if missing := [name for name in FILES if name not in given]:
        sys.exit(f"long_documents needs {'=... '.join(missing)}=...; see benchmarks/long_documents.py")
    device = given.get("device", "cpu")
    reviews, covid = map(int, given.get("folds", "5,3").split(","))
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    return Asked(
        out=out, model=given.get("model", "mini-en"), texts=given["texts"].split(","), squad=given["squad"],
        folds={"reviews": reviews, "covid": covid}, device=device,
        precision=given.get("precision", "bf16" if device.startswith("cuda") else "fp32"), long=stuff.number("length", 4096),
        short=stuff.number("short", 512), reach=stuff.number("reach", 256), minutes=float(given.get("minutes", 1)),
        rate=float(given.get("rate", 5e-4)), steps=stuff.number("steps", 0) or None,
    )  # fmt: skip


class Course:
    """Steps in the order of their need: one is begun when all it waits for is done and a place is free."""

    def __init__(self, asked: Asked, count: int) -> None:
        self.asked, self.count, self.start = asked, count, time.monotonic()
        self.waiting = steps(asked)
        self.going, self.done, self.failed = set[str](), set[str](), set[str]()

    @property
    def places(self) -> int:
        """Until windows can begin, most are kept free: the reading that they wait for has its minutes nearly for itself."""
        return self.count if MLM in self.done | self.failed else max(1, self.count // 3)

    def begun(self) -> list[Job]:
        ready = [step for step in self.waiting if self.done.issuperset(step.needs)]
        return [self._job(step) for step in ready[: self.places - len(self.going)]]

    def ended(self, job: Job, fault: str | None) -> Sequence[Job]:
        self.going.remove(job.name)
        if fault is None:
            self.done.add(job.name)
            self._say(json.dumps(json.loads(told_of(self.asked.out, job.name).read_bytes())))
        else:
            self._lost(job.name, fault)
        return self.begun()

    def _job(self, step: Step) -> Job:
        self.waiting.remove(step)
        self.going.add(step.name)
        return Job(step.name, worked, (step, self.asked.out, self.asked.device))

    def _lost(self, name: str, fault: str) -> None:
        """With all that waits for it, which stands behind it; what they told under other settings is not pooled."""
        self._give_up(name, f"failed: {fault}")
        for step in list(self.waiting):
            if lost := self.failed.intersection(step.needs):
                self.waiting.remove(step)
                self._give_up(step.name, f"is left out, for want of {min(lost)}")

    def _give_up(self, name: str, why: str) -> None:
        self.failed.add(name)
        told_of(self.asked.out, name).unlink(missing_ok=True)
        self._say(f"{name} {why}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self.start:.0f} s  {text}", flush=True)


@contextmanager
def _until(end: float) -> Iterator[None]:
    """When the time is up, it is as if somebody had asked to stop: what is at work is saved, and nothing is raised."""
    up = Event()

    def stop(number: int, frame: FrameType | None) -> None:
        up.set()
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with interrupted_by_signals():
            signal.setitimer(signal.ITIMER_REAL, max(0.01, end - time.monotonic()))
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Stopped, KeyboardInterrupt):
        if not up.is_set():
            raise
        print("the time is up; the same command goes on", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
