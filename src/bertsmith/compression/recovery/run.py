"""Read a model and its examples, train the smaller model that was made from it, evaluate both, and publish the smaller one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from ...artifacts import atomic_folder, resolve_path
from ...config import from_dict, to_dict
from ...console import Console
from ...diagnostics.monitor import RunMonitor
from ...diagnostics.run_log import RunSettings
from ...errors import UserError
from ...evaluation.evaluate import Evaluation, evaluate_model
from ...evaluation.metric_names import resolve_best_metric
from ...finetuning.defaults import (
    MAX_MICRO_BATCH_TOKENS,
    choose_long_text,
    describe_settings,
    list_settings,
    resolve_train,
)
from ...finetuning.examples import Examples, read_examples
from ...finetuning.recipe import FinetuneRecipe, name_rows
from ...finetuning.setup import build_param_schedule
from ...inference.engines.base import Precision
from ...inference.engines.torch import TorchEngine
from ...inference.predictor import Predictor
from ...model import checkpoint
from ...model.batch import Inputs
from ...model.model import Model
from ...objectives.supervised import ExampleBatches, Supervised
from ...objectives.task_objective import TaskObjective, build_task_objective
from ...runs import Run
from ...tasks import TaskConfig
from ...tokenization.tokenizer import Tokenizer
from ...train.objective import Batch, Objective
from ...train.param_groups import ParamScheduleFn
from ...train.setup import prepare
from ...train.status import RunStatus
from ...train.trainer import Trainer, Validation
from ...writing import check_writable
from .recipe import RecoveryRecipe, RecoveryTrain
from .report import describe_model, describe_scores, list_rows, measure_speed
from .teacher import HIDDEN_STATES, SOFT_LABELS, RecoveryLosses, Teacher, TeacherObjective

REWRITTEN_KEYS = ("stage", "recipe", "model", "weights", "version", "format_version")  # of the source's config.json
FRACTION_DONE = "fraction_done"  # target of a training batch: fraction of the run done


class Source(NamedTuple):
    """The model that is made smaller, as its folder has it."""

    model: Model
    tokenizer: Tokenizer
    card: dict[str, Any]
    record: dict[str, Any]  # config.json beside the model
    task: TaskConfig | None


class Setup(NamedTuple):
    """The examples of a run, with the objective of their task."""

    examples: Examples
    objective: TaskObjective
    max_length: int
    metric: str  # the main one; empty without dev examples


@dataclass(frozen=True)
class Smaller:
    """The smaller model, and what teaches it: the original one, with the same vocabulary."""

    model: Model
    tokenizer: Tokenizer
    teacher: Teacher


def load_source(recipe: RecoveryRecipe) -> Source:
    """The model of the recipe."""
    folder = resolve_path(recipe.model, "model")
    model, tokenizer, card = checkpoint.load(folder)
    if model.decoder is not None:
        raise UserError(f"{recipe.model} has a decoder; make the encoder smaller that it was fine-tuned from")
    config = checkpoint.read_config(folder)
    task = from_dict(TaskConfig, config["task"], str(folder / "config.json")) if "task" in config else None  # type: ignore[arg-type]
    record = {name: value for name, value in config.items() if name not in REWRITTEN_KEYS}
    return Source(model, tokenizer, card, record, task)


def read_setup(recipe: RecoveryRecipe, source: Source, console: Console) -> Setup | None:
    """The examples, read with the task, labels and lengths that the model has; None without data."""
    if recipe.data is None:
        return None
    if source.task is None:
        raise UserError(f"{recipe.model} was not fine-tuned for a task, so it cannot learn from data; leave out data, or "
                       "fine-tune it first")  # fmt: skip
    if recipe.loss != RecoveryLosses() and not isinstance(build_task_objective(source.task), Supervised):
        raise UserError(f"loss compares predictions of a head, which task={source.task.__struct_config__.tag} does not have; "
                       "leave it out")  # fmt: skip
    base, tokenizer = source.model, source.tokenizer
    examples = read_examples(_as_finetune(recipe, source.task), tokenizer, console)
    num_positions = base.config.encoder.max_position_embeddings
    max_length = recipe.max_length or source.record.get("max_length") or num_positions
    if max_length > num_positions:
        raise UserError(f"max_length={max_length} is more than the model's {num_positions} positions; lower it")
    task = choose_long_text(examples.task, examples.train, tokenizer, max_length, reads_all=recipe.max_length is None)
    metric = resolve_best_metric(task, None) if examples.dev else ""
    return Setup(examples._replace(task=task), build_task_objective(task), max_length, metric)


def build_batches(recipe: RecoveryRecipe, setup: Setup, tokenizer: Tokenizer) -> ExampleBatches:
    """Batches of the training examples, of the default size unless train.batch_tokens is set."""
    return _build_batches(recipe, setup, tokenizer, setup.examples.train, recipe.train.batch_tokens or MAX_MICRO_BATCH_TOKENS)


def train(
    recipe: RecoveryRecipe, stage: str, run: Run, source: Source, setup: Setup, smaller: Smaller,
    wrap: Callable[[TeacherObjective], Objective] = lambda objective: objective,
    wrap_schedule: Callable[[ParamScheduleFn, float], ParamScheduleFn] = lambda schedule, learning_rate: schedule,
) -> dict[str, Any]:  # fmt: skip
    """Train the smaller model in place; returns the summary of the trainer.

    wrap: the objective made from that of the task and the teacher. wrap_schedule: the learning rates by parameter, made from
    those of fine-tuning and the peak learning rate.
    """
    model, objective, teacher = smaller.model, setup.objective, smaller.teacher
    task = cast(TaskConfig, objective.task)
    batches = build_batches(recipe, setup, smaller.tokenizer)
    resolved = resolve_train(_as_finetune(recipe, task), model.config.encoder, source.card, batches, has_dev=False)
    settings = list_settings(resolved, task, setup.max_length)
    batches = replace(batches, batch_tokens=cast(int, resolved.batch_tokens), cache={})
    config = cast(RecoveryTrain, resolved.resolve_epochs(batches.batches_per_epoch))
    model.set_gradient_checkpointing(config.gradient_checkpointing)
    if not objective.uses_pooler:
        model.encoder.pooler.requires_grad_(False)
    schedule = build_param_schedule(
        len(model.encoder.stack.layers), config.layer_lr_decay, config.gradual_unfreezing, config.head_lr_multiplier
    )
    prepared = prepare(model, config, wrap_schedule(schedule, cast(float, resolved.learning_rate)))
    teaches = recipe.loss.uses_teacher and isinstance(objective, Supervised)
    if teaches:
        teacher.model.to(prepared.device).eval().requires_grad_(False)
    with_teacher = TeacherObjective(objective, recipe.loss, teacher if teaches else None)
    run_settings = RunSettings(stage, to_dict(recipe) | {"train": to_dict(config)}, model.config.encoder.init_std)
    monitor = RunMonitor(run.folder, run_settings)
    dev = partial(_list_dev_batches, recipe, setup, smaller.tokenizer) if setup.examples.dev else None
    validation = Validation({"dev": dev}) if dev else None
    status = RunStatus(run.folder, {"stage": stage, "recipe": to_dict(recipe)})
    trainer = Trainer(
        prepared, wrap(with_teacher), run, recipe.seed, validation=validation, check_log=monitor.check, status=status
    )  # fmt: skip
    run.console.info(describe_settings(settings))
    summary = trainer.fit(partial(_train_batch, batches))
    for warning in monitor.finish():
        run.console.warn(warning)
    names = ("step", "loss", "tokens", "seconds")
    return {name: summary[name] for name in names} | {"settings": settings}


def publish(
    recipe: RecoveryRecipe, stage: str, run: Run, source: Source, setup: Setup | None, model: Model, tokenizer: Tokenizer,
    summary: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Evaluate both models on the dev file, write the smaller one, and return the result of the stage."""
    task = setup.objective.finalize_task(model) if setup else source.task
    record = source.record | {"stage": stage} | ({"task": to_dict(task)} if task else {})
    result: dict[str, Any] = {**summary, "before": describe_model(source.model), "after": describe_model(model)}
    card: dict[str, Any] = {key: source.card[key] for key in ("finetuning",) if key in source.card}
    if setup is not None and setup.examples.dev:
        evaluation, scores = _evaluate(recipe, source, setup, model, tokenizer)
        result |= scores
        record |= {"task": to_dict(evaluation.task), "max_length": setup.max_length}
        card |= evaluation.card
    written = (checkpoint.model_writer(model, tokenizer), {**card, "result": result}, record, record_recipe(recipe))
    if setup is None:  # nothing was trained, so the folder does not exist yet, or is the user's
        with atomic_folder(check_writable(run.folder)) as staging:
            replace(run, folder=staging).publish(*written)
    else:
        run.publish(*written)
    run.console.print_table(str(run.folder), list_rows(result))
    return {"out": str(run.folder), "created": True, **result}


def _as_finetune(recipe: RecoveryRecipe, task: TaskConfig) -> FinetuneRecipe:
    """The recipe that would fine-tune the model on these examples, for what the stages share."""
    assert recipe.data is not None
    return FinetuneRecipe(task=task, model=recipe.model, data=recipe.data, out=recipe.out, train=recipe.train, seed=recipe.seed)


def _build_batches(
    recipe: RecoveryRecipe, setup: Setup, tokenizer: Tokenizer, examples: list[Any], batch_tokens: int
) -> ExampleBatches:
    encoded = setup.objective.task.encode(examples, tokenizer, setup.max_length)
    return setup.objective.build_batches(encoded, batch_tokens, recipe.seed, is_prefix_lm=True)


def _train_batch(batches: ExampleBatches, k: int, fraction_done: float) -> Batch[Inputs]:
    """Batch k with the fraction of the run done, and with counts of the teacher's targets."""
    batch = batches(k, fraction_done)
    counts = {SOFT_LABELS: batch.target_counts["task"], HIDDEN_STATES: batch.num_tokens}
    fraction = torch.tensor(fraction_done, dtype=torch.float64)
    return replace(batch, targets={**batch.targets, FRACTION_DONE: fraction}, target_counts={**batch.target_counts, **counts})


def _list_dev_batches(recipe: RecoveryRecipe, setup: Setup, tokenizer: Tokenizer) -> list[Batch[Inputs]]:
    batches = _build_batches(recipe, setup, tokenizer, setup.examples.dev, MAX_MICRO_BATCH_TOKENS)
    return [batches(k) for k in range(batches.batches_per_epoch)]


def _evaluate(
    recipe: RecoveryRecipe, source: Source, setup: Setup, model: Model, tokenizer: Tokenizer
) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation of the smaller model on the dev file; scores and speed of both models."""
    precision: Precision = "fp32" if recipe.train.precision == "fp32" else "auto"
    task, original = setup.objective.finalize_task(model), source.model.to(next(model.parameters()).device)
    before = Predictor(
        TorchEngine(original, precision, fixed_threads=True), source.tokenizer, {}, source.task, setup.max_length
    )
    after = Predictor(TorchEngine(model, precision, fixed_threads=True), tokenizer, {}, task, setup.max_length)
    evaluation_before = evaluate_model(before, setup.examples.dev, tune=True)
    evaluation = evaluate_model(after, setup.examples.dev, tune=True)
    result: dict[str, Any] = {
        "dev": evaluation.scores, "score": describe_scores(setup.metric, evaluation_before, evaluation), "metric": setup.metric,
        "speed": measure_speed(before, after, setup.examples.dev),
    }  # fmt: skip
    if setup.examples.test:
        after.task = evaluation.task
        result["test"] = evaluate_model(after, setup.examples.test).scores
    return evaluation, result


def record_recipe(recipe: RecoveryRecipe) -> RecoveryRecipe:
    """The recipe to record: rows of a Python program by name."""
    return recipe if recipe.data is None else cast(RecoveryRecipe, name_rows(cast(Any, recipe)))
