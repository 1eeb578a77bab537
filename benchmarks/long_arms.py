"""The arms of the long-document experiment (Longformer, truncation, hierarchical, overlapping windows) and their steps."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith import api
from bertsmith.writing import write_json

from .long_folds import fold_path

ARMS = {
    "reviews": ("longformer", "truncate", "longformer-truncate", "hierarchical"),
    "covid": ("longformer", "truncate", "longformer-truncate", "window"),
}
MLM_STEP, BEFORE_STEP = "mlm", "before"  # continued MLM training with windows, and its loss before
FACT_TYPES = int | float | str


@dataclass(frozen=True)
class ExperimentStep:
    """A stage of bertsmith.api with its settings; with `test_file`, predictions on it are written too."""

    name: str
    stage: str
    settings: dict[str, Any]
    depends_on: tuple[str, ...] = ()
    test_file: str | None = None


@dataclass(frozen=True)
class ExperimentConfig:
    """Settings from the command line; `steps` replaces epochs and minutes, for a quick test."""

    out: Path
    model: str
    texts: list[str]
    squad: str
    folds: dict[str, int]
    device: str
    precision: str
    long_length: int = 4096
    short_length: int = 512
    attention_window: int = 512
    minutes: float = 1.0
    learning_rate: float = 5e-4
    steps: int | None = None

    def artifact_path(self, name: str) -> str:
        return str(self.out / "models" / name)

    def train_settings(self, learning_rate: float, batch_tokens: int, **extra: Any) -> dict[str, Any]:
        if self.steps is not None:
            extra = {name: value for name, value in extra.items() if name not in ("epochs", "minutes")} | {"steps": self.steps}
        return {
            "learning_rate": learning_rate,
            "batch_tokens": batch_tokens,
            "device": self.device,
            "precision": self.precision,
            **extra,
        }


class Arm(NamedTuple):
    """One way to read long documents: its initial checkpoint (a step, or the given model), task, lengths and epochs."""

    init_from: str | None
    task: dict[str, Any]
    max_length: int
    batch_tokens: int  # of one update
    epochs: float


def plan_steps(config: ExperimentConfig) -> list[ExperimentStep]:
    """All steps by priority: what the Longformer arms depend on, the Longformer arms, and those they are compared with."""
    arms = {dataset: _build_arms(config, dataset) for dataset in ARMS}
    order = [("reviews", "longformer"), ("covid", "longformer"), ("covid", "window"), ("reviews", "hierarchical"),
             ("reviews", "truncate"), ("covid", "truncate"), ("reviews", "longformer-truncate"),
             ("covid", "longformer-truncate")]  # fmt: skip
    finetune_steps = [
        _finetune_step(config, dataset, arm, arms[dataset][arm], fold)
        for dataset, arm in order
        for fold in range(config.folds[dataset])
    ]
    return [*_shared_steps(config), *finetune_steps]


def run_step(step: ExperimentStep, out: Path, device: str) -> None:
    """Run the step unless it is done; results/NAME.json is written last and marks it as finished."""
    result_file, predictions_file, start = result_path(out, step.name), predictions_path(out, step.name), time.perf_counter()
    _peak_memory(reset=True)
    result = getattr(api, step.stage)(quiet=True, **step.settings)
    if not result["created"] and result_file.exists():
        return
    for stale in (result_file, predictions_file) if result["created"] else ():
        stale.unlink(missing_ok=True)
    facts = {"name": step.name, "stage_seconds": round(time.perf_counter() - start, 1)}
    facts |= {name: value for name, value in result.items() if isinstance(value, FACT_TYPES)}
    if step.test_file:
        predictions_file.parent.mkdir(exist_ok=True)
        api.predict(model=step.settings["out"], data=step.test_file, out=str(predictions_file), device=device, quiet=True)
        facts["total_seconds"] = round(time.perf_counter() - start, 1)
    result_file.parent.mkdir(exist_ok=True)
    write_json(result_file, facts | _peak_memory())


def result_path(out: Path, name: str) -> Path:
    return out / "results" / f"{name}.json"


def predictions_path(out: Path, name: str) -> Path:
    return out / "predictions" / f"{name}.jsonl"


def _shared_steps(config: ExperimentConfig) -> Iterator[ExperimentStep]:
    """Conversion to Longformer, continued MLM training, and fine-tuning on SQuAD for the question answering arms."""
    prepare_settings = {"texts": config.texts, "tokenizer": config.model, "out": config.artifact_path("corpus")}
    yield ExperimentStep("corpus", "prepare", prepare_settings)
    convert_settings = {
        "model": config.model,
        "max_length": config.long_length,
        "attention_window": [config.attention_window],
        "out": config.artifact_path("longer"),
    }
    yield ExperimentStep("longer", "convert_long", convert_settings)
    pretrain_settings = {
        "corpus": config.artifact_path("corpus"), "init": config.artifact_path("longer"),
        "objective": {"kind": "mlm", "mlm_probability": 0.2}, "max_length": config.long_length, "validation_split": 0.03,
        "eval_tokens": 32 * config.long_length,
    }  # fmt: skip
    optimization = {
        "optimizer": {"kind": "muon"},
        "warmup_steps": 0.05,
        "workers": 3 if config.device.startswith("cuda") else 0,
    }
    train = config.train_settings(config.learning_rate, 16 * config.long_length, minutes=config.minutes, **optimization)
    yield ExperimentStep(
        MLM_STEP, "pretrain", pretrain_settings | {"out": config.artifact_path(MLM_STEP), "train": train}, ("corpus", "longer")
    )
    squad_settings = {
        "task": {"kind": "answer", "doc_stride": config.short_length * 3 // 8}, "max_length": config.short_length * 3 // 4,
        "hidden_dropout_prob": 0.1, "data": {"train": config.squad},
        "train": config.train_settings(2e-4, 16 * config.short_length, epochs=2),
    }  # fmt: skip
    yield ExperimentStep(
        "squad-full", "finetune", squad_settings | {"model": config.model, "out": config.artifact_path("squad-full")}
    )
    yield ExperimentStep(
        "squad-longformer",
        "finetune",
        squad_settings | {"model": config.artifact_path(MLM_STEP), "out": config.artifact_path("squad-longformer")},
        (MLM_STEP,),
    )
    one_step = {**config.train_settings(1e-9, 16 * config.long_length), "steps": 1}
    yield ExperimentStep(
        BEFORE_STEP,
        "pretrain",
        pretrain_settings | {"out": config.artifact_path(BEFORE_STEP), "train": one_step},
        ("corpus", "longer"),
    )


def _build_arms(config: ExperimentConfig, dataset: str) -> dict[str, Arm]:
    long, short = config.long_length, config.short_length
    if dataset == "reviews":
        task: dict[str, Any] = {"kind": "classify"}
        hierarchical = task | {"long_text": "hierarchical", "doc_stride": short * 3 // 4}
        return {
            "longformer": Arm(MLM_STEP, task, long, 4 * long, 4),
            "truncate": Arm(None, task, short, 16 * short, 4),
            "longformer-truncate": Arm(MLM_STEP, task, short, 16 * short, 4),  # the gain of continued training alone
            "hierarchical": Arm(None, hierarchical, short, 4 * long, 4),
        }
    task = {"kind": "answer", "max_answer_length": 100, "n_best_size": 1}
    truncated = task | {"long_text": "truncate"}
    return {
        "longformer": Arm("squad-longformer", task | {"doc_stride": long // 2}, long, 4 * long, 2),
        "truncate": Arm("squad-full", truncated, short, 8 * short, 4),
        "longformer-truncate": Arm("squad-longformer", truncated, short, 8 * short, 4),
        "window": Arm("squad-full", task | {"doc_stride": short * 3 // 8}, short * 3 // 4, 4 * long, 2),
    }


def _finetune_step(config: ExperimentConfig, dataset: str, arm_name: str, arm: Arm, fold: int) -> ExperimentStep:
    name, train_file, test_file = (
        f"{dataset}-{arm_name}-{fold}",
        *(str(fold_path(config.out, dataset, fold, side)) for side in ("train", "test")),
    )
    train = config.train_settings(2e-4 if dataset == "reviews" else 1e-4, arm.batch_tokens, epochs=arm.epochs)
    settings = {
        "model": config.artifact_path(arm.init_from) if arm.init_from else config.model, "task": arm.task,
        "max_length": arm.max_length, "data": {"train": train_file}, "seed": fold, "hidden_dropout_prob": 0.1,
        "out": config.artifact_path(name), "train": train,
    }  # fmt: skip
    return ExperimentStep(name, "finetune", settings, (arm.init_from,) if arm.init_from else (), test_file)


def _peak_memory(reset: bool = False) -> dict[str, float]:
    """Peak GPU memory of torch since the last reset; {} without a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return {"peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)}
