"""A fine-tuning run: build the task model from a pre-trained one, train it, evaluate it on the dev file, publish it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from .. import runs
from ..artifacts import resolve_path
from ..config import Config, to_dict
from ..console import Console
from ..device import resolve_device
from ..diagnostics.monitor import RunMonitor
from ..diagnostics.run_log import RunSettings
from ..errors import UserError
from ..evaluation.confusion import describe_constant_predictions
from ..evaluation.evaluate import Evaluation, evaluate_model
from ..evaluation.metric_names import resolve_best_metric
from ..inference.engines.base import Precision
from ..inference.engines.torch import TorchEngine
from ..inference.predictor import Predictor
from ..model import checkpoint, lora
from ..model.batch import Inputs
from ..model.heads.embedding import EMBEDDING_HEAD, init_identity, subtract_mean
from ..model.model import Model, ModelConfig, build_model
from ..objectives import regularizers
from ..objectives.contrastive import Contrastive
from ..objectives.regularizers import AdversarialObjective, AuxiliaryLM, AuxiliaryLMBatches, RDrop
from ..objectives.seq2seq import Seq2SeqObjective
from ..objectives.supervised import ExampleBatches, Supervised
from ..objectives.task_objective import TaskObjective, build_task_objective
from ..runs import Run
from ..tasks import Task
from ..tasks.base import EncodedExamples
from ..tokenization.tokenizer import Tokenizer
from ..train.config import TrainConfig
from ..train.objective import Batch, Objective
from ..train.param_groups import ParamScheduleFn
from ..train.setup import isolate_torch_state, prepare
from ..train.status import RunStatus
from ..train.trainer import BatchFn, Trainer, Validation
from ..writing import resolve_output
from . import seq2seq
from .defaults import (
    MAX_MICRO_BATCH_TOKENS,
    choose_long_text,
    default_dropout,
    describe_settings,
    list_settings,
    resolve_max_length,
    resolve_train,
)
from .examples import Examples, read_examples
from .recipe import FinetuneRecipe, check_recipe, finetune_identity, name_rows
from .seeds import run_seeds
from .setup import add_special_tokens, build_new_model, build_param_schedule, freeze

MEAN_EXAMPLES = 1000  # whose mean embedding task.center subtracts


class FinalScores(NamedTuple):
    """Evaluations of the final model; None without the file."""

    dev: Evaluation | None
    test: Evaluation | None

    @property
    def card(self) -> dict[str, Any]:
        """The card of the dev file, with the metrics of the test file as `test_metrics`."""
        return (self.dev.card if self.dev else {}) | ({"test_metrics": self.test.card["metrics"]} if self.test else {})


class BaseModel(NamedTuple):
    """The model that is fine-tuned, its tokenizer and its card (empty for a new model)."""

    model: Model
    tokenizer: Tokenizer
    card: dict[str, Any]


@dataclass(frozen=True)
class TaskStage:
    """How another stage that trains on a task, such as `distill`, differs from `finetune`.

    setup: called with the run before training, when its model has been built; returns the objective that is minimized.
    expand: called with the training examples; returns those to train on.
    build_batches: called with the training batches and the settings of the run; returns what gives micro-batch k.
    wrap_schedule: the learning rates by parameter, made from those of fine-tuning.
    finish: called with the model after training, before it is evaluated.
    """

    name: str = "finetune"
    recipe: Config | None = None  # for config.json; None: that of `finetune`
    setup: "Callable[[FinetuneRun], Objective] | None" = None
    expand: Callable[[list[Any]], list[Any]] = lambda examples: examples
    build_batches: Callable[[ExampleBatches, TrainConfig], BatchFn] = lambda batches, config: batches
    wrap_schedule: Callable[[ParamScheduleFn], ParamScheduleFn] = lambda schedule: schedule
    finish: Callable[[Model], None] = lambda model: None
    record: dict[str, Any] = field(default_factory=dict)  # for config.json, besides the task


@dataclass(frozen=True)
class FinetuneRun:
    """A model with its task and examples, and the metric that selects the best checkpoint."""

    examples: Examples
    objective: TaskObjective
    predictor: Predictor
    metric: str

    @property
    def model(self) -> Model:
        return self.predictor.model

    def score(self) -> float:
        """The metric on the dev examples, with the current weights (for early stopping and the best checkpoint).

        Negated where lower is better, so that the highest score is always the best.
        """
        was_training = self.model.training
        self.predictor.task = task = self.objective.finalize_task(self.model)
        self.model.eval()
        outputs = self.predictor.compute_outputs(self.encoded_dev)
        predictions = task.decode(outputs, self.encoded_dev, self.examples.dev)
        self.model.train(was_training)
        return task.compute_selection_score(self.metric, predictions, self.examples.dev)

    @cached_property
    def encoded_dev(self) -> EncodedExamples:
        """The dev examples, encoded once for all evaluations."""
        return self.predictor.require_task().encode(self.examples.dev, self.predictor.tokenizer, self.predictor.max_length)

    def _mean_embedding(self, task: Task) -> Tensor:
        """Of the texts of the first training examples."""
        encoded = task.encode(self.examples.train[:MEAN_EXAMPLES], self.predictor.tokenizer, self.predictor.max_length)
        return torch.from_numpy(np.mean(self.predictor.compute_outputs(encoded), 0, np.float64))

    def finish(self) -> FinalScores:
        """Merge LoRA, set eval mode, finalize the task (tuned on the dev file), and evaluate on the dev and test files.

        With `task.center`, the mean embedding is subtracted first.
        """
        lora.merge_and_unload(self.model)
        self.model.eval()
        self.predictor.task = task = self.objective.finalize_task(self.model)
        if getattr(task, "center", False):
            subtract_mean(self.model, self._mean_embedding(task))
        dev = evaluate_model(self.predictor, self.examples.dev, tune=True) if self.examples.dev else None
        if dev:
            self.predictor.task = dev.task
        return FinalScores(dev, evaluate_model(self.predictor, self.examples.test) if self.examples.test else None)


def finetune(recipe: FinetuneRecipe, quiet: bool = False) -> dict[str, Any]:
    """Train, resume an interrupted run, or return the result of a finished one."""
    check_recipe(recipe)
    return _run_recipe(recipe, quiet)


def _run_recipe(recipe: FinetuneRecipe, quiet: bool) -> dict[str, Any]:
    console, out, identity = Console(quiet), resolve_output(recipe.out), finetune_identity(recipe)
    with runs.open_run(out, identity, console) as run:
        if run.finished_result:
            return run.finished_result
        if recipe.seeds:
            return run_seeds(name_rows(recipe), run, recipe.seeds, partial(_run_seed, recipe, quiet))
        return train_on_task(recipe, run, _load_base(recipe, run.console), TaskStage())


def _run_seed(recipe: FinetuneRecipe, quiet: bool, seed: int, out: Path) -> dict[str, Any]:
    return _run_recipe(msgspec.structs.replace(recipe, seed=seed, seeds=(), out=str(out)), quiet)


def train_on_task(recipe: FinetuneRecipe, run: Run, base: BaseModel, stage: TaskStage) -> dict[str, Any]:
    """Train `base` on the task's examples, evaluate it and publish it."""
    finetuning = _setup(recipe, base, run.console)
    objective = stage.setup(finetuning) if stage.setup else _wrap_objective(recipe, finetuning.objective)
    task, train_examples, dev_examples, _ = finetuning.examples
    train_examples = stage.expand(train_examples)
    build_batches = partial(_build_batches, recipe, finetuning)
    train_batches = build_batches(train_examples, MAX_MICRO_BATCH_TOKENS)
    train = resolve_train(recipe, base.model.config.encoder, base.card, train_batches, bool(dev_examples))
    settings = list_settings(train, task, finetuning.predictor.max_length)
    batch_tokens = cast(int, train.batch_tokens)
    train_batches = replace(train_batches, batch_tokens=batch_tokens, cache={})
    config = train.resolve_epochs(train_batches.batches_per_epoch)
    setup = prepare(finetuning.model, config, stage.wrap_schedule(_build_param_schedule(recipe, finetuning.model)))
    dev_batches = partial(_list_batches, build_batches(dev_examples, batch_tokens)) if dev_examples else None
    dev = Validation({"dev": dev_batches}, finetuning.score) if dev_batches else None
    run_settings = RunSettings(
        "finetune", to_dict(recipe) | {"train": to_dict(config)}, finetuning.model.config.encoder.init_std
    )
    monitor = RunMonitor(run.folder, run_settings)
    status = RunStatus(run.folder, {"stage": stage.name, "recipe": to_dict(recipe)}, runs.is_main_process())
    trainer = Trainer(setup, objective, run, recipe.seed, validation=dev, check_log=monitor.check, status=status)
    run.console.info(describe_settings(settings))
    summary = trainer.fit(stage.build_batches(train_batches, config))
    stage.finish(finetuning.model)
    update = lora.extract_update(finetuning.model) if recipe.lora and not recipe.lora.merge else None
    with isolate_torch_state(setup):
        scores = finetuning.finish()
    result = _build_result(summary, finetuning, scores) | {"settings": settings}
    if trainer.is_main_process:
        _warn_of_problems(monitor, scores.dev, run.console)
        record = {
            "stage": stage.name,
            "task": to_dict(finetuning.predictor.task),
            "max_length": finetuning.predictor.max_length,
        }
        card = {"result": result, **scores.card} | {key: base.card[key] for key in ("finetuning",) if key in base.card}
        record |= runs.read_family(resolve_path(recipe.model, "model")) if isinstance(recipe.model, str) else {}
        parts = finetuning.model, finetuning.predictor.tokenizer
        write_model = (
            checkpoint.adapter_writer(*parts, update, resolve_path(str(recipe.model), "model"))
            if update
            else checkpoint.model_writer(*parts)
        )
        run.publish(write_model, card, record | stage.record, stage.recipe or name_rows(recipe))
    rows = [(name, f"{value:.4f}") for name, value in result["dev"].items()]
    rows += [(f"test {name}", f"{value:.4f}") for name, value in result.get("test", {}).items()]
    run.console.print_table(str(run.folder), rows or [("step", str(result["step"]))])
    return {"out": str(run.folder), "created": True, **result}


def _warn_of_problems(monitor: RunMonitor, dev: Evaluation | None, console: Console) -> None:
    """Warnings of a run that diverged, and of a model that predicts the same for every dev example."""
    for warning in monitor.finish():
        console.warn(warning)
    if dev and (constant := describe_constant_predictions(dev)):
        console.warn(f"{constant}: the model has learned nothing from the texts; train longer (train.epochs), or with another "
                     "train.learning_rate: lower if the loss rose or jumped, higher if it hardly fell")  # fmt: skip


def _build_result(summary: dict[str, Any], run: FinetuneRun, scores: FinalScores) -> dict[str, Any]:
    """The training summary, the scores on the dev and test files, and the name of the metric that seeds are compared by.

    `lower_is_better` lists the metrics that are errors, if there are any.
    """
    names = ("step", "best_step", "loss", "tokens", "seconds", "skipped_steps", "rollbacks")
    result = {name: summary[name] for name in names} | {"examples": len(run.examples.train), "dev": {}}
    if scores.dev:
        result |= {"dev": scores.dev.scores, "metric": run.metric}
        lower_is_better = [name for name, metric in scores.dev.metrics.items() if metric.lower_is_better]
        result |= {"lower_is_better": lower_is_better} if lower_is_better else {}
    result |= {"test": scores.test.scores} if scores.test else {}
    evaluations = {"dev": scores.dev, "test": scores.test}
    unknown = {name: labels for name, evaluation in evaluations.items() if evaluation and (labels := evaluation.unknown_labels)}
    return result | ({"unknown_labels": unknown} if unknown else {})


def _setup(recipe: FinetuneRecipe, loaded: BaseModel, console: Console) -> FinetuneRun:
    """Read the examples and build the task model; all errors of the recipe are raised here."""
    base, tokenizer, card = loaded
    examples, max_length = read_examples(recipe, tokenizer, console), resolve_max_length(recipe, base.config)
    task = choose_long_text(examples.task, examples.train, tokenizer, max_length, reads_all=recipe.max_length is None)
    examples = examples._replace(task=task)
    metric = resolve_best_metric(examples.task, recipe.metric_for_best_model)
    tokenizer, weights = add_special_tokens(examples.task, base, tokenizer)
    objective = build_task_objective(examples.task, recipe.features)
    config = _build_config(recipe, base, weights, objective, max_length, default_dropout(recipe, card))
    if isinstance(objective, Seq2SeqObjective):
        config = seq2seq.build_seq2seq_config(recipe, objective.task, base, config, max_length)
    model = _init_model(recipe, config, tokenizer, weights, base, objective, console)
    on_gpu = resolve_device(recipe.train.device, "train.device").type == "cuda"
    precision: Precision = "auto" if on_gpu and recipe.train.precision != "fp32" else "fp32"
    return FinetuneRun(
        examples,
        objective,
        Predictor(TorchEngine(model, precision, fixed_threads=True), tokenizer, {}, examples.task, max_length),
        metric,
    )


def _load_base(recipe: FinetuneRecipe, console: Console) -> BaseModel:
    if not isinstance(recipe.model, str):
        return BaseModel(*build_new_model(recipe.model, recipe.tokenizer, recipe.vectors, recipe.seed, console), {})
    return BaseModel(*checkpoint.load(resolve_path(recipe.model, "model")))


def _build_config(
    recipe: FinetuneRecipe,
    base: Model,
    weights: dict[str, Tensor],
    objective: TaskObjective,
    max_length: int,
    dropout: float | None,
) -> ModelConfig:
    encoder = base.config.encoder
    if dropout is not None:
        encoder = msgspec.structs.replace(encoder, hidden_dropout_prob=dropout)
    if recipe.pooling is not None:
        encoder = msgspec.structs.replace(encoder, pooling=recipe.pooling)
    if recipe.pooling == "concat":  # the pre-trained pooler reads one vector: the head reads all three instead
        encoder = msgspec.structs.replace(encoder, pooler_act="none")
    if max_length > encoder.max_position_embeddings:
        raise UserError(
            f"max_length={max_length} is more than the model's {encoder.max_position_embeddings} positions; lower it"
        )
    if recipe.aux_lm_weight and not encoder.is_causal:
        raise UserError(f"aux_lm_weight={recipe.aux_lm_weight:g} adds a next-token loss, which needs a causal model; leave it "
                       "out, or use a causal model")  # fmt: skip
    vocabulary = len(weights["word_embeddings.weight"]) if "word_embeddings.weight" in weights else base.config.vocab_size
    heads = objective.heads() | (
        {regularizers.LM_HEAD: regularizers.auxiliary_lm_head(base.config.heads)} if recipe.aux_lm_weight else {}
    )
    if isinstance(objective, Contrastive) and EMBEDDING_HEAD in base.config.heads:  # an imported model is trained further
        if heads:
            raise UserError(f"task.projection={recipe.task.projection}: this model has dense layers already; leave it out")  # type: ignore[union-attr]
        heads |= {EMBEDDING_HEAD: base.config.heads[EMBEDDING_HEAD]}
    return ModelConfig(encoder=encoder, vocab_size=vocabulary, heads=heads)


def _init_model(
    recipe: FinetuneRecipe,
    config: ModelConfig,
    tokenizer: Tokenizer,
    weights: dict[str, Tensor],
    base: Model,
    objective: TaskObjective,
    console: Console,
) -> Model:
    """The model with the base's weights (unless `random_init`), LoRA adapters injected and layers frozen."""
    model = build_model(config, recipe.seed, tokenizer)
    model.set_gradient_checkpointing(recipe.train.gradient_checkpointing)
    if not recipe.random_init:
        has_pooler = config.encoder.pooler_act != "none"
        model.encoder.load_state_dict({k: v for k, v in weights.items() if has_pooler or not k.startswith("pooler.")})
    if isinstance(objective, Seq2SeqObjective):
        seq2seq.init_from_base(recipe, model, base, console)
    if recipe.aux_lm_weight and not recipe.random_init:
        regularizers.init_auxiliary_lm_head(model, base)
    if EMBEDDING_HEAD in base.heads and EMBEDDING_HEAD in config.heads and not recipe.random_init:
        model.heads[EMBEDDING_HEAD].load_state_dict(base.heads[EMBEDDING_HEAD].state_dict())
    elif EMBEDDING_HEAD in config.heads:
        init_identity(model.heads[EMBEDDING_HEAD])
    if recipe.lora:
        lora.inject_adapters(model, recipe.lora, recipe.seed)
    freeze(model, recipe.freeze)
    if not objective.uses_pooler:
        model.encoder.pooler.requires_grad_(False)
    return model


def _build_param_schedule(recipe: FinetuneRecipe, model: Model) -> ParamScheduleFn:
    train = recipe.train
    return build_param_schedule(
        len(model.encoder.stack.layers), train.layer_lr_decay, train.gradual_unfreezing, train.head_lr_multiplier
    )


def _wrap_objective(recipe: FinetuneRecipe, objective: TaskObjective) -> Objective:
    """The task objective with R-Drop, the auxiliary LM loss or adversarial training added."""
    wrapped: Objective = RDrop(objective, recipe.rdrop) if recipe.rdrop and isinstance(objective, Supervised) else objective
    wrapped = (
        AuxiliaryLM(objective, recipe.aux_lm_weight) if recipe.aux_lm_weight and isinstance(objective, Supervised) else wrapped
    )
    return AdversarialObjective(wrapped, recipe.adversary) if recipe.adversary else wrapped


def _build_batches(recipe: FinetuneRecipe, finetuning: FinetuneRun, examples: list[Any], batch_tokens: int) -> ExampleBatches:
    objective, task = finetuning.objective, finetuning.examples.task
    encoded = task.encode(examples, finetuning.predictor.tokenizer, finetuning.predictor.max_length)
    if recipe.aux_lm_weight:
        return AuxiliaryLMBatches(task, encoded, batch_tokens, recipe.seed)
    return objective.build_batches(encoded, batch_tokens, recipe.seed, is_prefix_lm=finetuning.model.decoder is None)


def _list_batches(batches: ExampleBatches) -> list[Batch[Inputs]]:
    return [batches(k) for k in range(batches.batches_per_epoch)]
