"""Models taught many tasks with several seeds, into one table; interrupted, it goes on where it stopped."""

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import MANIFEST, claimed, named, read_json, vacant, write_json
from ..config import Config, parse
from ..errors import BadInput
from ..evaluate.measures import deciding, names
from ..evaluate.suite import AVERAGE, Run, Table, page
from ..model import checkpoint
from ..model.encoder import EncoderConfig
from ..screen import Screen
from ..show.page import write
from ..text.tokenizer import Tokenizer
from ..train.ranks import world
from . import finetune
from .examples import examples_of

SUITES = ("model", "out", "seed", "seeds")  # what the suite says of a run


class Recipe(Config, frozen=True):
    """Which models, which tasks, how often."""

    models: Annotated[
        dict[str, str | dict[str, Any]], "by name: a checkpoint folder, or a table of it (model=) and settings of `finetune`"
    ]
    tasks: Annotated[
        dict[str, dict[str, Any]],
        "by name: what `finetune` takes (task, data.train, data.dev, train ...), and metrics for the table",
    ]
    out: Annotated[str, "the folder for scores.json, report.html and the runs"]
    every: Annotated[dict[str, Any], "settings of `finetune` for all runs, where models and tasks say nothing else"] = (
        msgspec.field(default_factory=dict)
    )
    seeds: Annotated[tuple[int, ...], "one run each"] = (0, 1, 2)


class Planned(msgspec.Struct, frozen=True):
    """One run to do."""

    model: str
    task: str
    metrics: tuple[str, ...]
    recipe: finetune.Recipe


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Every file is read and every model opened before anything is trained; the table is written anew after each run."""
    screen, out = Screen(quiet), vacant(named(recipe.out, "out"), "scores.json", "runs")
    if world() > 1:
        raise BadInput("a suite is run by one process, one run after another; start it without torchrun")
    with claimed(out):
        plan = list(_planned(recipe, out))
        metrics = _checked(plan, screen)
        done: list[Run] = []
        for number, one in enumerate(plan, start=1):
            screen.say(f"{number} of {len(plan)}: {one.model} on {one.task}, seed {one.recipe.seed}")
            made = finetune.run(one.recipe, quiet)
            scores = {name: math.nan if value is None else value for name, value in made["dev"].items()}
            done.append(Run(one.model, one.task, one.recipe.seed, scores, metrics[one.task]))
            found = Table(tuple(recipe.models), tuple(recipe.tasks), done)
            _write(out, found, len(plan) - number)
    rows = found.rows()
    screen.table(str(out / "report.html"), [tuple(row) for row in rows])
    return {"out": str(out), **found.plain()}


def _write(out: Path, found: Table, left: int) -> None:
    write_json(out / "scores.json", {"left": left, **found.plain()})
    write(out / "report.html", page(found, left))


def _planned(recipe: Recipe, out: Path) -> Iterator[Planned]:
    """Seeds go round last: there is a whole table, of one seed, as soon as there can be."""
    if not recipe.models or not recipe.tasks or not recipe.seeds:
        raise BadInput("a suite needs models, tasks and seeds, at least one of each")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise BadInput(f"seeds {list(recipe.seeds)} name one twice")
    for seed, model, task in product(recipe.seeds, recipe.models, recipe.tasks):
        settings = _settings(recipe, model, task)
        metrics = settings.pop("metrics", [])
        settings |= {"seed": seed, "out": str(out / "runs" / model / task / f"seed-{seed}")}
        if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
            raise BadInput(f'tasks.{task}.metrics is not a list of names, such as ["accuracy", "f1"]')
        taught = parse(finetune.Recipe, settings, f"models.{model}, tasks.{task}")
        yield Planned(model, task, tuple(metrics), taught)


def _settings(recipe: Recipe, model: str, task: str) -> dict[str, Any]:
    """What every run has, then the model's own, then the task's."""
    begun = recipe.models[model]
    own = {"model": begun} if isinstance(begun, str) else begun
    for kind, name, table, said in (("models", model, own, SUITES[1:]), ("tasks", task, recipe.tasks[task], SUITES)):
        if not re.fullmatch(r"[\w][\w.+-]*", name) or name == AVERAGE:
            raise BadInput(f"{kind}.{name}: the name is that of a folder too; take letters, digits, - and _ (not `{AVERAGE}`)")
        if wrong := [word for word in said if word in table]:
            raise BadInput(f"{kind}.{name}.{wrong[0]} is for the suite to say; leave it out")
    if wrong := [word for word in SUITES if word in recipe.every]:
        raise BadInput(f"every.{wrong[0]} is for the suite to say; leave it out")
    return merged(merged(recipe.every, own), recipe.tasks[task])


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; of anything else, and of a table of another `kind`, the one above holds."""
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if _alike(below[key], above[key])}
    return {**below, **above, **both}


def _alike(below: Any, above: Any) -> bool:
    tables = isinstance(below, dict) and isinstance(above, dict)
    return tables and above.get("kind", below.get("kind")) == below.get("kind")


def _checked(plan: list[Planned], screen: Screen) -> dict[str, tuple[str, ...]]:
    """The scores each task is measured by, when all its files and every model's folder are found good."""
    models = {place: _model(*place) for place in dict.fromkeys((one.recipe.model, one.recipe.tokenizer) for one in plan)}
    metrics, seen = dict[str, tuple[str, ...]](), set[tuple[str, str]]()
    for one in plan:
        positions, tokenizer = models[one.recipe.model, one.recipe.tokenizer]
        if (one.task, one.model) not in seen:  # by name: the same folder may be there twice, with other settings
            seen.add((one.task, one.model))
            chosen = measured(one, tokenizer, screen)
            if metrics.setdefault(one.task, chosen) != chosen:
                raise BadInput(f"tasks.{one.task}: models.{one.model} is to be measured by {', '.join(chosen)}, others by "
                               f"{', '.join(metrics[one.task])}; give tasks.{one.task}.metrics")  # fmt: skip
        if one.recipe.length > positions:
            raise BadInput(f"tasks.{one.task}: length {one.recipe.length} is more than the {positions} positions of "
                           f"models.{one.model}; lower it")  # fmt: skip
        folder = Path(one.recipe.out)
        made = read_json(folder / "card.json").get("identity") if (folder / MANIFEST).exists() else None
        if made and made != finetune.identity_of(one.recipe):
            raise BadInput(f"{folder} was made by other settings or from other files; remove it, or choose another out")
    return metrics


def _model(place: str | EncoderConfig, words: str | None) -> tuple[int, Tokenizer]:
    if not isinstance(place, str):
        return place.positions, Tokenizer.load(named(words or "", "tokenizer"))
    model, tokenizer, _ = checkpoint.load(named(place, "model"))
    return model.config.encoder.positions, tokenizer


def measured(one: Planned, tokenizer: Tokenizer, screen: Screen) -> tuple[str, ...]:
    try:
        finetune.check(one.recipe)
        examples = examples_of(one.recipe, tokenizer, screen)
        if not examples.dev:
            raise BadInput("a suite is judged on dev files; give data.dev")
        metric = deciding(examples.task, one.recipe.best)
    except BadInput as fault:
        raise BadInput(f"tasks.{one.task}: {fault}") from None
    chosen, there = one.metrics or (metric,), names(examples.task)
    if wrong := [name for name in chosen if name not in there]:
        raise BadInput(f"tasks.{one.task}.metrics: {wrong[0]} is not a score of this task, which has {', '.join(there)}")
    return chosen
