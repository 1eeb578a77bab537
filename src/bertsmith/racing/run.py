"""The race: recipe, scheduling of pre-training and fine-tuning jobs, and results written as they come."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ..config import Config, NumProcesses, PosFloat
from ..console import Console
from ..errors import UserError
from ..evaluation.suite import SuiteRun, SuiteTable
from ..finetuning.examples import read_examples
from ..finetuning.suite import PlannedRun, resolve_metrics
from ..processes import Job, run_jobs
from ..reports.html import write_page
from ..runs import world_size
from ..signals import raise_on_stop
from ..writing import check_resumable, lock_output, resolve_output, write_json
from .entries import Entry, build_entries, read_scores
from .execution import finetune_all, pretrain_entry
from .page import draw_score_plot, render_page
from .table import RaceResults, ResultRow, score_majority_baseline

MAJORITY = "majority"


class TaskInfo(NamedTuple):
    """By task: its metrics, and the scores of the majority baseline."""

    metrics: dict[str, tuple[str, ...]]
    majority_scores: dict[str, dict[str, float]]


class Budget(Config, frozen=True):
    """Compute for the pre-training of each member."""

    flops: Annotated[float, msgspec.Meta(gt=0), "pre-training FLOPs per member (a multiply-add counts as two)"] = 1e15
    epochs: Annotated[PosFloat | None, "maximum epochs, for members too cheap to spend the budget; default: no limit"] = None


class RaceRecipe(Config, frozen=True):
    """The members, the text, the budget and the tasks."""

    members: Annotated[
        dict[str, dict[str, Any]],
        "by name: keys of `pretrain` (model, objective ...), and of, untrained, corpus, tokenizer, frozen, tuned",
    ]
    out: Annotated[str, "output folder for race.json, report.html, race.svg, members and runs"]
    tasks: Annotated[
        dict[str, dict[str, Any]],
        "by name: keys of `finetune` (task, data.train, data.dev ...) and metrics to report",
    ] = msgspec.field(default_factory=dict)
    budget: Annotated[Budget, "pre-training budget of each member"] = Budget()
    corpus: Annotated[str | None, "corpus folder made by `prepare`; or give texts"] = None
    texts: Annotated[tuple[str, ...], "text files, folders or patterns, tokenized for each member"] = ()
    valid: Annotated[tuple[str, ...], "with texts: validation files for bits per byte; default: held-out documents"] = ()
    tokenizer: Annotated[
        str | dict[str, Any] | None,
        "with texts: default tokenizer, a folder or keys of `tokenizer`; default: WordPiece, 8,000",
    ] = None
    prepare: Annotated[dict[str, Any], "with texts: keys of `prepare`, such as language"] = msgspec.field(default_factory=dict)
    every: Annotated[dict[str, Any], "keys of `pretrain` for all members; members override them"] = msgspec.field(
        default_factory=dict
    )
    frozen: Annotated[dict[str, Any], "keys of `finetune` with a frozen encoder; default head: a learned mix of its layers"] = (
        msgspec.field(default_factory=dict)
    )
    tuned: Annotated[dict[str, Any], "keys of `finetune` with all weights trained"] = msgspec.field(default_factory=dict)
    seeds: Annotated[tuple[int, ...], "random seeds of fine-tuning, one run each; pre-training runs once"] = (0, 1, 2)
    jobs: Annotated[NumProcesses, "number of parallel processes"] = 1
    keep: Annotated[bool, "keep the fine-tuned models, not only their scores"] = False


def race(recipe: RaceRecipe, quiet: bool = False) -> dict[str, Any]:
    """Run or resume the race; a member that fails gets a row with its error and does not stop the others."""
    console, out = Console(quiet), check_resumable(resolve_output(recipe.out), "race.json", "corpora", "members")
    if world_size() > 1:
        raise UserError("a race starts its own processes (jobs=N); run it without torchrun")
    with lock_output(out), raise_on_stop():
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "race.json", {"num_pending": None})  # marks the folder as the output of a race
        entries = build_entries(recipe, out, console)
        results = _RaceScheduler(recipe, entries, _check_tasks(recipe, entries, console), out, console).run()
    console.print_table(str(out / "report.html"), results.text_rows())
    for row in results.rows:
        for error in row.errors:
            console.warn(f"{row.name}: {error}")
    return {"out": str(out), **results.to_dict()}


def code(result: dict[str, Any]) -> int:
    """Exit code: 1 if a member failed."""
    return int(any(member["errors"] for member in result["members"]))


def _check_tasks(recipe: RaceRecipe, entries: Sequence[Entry], console: Console) -> TaskInfo:
    """Metrics and majority baseline of each task; errors in its files are raised before anything is trained."""
    tasks = TaskInfo({}, {})
    usable = [entry for entry in entries if entry.text.corpus_path is not None and entry.runs]
    for task, settings in recipe.tasks.items():
        if not usable:
            break
        finetune_recipe = next(iter(usable[0].runs.values()))[task][0]
        tokenizer = usable[0].text.corpus.tokenizer
        tasks.metrics[task] = resolve_metrics(
            PlannedRun("", task, tuple(settings.get("metrics", ())), finetune_recipe), tokenizer, console
        )
        examples = read_examples(finetune_recipe, tokenizer, Console(True))
        tasks.majority_scores[task] = score_majority_baseline(
            examples.task, examples.train, examples.dev, tokenizer, finetune_recipe.max_length or 512
        )
    return tasks


class _RaceScheduler:
    """Starts jobs when their checkpoint exists, records errors, and writes the results so far."""

    def __init__(self, recipe: RaceRecipe, entries: Sequence[Entry], tasks: TaskInfo, out: Path, console: Console) -> None:
        self.recipe, self.entries, self.tasks, self.out, self.console = recipe, entries, tasks, out, console
        self.errors = {entry.name: list(entry.errors) for entry in entries}
        for entry in entries:
            if entry.checkpoint_of and self.errors[entry.checkpoint_of]:
                self.errors[entry.name].append(f"{entry.checkpoint_of} failed")
        self.jobs = {
            job.name: (entry, job) for entry in entries if not self.errors[entry.name] for job in self._build_jobs(entry)
        }
        self.pending = set(self.jobs)
        self.scores = dict[str, tuple[dict[str, float], tuple[str, ...]]]()  # of finished runs, by folder; which are errors

    def run(self) -> RaceResults:
        """Run all jobs; members with most training tokens first (small models, whose many steps take longest)."""
        by_tokens = sorted(self.entries, key=lambda entry: -entry.num_train_tokens)
        pretrain_jobs = [
            self.jobs[_pretrain_job_name(entry)][1] for entry in by_tokens if _pretrain_job_name(entry) in self.jobs
        ]
        run_jobs(pretrain_jobs, self.recipe.jobs, self.on_job_end)
        return self.write_results()

    def on_job_end(self, job: Job, error: str | None) -> list[Job]:
        """Record the end of a job; returns the jobs that can start now: after pre-training, those that use the checkpoint."""
        self.pending.discard(job.name)
        entry = self.jobs[job.name][0]
        if error and error not in self.errors[entry.name]:
            self.errors[entry.name].append(error)
        progress = f"{len(self.jobs) - len(self.pending)} of {len(self.jobs)}"
        self.console.info(f"{progress}: {job.name}" + (f" failed: {error}" if error else ""))
        dependents = self._dependent_jobs(entry) if job.name == _pretrain_job_name(entry) else []
        if error:
            self._cancel_jobs(entry, dependents)
        self.write_results()
        return [] if error else dependents

    def write_results(self) -> RaceResults:
        """Results so far, also written to race.json, report.html and race.svg."""
        results = self._build_results()
        write_json(self.out / "race.json", results.to_dict())
        write_page(self.out / "report.html", render_page(results))
        if plot := draw_score_plot(results):
            write_page(self.out / "race.svg", plot)
        return results

    def _build_jobs(self, entry: Entry) -> list[Job]:
        """Its pre-training, unless it uses another's checkpoint, and its fine-tuning by mode and task."""
        quiet = self.console.quiet or self.recipe.jobs > 1
        jobs = [] if entry.checkpoint_of else [Job(_pretrain_job_name(entry), pretrain_entry, (entry, quiet))]
        for mode, tasks in entry.runs.items():
            jobs += [
                Job(f"{entry.name}: {mode}, {task}", finetune_all, (runs, self.recipe.keep)) for task, runs in tasks.items()
            ]
        return jobs

    def _dependent_jobs(self, entry: Entry) -> list[Job]:
        return [
            job
            for name, (job_entry, job) in self.jobs.items()
            if name in self.pending and entry.name in (job_entry.name, job_entry.checkpoint_of)
        ]

    def _cancel_jobs(self, failed_entry: Entry, jobs: Sequence[Job]) -> None:
        """Drop jobs whose checkpoint will not exist."""
        for job in jobs:
            self.pending.discard(job.name)
            dependent = self.jobs[job.name][0]
            if dependent.checkpoint_of and not self.errors[dependent.name]:
                self.errors[dependent.name].append(f"{failed_entry.name} failed")

    def _build_results(self) -> RaceResults:
        by_name = {entry.name: entry for entry in self.entries}
        rows = [
            ResultRow(
                entry.name,
                by_name[entry.checkpoint_of or entry.name].read_facts(),
                tuple(self.errors[entry.name]),
                entry.checkpoint_of,
            )
            for entry in self.entries
        ]
        tasks, metrics, majority_scores = tuple(self.recipe.tasks), *self.tasks
        baseline = [
            SuiteRun(MAJORITY, task, 0, majority_scores[task], metrics[task]) for task in metrics if majority_scores[task]
        ]
        tables = dict[str, SuiteTable]()
        for mode in dict.fromkeys(mode for entry in self.entries for mode in entry.runs):
            runs = [
                run
                for entry in self.entries
                if by_name[entry.checkpoint_of or entry.name].is_finished
                for run in self._finished_runs(entry, mode)
            ]
            tables[mode] = SuiteTable((*by_name, MAJORITY), tasks, [*runs, *baseline])
        majority_row = [ResultRow(MAJORITY)] if tasks else []
        return RaceResults([*rows, *majority_row], tables, tasks, metrics, self.recipe.budget.flops, len(self.pending))

    def _finished_runs(self, entry: Entry, mode: str) -> list[SuiteRun]:
        """Finished runs of this member in this mode, with their scores."""
        finished = []
        for task, recipes in entry.runs.get(mode, {}).items():
            for recipe in recipes if task in self.tasks.metrics else []:
                if (scores := self.scores.get(recipe.out) or read_scores(recipe)) is not None:
                    self.scores[recipe.out] = scores
                    finished.append(SuiteRun(entry.name, task, recipe.seed, scores[0], self.tasks.metrics[task], scores[1]))
        return finished


def _pretrain_job_name(entry: Entry) -> str:
    return f"{entry.name}: pretrain"
