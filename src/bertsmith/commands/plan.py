"""What a pre-training will take, before it takes it: parameters, memory, time and disk."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch

from ..artifacts import named
from ..config import Count, Positive, parse, plain
from ..console import Screen
from ..corpus.loader import Batches
from ..corpus.store import Corpus
from ..device import place
from ..errors import BadInput
from ..model import checkpoint
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.model import ModelConfig, built
from ..planning import benchmark, disk, memory, step, time
from ..planning import memory as parameters
from ..planning.machines import MACHINES, Machine, this
from ..planning.report import rows
from ..planning.step import blank, walked
from ..pretraining.setup import PretrainRecipe, build_batches, build_model_config, split_corpus
from ..train.config import Train


class Recipe(PretrainRecipe, frozen=True):
    """The keys of `pretrain`, and where it would run."""

    corpus: Annotated[str | None, "the folder `prepare` made; without one, all sequences are as long as they may be"] = None  # type: ignore[assignment]
    out: Annotated[str | None, "the folder to make, whose disk is asked for room; nothing is written there"] = None  # type: ignore[assignment]
    vocabulary: Annotated[Count, "tokens of the vocabulary, where there is no corpus to say so"] = 30_522
    machine: Annotated[Literal["this", "h200"], "this one, measured for some seconds, or one known by name"] = "this"
    seconds: Annotated[Positive, "time to measure this machine for, for each length"] = 10.0


class Subject(NamedTuple):
    """What is planned."""

    recipe: Recipe
    config: ModelConfig
    corpus: Corpus | None
    judged: float  # tokens of one evaluation
    train: Train
    readings: list[Batches]  # one for each length, none without a corpus
    machine: Machine


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Counts, measures where this machine is meant, and says all of it in one table."""
    screen, subject = Screen(quiet), _subject(recipe)
    longest = max(range(len(recipe.length)), key=recipe.length.__getitem__)
    found = _counted(subject, longest, subject.train)
    phases = _phases(subject, screen) if recipe.machine != "this" or _fits(found, subject.machine) else None
    fits = phases is not None and _fits(found, subject.machine)
    taken, went = _taken(subject, found, phases)
    result = {
        "machine": subject.machine.name,
        "measured": recipe.machine == "this" and went is not None,
        "parameters": _parameters(subject.config),
        "memory": _memory(subject, found, longest, phases or []),
        "flops_per_token": found.step.flops / found.step.tokens,
        "time": plain(went) if went else None,
        "disk": plain(taken),
        "fits": fits,
        "ways_out": [] if fits else list(_ways_out(subject, longest)),
    }
    for title, lines in rows(result):
        screen.table(title, lines)
    _warn(result, recipe, screen)
    return result


def _parameters(config: ModelConfig) -> dict[str, Any]:
    parts = parameters.count_parameters(blank(config))
    return {"all": sum(parts.values()), "encoder": parameters.parameters_below(parts, "encoder"), "parts": parts}


def _memory(subject: Subject, found: memory.Counted, longest: int, phases: list[time.Phase]) -> dict[str, Any]:
    """As counted, with the peak that was measured where it was, and the peak of the same run the other way."""
    train = subject.train
    other = _counted(subject, longest, msgspec.structs.replace(train, recompute=not train.recompute)).memory.peak
    measured = max((phase.pace.peak or 0 for phase in phases), default=0)
    told = plain(found.memory) | {"peak": measured or found.memory.peak, "counted": found.memory.peak}
    return told | {"available": subject.machine.memory, "recompute": train.recompute, "otherwise": other}


def _subject(recipe: Recipe) -> Subject:
    recipe.train.check()
    machine = MACHINES[recipe.machine] if recipe.machine != "this" else this(place(recipe.train.device, "train.device"))
    phases = recipe.phases()
    if recipe.corpus is None:
        if recipe.train.epochs is not None:
            raise BadInput("train.epochs needs a corpus to be counted by; give corpus=FOLDER, or train.steps or train.minutes")
        return Subject(recipe, _config(recipe), None, 1.5 * recipe.eval_tokens, recipe.train, [], machine)
    corpus = Corpus.open(named(recipe.corpus, "corpus"), check=False)
    learn, valid, judged = split_corpus(recipe, corpus)
    config = build_model_config(recipe, corpus)
    readings = [build_batches(recipe, corpus, learn, length, config) for length, _ in phases]
    train = recipe.train.resolved(readings[0].an_epoch)
    return Subject(recipe, config, corpus, _judged(recipe, valid, judged), train, readings, machine)


def _config(recipe: Recipe) -> ModelConfig:
    """Of a model that has no corpus yet."""
    heads = recipe.objective.heads()
    if recipe.init is None:
        encoder = recipe.model or EncoderConfig.presets["bert-base"]
        return ModelConfig(encoder=encoder, vocabulary=recipe.vocabulary, heads=heads)
    folder = named(recipe.init, "init")
    before = parse(ModelConfig, checkpoint.recorded(folder)["model"], str(folder / "config.json"))
    return ModelConfig(encoder=before.encoder, vocabulary=before.vocabulary, heads=heads)


def _judged(recipe: Recipe, corpus: Corpus, documents: np.ndarray) -> float:
    """Tokens an evaluation reads: held-out text as it is trained on, then copies of it with each word hidden alone."""
    text = int(np.diff(corpus.borders)[documents].sum())
    copied = text * text / max(1, int(np.diff(corpus.documents)[documents].sum()))  # each sentence as often as it has words
    copied = copied if recipe.objective.hides else 0.0
    return min(max(recipe.eval_tokens, recipe.train.batch_tokens), text) + min(recipe.eval_tokens // 2, copied)


# memory


def _counted(subject: Subject, phase: int, train: Train) -> memory.Counted:
    config, objective, machine = subject.config, subject.recipe.objective, subject.machine
    return memory.estimate_memory(config, objective, _largest(subject, phase, train.batch_tokens), train, machine)


def _largest(subject: Subject, phase: int, tokens: int) -> Batch:
    objective, vocabulary, length = subject.recipe.objective, subject.config.vocabulary, subject.recipe.length[phase]
    if not subject.readings:
        return step.made_up(objective, tokens, length, vocabulary)
    looped = not subject.machine.gpu and not subject.train.compile
    return step.largest(_smaller(subject.readings[phase], tokens), objective, vocabulary, not looped)


def _smaller(reading: Batches, tokens: int) -> Batches:
    """The same samples in smaller batches."""
    if tokens == reading.tokens:
        return reading
    return Batches(reading.maker, reading.view, reading.documents, reading.length, tokens, reading.repeats)


def _fits(found: memory.Counted, machine: Machine) -> bool:
    return found.memory.held <= machine.memory


def _ways_out(subject: Subject, longest: int) -> Iterator[dict[str, Any]]:
    """Settings under which it fits, each with its peak: the same update in smaller pieces, recomputing, or both."""
    for recompute in dict.fromkeys((subject.train.recompute, True)):
        for times in (2**n for n in range(0, 20)):
            tokens = subject.train.batch_tokens // times
            if tokens < subject.recipe.length[longest]:
                break
            settings = {"batch_tokens": tokens, "accumulate": subject.train.accumulate * times, "recompute": recompute}
            train = msgspec.structs.replace(subject.train, **settings)
            if train != subject.train and _fits(found := _counted(subject, longest, train), subject.machine):
                changed = {f"train.{name}": value for name, value in settings.items() if value != getattr(subject.train, name)}
                yield {"settings": changed, "peak": found.memory.peak}
                break


# time and disk


def _phases(subject: Subject, screen: Screen) -> list[time.Phase] | None:
    """None where the memory did not suffice after all."""
    begin, found = 0.0, []
    for i, (length, end) in enumerate(subject.recipe.phases()):
        try:
            pace = _pace(subject, i, screen)
        except torch.OutOfMemoryError:
            return None
        found.append(time.Phase(length, end - begin, pace, subject.readings[i].an_epoch if subject.readings else None))
        begin = end
    return found


def _pace(subject: Subject, phase: int, screen: Screen) -> time.Pace:
    recipe, train, length = subject.recipe, subject.train, subject.recipe.length[phase]
    if recipe.machine == "this":
        screen.say(f"measuring {subject.machine.name} for some {recipe.seconds:g} seconds, sequences of {length}")
        run = benchmark.Run(
            lambda: built(subject.config, recipe.seed),
            recipe.objective,
            train,
            _source(subject, phase),
            length,
            subject.machine.gpu,
        )
        return benchmark.measured(run, recipe.seconds)
    found = _counted(subject, phase, train)
    tokens = step.usual(subject.readings[phase]) if subject.readings else float(found.step.tokens)
    walk = walked(subject.config, recipe.objective, _largest(subject, phase, train.batch_tokens),
                  half=train.precision != "fp32", recompute=False)  # fmt: skip
    return time.predicted(found, tokens, train, subject.machine, walk)


def _source(subject: Subject, phase: int) -> benchmark.Source:
    objective, train = subject.recipe.objective, subject.train

    @contextmanager
    def source(tokens: int) -> Iterator[Callable[[int], Batch]]:
        if not subject.readings:
            batch = step.made_up(objective, tokens, subject.recipe.length[phase], subject.config.vocabulary)
            yield lambda k: batch
            return
        with step.made_ahead(_smaller(subject.readings[phase], tokens), objective, train.workers) as made:
            yield made

    return source


def _taken(subject: Subject, found: memory.Counted, phases: list[time.Phase] | None) -> tuple[disk.Disk, time.Course | None]:
    """Disk, which depends on the steps; and the steps, which depend on what is written to it."""
    train = subject.train
    tokenizer, corpus = _sizes(subject)

    def taken(steps: int) -> disk.Disk:
        return disk.taken(blank(subject.config), found.kept, train, steps, tokenizer, corpus)

    size = taken(1)
    if not phases:
        return taken(train.steps or train.save_every), None
    went = time.followed(train, phases, subject.judged, size.weights, size.checkpoint)
    return taken(went.steps), went


def _sizes(subject: Subject) -> tuple[int, int]:
    """Bytes of the tokenizer and of the corpus."""
    if subject.corpus is None:
        return 16 * subject.config.vocabulary, 0
    files = [path for path in subject.corpus.path.rglob("*") if path.is_file()]
    return (subject.corpus.path / "tokenizer.json").stat().st_size, sum(path.stat().st_size for path in files)


def _warn(result: dict[str, Any], recipe: Recipe, screen: Screen) -> None:
    if not result["fits"]:
        ways = [" ".join(f"{k}={str(v).lower()}" for k, v in way["settings"].items()) for way in result["ways_out"]]
        way = " or ".join(ways) if ways else "take a smaller model, or a shorter length"
        need, have = result["memory"]["held"] / 1e9, result["memory"]["available"] / 1e9
        screen.warn(f"it does not fit: {need:.1f} GB are needed, {have:.1f} are there; {way}")
    if recipe.out is not None:
        folder = named(recipe.out, "out").absolute()
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        if free < result["disk"]["most"]:
            most = result["disk"]["most"]
            screen.warn(
                f"{folder} needs {most / 1e9:.2f} GB of disk while it is made, {free / 1e9:.2f} are free; lower train.keep"
            )
