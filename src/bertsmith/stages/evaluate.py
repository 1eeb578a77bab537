"""A fine-tuned model and a file with answers to its scores there."""

from typing import Annotated, Any

import msgspec

from ..artifacts import named, write_json
from ..config import Config
from ..predict import load
from ..screen import Screen
from .finetune import judged_on


class Recipe(Config, frozen=True):
    model: Annotated[str, "the folder `finetune` made"]
    data: Annotated[str, "the file to be judged on"]
    columns: Annotated[dict[str, str], "what text, text_b, label ... are called in it; as in training, if none"] = (
        msgspec.field(default_factory=dict)
    )
    out: Annotated[str | None, "a .json file for the scores"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    screen, predictor = Screen(quiet), load(recipe.model)
    task = predictor.taught()
    if recipe.columns and hasattr(task, "columns"):
        task = msgspec.structs.replace(task, columns=recipe.columns)
    examples: list[Any] = list(task.read(named(recipe.data, "data")))
    predictor.task = task
    _, scores = judged_on(predictor, examples)
    screen.table(f"{recipe.model} on {recipe.data}: {len(examples):,} examples", [(n, f"{v:.4f}") for n, v in scores.items()])
    result = {"model": recipe.model, "data": recipe.data, "examples": len(examples), "scores": scores}
    if recipe.out:
        write_json(named(recipe.out, "out"), result)
    return result
