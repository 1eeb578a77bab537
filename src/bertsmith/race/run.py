"""Every member of the family, on the same text, with the same budget and the same tasks, into one table and plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ..artifacts import claimed, named, vacant, write_json
from ..config import Config, Count, Positive
from ..console import Screen
from ..errors import BadInput
from ..evaluation.suite import Run, Table
from ..finetuning.examples import examples_of
from ..finetuning.suite import Planned, measured
from ..processes import Job, carried_out, interrupted_by_signals
from ..reports.html import write
from ..train.distributed import world
from .entries import Runner, field, read_run
from .execution import pretrained, taught
from .page import ladder, page
from .table import Entry, Race, majority

MAJORITY = "majority"


class Tasks(NamedTuple):
    """By task: what it is measured by, and what it scores without reading."""

    metrics: dict[str, tuple[str, ...]]
    usual: dict[str, dict[str, float]]


class Budget(Config, frozen=True):
    flops: Annotated[float, msgspec.Meta(gt=0), "operations each member may learn from text with, two a multiply-add"] = 1e15
    epochs: Annotated[Positive | None, "passes over the text at most, for members that cost next to nothing a word"] = None


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
    jobs: Annotated[Count, "processes at work side by side"] = 1
    keep: Annotated[bool, "keep the fine-tuned models too, not only their scores"] = False


def race(recipe: RaceRecipe, quiet: bool = False) -> dict[str, Any]:
    """Goes on where it stopped; a member that fails has a row that says why, and stops no other."""
    screen, out = Screen(quiet), vacant(named(recipe.out, "out"), "race.json", "corpora", "members")
    if world() > 1:
        raise BadInput("a race starts its own processes, jobs=N of them; start it without torchrun")
    with claimed(out), interrupted_by_signals():
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "race.json", {"left": None})  # this folder is ours
        runners = field(recipe, out, screen)
        found = _Course(recipe, runners, _tasks(recipe, runners, screen), out, screen).run()
    screen.table(str(out / "report.html"), found.rows())
    for one in found.entries:
        for fault in one.faults:
            screen.warn(f"{one.name}: {fault}")
    return {"out": str(out), **found.plain()}


def code(result: dict[str, Any]) -> int:
    """1 where some member could not finish."""
    return int(any(one["faults"] for one in result["members"]))


def _tasks(recipe: RaceRecipe, runners: Sequence[Runner], screen: Screen) -> Tasks:
    """Files of tasks are found good before anything learns."""
    tasks = Tasks({}, {})
    able = [one for one in runners if one.cut.corpus is not None and one.runs]
    for task, settings in recipe.tasks.items():
        if not able:
            break
        first = next(iter(able[0].runs.values()))[task][0]
        tokenizer = able[0].cut.opened.tokenizer
        tasks.metrics[task] = measured(Planned("", task, tuple(settings.get("metrics", ())), first), tokenizer, screen)
        examples = examples_of(first, tokenizer, Screen(True))
        tasks.usual[task] = majority(examples.task, examples.learn, examples.dev, tokenizer, first.length)
    return tasks


class _Course:
    """The race while it runs: which jobs are left, what failed, and the table of what is known."""

    def __init__(self, recipe: RaceRecipe, runners: Sequence[Runner], tasks: Tasks, out: Path, screen: Screen) -> None:
        self.recipe, self.runners, self.tasks, self.out, self.screen = recipe, runners, tasks, out, screen
        self.faults = {one.name: list(one.faults) for one in runners}
        for one in runners:
            if one.of and self.faults[one.of]:
                self.faults[one.name].append(f"{one.of} failed")
        self.jobs = {job.name: (one, job) for one in runners if not self.faults[one.name] for job in self._jobs(one)}
        self.left = set(self.jobs)
        self.scores = dict[str, dict[str, float]]()  # by the folder of a run, once it is done

    def run(self) -> Race:
        """Who reads the most begins: of one budget that is the smallest, whose many steps take longest."""
        first = sorted(self.runners, key=lambda one: -one.reads)
        begun = [self.jobs[_learning(one)][1] for one in first if _learning(one) in self.jobs]
        carried_out(begun, self.recipe.jobs, self.ended)
        return self.told()

    def ended(self, job: Job, fault: str | None) -> list[Job]:
        """What may be begun now: when a member has learnt from text, its runs and those of who takes its checkpoint."""
        self.left.discard(job.name)
        runner = self.jobs[job.name][0]
        if fault and fault not in self.faults[runner.name]:
            self.faults[runner.name].append(fault)
        done = f"{len(self.jobs) - len(self.left)} of {len(self.jobs)}"
        self.screen.say(f"{done}: {job.name}" + (f" failed: {fault}" if fault else ""))
        following = self._following(runner) if job.name == _learning(runner) else []
        if fault:
            self._given_up(runner, following)
        self.told()
        return [] if fault else following

    def told(self) -> Race:
        """The table so far, written to disk."""
        race = self._race()
        write_json(self.out / "race.json", race.plain())
        write(self.out / "report.html", page(race))
        if drawn := ladder(race):
            write(self.out / "race.svg", drawn)
        return race

    def _jobs(self, one: Runner) -> list[Job]:
        """Its training on text, unless it takes another's checkpoint, and its runs, by ways and tasks."""
        quiet = self.screen.quiet or self.recipe.jobs > 1
        jobs = [] if one.of else [Job(_learning(one), pretrained, (one, quiet))]
        for way, tasks in one.runs.items():
            jobs += [Job(f"{one.name}: {way}, {task}", taught, (runs, self.recipe.keep)) for task, runs in tasks.items()]
        return jobs

    def _following(self, runner: Runner) -> list[Job]:
        return [job for name, (one, job) in self.jobs.items() if name in self.left and runner.name in (one.name, one.of)]

    def _given_up(self, runner: Runner, jobs: Sequence[Job]) -> None:
        """Jobs that can never be begun."""
        for job in jobs:
            self.left.discard(job.name)
            heir = self.jobs[job.name][0]
            if heir.of and not self.faults[heir.name]:
                self.faults[heir.name].append(f"{runner.name} failed")

    def _race(self) -> Race:
        named = {one.name: one for one in self.runners}
        entries = [
            Entry(one.name, named[one.of or one.name].facts(), tuple(self.faults[one.name]), one.of) for one in self.runners
        ]
        tasks, metrics, usual = tuple(self.recipe.tasks), *self.tasks
        baseline = [Run(MAJORITY, task, 0, usual[task], metrics[task]) for task in metrics if usual[task]]
        ways = dict[str, Table]()
        for way in dict.fromkeys(way for one in self.runners for way in one.runs):
            runs = [run for one in self.runners if named[one.of or one.name].made for run in self._runs(one, way)]
            ways[way] = Table((*named, MAJORITY), tasks, [*runs, *baseline])
        usually = [Entry(MAJORITY)] if tasks else []
        return Race([*entries, *usually], ways, tasks, metrics, self.recipe.budget.flops, len(self.left))

    def _runs(self, one: Runner, way: str) -> list[Run]:
        """Those that are done."""
        found = []
        for task, recipes in one.runs.get(way, {}).items():
            for recipe in recipes if task in self.tasks.metrics else []:
                if (scores := self.scores.get(recipe.out) or read_run(recipe)) is not None:
                    self.scores[recipe.out] = scores
                    found.append(Run(one.name, task, recipe.seed, scores, self.tasks.metrics[task]))
        return found


def _learning(one: Runner) -> str:
    return f"{one.name}: pretrain"
