"""Every member of the family, on the same text, with the same budget and the same tasks, into one table and plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ..artifacts import check_writable, lock_output, resolve_path, write_json
from ..config import Config, PosFloat, PosInt
from ..console import Console
from ..errors import UserError
from ..evaluation.suite import SuiteRun, SuiteTable
from ..finetuning.examples import read_examples
from ..finetuning.suite import PlannedRun, resolve_metrics
from ..processes import Job, run_jobs, sigterm_as_interrupt
from ..reports.html import write_page
from ..train.distributed import world_size
from .entries import Entry, build_entries, read_scores
from .execution import finetune_all, pretrain_entry
from .page import draw_score_plot, render_page
from .table import RaceResults, ResultRow, score_majority_baseline

MAJORITY = "majority"


class TaskInfo(NamedTuple):
    """By task: what it is measured by, and what it scores without reading."""

    metrics: dict[str, tuple[str, ...]]
    majority_scores: dict[str, dict[str, float]]


class Budget(Config, frozen=True):
    flops: Annotated[float, msgspec.Meta(gt=0), "operations each member may learn from text with, two a multiply-add"] = 1e15
    epochs: Annotated[PosFloat | None, "passes over the text at most, for members that cost next to nothing a word"] = None


class RaceRecipe(Config, frozen=True):
    """Who runs, on what text, for how long, and in which tasks."""

    members: Annotated[
        dict[str, dict[str, Any]],
        "by name: settings of `pretrain` (model, objective ...), and of, untrained, corpus, tokenizer, frozen, tuned",
    ]
    out: Annotated[str, "the folder for race.json, report.html, race.svg, members and runs"]
    tasks: Annotated[
        dict[str, dict[str, Any]],
        "by name: what `finetune` takes (task, data.train, data.dev ...), and metrics for the table; none: text alone",
    ] = msgspec.field(default_factory=dict)
    budget: Annotated[Budget, "the same for all"] = Budget()
    corpus: Annotated[str | None, "the folder `prepare` made; or texts"] = None
    texts: Annotated[tuple[str, ...], "files, folders or patterns, which members cut by their own tokenizers"] = ()
    valid: Annotated[
        tuple[str, ...], "with texts: files to measure bits per byte on; without, some documents are held out"
    ] = ()
    tokenizer: Annotated[
        str | dict[str, Any] | None,
        "with texts: a folder, or settings of `tokenizer`, for who has no own; else 8,000 pieces",
    ] = None
    prepare: Annotated[dict[str, Any], "with texts: settings of `prepare`, such as language"] = msgspec.field(
        default_factory=dict
    )
    every: Annotated[dict[str, Any], "settings of `pretrain` for all members, where they say nothing else"] = msgspec.field(
        default_factory=dict
    )
    frozen: Annotated[dict[str, Any], "settings of `finetune` where the encoder is frozen: a learnt mean of its layers"] = (
        msgspec.field(default_factory=dict)
    )
    tuned: Annotated[dict[str, Any], "settings of `finetune` where all learns"] = msgspec.field(default_factory=dict)
    seeds: Annotated[tuple[int, ...], "of fine-tuning, one run each; a member is pre-trained once"] = (0, 1, 2)
    jobs: Annotated[PosInt, "processes at work side by side"] = 1
    keep: Annotated[bool, "keep the fine-tuned models too, not only their scores"] = False


def race(recipe: RaceRecipe, quiet: bool = False) -> dict[str, Any]:
    """Goes on where it stopped; a member that fails has a row that says why, and stops no other."""
    screen, out = Console(quiet), check_writable(resolve_path(recipe.out, "out"), "race.json", "corpora", "members")
    if world_size() > 1:
        raise UserError("a race starts its own processes, jobs=N of them; start it without torchrun")
    with lock_output(out), sigterm_as_interrupt():
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "race.json", {"left": None})  # this folder is ours
        runners = build_entries(recipe, out, screen)
        found = _RaceScheduler(recipe, runners, _check_tasks(recipe, runners, screen), out, screen).run()
    screen.print_table(str(out / "report.html"), found.text_rows())
    for one in found.rows:
        for fault in one.errors:
            screen.warn(f"{one.name}: {fault}")
    return {"out": str(out), **found.to_dict()}


def code(result: dict[str, Any]) -> int:
    """1 where some member could not finish."""
    return int(any(one["faults"] for one in result["members"]))


def _check_tasks(recipe: RaceRecipe, entries: Sequence[Entry], console: Console) -> TaskInfo:
    """Files of tasks are found good before anything learns."""
    tasks = TaskInfo({}, {})
    able = [one for one in entries if one.text.corpus_path is not None and one.runs]
    for task, settings in recipe.tasks.items():
        if not able:
            break
        first = next(iter(able[0].runs.values()))[task][0]
        tokenizer = able[0].text.corpus.tokenizer
        tasks.metrics[task] = resolve_metrics(
            PlannedRun("", task, tuple(settings.get("metrics", ())), first), tokenizer, console
        )
        examples = read_examples(first, tokenizer, Console(True))
        tasks.majority_scores[task] = score_majority_baseline(
            examples.task, examples.train, examples.dev, tokenizer, first.length
        )
    return tasks


class _RaceScheduler:
    """The race while it runs: which jobs are left, what failed, and the table of what is known."""

    def __init__(self, recipe: RaceRecipe, entries: Sequence[Entry], tasks: TaskInfo, out: Path, console: Console) -> None:
        self.recipe, self.entries, self.tasks, self.out, self.console = recipe, entries, tasks, out, console
        self.errors = {one.name: list(one.errors) for one in entries}
        for one in entries:
            if one.checkpoint_of and self.errors[one.checkpoint_of]:
                self.errors[one.name].append(f"{one.checkpoint_of} failed")
        self.jobs = {job.name: (one, job) for one in entries if not self.errors[one.name] for job in self._build_jobs(one)}
        self.pending = set(self.jobs)
        self.scores = dict[str, dict[str, float]]()  # by the folder of a run, once it is done

    def run(self) -> RaceResults:
        """Who reads the most begins: of one budget that is the smallest, whose many steps take longest."""
        first = sorted(self.entries, key=lambda one: -one.num_train_tokens)
        begun = [self.jobs[_pretrain_job_name(one)][1] for one in first if _pretrain_job_name(one) in self.jobs]
        run_jobs(begun, self.recipe.jobs, self.on_job_end)
        return self.write_results()

    def on_job_end(self, job: Job, error: str | None) -> list[Job]:
        """What may be begun now: when a member has learnt from text, its runs and those of who takes its checkpoint."""
        self.pending.discard(job.name)
        runner = self.jobs[job.name][0]
        if error and error not in self.errors[runner.name]:
            self.errors[runner.name].append(error)
        done = f"{len(self.jobs) - len(self.pending)} of {len(self.jobs)}"
        self.console.info(f"{done}: {job.name}" + (f" failed: {error}" if error else ""))
        following = self._dependent_jobs(runner) if job.name == _pretrain_job_name(runner) else []
        if error:
            self._cancel_jobs(runner, following)
        self.write_results()
        return [] if error else following

    def write_results(self) -> RaceResults:
        """The table so far, written to disk."""
        race = self._build_results()
        write_json(self.out / "race.json", race.to_dict())
        write_page(self.out / "report.html", render_page(race))
        if drawn := draw_score_plot(race):
            write_page(self.out / "race.svg", drawn)
        return race

    def _build_jobs(self, entry: Entry) -> list[Job]:
        """Its training on text, unless it takes another's checkpoint, and its runs, by ways and tasks."""
        quiet = self.console.quiet or self.recipe.jobs > 1
        jobs = [] if entry.checkpoint_of else [Job(_pretrain_job_name(entry), pretrain_entry, (entry, quiet))]
        for way, tasks in entry.runs.items():
            jobs += [
                Job(f"{entry.name}: {way}, {task}", finetune_all, (runs, self.recipe.keep)) for task, runs in tasks.items()
            ]
        return jobs

    def _dependent_jobs(self, entry: Entry) -> list[Job]:
        return [
            job
            for name, (one, job) in self.jobs.items()
            if name in self.pending and entry.name in (one.name, one.checkpoint_of)
        ]

    def _cancel_jobs(self, failed_entry: Entry, jobs: Sequence[Job]) -> None:
        """Jobs that can never be begun."""
        for job in jobs:
            self.pending.discard(job.name)
            heir = self.jobs[job.name][0]
            if heir.checkpoint_of and not self.errors[heir.name]:
                self.errors[heir.name].append(f"{failed_entry.name} failed")

    def _build_results(self) -> RaceResults:
        named = {one.name: one for one in self.entries}
        entries = [
            ResultRow(
                one.name, named[one.checkpoint_of or one.name].read_facts(), tuple(self.errors[one.name]), one.checkpoint_of
            )
            for one in self.entries
        ]
        tasks, metrics, usual = tuple(self.recipe.tasks), *self.tasks
        baseline = [SuiteRun(MAJORITY, task, 0, usual[task], metrics[task]) for task in metrics if usual[task]]
        ways = dict[str, SuiteTable]()
        for way in dict.fromkeys(way for one in self.entries for way in one.runs):
            runs = [
                run
                for one in self.entries
                if named[one.checkpoint_of or one.name].is_finished
                for run in self._finished_runs(one, way)
            ]
            ways[way] = SuiteTable((*named, MAJORITY), tasks, [*runs, *baseline])
        usually = [ResultRow(MAJORITY)] if tasks else []
        return RaceResults([*entries, *usually], ways, tasks, metrics, self.recipe.budget.flops, len(self.pending))

    def _finished_runs(self, entry: Entry, mode: str) -> list[SuiteRun]:
        """Those that are done."""
        found = []
        for task, recipes in entry.runs.get(mode, {}).items():
            for recipe in recipes if task in self.tasks.metrics else []:
                if (scores := self.scores.get(recipe.out) or read_scores(recipe)) is not None:
                    self.scores[recipe.out] = scores
                    found.append(SuiteRun(entry.name, task, recipe.seed, scores, self.tasks.metrics[task]))
        return found


def _pretrain_job_name(entry: Entry) -> str:
    return f"{entry.name}: pretrain"
