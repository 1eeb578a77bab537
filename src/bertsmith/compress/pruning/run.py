"""A pruning run: remove layers and tokens, train with masks that close, take the masked units out, evaluate, publish."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from ... import runs
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
from ...model.model import Model
from ...objectives.supervised import ExampleBatches, Supervised
from ...objectives.task_objective import TaskObjective, build_task_objective
from ...runs import Run
from ...tasks import TaskConfig
from ...tokenization import documents
from ...tokenization.files import find_files
from ...tokenization.shrink import count_used_tokens, shrink_tokenizer
from ...tokenization.tokenizer import Tokenizer
from ...train.param_groups import ParamSchedule, ParamScheduleFn
from ...train.setup import isolate_torch_state, prepare
from ...train.step import evaluate
from ...train.trainer import Trainer, Validation
from ...writing import resolve_output
from .layers import choose_layers
from .masks import SCORES_SUFFIX, MaskedUnit, Pruner
from .objective import PruningObjective, build_train_batches
from .recipe import PruneRecipe, check_recipe, prune_identity
from .report import describe_model, describe_scores, list_rows, measure_speed
from .structure import KeptUnits, check_heads, check_layers, check_neurons, remove_layers, remove_units
from .teacher import Teacher
from .vocabulary import check_vocabulary, select_rows

REWRITTEN_KEYS = ("stage", "recipe", "model", "weights", "version", "format_version")  # of the source's config.json
SCORED_BATCHES = 32  # batches of training examples that drop_layers=loss is measured on


class Source(NamedTuple):
    """The model to prune, as its folder has it."""

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
    metric: str


def prune(recipe: PruneRecipe, quiet: bool = False) -> dict[str, Any]:
    """Prune, resume an interrupted run, or return the result of a finished one."""
    check_recipe(recipe)
    console, out = Console(quiet), resolve_output(recipe.out)
    with runs.open_run(out, prune_identity(recipe), console) as run:
        return run.finished_result or _prune(recipe, run)


def _prune(recipe: PruneRecipe, run: Run) -> dict[str, Any]:
    source = _load(recipe)
    _check_units(recipe, source.model)
    setup = _read(recipe, source, run.console) if recipe.data is not None else None
    model, tokenizer, layers = source.model, source.tokenizer, list(range(source.model.config.encoder.num_hidden_layers))
    if "layer" in recipe.unit:
        model, layers = _remove_layers(recipe, source, setup, run.console)
    if "vocab" in recipe.unit:
        model, tokenizer = _shrink_vocabulary(recipe, model, tokenizer, setup, run.console)
    if model is source.model:
        model = deepcopy(model)
    pruners = [_build_pruner(recipe, model, cast(MaskedUnit, unit)) for unit in recipe.masked_units]
    summary: dict[str, Any] = {}
    if setup is not None:
        summary = _train(recipe, run, source, setup, model, tokenizer, layers, pruners)
    smaller = _take_out(recipe, model, pruners)
    return _publish(recipe, run, source, setup, smaller, tokenizer, summary)


# -- reading


def _load(recipe: PruneRecipe) -> Source:
    folder = resolve_path(recipe.model, "model")
    model, tokenizer, card = checkpoint.load(folder)
    config = checkpoint.read_config(folder)
    task = from_dict(TaskConfig, config["task"], str(folder / "config.json")) if "task" in config else None  # type: ignore[arg-type]
    record = {name: value for name, value in config.items() if name not in REWRITTEN_KEYS}
    return Source(model, tokenizer, card, record, task)


def _check_units(recipe: PruneRecipe, model: Model) -> None:
    """Raises a UserError for units that this model does not have."""
    encoder = model.config.encoder
    if model.decoder is not None:
        raise UserError("a model with a decoder cannot be pruned; prune the encoder that it was fine-tuned from")
    if recipe.masked_units and not encoder.num_hidden_layers:
        raise UserError(f"{recipe.model} has no layers; its vocabulary can be pruned (unit=vocab)")
    checks = {"head": check_heads, "neuron": check_neurons, "layer": check_layers}
    for unit in recipe.unit:
        if unit in checks:
            checks[unit](encoder)
    if "vocab" in recipe.unit:
        check_vocabulary(model)
    if "layer" in recipe.unit and not 0 < _num_removed(recipe, model) < encoder.num_hidden_layers:
        raise UserError(f"amount={recipe.amount:g} of {encoder.num_hidden_layers} layers removes "
                       f"{_num_removed(recipe, model)}; choose an amount that removes some and leaves some")  # fmt: skip


def _read(recipe: PruneRecipe, source: Source, console: Console) -> Setup:
    """The examples, read with the task, labels and lengths that the model has."""
    if source.task is None:
        raise UserError(f"{recipe.model} was not fine-tuned for a task, so it cannot learn from data; leave out data "
                       "(importance=magnitude), or fine-tune it first")  # fmt: skip
    base, tokenizer = source.model, source.tokenizer
    examples = read_examples(_as_finetune(recipe, source.task), tokenizer, console)
    num_positions = base.config.encoder.max_position_embeddings
    max_length = recipe.max_length or source.record.get("max_length") or num_positions
    if max_length > num_positions:
        raise UserError(f"max_length={max_length} is more than the model's {num_positions} positions; lower it")
    task = choose_long_text(examples.task, examples.train, tokenizer, max_length, reads_all=recipe.max_length is None)
    metric = resolve_best_metric(task, None) if examples.dev else ""
    return Setup(examples._replace(task=task), build_task_objective(task), max_length, metric)


def _as_finetune(recipe: PruneRecipe, task: TaskConfig) -> FinetuneRecipe:
    """The recipe that would fine-tune the model on these examples, for what both stages share."""
    assert recipe.data is not None
    return FinetuneRecipe(task=task, model=recipe.model, data=recipe.data, out=recipe.out, train=recipe.train, seed=recipe.seed)


# -- layers and vocabulary


def _num_removed(recipe: PruneRecipe, model: Model) -> int:
    return round(recipe.amount * model.config.encoder.num_hidden_layers)


def _remove_layers(recipe: PruneRecipe, source: Source, setup: Setup | None, console: Console) -> tuple[Model, list[int]]:
    """The model without some layers, and the numbers of those that it has."""
    num_layers = source.model.config.encoder.num_hidden_layers
    choice = recipe.drop_layers or ("loss" if setup else "alternate")
    compute_loss = partial(_mean_loss, _build_batches(recipe, setup, source.tokenizer), setup.objective) if setup else None
    removed = choose_layers(choice, source.model, _num_removed(recipe, source.model), compute_loss)
    console.info(f"removed layers {', '.join(str(layer + 1) for layer in removed)} of {num_layers} (drop_layers={choice})")
    return remove_layers(source.model, removed), [layer for layer in range(num_layers) if layer not in removed]


def _mean_loss(batches: ExampleBatches, objective: TaskObjective, model: Model) -> float:
    """Mean loss on training examples, without dropout."""
    num_batches = min(SCORED_BATCHES, batches.batches_per_epoch)
    return _evaluate_loss(model, objective, (batches(k) for k in range(num_batches)))


def _evaluate_loss(model: Model, objective: TaskObjective, batches: Iterator[Any]) -> float:
    config = PruneRecipe(model="", out="").train
    setup = prepare(model, msgspec.structs.replace(config, steps=1, batch_tokens=1, learning_rate=1.0))
    with isolate_torch_state(setup):
        return evaluate(setup, objective, batches)["loss"]


def _shrink_vocabulary(
    recipe: PruneRecipe, model: Model, tokenizer: Tokenizer, setup: Setup | None, console: Console
) -> tuple[Model, Tokenizer]:
    """The model and the tokenizer without the tokens that the texts, or the training examples, do not use."""
    if recipe.texts:
        blocks = documents.read_blocks(find_files(recipe.texts))
        counts = count_used_tokens(tokenizer, (line for block in blocks for line in block.text.splitlines()))
    else:
        assert setup is not None
        encoded = setup.objective.task.encode(setup.examples.train, tokenizer, setup.max_length)
        counts = np.bincount(np.concatenate(encoded.input_ids), minlength=len(tokenizer))
    shrunk = shrink_tokenizer(tokenizer, counts[: len(tokenizer)] > 0)
    console.info(f"vocabulary: {len(shrunk.tokenizer):,} of {len(tokenizer):,} tokens stay")
    return select_rows(model, shrunk), shrunk.tokenizer


# -- masks and training


def _build_pruner(recipe: PruneRecipe, model: Model, unit: MaskedUnit) -> Pruner:
    return Pruner(model, unit, recipe.resolved_importance, recipe.resolved_scope, recipe.block_size)


def _build_batches(recipe: PruneRecipe, setup: Setup, tokenizer: Tokenizer) -> ExampleBatches:
    encoded = setup.objective.task.encode(setup.examples.train, tokenizer, setup.max_length)
    return setup.objective.build_batches(
        encoded, recipe.train.batch_tokens or MAX_MICRO_BATCH_TOKENS, recipe.seed, is_prefix_lm=True
    )


def _train(
    recipe: PruneRecipe, run: Run, source: Source, setup: Setup, model: Model, tokenizer: Tokenizer, layers: list[int],
    pruners: list[Pruner],
) -> dict[str, Any]:  # fmt: skip
    """Train the masked model; returns the summary of the trainer."""
    as_finetune, objective = _as_finetune(recipe, setup.objective.task), setup.objective
    batches = _build_batches(recipe, setup, tokenizer)
    train = resolve_train(as_finetune, model.config.encoder, source.card, batches, has_dev=False)
    settings = list_settings(train, objective.task, setup.max_length)
    batches = replace(batches, batch_tokens=cast(int, train.batch_tokens), cache={})
    config = train.resolve_epochs(batches.batches_per_epoch)
    model.set_gradient_checkpointing(config.gradient_checkpointing)
    if not objective.uses_pooler:
        model.encoder.pooler.requires_grad_(False)
    teaches = recipe.loss.uses_teacher and isinstance(objective, Supervised)
    teacher = Teacher(_freeze(source, model, tokenizer, setup), layers) if teaches else None
    pruning = PruningObjective(objective, pruners, recipe.amount, recipe.sparsity_schedule, recipe.loss, teacher)
    prepared = prepare(model, config, _param_schedule(recipe, model, cast(float, train.learning_rate)))
    if teacher:
        teacher.model.to(prepared.device)
    run_settings = RunSettings("prune", to_dict(recipe) | {"train": to_dict(config)}, model.config.encoder.init_std)
    monitor = RunMonitor(run.folder, run_settings)
    dev = partial(_list_batches, recipe, setup, tokenizer) if setup.examples.dev else None
    trainer = Trainer(
        prepared, pruning, run, recipe.seed, validation=Validation({"dev": dev}) if dev else None, check_log=monitor.check
    )
    run.console.info(describe_settings(settings))
    summary = trainer.fit(build_train_batches(batches))
    for warning in monitor.finish():
        run.console.warn(warning)
    return summary | {"settings": settings}


def _freeze(source: Source, model: Model, tokenizer: Tokenizer, setup: Setup) -> Model:
    """The unpruned model as a teacher, with the vocabulary of the pruned one."""
    teacher = source.model
    if len(tokenizer) != len(source.tokenizer):
        teacher = deepcopy(source.model)
        rows = _rows_of(source.tokenizer, tokenizer)
        teacher = select_rows(teacher, shrink_tokenizer(source.tokenizer, rows))
    return teacher.eval().requires_grad_(False)


def _rows_of(tokenizer: Tokenizer, smaller: Tokenizer) -> np.ndarray:
    kept = {*smaller.id_to_token}
    return np.array([token in kept for token in tokenizer.id_to_token])


def _list_batches(recipe: PruneRecipe, setup: Setup, tokenizer: Tokenizer) -> list[Any]:
    encoded = setup.objective.task.encode(setup.examples.dev, tokenizer, setup.max_length)
    batches = setup.objective.build_batches(encoded, MAX_MICRO_BATCH_TOKENS, recipe.seed, is_prefix_lm=True)
    return [batches(k) for k in range(batches.batches_per_epoch)]


def _param_schedule(recipe: PruneRecipe, model: Model, learning_rate: float) -> ParamScheduleFn:
    """That of fine-tuning; the scores of movement pruning have a learning rate of their own."""
    train = recipe.train
    schedule = build_param_schedule(
        len(model.encoder.stack.layers), train.layer_lr_decay, train.gradual_unfreezing, train.head_lr_multiplier
    )
    scores = ParamSchedule(recipe.scores_learning_rate / learning_rate, 0.0)
    return lambda name: scores if name.endswith(SCORES_SUFFIX) else schedule(name)


def _take_out(recipe: PruneRecipe, model: Model, pruners: list[Pruner]) -> Model:
    """The model without masks: masked heads and neurons are removed, masked weights are 0."""
    model.eval()
    for pruner in pruners:
        pruner.update(recipe.amount, is_final=True)
    units = {pruner.unit: pruner.kept_units() for pruner in pruners if pruner.unit in ("head", "neuron")}
    for pruner in pruners:
        pruner.remove()
    if not units:
        return model
    none = [None] * len(model.encoder.stack.layers)
    return remove_units(
        model, [KeptUnits(*pair) for pair in zip(units.get("head", none), units.get("neuron", none), strict=True)]
    )


# -- the result


def _publish(
    recipe: PruneRecipe, run: Run, source: Source, setup: Setup | None, model: Model, tokenizer: Tokenizer,
    summary: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    task = setup.objective.finalize_task(model) if setup else source.task
    record = source.record | {"stage": "prune"} | ({"task": to_dict(task)} if task else {})
    result: dict[str, Any] = {name: summary[name] for name in ("step", "loss", "tokens", "seconds") if name in summary}
    result |= {"unit": list(recipe.unit), "before": describe_model(source.model), "after": describe_model(model)}
    card: dict[str, Any] = {key: source.card[key] for key in ("finetuning",) if key in source.card}
    if setup is not None and setup.examples.dev:
        evaluation, scores = _evaluate(recipe, source, setup, model, tokenizer)
        result |= scores
        task = evaluation.task
        record |= {"task": to_dict(task), "max_length": setup.max_length}
        card |= evaluation.card
    result |= {"settings": summary["settings"]} if "settings" in summary else {}
    publish = (checkpoint.model_writer(model, tokenizer), {**card, "result": result}, record, _record_recipe(recipe))
    if setup is None:  # nothing was trained, so the folder does not exist yet
        with atomic_folder(run.folder) as staging:
            replace(run, folder=staging).publish(*publish)
    else:
        run.publish(*publish)
    run.console.print_table(str(run.folder), list_rows(result))
    return {"out": str(run.folder), "created": True, **result}


def _evaluate(
    recipe: PruneRecipe, source: Source, setup: Setup, model: Model, tokenizer: Tokenizer
) -> tuple[Evaluation, dict[str, Any]]:
    """The evaluation of the pruned model on the dev file; scores and speed of both models."""
    precision: Precision = "fp32" if recipe.train.precision == "fp32" else "auto"
    task = setup.objective.finalize_task(model)
    source_task = source.task
    assert source_task is not None
    source.model.to(next(model.parameters()).device)
    before = Predictor(TorchEngine(source.model, precision), source.tokenizer, {}, source_task, setup.max_length)
    after = Predictor(TorchEngine(model, precision), tokenizer, {}, task, setup.max_length)
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


def _record_recipe(recipe: PruneRecipe) -> PruneRecipe:
    """The recipe to record: rows of a Python program by name."""
    if recipe.data is None:
        return recipe
    named = name_rows(cast(Any, recipe))
    return cast(PruneRecipe, named)
