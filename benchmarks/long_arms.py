"""Ways to read long documents, and the steps to each: what a step waits for, what it is told, and how it is done."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith import api
from bertsmith.artifacts import write_json

from .long_folds import part

ARMS = {"reviews": ("window", "cut", "near", "parts"), "covid": ("window", "cut", "near", "strided")}
MLM, BEFORE = "mlm", "before"  # further reading by windows, and what the model was worth before it
FACTS = int | float | str


@dataclass(frozen=True)
class Step:
    """A stage of bertsmith.api and its settings; of a fine-tuning with a test file, also what it answers there."""

    name: str
    stage: str
    told: dict[str, Any]
    needs: tuple[str, ...] = ()
    test: str | None = None


@dataclass(frozen=True)
class Asked:
    """What the command line says; `steps` are for a trial, instead of epochs and minutes."""

    out: Path
    model: str
    texts: list[str]
    squad: str
    folds: dict[str, int]
    device: str
    precision: str
    long: int = 4096
    short: int = 512
    reach: int = 256
    minutes: float = 1.0
    rate: float = 5e-4
    steps: int | None = None

    def made(self, name: str) -> str:
        return str(self.out / "made" / name)

    def train(self, rate: float, tokens: int, **more: Any) -> dict[str, Any]:
        if self.steps is not None:
            more = {name: value for name, value in more.items() if name not in ("epochs", "minutes")} | {"steps": self.steps}
        return {"rate": rate, "batch_tokens": tokens, "device": self.device, "precision": self.precision, **more}


class Arm(NamedTuple):
    """What one way begins from (a step, or the model that was given), and how it reads and learns."""

    begins: str | None
    task: dict[str, Any]
    length: int
    tokens: int  # of one update
    epochs: float


def steps(asked: Asked) -> list[Step]:
    """All there is to do, the most pressing first: what windows need, windows, and what they are held against."""
    arms = {what: _arms(asked, what) for what in ARMS}
    order = [("reviews", "window"), ("covid", "window"), ("covid", "strided"), ("reviews", "parts"), ("reviews", "cut"),
             ("covid", "cut"), ("reviews", "near"), ("covid", "near")]  # fmt: skip
    taught = [_taught(asked, what, arm, arms[what][arm], fold) for what, arm in order for fold in range(asked.folds[what])]
    return [*_begun(asked), *taught]


def worked(step: Step, out: Path, device: str) -> None:
    """The step, if it is not done; told/NAME.json comes last and says that it is."""
    told, answers, start = told_of(out, step.name), answers_of(out, step.name), time.perf_counter()
    _memory(anew=True)
    result = getattr(api, step.stage)(quiet=True, **step.told)
    if not result["made"] and told.exists():
        return
    for old in (told, answers) if result["made"] else ():
        old.unlink(missing_ok=True)
    facts = {"name": step.name, "stage seconds": round(time.perf_counter() - start, 1)}
    facts |= {name: value for name, value in result.items() if isinstance(value, FACTS)}
    if step.test:
        answers.parent.mkdir(exist_ok=True)
        api.predict(model=step.told["out"], data=step.test, out=str(answers), device=device, quiet=True)
        facts["seconds with answers"] = round(time.perf_counter() - start, 1)
    told.parent.mkdir(exist_ok=True)
    write_json(told, facts | _memory())


def told_of(out: Path, name: str) -> Path:
    return out / "told" / f"{name}.json"


def answers_of(out: Path, name: str) -> Path:
    return out / "answers" / f"{name}.jsonl"


def _begun(asked: Asked) -> Iterator[Step]:
    """Windows instead of full attention, further reading by them, and SQuAD for the models that answer questions."""
    corpus = {"texts": asked.texts, "tokenizer": asked.model, "out": asked.made("corpus")}
    yield Step("corpus", "prepare", corpus)
    longer = {"model": asked.model, "length": asked.long, "reach": [asked.reach], "out": asked.made("longer")}
    yield Step("longer", "convert_long", longer)
    on = {"corpus": asked.made("corpus"), "init": asked.made("longer"), "objective": {"kind": "masked", "rate": 0.2},
          "length": asked.long, "held_out": 0.03, "eval_tokens": 32 * asked.long}  # fmt: skip
    how = {"optimizer": {"kind": "muon"}, "warmup": 0.05, "workers": 3 if asked.device.startswith("cuda") else 0}
    train = asked.train(asked.rate, 16 * asked.long, minutes=asked.minutes, **how)
    yield Step(MLM, "pretrain", on | {"out": asked.made(MLM), "train": train}, ("corpus", "longer"))
    questions = {"task": {"kind": "answer", "stride": asked.short * 3 // 8}, "length": asked.short * 3 // 4, "dropout": 0.1,
                 "data": {"train": asked.squad}, "train": asked.train(2e-4, 16 * asked.short, epochs=2)}  # fmt: skip
    yield Step("squad-dense", "finetune", questions | {"model": asked.model, "out": asked.made("squad-dense")})
    yield Step("squad-window", "finetune", questions | {"model": asked.made(MLM), "out": asked.made("squad-window")}, (MLM,))
    hardly = {**asked.train(1e-9, 16 * asked.long), "steps": 1}
    yield Step(BEFORE, "pretrain", on | {"out": asked.made(BEFORE), "train": hardly}, ("corpus", "longer"))


def _arms(asked: Asked, what: str) -> dict[str, Arm]:
    long, short = asked.long, asked.short
    if what == "reviews":
        task: dict[str, Any] = {"kind": "classify"}
        parts = task | {"long": "hierarchical", "stride": short * 3 // 4}
        return {
            "window": Arm(MLM, task, long, 4 * long, 4),
            "cut": Arm(None, task, short, 16 * short, 4),
            "near": Arm(MLM, task, short, 16 * short, 4),  # what further reading alone is worth
            "parts": Arm(None, parts, short, 4 * long, 4),
        }
    task = {"kind": "answer", "longest": 100, "candidates": 1}
    cut = task | {"long": "truncate"}
    return {
        "window": Arm("squad-window", task | {"stride": long // 2}, long, 4 * long, 2),
        "cut": Arm("squad-dense", cut, short, 8 * short, 4),
        "near": Arm("squad-window", cut, short, 8 * short, 4),
        "strided": Arm("squad-dense", task | {"stride": short * 3 // 8}, short * 3 // 4, 4 * long, 2),
    }


def _taught(asked: Asked, what: str, arm: str, one: Arm, fold: int) -> Step:
    name, learn, test = f"{what}-{arm}-{fold}", *(str(part(asked.out, what, fold, side)) for side in ("train", "test"))
    train = asked.train(2e-4 if what == "reviews" else 1e-4, one.tokens, epochs=one.epochs)
    told = {"model": asked.made(one.begins) if one.begins else asked.model, "task": one.task, "length": one.length,
            "data": {"train": learn}, "seed": fold, "dropout": 0.1, "out": asked.made(name), "train": train}  # fmt: skip
    return Step(name, "finetune", told, (one.begins,) if one.begins else (), test)


def _memory(anew: bool = False) -> dict[str, float]:
    """The most that torch held on a GPU since it was asked to count anew."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    if anew:
        torch.cuda.reset_peak_memory_stats()
    return {"peak GB": round(torch.cuda.max_memory_allocated() / 1e9, 2)}
