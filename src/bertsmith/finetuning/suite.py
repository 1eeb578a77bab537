"""Models taught many tasks with several seeds, into one table; interrupted, it goes on where it stopped."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import MANIFEST, check_writable, lock_output, read_json, resolve_path, write_json
from ..config import Config, PosInt, from_dict
from ..console import Console
from ..errors import UserError
from ..evaluation.measures import list_metrics, resolve_best_metric
from ..evaluation.suite import AVERAGE, SuiteFailure, SuiteRun, SuiteTable, render_page
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..processes import Job, run_jobs
from ..reports.html import write_page
from ..tokenization.tokenizer import Tokenizer
from ..train.distributed import world_size
from .examples import read_examples
from .recipe import FinetuneRecipe, check_recipe, finetune_identity
from .run import finetune

RESERVED_KEYS = ("model", "out", "seed", "seeds")  # what the suite says of a run


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
    jobs: Annotated[PosInt, "processes at work side by side"] = 1


class PlannedRun(msgspec.Struct, frozen=True):
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
    screen, out = Console(quiet), check_writable(resolve_path(recipe.out, "out"), "scores.json", "runs")
    if world_size() > 1:
        raise UserError("a suite starts its own processes, jobs=N of them; start it without torchrun")
    with lock_output(out):
        plan = list(_plan_runs(recipe, out))
        found = _SuiteScheduler(recipe, plan, _check_plan(plan, screen), out, screen).run()
    screen.print_table(str(out / "report.html"), [tuple(row) for row in found.rows()])
    for fault in found.failures:
        screen.warn(str(fault))
    return {"out": str(out), **found.to_dict()}


def code(result: dict[str, Any]) -> int:
    """1 where some run failed."""
    return int(bool(result["faults"]))


class _SuiteScheduler:
    """The suite while it runs: what is done, what failed, and the table of it, written anew when a run ends."""

    def __init__(
        self, recipe: SuiteRecipe, plan: Sequence[PlannedRun], metrics: dict[str, tuple[str, ...]], out: Path, console: Console
    ) -> None:
        self.recipe, self.metrics, self.out, self.console = recipe, metrics, out, console
        self.plan = {one.name: one for one in plan}
        self.done, self.failures = dict[str, SuiteRun](), dict[str, SuiteFailure]()

    def run(self) -> SuiteTable:
        quiet, order = (
            self.console.quiet or self.recipe.jobs > 1,
            sort_longest_first(list(self.plan.values()), self.recipe.seeds),
        )
        jobs = [Job(one.name, run_planned, (one, f"{k} of {len(order)}", quiet)) for k, one in enumerate(order, start=1)]
        run_jobs(jobs, self.recipe.jobs, self.on_job_end)
        return self.build_table()

    def on_job_end(self, job: Job, error: str | None) -> list[Job]:
        one = self.plan[job.name]
        if error is None:
            self.done[job.name] = SuiteRun(one.model, one.task, one.recipe.seed, read_scores(one), self.metrics[one.task])
        else:
            self.failures[job.name] = SuiteFailure(one.model, one.task, one.recipe.seed, error)
        ended, left = len(self.done) + len(self.failures), len(self.plan) - len(self.done) - len(self.failures)
        if error or self.recipe.jobs > 1:
            self.console.info(f"{ended} of {len(self.plan)}: {job.name}" + (f" failed: {error}" if error else ""))
        write_json(self.out / "scores.json", {"left": left, **self.build_table().to_dict()})
        write_page(self.out / "report.html", render_page(self.build_table(), left))
        return []

    def build_table(self) -> SuiteTable:
        """In the order of the recipe, whatever ended first."""
        done = [self.done[name] for name in self.plan if name in self.done]
        faults = [self.failures[name] for name in self.plan if name in self.failures]
        return SuiteTable(tuple(self.recipe.models), tuple(self.recipe.tasks), done, faults)


def run_planned(planned: PlannedRun, progress: str, quiet: bool) -> None:
    Console(quiet).info(f"{progress}: {planned.name}")
    finetune(planned.recipe, quiet)


def read_scores(planned: PlannedRun) -> dict[str, float]:
    """Of a run that is done, on its dev file."""
    told = read_json(Path(planned.recipe.out) / "card.json")["result"]["dev"]
    return {name: math.nan if value is None else float(value) for name, value in told.items()}


def sort_longest_first(plan: Sequence[PlannedRun], seeds: Sequence[int]) -> list[PlannedRun]:
    """Seeds still go round last; within one, the most work comes first, so that processes have ended at about one time."""
    return sorted(plan, key=lambda one: (seeds.index(one.recipe.seed), -_estimate_work(one.recipe)))


def _estimate_work(recipe: FinetuneRecipe) -> float:
    """Bytes of examples it reads, about."""
    train = recipe.train.with_default_duration()
    if train.epochs is None:
        return math.inf if train.steps is None else 4.0 * train.steps * train.accumulate * train.batch_tokens
    return train.epochs * resolve_path(recipe.data.train, "data").stat().st_size


def _plan_runs(recipe: SuiteRecipe, out: Path) -> Iterator[PlannedRun]:
    """Seeds go round last: there is a whole table, of one seed, as soon as there can be."""
    if not recipe.models or not recipe.tasks or not recipe.seeds:
        raise UserError("a suite needs models, tasks and seeds, at least one of each")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds {list(recipe.seeds)} name one twice")
    for seed, model, task in product(recipe.seeds, recipe.models, recipe.tasks):
        settings = _run_settings(recipe, model, task)
        metrics = settings.pop("metrics", [])
        settings |= {"seed": seed, "out": str(out / "runs" / model / task / f"seed-{seed}")}
        if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
            raise UserError(f'tasks.{task}.metrics is not a list of names, such as ["accuracy", "f1"]')
        taught = from_dict(FinetuneRecipe, settings, f"models.{model}, tasks.{task}")
        yield PlannedRun(model, task, tuple(metrics), taught)


def _run_settings(recipe: SuiteRecipe, model: str, task: str) -> dict[str, Any]:
    """What every run has, then the model's own, then the task's."""
    begun = recipe.models[model]
    own = {"model": begun} if isinstance(begun, str) else begun
    for kind, name, table, said in (
        ("models", model, own, RESERVED_KEYS[1:]),
        ("tasks", task, recipe.tasks[task], RESERVED_KEYS),
    ):
        if not re.fullmatch(r"[\w][\w.+-]*", name) or name == AVERAGE:
            raise UserError(f"{kind}.{name}: the name is that of a folder too; take letters, digits, - and _ (not `{AVERAGE}`)")
        if wrong := [word for word in said if word in table]:
            raise UserError(f"{kind}.{name}.{wrong[0]} is for the suite to say; leave it out")
    if wrong := [word for word in RESERVED_KEYS if word in recipe.every]:
        raise UserError(f"every.{wrong[0]} is for the suite to say; leave it out")
    return merge_settings(merge_settings(recipe.every, own), recipe.tasks[task])


def merge_settings(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; of anything else, and of a table of another `kind`, the one above holds."""
    both = {
        key: merge_settings(base[key], override[key])
        for key in base.keys() & override.keys()
        if _can_merge(base[key], override[key])
    }
    return {**base, **override, **both}


def _can_merge(base: Any, override: Any) -> bool:
    tables = isinstance(base, dict) and isinstance(override, dict)
    return tables and override.get("kind", base.get("kind")) == base.get("kind")


def _check_plan(plan: list[PlannedRun], console: Console) -> dict[str, tuple[str, ...]]:
    """The scores each task is measured by, when all its files and every model's folder are found good."""
    models = {
        place: _load_model_info(*place) for place in dict.fromkeys((one.recipe.model, one.recipe.tokenizer) for one in plan)
    }
    metrics, seen = dict[str, tuple[str, ...]](), set[tuple[str, str]]()
    for one in plan:
        positions, tokenizer = models[one.recipe.model, one.recipe.tokenizer]
        if (one.task, one.model) not in seen:  # by name: the same folder may be there twice, with other settings
            seen.add((one.task, one.model))
            chosen = resolve_metrics(one, tokenizer, console)
            if metrics.setdefault(one.task, chosen) != chosen:
                raise UserError(f"tasks.{one.task}: models.{one.model} is to be measured by {', '.join(chosen)}, others by "
                               f"{', '.join(metrics[one.task])}; give tasks.{one.task}.metrics")  # fmt: skip
        if one.recipe.length > positions:
            raise UserError(f"tasks.{one.task}: length {one.recipe.length} is more than the {positions} positions of "
                           f"models.{one.model}; lower it")  # fmt: skip
        folder = Path(one.recipe.out)
        made = read_json(folder / "card.json").get("identity") if (folder / MANIFEST).exists() else None
        if made and made != finetune_identity(one.recipe):
            raise UserError(f"{folder} was made by other settings or from other files; remove it, or choose another out")
    return metrics


def _load_model_info(source: str | EncoderConfig, tokenizer_path: str | None) -> tuple[int, Tokenizer]:
    if not isinstance(source, str):
        return source.positions, Tokenizer.load(resolve_path(tokenizer_path or "", "tokenizer"))
    model, tokenizer, _ = checkpoint.load(resolve_path(source, "model"))
    return model.config.encoder.positions, tokenizer


def resolve_metrics(planned: PlannedRun, tokenizer: Tokenizer, console: Console) -> tuple[str, ...]:
    try:
        check_recipe(planned.recipe)
        examples = read_examples(planned.recipe, tokenizer, console)
        if not examples.dev:
            raise UserError("a suite is judged on dev files; give data.dev")
        metric = resolve_best_metric(examples.task, planned.recipe.best)
    except UserError as fault:
        raise UserError(f"tasks.{planned.task}: {fault}") from None
    chosen, there = planned.metrics or (metric,), list_metrics(examples.task)
    if wrong := [name for name in chosen if name not in there]:
        raise UserError(f"tasks.{planned.task}.metrics: {wrong[0]} is not a score of this task, which has {', '.join(there)}")
    return chosen
