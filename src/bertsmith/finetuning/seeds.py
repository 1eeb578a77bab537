"""Fine-tune with several seeds: mean and standard deviation of the scores, and the best model published."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..artifacts import read_object, read_sealed
from ..config import Config
from ..errors import UserError
from ..model import checkpoint
from ..runs import Run, world_size
from ..writing import write_atomic

Scores = dict[str, float]

MAX_LOG_BYTES = 1 << 30


def run_seeds(
    recipe: Config, run: Run, seeds: Sequence[int], run_seed: Callable[[int, Path], dict[str, Any]]
) -> dict[str, Any]:
    """`run_seed(seed, folder)` for each seed, in folders under `out` that are removed when the best model is published.

    The best is the highest in the metric that the result's `metric` names, or the lowest if it is an error.
    Finished seeds are not repeated on resume.
    """
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds={list(seeds)} contains duplicates; give each seed once")
    if world_size() > 1:
        raise UserError("several seeds do not work with several processes; start it without torchrun, or give one seed")
    out = run.folder
    results = {seed: run_seed(seed, out / "seeds" / f"seed-{seed}") for seed in seeds}
    scores_by_seed = _collect_scores(results, "dev")
    metric = results[seeds[0]]["metric"]
    sign = -1 if metric in results[seeds[0]].get("lower_is_better", ()) else 1
    best_seed = max(seeds, key=lambda seed: _nan_as_lowest(sign * scores_by_seed[seed][metric]))
    result = {key: value for key, value in results[best_seed].items() if key not in ("out", "created")}
    result |= {
        "seeds": {str(seed): scores for seed, scores in scores_by_seed.items()},
        "seed": best_seed,
        **compute_mean_and_std(list(scores_by_seed.values())),
    }
    if test_by_seed := _collect_scores(results, "test"):
        summary = compute_mean_and_std(list(test_by_seed.values()))
        result |= {"test_seeds": {str(seed): scores for seed, scores in test_by_seed.items()}}
        result |= {"test_mean": summary["mean"], "test_std": summary["std"]}
    _publish(run, out / "seeds" / f"seed-{best_seed}", recipe, result)
    rows = [
        (split.replace("_", " ") + name, f"{mean:.4f} ± {result[f'{split}std'][name]:.4f}")
        for split in ("", "test_")
        for name, mean in result.get(f"{split}mean", {}).items()
    ]
    run.console.print_table(
        f"{out}: mean ± standard deviation over {len(seeds)} seeds; best by {metric}: seed {best_seed}", rows
    )
    return {"out": str(out), "created": True, **result}


def compute_mean_and_std(scores: Sequence[Scores]) -> dict[str, Scores]:
    """Mean and sample standard deviation (n - 1; 0 for a single run) of each score."""
    mean = {name: sum(run_scores[name] for run_scores in scores) / len(scores) for name in scores[0]}
    squared_deviations = {name: sum((run_scores[name] - mean[name]) ** 2 for run_scores in scores) for name in mean}
    return {
        "mean": mean,
        "std": {name: math.sqrt(value / max(1, len(scores) - 1)) for name, value in squared_deviations.items()},
    }


def _collect_scores(results: dict[int, dict[str, Any]], split: str) -> dict[int, Scores]:
    """The scores of each seed on a split, undefined ones as NaN; empty if the runs have no such file."""
    return {
        seed: {name: math.nan if value is None else value for name, value in result[split].items()}
        for seed, result in results.items()
        if split in result
    }


def _nan_as_lowest(score: float) -> float:
    return score if not math.isnan(score) else -math.inf


def _publish(run: Run, best_folder: Path, recipe: Config, result: dict[str, Any]) -> None:
    model, tokenizer, card = checkpoint.load(best_folder)
    record = {key: value for key, value in read_object(best_folder / "config.json").items() if key != "model"}
    write_atomic(run.folder / "metrics.jsonl", read_sealed(best_folder / "metrics.jsonl", MAX_LOG_BYTES))
    run.publish(checkpoint.model_writer(model, tokenizer), card | {"result": result}, record, recipe)
    shutil.rmtree(run.folder / "seeds")
