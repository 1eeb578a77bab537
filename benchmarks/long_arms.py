"""Ways to read long documents, and the steps to each: what a step waits for, what it is told, and how it is done."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith import api
from bertsmith.artifacts import write_json

from .long_folds import fold_path

ARMS = {"reviews": ("window", "cut", "near", "parts"), "covid": ("window", "cut", "near", "strided")}
MLM_STEP, BEFORE_STEP = "mlm", "before"  # further reading by windows, and what the model was worth before it
FACT_TYPES = int | float | str


@dataclass(frozen=True)
class ExperimentStep:
    """A stage of bertsmith.api and its settings; of a fine-tuning with a test file, also what it answers there."""

    name: str
    stage: str
    settings: dict[str, Any]
    depends_on: tuple[str, ...] = ()
    test_file: str | None = None


@dataclass(frozen=True)
class ExperimentConfig:
    """What the command line says; `steps` are for a trial, instead of epochs and minutes."""

    out: Path
    model: str
    texts: list[str]
    squad: str
    folds: dict[str, int]
    device: str
    precision: str
    long_length: int = 4096
    short_length: int = 512
    window_per_side: int = 256
    minutes: float = 1.0
    learning_rate: float = 5e-4
    steps: int | None = None

    def artifact_path(self, name: str) -> str:
        return str(self.out / "made" / name)

    def train_settings(self, learning_rate: float, batch_tokens: int, **extra: Any) -> dict[str, Any]:
        if self.steps is not None:
            extra = {name: value for name, value in extra.items() if name not in ("epochs", "minutes")} | {"steps": self.steps}
        return {
            "rate": learning_rate,
            "batch_tokens": batch_tokens,
            "device": self.device,
            "precision": self.precision,
            **extra,
        }


class Arm(NamedTuple):
    """What one way begins from (a step, or the model that was given), and how it reads and learns."""

    init_from: str | None
    task: dict[str, Any]
    max_length: int
    batch_tokens: int  # of one update
    epochs: float


def plan_steps(config: ExperimentConfig) -> list[ExperimentStep]:
    """All there is to do, the most pressing first: what windows need, windows, and what they are held against."""
    arms = {what: _build_arms(config, what) for what in ARMS}
    order = [("reviews", "window"), ("covid", "window"), ("covid", "strided"), ("reviews", "parts"), ("reviews", "cut"),
             ("covid", "cut"), ("reviews", "near"), ("covid", "near")]  # fmt: skip
    taught = [
        _finetune_step(config, what, arm, arms[what][arm], fold) for what, arm in order for fold in range(config.folds[what])
    ]
    return [*_shared_steps(config), *taught]


def run_step(step: ExperimentStep, out: Path, device: str) -> None:
    """The step, if it is not done; told/NAME.json comes last and says that it is."""
    told, answers, start = facts_path(out, step.name), answers_path(out, step.name), time.perf_counter()
    _peak_memory(reset=True)
    result = getattr(api, step.stage)(quiet=True, **step.settings)
    if not result["made"] and told.exists():
        return
    for old in (told, answers) if result["made"] else ():
        old.unlink(missing_ok=True)
    facts = {"name": step.name, "stage seconds": round(time.perf_counter() - start, 1)}
    facts |= {name: value for name, value in result.items() if isinstance(value, FACT_TYPES)}
    if step.test_file:
        answers.parent.mkdir(exist_ok=True)
        api.predict(model=step.settings["out"], data=step.test_file, out=str(answers), device=device, quiet=True)
        facts["seconds with answers"] = round(time.perf_counter() - start, 1)
    told.parent.mkdir(exist_ok=True)
    write_json(told, facts | _peak_memory())


def facts_path(out: Path, name: str) -> Path:
    return out / "told" / f"{name}.json"


def answers_path(out: Path, name: str) -> Path:
    return out / "answers" / f"{name}.jsonl"


def _shared_steps(config: ExperimentConfig) -> Iterator[ExperimentStep]:
    """Windows instead of full attention, further reading by them, and SQuAD for the models that answer questions."""
    corpus = {"texts": config.texts, "tokenizer": config.model, "out": config.artifact_path("corpus")}
    yield ExperimentStep("corpus", "prepare", corpus)
    longer = {
        "model": config.model,
        "length": config.long_length,
        "reach": [config.window_per_side],
        "out": config.artifact_path("longer"),
    }
    yield ExperimentStep("longer", "convert_long", longer)
    on = {"corpus": config.artifact_path("corpus"), "init": config.artifact_path("longer"), "objective": {"kind": "masked", "rate": 0.2},
          "length": config.long_length, "held_out": 0.03, "eval_tokens": 32 * config.long_length}  # fmt: skip
    how = {"optimizer": {"kind": "muon"}, "warmup": 0.05, "workers": 3 if config.device.startswith("cuda") else 0}
    train = config.train_settings(config.learning_rate, 16 * config.long_length, minutes=config.minutes, **how)
    yield ExperimentStep(
        MLM_STEP, "pretrain", on | {"out": config.artifact_path(MLM_STEP), "train": train}, ("corpus", "longer")
    )
    questions = {"task": {"kind": "answer", "stride": config.short_length * 3 // 8}, "length": config.short_length * 3 // 4, "dropout": 0.1,
                 "data": {"train": config.squad}, "train": config.train_settings(2e-4, 16 * config.short_length, epochs=2)}  # fmt: skip
    yield ExperimentStep(
        "squad-dense", "finetune", questions | {"model": config.model, "out": config.artifact_path("squad-dense")}
    )
    yield ExperimentStep(
        "squad-window",
        "finetune",
        questions | {"model": config.artifact_path(MLM_STEP), "out": config.artifact_path("squad-window")},
        (MLM_STEP,),
    )
    hardly = {**config.train_settings(1e-9, 16 * config.long_length), "steps": 1}
    yield ExperimentStep(
        BEFORE_STEP, "pretrain", on | {"out": config.artifact_path(BEFORE_STEP), "train": hardly}, ("corpus", "longer")
    )


def _build_arms(config: ExperimentConfig, dataset: str) -> dict[str, Arm]:
    long, short = config.long_length, config.short_length
    if dataset == "reviews":
        task: dict[str, Any] = {"kind": "classify"}
        parts = task | {"long": "hierarchical", "stride": short * 3 // 4}
        return {
            "window": Arm(MLM_STEP, task, long, 4 * long, 4),
            "cut": Arm(None, task, short, 16 * short, 4),
            "near": Arm(MLM_STEP, task, short, 16 * short, 4),  # what further reading alone is worth
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


def _finetune_step(config: ExperimentConfig, dataset: str, arm_name: str, arm: Arm, fold: int) -> ExperimentStep:
    name, learn, test = (
        f"{dataset}-{arm_name}-{fold}",
        *(str(fold_path(config.out, dataset, fold, side)) for side in ("train", "test")),
    )
    train = config.train_settings(2e-4 if dataset == "reviews" else 1e-4, arm.batch_tokens, epochs=arm.epochs)
    told = {"model": config.artifact_path(arm.init_from) if arm.init_from else config.model, "task": arm.task, "length": arm.max_length,
            "data": {"train": learn}, "seed": fold, "dropout": 0.1, "out": config.artifact_path(name), "train": train}  # fmt: skip
    return ExperimentStep(name, "finetune", told, (arm.init_from,) if arm.init_from else (), test)


def _peak_memory(reset: bool = False) -> dict[str, float]:
    """The most that torch held on a GPU since it was asked to count anew."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return {"peak GB": round(torch.cuda.max_memory_allocated() / 1e9, 2)}
