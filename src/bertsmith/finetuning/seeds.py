"""The same run with several seeds: how much of a score is luck, and the best of them to keep."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import runs
from ..artifacts import read_json
from ..config import Config
from ..console import Screen
from ..errors import BadInput
from ..model import checkpoint
from ..train.distributed import world

Scores = dict[str, float]


def several(
    recipe: Config, out: Path, seeds: Sequence[int], run: Callable[[int, Path], dict[str, Any]], identity: str,
    screen: Screen,
) -> dict[str, Any]:  # fmt: skip
    """`run(seed, folder)` for each, in folders under `out` that go when the best is published; interrupted, it goes on.

    The best has most of the score that a run's result names as its `metric`.
    """
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"seeds {list(seeds)} name one twice")
    if world() > 1:
        raise BadInput("several seeds are run one after another by one process; start it without torchrun, or give one seed")
    made = {seed: run(seed, out / "seeds" / f"seed-{seed}") for seed in seeds}
    found = {seed: {name: math.nan if value is None else value for name, value in made[seed]["dev"].items()} for seed in seeds}
    metric = made[seeds[0]]["metric"]
    chosen = max(seeds, key=lambda seed: _value(found[seed][metric]))
    result = {key: value for key, value in made[chosen].items() if key not in ("out", "made")}
    result |= {"seeds": {str(seed): scores for seed, scores in found.items()}, "seed": chosen, **summary(list(found.values()))}
    _publish(out, out / "seeds" / f"seed-{chosen}", recipe, result, identity)
    rows = [(name, f"{result['mean'][name]:.4f} ± {result['deviation'][name]:.4f}") for name in result["mean"]]
    screen.table(f"{out}: {len(seeds)} seeds, by {metric} the best is {chosen}", rows)
    return {"out": str(out), "made": True, **result}


def summary(found: Sequence[Scores]) -> dict[str, Scores]:
    """The mean of each score, and its deviation from run to run (of a sample: n - 1; 0 for a single run)."""
    mean = {name: sum(one[name] for one in found) / len(found) for name in found[0]}
    spread = {name: sum((one[name] - mean[name]) ** 2 for one in found) for name in mean}
    return {"mean": mean, "deviation": {name: math.sqrt(value / max(1, len(found) - 1)) for name, value in spread.items()}}


def _value(score: float) -> float:
    return score if not math.isnan(score) else -math.inf


def _publish(out: Path, best: Path, recipe: Config, result: dict[str, Any], identity: str) -> None:
    model, tokenizer, card = checkpoint.load(best)
    record = {key: value for key, value in read_json(best / "config.json").items() if key != "model"}
    shutil.copy(best / "metrics.jsonl", out / "metrics.jsonl")
    runs.publish(out, model, tokenizer, card | {"identity": identity, "result": result}, record, recipe)
    shutil.rmtree(out / "seeds")
