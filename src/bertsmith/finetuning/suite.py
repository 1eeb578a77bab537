"""Models taught many tasks with several seeds, into one table; interrupted, it goes on where it stopped."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import MANIFEST, claimed, named, read_json, vacant, write_json
from ..config import Config, Count, parse
from ..console import Screen
from ..errors import BadInput
from ..evaluation.measures import deciding, names
from ..evaluation.suite import AVERAGE, Fault, Run, Table, page
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..processes import Job, carried_out
from ..reports.html import write
from ..tokenization.tokenizer import Tokenizer
from ..train.distributed import world
from .examples import examples_of
from .recipe import FinetuneRecipe, check_recipe, finetune_identity
from .run import finetune

SUITES = ("model", "out", "seed", "seeds")  # what the suite says of a run


class SuiteRecipe(Config, frozen=True):
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
    jobs: Annotated[Count, "processes at work side by side"] = 1


class Planned(msgspec.Struct, frozen=True):
    """One run to do."""

    model: str
    task: str
    metrics: tuple[str, ...]
    recipe: FinetuneRecipe

    @property
    def name(self) -> str:
        return f"{self.model} on {self.task}, seed {self.recipe.seed}"


def run_suite(recipe: SuiteRecipe, quiet: bool = False) -> dict[str, Any]:
    """Every file is read and every model opened before anything is trained; a run that fails is told of, and stops no other."""
    screen, out = Screen(quiet), vacant(named(recipe.out, "out"), "scores.json", "runs")
    if world() > 1:
        raise BadInput("a suite starts its own processes, jobs=N of them; start it without torchrun")
    with claimed(out):
        plan = list(_planned(recipe, out))
        found = _Course(recipe, plan, _checked(plan, screen), out, screen).run()
    screen.table(str(out / "report.html"), [tuple(row) for row in found.rows()])
    for fault in found.faults:
        screen.warn(str(fault))
    return {"out": str(out), **found.plain()}


def code(result: dict[str, Any]) -> int:
    """1 where some run failed."""
    return int(bool(result["faults"]))


class _Course:
    """The suite while it runs: what is done, what failed, and the table of it, written anew when a run ends."""

    def __init__(
        self, recipe: SuiteRecipe, plan: Sequence[Planned], metrics: dict[str, tuple[str, ...]], out: Path, screen: Screen
    ) -> None:
        self.recipe, self.metrics, self.out, self.screen = recipe, metrics, out, screen
        self.plan = {one.name: one for one in plan}
        self.done, self.faults = dict[str, Run](), dict[str, Fault]()

    def run(self) -> Table:
        quiet, order = self.screen.quiet or self.recipe.jobs > 1, longest_first(list(self.plan.values()), self.recipe.seeds)
        jobs = [Job(one.name, taught, (one, f"{k} of {len(order)}", quiet)) for k, one in enumerate(order, start=1)]
        carried_out(jobs, self.recipe.jobs, self.ended)
        return self.table()

    def ended(self, job: Job, fault: str | None) -> list[Job]:
        one = self.plan[job.name]
        if fault is None:
            self.done[job.name] = Run(one.model, one.task, one.recipe.seed, scores(one), self.metrics[one.task])
        else:
            self.faults[job.name] = Fault(one.model, one.task, one.recipe.seed, fault)
        ended, left = len(self.done) + len(self.faults), len(self.plan) - len(self.done) - len(self.faults)
        if fault or self.recipe.jobs > 1:
            self.screen.say(f"{ended} of {len(self.plan)}: {job.name}" + (f" failed: {fault}" if fault else ""))
        write_json(self.out / "scores.json", {"left": left, **self.table().plain()})
        write(self.out / "report.html", page(self.table(), left))
        return []

    def table(self) -> Table:
        """In the order of the recipe, whatever ended first."""
        done = [self.done[name] for name in self.plan if name in self.done]
        faults = [self.faults[name] for name in self.plan if name in self.faults]
        return Table(tuple(self.recipe.models), tuple(self.recipe.tasks), done, faults)


def taught(one: Planned, place: str, quiet: bool) -> None:
    Screen(quiet).say(f"{place}: {one.name}")
    finetune(one.recipe, quiet)


def scores(one: Planned) -> dict[str, float]:
    """Of a run that is done, on its dev file."""
    told = read_json(Path(one.recipe.out) / "card.json")["result"]["dev"]
    return {name: math.nan if value is None else float(value) for name, value in told.items()}


def longest_first(plan: Sequence[Planned], seeds: Sequence[int]) -> list[Planned]:
    """Seeds still go round last; within one, the most work comes first, so that processes have ended at about one time."""
    return sorted(plan, key=lambda one: (seeds.index(one.recipe.seed), -_work(one.recipe)))


def _work(recipe: FinetuneRecipe) -> float:
    """Bytes of examples it reads, about."""
    train = recipe.train.timed()
    if train.epochs is None:
        return math.inf if train.steps is None else 4.0 * train.steps * train.accumulate * train.batch_tokens
    return train.epochs * named(recipe.data.train, "data").stat().st_size


def _planned(recipe: SuiteRecipe, out: Path) -> Iterator[Planned]:
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
        taught = parse(FinetuneRecipe, settings, f"models.{model}, tasks.{task}")
        yield Planned(model, task, tuple(metrics), taught)


def _settings(recipe: SuiteRecipe, model: str, task: str) -> dict[str, Any]:
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
        if made and made != finetune_identity(one.recipe):
            raise BadInput(f"{folder} was made by other settings or from other files; remove it, or choose another out")
    return metrics


def _model(place: str | EncoderConfig, words: str | None) -> tuple[int, Tokenizer]:
    if not isinstance(place, str):
        return place.positions, Tokenizer.load(named(words or "", "tokenizer"))
    model, tokenizer, _ = checkpoint.load(named(place, "model"))
    return model.config.encoder.positions, tokenizer


def measured(one: Planned, tokenizer: Tokenizer, screen: Screen) -> tuple[str, ...]:
    try:
        check_recipe(one.recipe)
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
