"""`bertsmith plan`: estimate parameters, memory, time and disk of a pre-training run before it starts."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import torch

from ..artifacts import resolve_path
from ..config import PosFloat, PosInt, to_dict
from ..console import Console
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..device import resolve_device
from ..errors import UserError
from ..model.batch import Inputs
from ..model.model import ModelConfig, build_model
from ..planning import benchmark, disk, memory, step, time
from ..planning import memory as parameters
from ..planning.machines import MACHINES, Machine, this_machine
from ..planning.report import format_plan
from ..planning.step import build_meta_model, trace_step
from ..pretraining.setup import PretrainRecipe, PretrainSetup, build_model_config, check_model
from ..train.config import TrainConfig
from ..train.objective import Batch
from ..writing import resolve_output


class Recipe(PretrainRecipe, frozen=True):
    """The keys of `pretrain`, and the machine it would run on."""

    corpus: Annotated[str | None, "corpus folder made by `prepare`; default: none, all sequences have max_length"] = None  # type: ignore[assignment]
    out: Annotated[str | None, "planned output folder, to check free disk space; nothing is written"] = None  # type: ignore[assignment]
    vocab_size: Annotated[PosInt, "vocabulary size, if there is no corpus (30,522 in BERT)"] = 30_522
    machine: Annotated[Literal["this", "h200"], "this: measure this machine; h200: estimate from a table"] = "this"
    seconds: Annotated[PosFloat, "seconds of measurement per sequence length, with machine=this"] = 10.0


class PlanContext(NamedTuple):
    """The resolved inputs of a plan."""

    recipe: Recipe
    config: ModelConfig
    setup: PretrainSetup | None  # None without a corpus
    eval_tokens: float  # tokens of one evaluation
    train: TrainConfig
    loaders: list[BatchLoader]  # one for each length, none without a corpus
    machine: Machine


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Estimate the cost of the run (throughput is measured if `machine=this`), print it as a table and return it."""
    console, context = Console(quiet), _build_context(recipe)
    longest_phase = max(range(len(recipe.max_length)), key=recipe.max_length.__getitem__)
    estimate = _estimate_memory(context, longest_phase, context.train)
    phases = _estimate_phases(context, console) if recipe.machine != "this" or _fits(estimate, context.machine) else None
    fits = phases is not None and _fits(estimate, context.machine)
    disk_usage, time_estimate = _estimate_disk_and_time(context, estimate, phases)
    result = {
        "machine": context.machine.name,
        "measured": recipe.machine == "this" and time_estimate is not None,
        "parameters": _count_parameters(context.config),
        "memory": _report_memory(context, estimate, longest_phase, phases or []),
        "flops_per_token": estimate.step.flops / estimate.step.tokens,
        "time": to_dict(time_estimate) if time_estimate else None,
        "disk": to_dict(disk_usage),
        "fits": fits,
        "suggestions": [] if fits else list(_find_fitting_settings(context, longest_phase)),
    }
    for title, lines in format_plan(result):
        console.print_table(title, lines)
    _warn(result, recipe, console)
    return result


def _count_parameters(config: ModelConfig) -> dict[str, Any]:
    parts = parameters.count_parameters(build_meta_model(config))
    return {"total": sum(parts.values()), "encoder": parameters.sum_parameters(parts, "encoder"), "modules": parts}


def _report_memory(
    context: PlanContext, estimate: memory.MemoryEstimate, longest_phase: int, phases: list[time.Phase]
) -> dict[str, Any]:
    """Estimated memory, the measured peak where there is one, and the peak with gradient checkpointing toggled."""
    train = context.train
    other = _estimate_memory(
        context, longest_phase, msgspec.structs.replace(train, gradient_checkpointing=not train.gradient_checkpointing)
    ).memory.peak
    measured = max((phase.throughput.peak_memory or 0 for phase in phases), default=0)
    report = to_dict(estimate.memory) | {"peak": measured or estimate.memory.peak, "estimated_peak": estimate.memory.peak}
    report |= {"gradient_checkpointing": train.gradient_checkpointing, "toggled_peak": other}
    return report | {"available": context.machine.memory}


def _build_context(recipe: Recipe) -> PlanContext:
    recipe.train.check()
    machine = (
        MACHINES[recipe.machine]
        if recipe.machine != "this"
        else this_machine(resolve_device(recipe.train.device, "train.device"))
    )
    if recipe.corpus is None:
        if recipe.train.epochs is not None:
            raise UserError("train.epochs needs a corpus; set corpus=FOLDER, or train.steps or train.minutes instead")
        config = build_model_config(recipe, None, recipe.vocab_size)
        check_model(recipe, config)
        return PlanContext(recipe, config, None, 1.5 * recipe.eval_tokens, recipe.train, [], machine)
    corpus = Corpus.open(resolve_path(recipe.corpus, "corpus"), verify_checksums=False)
    corpus.check_contents()
    setup = PretrainSetup.from_recipe(recipe, corpus)
    loaders = setup.build_loaders()
    train = recipe.train.resolve_epochs(loaders[0].batches_per_epoch)
    eval_tokens = sum(eval_set.num_tokens for eval_set in setup.build_eval_sets(recipe.train.batch_tokens).values())
    return PlanContext(recipe, setup.config, setup, eval_tokens, train, loaders, machine)


# memory


def _estimate_memory(context: PlanContext, phase: int, train: TrainConfig) -> memory.MemoryEstimate:
    config, objective, machine = context.config, context.recipe.network_objective, context.machine
    return memory.estimate_memory(config, objective, _largest_batch(context, phase, train.batch_tokens), train, machine)


def _largest_batch(context: PlanContext, phase: int, batch_tokens: int) -> Batch[Inputs]:
    objective, vocabulary, length = (
        context.recipe.network_objective,
        context.config.vocab_size,
        context.recipe.max_length[phase],
    )
    if not context.loaders:
        return step.make_synthetic_batch(objective, batch_tokens, length, vocabulary)
    is_eager_cpu = not context.machine.is_gpu and not context.train.compile
    return step.find_largest_batch(
        context.loaders[phase].with_batch_tokens(batch_tokens), objective, vocabulary, not is_eager_cpu
    )


def _fits(estimate: memory.MemoryEstimate, machine: Machine) -> bool:
    return estimate.memory.reserved <= machine.memory


def _find_fitting_settings(context: PlanContext, longest_phase: int) -> Iterator[dict[str, Any]]:
    """Settings that fit in memory, with their peaks: smaller micro-batches, gradient checkpointing, or both."""
    for gradient_checkpointing in dict.fromkeys((context.train.gradient_checkpointing, True)):
        for factor in (2**n for n in range(0, 20)):
            batch_tokens = context.train.batch_tokens // factor
            if batch_tokens < context.recipe.max_length[longest_phase]:
                break
            settings = {
                "batch_tokens": batch_tokens,
                "gradient_accumulation_steps": context.train.gradient_accumulation_steps * factor,
                "gradient_checkpointing": gradient_checkpointing,
            }
            train = msgspec.structs.replace(context.train, **settings)
            if train != context.train and _fits(estimate := _estimate_memory(context, longest_phase, train), context.machine):
                changed = {f"train.{name}": value for name, value in settings.items() if value != getattr(context.train, name)}
                yield {"settings": changed, "peak": estimate.memory.peak}
                break


# time and disk


def _estimate_phases(context: PlanContext, console: Console) -> list[time.Phase] | None:
    """Throughput of each sequence length; None if measuring it ran out of memory."""
    start, phases = 0.0, []
    for i, (length, end) in enumerate(context.recipe.phases()):
        try:
            throughput = _estimate_throughput(context, i, console)
        except torch.OutOfMemoryError:
            return None
        phases.append(
            time.Phase(length, end - start, throughput, context.loaders[i].batches_per_epoch if context.loaders else None)
        )
        start = end
    return phases


def _estimate_throughput(context: PlanContext, phase: int, console: Console) -> time.Throughput:
    recipe, train, length = context.recipe, context.train, context.recipe.max_length[phase]
    if recipe.machine == "this":
        console.info(f"measuring {context.machine.name} for about {recipe.seconds:g} seconds with max_length={length}")
        spec = benchmark.BenchmarkSpec(
            context.setup.build_untrained_model if context.setup else lambda: build_model(context.config, recipe.seed),
            recipe.network_objective,
            train,
            _batch_source(context, phase),
            length,
            context.machine.is_gpu,
        )
        return benchmark.measure_throughput(spec, recipe.seconds)
    estimate = _estimate_memory(context, phase, train)
    tokens = step.mean_batch_tokens(context.loaders[phase]) if context.loaders else float(estimate.step.tokens)
    plain_step = trace_step(context.config, recipe.network_objective, _largest_batch(context, phase, train.batch_tokens),
                  half_precision=train.precision != "fp32", gradient_checkpointing=False)  # fmt: skip
    return time.predict_throughput(estimate, tokens, train, context.machine, plain_step)


def _batch_source(context: PlanContext, phase: int) -> benchmark.BatchSource:
    objective, train = context.recipe.network_objective, context.train

    @contextmanager
    def open_batches(batch_tokens: int) -> Iterator[Callable[[int], Batch[Inputs]]]:
        if not context.loaders:
            batch = step.make_synthetic_batch(
                objective, batch_tokens, context.recipe.max_length[phase], context.config.vocab_size
            )
            yield lambda k: batch
            return
        with step.prefetch_batches(context.loaders[phase].with_batch_tokens(batch_tokens), objective, train.workers) as batches:
            yield batches

    return open_batches


def _estimate_disk_and_time(
    context: PlanContext, estimate: memory.MemoryEstimate, phases: list[time.Phase] | None
) -> tuple[disk.DiskUsage, time.TimeEstimate | None]:
    """Disk usage and time; both need the number of steps, and time needs the size of a checkpoint."""
    train = context.train
    tokenizer, corpus = _file_sizes(context)

    def disk_usage(steps: int) -> disk.DiskUsage:
        return disk.estimate_disk(build_meta_model(context.config), estimate.optimizer_state, train, steps, tokenizer, corpus)

    one_step_usage = disk_usage(1)
    if not phases:
        return disk_usage(train.steps or train.save_every), None
    estimated_time = time.estimate_time(train, phases, context.eval_tokens, one_step_usage.weights, one_step_usage.checkpoint)
    return disk_usage(estimated_time.steps), estimated_time


def _file_sizes(context: PlanContext) -> tuple[int, int]:
    """Bytes of the tokenizer file and of the corpus folder."""
    if context.setup is None:
        return 16 * context.config.vocab_size, 0
    folder = context.setup.corpus.path
    files = [path for path in folder.rglob("*") if path.is_file()]
    return (folder / "tokenizer.json").stat().st_size, sum(path.stat().st_size for path in files)


def _warn(result: dict[str, Any], recipe: Recipe, console: Console) -> None:
    if not result["fits"]:
        settings = [
            " ".join(f"{k}={str(v).lower()}" for k, v in advice["settings"].items()) for advice in result["suggestions"]
        ]
        advice = f"set {' or '.join(settings)}" if settings else "use a smaller model or a lower max_length"
        needed, available = result["memory"]["reserved"] / 1e9, result["memory"]["available"] / 1e9
        console.warn(f"the run needs {needed:.1f} GB of memory, of which {available:.1f} GB are available; {advice}")
    if recipe.out is not None:
        folder = resolve_output(recipe.out).absolute()
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        if free < (needed_bytes := result["disk"]["peak"]):
            console.warn(
                f"the run needs {needed_bytes / 1e9:.2f} GB of disk for {folder}, {free / 1e9:.2f} GB are free; "
                "lower train.save_total_limit"
            )
