"""What a pre-training will take, before it takes it: parameters, memory, time and disk."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch

from ..artifacts import resolve_path
from ..config import PosFloat, PosInt, from_dict, to_dict
from ..console import Console
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..device import resolve_device
from ..errors import UserError
from ..model import checkpoint
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.model import ModelConfig, build_model
from ..planning import benchmark, disk, memory, step, time
from ..planning import memory as parameters
from ..planning.machines import MACHINES, Machine, this_machine
from ..planning.report import format_plan
from ..planning.step import build_meta_model, trace_step
from ..pretraining.setup import PretrainRecipe, build_batches, build_model_config, split_corpus
from ..train.config import TrainConfig


class Recipe(PretrainRecipe, frozen=True):
    """The keys of `pretrain`, and where it would run."""

    corpus: Annotated[str | None, "the folder `prepare` made; without one, all sequences are as long as they may be"] = None  # type: ignore[assignment]
    out: Annotated[str | None, "the folder to make, whose disk is asked for room; nothing is written there"] = None  # type: ignore[assignment]
    vocabulary: Annotated[PosInt, "tokens of the vocabulary, where there is no corpus to say so"] = 30_522
    machine: Annotated[Literal["this", "h200"], "this one, measured for some seconds, or one known by name"] = "this"
    seconds: Annotated[PosFloat, "time to measure this machine for, for each length"] = 10.0


class PlanContext(NamedTuple):
    """What is planned."""

    recipe: Recipe
    config: ModelConfig
    corpus: Corpus | None
    eval_tokens: float  # tokens of one evaluation
    train: TrainConfig
    loaders: list[BatchLoader]  # one for each length, none without a corpus
    machine: Machine


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Counts, measures where this machine is meant, and says all of it in one table."""
    screen, subject = Console(quiet), _build_context(recipe)
    longest = max(range(len(recipe.length)), key=recipe.length.__getitem__)
    found = _estimate_memory(subject, longest, subject.train)
    phases = _estimate_phases(subject, screen) if recipe.machine != "this" or _fits(found, subject.machine) else None
    fits = phases is not None and _fits(found, subject.machine)
    taken, went = _estimate_disk_and_time(subject, found, phases)
    result = {
        "machine": subject.machine.name,
        "measured": recipe.machine == "this" and went is not None,
        "parameters": _count_parameters(subject.config),
        "memory": _report_memory(subject, found, longest, phases or []),
        "flops_per_token": found.step.flops / found.step.tokens,
        "time": to_dict(went) if went else None,
        "disk": to_dict(taken),
        "fits": fits,
        "ways_out": [] if fits else list(_find_fitting_settings(subject, longest)),
    }
    for title, lines in format_plan(result):
        screen.print_table(title, lines)
    _warn(result, recipe, screen)
    return result


def _count_parameters(config: ModelConfig) -> dict[str, Any]:
    parts = parameters.count_parameters(build_meta_model(config))
    return {"all": sum(parts.values()), "encoder": parameters.sum_parameters(parts, "encoder"), "parts": parts}


def _report_memory(
    context: PlanContext, estimate: memory.MemoryEstimate, longest_phase: int, phases: list[time.Phase]
) -> dict[str, Any]:
    """As counted, with the peak that was measured where it was, and the peak of the same run the other way."""
    train = context.train
    other = _estimate_memory(context, longest_phase, msgspec.structs.replace(train, recompute=not train.recompute)).memory.peak
    measured = max((phase.throughput.peak_memory or 0 for phase in phases), default=0)
    told = to_dict(estimate.memory) | {"peak": measured or estimate.memory.peak, "counted": estimate.memory.peak}
    return told | {"available": context.machine.memory, "recompute": train.recompute, "otherwise": other}


def _build_context(recipe: Recipe) -> PlanContext:
    recipe.train.check()
    machine = (
        MACHINES[recipe.machine]
        if recipe.machine != "this"
        else this_machine(resolve_device(recipe.train.device, "train.device"))
    )
    phases = recipe.phases()
    if recipe.corpus is None:
        if recipe.train.epochs is not None:
            raise UserError("train.epochs needs a corpus to be counted by; give corpus=FOLDER, or train.steps or train.minutes")
        return PlanContext(recipe, _build_config(recipe), None, 1.5 * recipe.eval_tokens, recipe.train, [], machine)
    corpus = Corpus.open(resolve_path(recipe.corpus, "corpus"), verify_checksums=False)
    learn, valid, judged = split_corpus(recipe, corpus)
    config = build_model_config(recipe, corpus)
    readings = [build_batches(recipe, corpus, learn, length, config) for length, _ in phases]
    train = recipe.train.resolve_epochs(readings[0].batches_per_epoch)
    return PlanContext(recipe, config, corpus, _count_eval_tokens(recipe, valid, judged), train, readings, machine)


def _build_config(recipe: Recipe) -> ModelConfig:
    """Of a model that has no corpus yet."""
    heads = recipe.objective.heads()
    if recipe.init is None:
        encoder = recipe.model or EncoderConfig.presets["bert-base"]
        return ModelConfig(encoder=encoder, vocabulary=recipe.vocabulary, heads=heads)
    folder = resolve_path(recipe.init, "init")
    before = from_dict(ModelConfig, checkpoint.read_config(folder)["model"], str(folder / "config.json"))
    return ModelConfig(encoder=before.encoder, vocabulary=before.vocabulary, heads=heads)


def _count_eval_tokens(recipe: Recipe, corpus: Corpus, documents: np.ndarray) -> float:
    """Tokens an evaluation reads: held-out text as it is trained on, then copies of it with each word hidden alone."""
    text = int(np.diff(corpus.document_token_offsets)[documents].sum())
    copied = (
        text * text / max(1, int(np.diff(corpus.document_offsets)[documents].sum()))
    )  # each sentence as often as it has words
    copied = copied if recipe.objective.can_fill_mask else 0.0
    return min(max(recipe.eval_tokens, recipe.train.batch_tokens), text) + min(recipe.eval_tokens // 2, copied)


# memory


def _estimate_memory(context: PlanContext, phase: int, train: TrainConfig) -> memory.MemoryEstimate:
    config, objective, machine = context.config, context.recipe.objective, context.machine
    return memory.estimate_memory(config, objective, _largest_batch(context, phase, train.batch_tokens), train, machine)


def _largest_batch(context: PlanContext, phase: int, batch_tokens: int) -> Batch:
    objective, vocabulary, length = context.recipe.objective, context.config.vocabulary, context.recipe.length[phase]
    if not context.loaders:
        return step.make_synthetic_batch(objective, batch_tokens, length, vocabulary)
    looped = not context.machine.is_gpu and not context.train.compile
    return step.find_largest_batch(_with_batch_tokens(context.loaders[phase], batch_tokens), objective, vocabulary, not looped)


def _with_batch_tokens(loader: BatchLoader, batch_tokens: int) -> BatchLoader:
    """The same samples in smaller batches."""
    if batch_tokens == loader.batch_tokens:
        return loader
    return BatchLoader(
        loader.collator, loader.sampler, loader.document_ids, loader.max_length, batch_tokens, loader.dupe_factor
    )


def _fits(estimate: memory.MemoryEstimate, machine: Machine) -> bool:
    return estimate.memory.held <= machine.memory


def _find_fitting_settings(context: PlanContext, longest_phase: int) -> Iterator[dict[str, Any]]:
    """Settings under which it fits, each with its peak: the same update in smaller pieces, recomputing, or both."""
    for recompute in dict.fromkeys((context.train.recompute, True)):
        for times in (2**n for n in range(0, 20)):
            tokens = context.train.batch_tokens // times
            if tokens < context.recipe.length[longest_phase]:
                break
            settings = {"batch_tokens": tokens, "accumulate": context.train.accumulate * times, "recompute": recompute}
            train = msgspec.structs.replace(context.train, **settings)
            if train != context.train and _fits(found := _estimate_memory(context, longest_phase, train), context.machine):
                changed = {f"train.{name}": value for name, value in settings.items() if value != getattr(context.train, name)}
                yield {"settings": changed, "peak": found.memory.peak}
                break


# time and disk


def _estimate_phases(context: PlanContext, console: Console) -> list[time.Phase] | None:
    """None where the memory did not suffice after all."""
    begin, found = 0.0, []
    for i, (length, end) in enumerate(context.recipe.phases()):
        try:
            pace = _estimate_throughput(context, i, console)
        except torch.OutOfMemoryError:
            return None
        found.append(time.Phase(length, end - begin, pace, context.loaders[i].batches_per_epoch if context.loaders else None))
        begin = end
    return found


def _estimate_throughput(context: PlanContext, phase: int, console: Console) -> time.Throughput:
    recipe, train, length = context.recipe, context.train, context.recipe.length[phase]
    if recipe.machine == "this":
        console.info(f"measuring {context.machine.name} for some {recipe.seconds:g} seconds, sequences of {length}")
        run = benchmark.BenchmarkSpec(
            lambda: build_model(context.config, recipe.seed),
            recipe.objective,
            train,
            _batch_source(context, phase),
            length,
            context.machine.is_gpu,
        )
        return benchmark.measure_throughput(run, recipe.seconds)
    found = _estimate_memory(context, phase, train)
    tokens = step.mean_batch_tokens(context.loaders[phase]) if context.loaders else float(found.step.tokens)
    walk = trace_step(context.config, recipe.objective, _largest_batch(context, phase, train.batch_tokens),
                  half_precision=train.precision != "fp32", gradient_checkpointing=False)  # fmt: skip
    return time.predict_throughput(found, tokens, train, context.machine, walk)


def _batch_source(context: PlanContext, phase: int) -> benchmark.BatchSource:
    objective, train = context.recipe.objective, context.train

    @contextmanager
    def open_batches(batch_tokens: int) -> Iterator[Callable[[int], Batch]]:
        if not context.loaders:
            batch = step.make_synthetic_batch(objective, batch_tokens, context.recipe.length[phase], context.config.vocabulary)
            yield lambda k: batch
            return
        with step.prefetch_batches(_with_batch_tokens(context.loaders[phase], batch_tokens), objective, train.workers) as made:
            yield made

    return open_batches


def _estimate_disk_and_time(
    context: PlanContext, estimate: memory.MemoryEstimate, phases: list[time.Phase] | None
) -> tuple[disk.DiskUsage, time.TimeEstimate | None]:
    """Disk, which depends on the steps; and the steps, which depend on what is written to it."""
    train = context.train
    tokenizer, corpus = _file_sizes(context)

    def disk_usage(steps: int) -> disk.DiskUsage:
        return disk.estimate_disk(build_meta_model(context.config), estimate.optimizer_state, train, steps, tokenizer, corpus)

    size = disk_usage(1)
    if not phases:
        return disk_usage(train.steps or train.save_every), None
    went = time.estimate_time(train, phases, context.eval_tokens, size.weights, size.checkpoint)
    return disk_usage(went.steps), went


def _file_sizes(context: PlanContext) -> tuple[int, int]:
    """Bytes of the tokenizer and of the corpus."""
    if context.corpus is None:
        return 16 * context.config.vocabulary, 0
    files = [path for path in context.corpus.path.rglob("*") if path.is_file()]
    return (context.corpus.path / "tokenizer.json").stat().st_size, sum(path.stat().st_size for path in files)


def _warn(result: dict[str, Any], recipe: Recipe, console: Console) -> None:
    if not result["fits"]:
        ways = [" ".join(f"{k}={str(v).lower()}" for k, v in way["settings"].items()) for way in result["ways_out"]]
        way = " or ".join(ways) if ways else "take a smaller model, or a shorter length"
        need, have = result["memory"]["held"] / 1e9, result["memory"]["available"] / 1e9
        console.warn(f"it does not fit: {need:.1f} GB are needed, {have:.1f} are there; {way}")
    if recipe.out is not None:
        folder = resolve_path(recipe.out, "out").absolute()
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        if free < result["disk"]["most"]:
            most = result["disk"]["most"]
            console.warn(
                f"{folder} needs {most / 1e9:.2f} GB of disk while it is made, {free / 1e9:.2f} are free; lower train.keep"
            )
