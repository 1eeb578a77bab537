"""Fine-tune models on many tasks with several seeds, into one table; an interrupted suite resumes."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import MANIFEST, read_object, read_result, resolve_path
from ..config import Config, NumProcesses, from_dict
from ..console import Console
from ..errors import UserError
from ..evaluation.metric_names import resolve_best_metric
from ..evaluation.suite import AVERAGE, SuiteFailure, SuiteRun, SuiteTable, render_page
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..processes import Job, run_jobs
from ..reports.html import write_page
from ..runs import world_size
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_resumable, lock_output, resolve_output, write_json
from .defaults import EPOCHS, MAX_MICRO_BATCH_TOKENS
from .examples import read_examples
from .recipe import FinetuneRecipe, check_recipe, finetune_identity
from .run import finetune

RESERVED_KEYS = ("model", "out", "seed", "seeds")  # of each run, set by the suite


class SuiteRecipe(Config, frozen=True):
    """The models, the tasks and the seeds."""

    models: Annotated[
        dict[str, str | dict[str, Any]], "by name: checkpoint folder, or table of `model` and other keys of `finetune`"
    ]
    tasks: Annotated[
        dict[str, dict[str, Any]],
        "by name: keys of `finetune` (task, data.train, data.dev, train ...) and metrics to report",
    ]
    out: Annotated[str, "output folder for scores.json, report.html and the runs"]
    every: Annotated[dict[str, Any], "keys of `finetune` for all runs; models and tasks override them"] = msgspec.field(
        default_factory=dict
    )
    seeds: Annotated[tuple[int, ...], "random seeds, one run each"] = (0, 1, 2)
    jobs: Annotated[NumProcesses, "number of parallel processes"] = 1


class PlannedRun(msgspec.Struct, frozen=True):
    """One fine-tuning run of the suite: a model, a task and a seed."""

    model: str
    task: str
    metrics: tuple[str, ...]
    recipe: FinetuneRecipe

    @property
    def name(self) -> str:
        return f"{self.model} on {self.task}, seed {self.recipe.seed}"


def run_suite(recipe: SuiteRecipe, quiet: bool = False) -> dict[str, Any]:
    """Check all files and models, then train; a run that fails is reported and does not stop the others."""
    console, out = Console(quiet), check_resumable(resolve_output(recipe.out), "scores.json", "runs")
    if world_size() > 1:
        raise UserError("a suite starts its own processes (jobs=N); run it without torchrun")
    with lock_output(out):
        plan = list(_plan_runs(recipe, out))
        table = _SuiteScheduler(recipe, plan, _check_plan(plan, console), out, console).run()
    console.print_table(str(out / "report.html"), [tuple(row) for row in table.rows()])
    for failure in table.failures:
        console.warn(str(failure))
    return {"out": str(out), **table.to_dict()}


def code(result: dict[str, Any]) -> int:
    """Exit code: 1 if a run failed."""
    return int(bool(result["failures"]))


class _SuiteScheduler:
    """Runs the planned jobs and rewrites scores.json and report.html whenever one ends."""

    def __init__(
        self, recipe: SuiteRecipe, plan: Sequence[PlannedRun], metrics: dict[str, tuple[str, ...]], out: Path, console: Console
    ) -> None:
        self.recipe, self.metrics, self.out, self.console = recipe, metrics, out, console
        self.plan = {planned.name: planned for planned in plan}
        self.done, self.failures = dict[str, SuiteRun](), dict[str, SuiteFailure]()

    def run(self) -> SuiteTable:
        quiet, order = (
            self.console.quiet or self.recipe.jobs > 1,
            sort_longest_first(list(self.plan.values()), self.recipe.seeds),
        )
        jobs = [
            Job(planned.name, run_planned, (planned, f"{k} of {len(order)}", quiet)) for k, planned in enumerate(order, start=1)
        ]
        run_jobs(jobs, self.recipe.jobs, self.on_job_end)
        return self.build_table()

    def on_job_end(self, job: Job, error: str | None) -> list[Job]:
        planned = self.plan[job.name]
        if error is None:
            scores, errors = read_scores(planned.recipe)
            self.done[job.name] = SuiteRun(
                planned.model, planned.task, planned.recipe.seed, scores, self.metrics[planned.task], errors
            )
        else:
            self.failures[job.name] = SuiteFailure(planned.model, planned.task, planned.recipe.seed, error)
        num_ended, num_pending = len(self.done) + len(self.failures), len(self.plan) - len(self.done) - len(self.failures)
        if error or self.recipe.jobs > 1:
            self.console.info(f"{num_ended} of {len(self.plan)}: {job.name}" + (f" failed: {error}" if error else ""))
        self.out.mkdir(exist_ok=True)  # the first run may have failed before it wrote anything
        write_json(self.out / "scores.json", {"num_pending": num_pending, **self.build_table().to_dict()})
        write_page(self.out / "report.html", render_page(self.build_table(), num_pending))
        return []

    def build_table(self) -> SuiteTable:
        """Results so far, in the order of the recipe."""
        done = [self.done[name] for name in self.plan if name in self.done]
        failures = [self.failures[name] for name in self.plan if name in self.failures]
        return SuiteTable(tuple(self.recipe.models), tuple(self.recipe.tasks), done, failures)


def run_planned(planned: PlannedRun, progress: str, quiet: bool) -> None:
    """One run, in a process of its own if jobs > 1."""
    Console(quiet).info(f"{progress}: {planned.name}")
    finetune(planned.recipe, quiet)


def read_scores(recipe: FinetuneRecipe) -> tuple[dict[str, float], tuple[str, ...]]:
    """Dev scores of a finished run (null in JSON: nan), and the names of those that are errors."""
    result = read_result(Path(recipe.out))
    scores = {name: math.nan if value is None else float(value) for name, value in result["dev"].items()}
    return scores, tuple(result.get("lower_is_better", ()))


def sort_longest_first(plan: Sequence[PlannedRun], seeds: Sequence[int]) -> list[PlannedRun]:
    """By seed; within a seed longest first, so that parallel processes end at about the same time."""
    return sorted(plan, key=lambda planned: (seeds.index(planned.recipe.seed), -_estimate_work(planned.recipe)))


def _estimate_work(recipe: FinetuneRecipe) -> float:
    """Approximate bytes of examples that the run reads."""
    train = recipe.train
    if train.minutes is not None:
        return math.inf
    if train.steps is not None:
        return 4.0 * train.steps * train.gradient_accumulation_steps * (train.batch_tokens or MAX_MICRO_BATCH_TOKENS)
    return (train.epochs or EPOCHS[0]) * resolve_path(recipe.data.train, "data").stat().st_size


def _plan_runs(recipe: SuiteRecipe, out: Path) -> Iterator[PlannedRun]:
    """All runs, seed by seed: a complete table of one seed comes first."""
    if not recipe.models or not recipe.tasks or not recipe.seeds:
        raise UserError("a suite needs at least one of models, one of tasks and one of seeds")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds = {list(recipe.seeds)} contains duplicates")
    for seed, model, task in product(recipe.seeds, recipe.models, recipe.tasks):
        settings = _run_settings(recipe, model, task)
        metrics = settings.pop("metrics", [])
        settings |= {"seed": seed, "out": str(out / "runs" / model / task / f"seed-{seed}")}
        if not isinstance(metrics, list) or not all(isinstance(name, str) for name in metrics):
            raise UserError(f'tasks.{task}.metrics must be a list of metrics, such as ["accuracy", "f1"]')
        finetune_recipe = from_dict(FinetuneRecipe, settings, f"models.{model}, tasks.{task}")
        yield PlannedRun(model, task, tuple(metrics), finetune_recipe)


def _run_settings(recipe: SuiteRecipe, model: str, task: str) -> dict[str, Any]:
    """Settings of one run: `every`, overridden by the model's, overridden by the task's."""
    entry = recipe.models[model]
    model_settings = {"model": entry} if isinstance(entry, str) else entry
    for kind, name, table, reserved in (
        ("models", model, model_settings, RESERVED_KEYS[1:]),
        ("tasks", task, recipe.tasks[task], RESERVED_KEYS),
    ):
        if not re.fullmatch(r"[\w][\w.+-]*", name) or name == AVERAGE:
            raise UserError(
                f"{kind}.{name}: the name is also that of a folder; use letters, digits, - and _ (`{AVERAGE}` is reserved)"
            )
        if reserved_given := [key for key in reserved if key in table]:
            raise UserError(f"{kind}.{name}.{reserved_given[0]} is set by the suite; remove it")
    if reserved_given := [key for key in RESERVED_KEYS if key in recipe.every]:
        raise UserError(f"every.{reserved_given[0]} is set by the suite; remove it")
    return merge_settings(merge_settings(recipe.every, model_settings), recipe.tasks[task])


def merge_settings(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """`override` over `base`: tables of the same `kind` are merged key by key, everything else is replaced."""
    merged = {
        key: merge_settings(base[key], override[key])
        for key in base.keys() & override.keys()
        if _can_merge(base[key], override[key])
    }
    return {**base, **override, **merged}


def _can_merge(base: Any, override: Any) -> bool:
    are_tables = isinstance(base, dict) and isinstance(override, dict)
    return are_tables and override.get("kind", base.get("kind")) == base.get("kind")


def _check_plan(plan: list[PlannedRun], console: Console) -> dict[str, tuple[str, ...]]:
    """Metric names of each task, after checking the files of all runs and the folders of all models."""
    models = {
        source: _load_model_info(*source)
        for source in dict.fromkeys((planned.recipe.model, planned.recipe.tokenizer) for planned in plan)
    }
    metrics, checked = dict[str, tuple[str, ...]](), set[tuple[str, str]]()
    for planned in plan:
        positions, tokenizer = models[planned.recipe.model, planned.recipe.tokenizer]
        if (planned.task, planned.model) not in checked:  # by name: a folder may be listed twice, with different settings
            checked.add((planned.task, planned.model))
            names = resolve_metrics(planned, tokenizer, console)
            if metrics.setdefault(planned.task, names) != names:
                raise UserError(f"tasks.{planned.task}: models.{planned.model} has the metric {', '.join(names)}, other models "
                                f"{', '.join(metrics[planned.task])}; set tasks.{planned.task}.metrics")  # fmt: skip
        if planned.recipe.max_length and planned.recipe.max_length > positions:
            raise UserError(f"tasks.{planned.task}: max_length = {planned.recipe.max_length} is more than the "
                                f"{positions} positions of models.{planned.model}; lower it")  # fmt: skip
        folder = Path(planned.recipe.out)
        existing_identity = read_object(folder / "card.json").get("identity") if (folder / MANIFEST).exists() else None
        if existing_identity and existing_identity != finetune_identity(planned.recipe):
            raise UserError(f"{folder} was created with other settings or files; remove it, or choose another out")
    return metrics


def _load_model_info(source: str | EncoderConfig, tokenizer_path: str | None) -> tuple[int, Tokenizer]:
    if not isinstance(source, str):
        return source.max_position_embeddings, Tokenizer.load(resolve_path(tokenizer_path or "", "tokenizer"))
    model, tokenizer, _ = checkpoint.load(resolve_path(source, "model"))
    return model.config.encoder.max_position_embeddings, tokenizer


def resolve_metrics(planned: PlannedRun, tokenizer: Tokenizer, console: Console) -> tuple[str, ...]:
    """The metrics of the table: those the task lists, or the task's main one; checks the recipe and its examples."""
    try:
        check_recipe(planned.recipe)
        examples = read_examples(planned.recipe, tokenizer, console)
        if not examples.dev:
            raise UserError("a suite needs a dev file; set data.dev")
        metric = resolve_best_metric(examples.task, planned.recipe.metric_for_best_model)
    except UserError as error:
        raise UserError(f"tasks.{planned.task}: {error}") from None
    names, available = planned.metrics or (metric,), examples.task.metric_names
    if unknown := [name for name in names if name not in available]:
        raise UserError(
            f"tasks.{planned.task}.metrics: {unknown[0]} is not a metric of this task; choose one of {', '.join(available)}"
        )
    return names
