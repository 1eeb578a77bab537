"""The same run with several seeds: how much of a score is luck, and the best of them to keep."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import runs
from ..artifacts import read_json
from ..config import Config
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..train.distributed import world_size

Scores = dict[str, float]


def run_seeds(
    recipe: Config, out: Path, seeds: Sequence[int], run_seed: Callable[[int, Path], dict[str, Any]], identity: str,
    console: Console,
) -> dict[str, Any]:  # fmt: skip
    """`run(seed, folder)` for each, in folders under `out` that go when the best is published; interrupted, it goes on.

    The best has most of the score that a run's result names as its `metric`.
    """
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds {list(seeds)} name one twice")
    if world_size() > 1:
        raise UserError("several seeds are run one after another by one process; start it without torchrun, or give one seed")
    made = {seed: run_seed(seed, out / "seeds" / f"seed-{seed}") for seed in seeds}
    found = {seed: {name: math.nan if value is None else value for name, value in made[seed]["dev"].items()} for seed in seeds}
    metric = made[seeds[0]]["metric"]
    chosen = max(seeds, key=lambda seed: _nan_as_lowest(found[seed][metric]))
    result = {key: value for key, value in made[chosen].items() if key not in ("out", "made")}
    result |= {
        "seeds": {str(seed): scores for seed, scores in found.items()},
        "seed": chosen,
        **compute_mean_and_deviation(list(found.values())),
    }
    _publish(out, out / "seeds" / f"seed-{chosen}", recipe, result, identity)
    rows = [(name, f"{result['mean'][name]:.4f} ± {result['deviation'][name]:.4f}") for name in result["mean"]]
    console.print_table(f"{out}: {len(seeds)} seeds, by {metric} the best is {chosen}", rows)
    return {"out": str(out), "made": True, **result}


def compute_mean_and_deviation(scores: Sequence[Scores]) -> dict[str, Scores]:
    """The mean of each score, and its deviation from run to run (of a sample: n - 1; 0 for a single run)."""
    mean = {name: sum(one[name] for one in scores) / len(scores) for name in scores[0]}
    spread = {name: sum((one[name] - mean[name]) ** 2 for one in scores) for name in mean}
    return {"mean": mean, "deviation": {name: math.sqrt(value / max(1, len(scores) - 1)) for name, value in spread.items()}}


def _nan_as_lowest(score: float) -> float:
    return score if not math.isnan(score) else -math.inf


def _publish(out: Path, best_folder: Path, recipe: Config, result: dict[str, Any], identity: str) -> None:
    model, tokenizer, card = checkpoint.load(best_folder)
    record = {key: value for key, value in read_json(best_folder / "config.json").items() if key != "model"}
    shutil.copy(best_folder / "metrics.jsonl", out / "metrics.jsonl")
    runs.publish(out, model, tokenizer, card | {"identity": identity, "result": result}, record, recipe)
    shutil.rmtree(out / "seeds")
