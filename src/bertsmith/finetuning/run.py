"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from .. import runs
from ..artifacts import resolve_path
from ..config import to_dict
from ..console import Console
from ..errors import UserError
from ..evaluation.evaluate import Evaluation, evaluate_model
from ..evaluation.measures import resolve_best_metric
from ..inference.predictor import Predictor
from ..model import checkpoint, lora
from ..model.batch import Batch
from ..model.model import Model, ModelConfig, build_model
from ..objectives import regularizers
from ..objectives.regularizers import AdversarialObjective, AuxiliaryLM, AuxiliaryLMBatches, RDrop
from ..objectives.seq2seq import Seq2SeqBatches
from ..objectives.supervised import ExampleBatches, Supervised
from ..objectives.task_objective import TaskObjective, build_task_objective
from ..tasks import Seq2Seq, TaskConfig, TextSimilarity
from ..tokenization.tokenizer import Tokenizer
from ..train.loss import Objective
from ..train.param_groups import ParamScheduleFn
from ..train.trainer import Trainer
from . import seq2seq
from .examples import Examples, read_examples
from .recipe import FinetuneRecipe, check_recipe, finetune_identity
from .seeds import run_seeds
from .setup import add_special_tokens, build_new_model, build_param_schedule, freeze


@dataclass(frozen=True)
class FinetuneRun:
    """What is taught: a model and its task, the examples, and the score by which its weights are compared."""

    examples: Examples
    objective: TaskObjective
    predictor: Predictor
    metric: str

    @property
    def model(self) -> Model:
        return self.predictor.model

    def score(self) -> float:
        """The one number by which weights are compared while they learn."""
        training = self.model.training
        self.predictor.task = task = self.objective.finalize_task(self.model)
        self.model.eval()
        scores = task.compute_metrics(self.predictor.answers(self.examples.dev), self.examples.dev)
        self.model.train(training)
        return scores[self.metric]

    def finish(self) -> Evaluation | None:
        """Ready to answer, and what it answers to the dev file, if there is one."""
        lora.merge_and_unload(self.model)
        self.model.eval()
        self.predictor.task = self.objective.finalize_task(self.model)
        return evaluate_model(self.predictor, self.examples.dev, tune=True) if self.examples.dev else None


def finetune(recipe: FinetuneRecipe, quiet: bool = False) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    check_recipe(recipe)
    return _run_recipe(recipe, quiet)


def _run_recipe(recipe: FinetuneRecipe, quiet: bool) -> dict[str, Any]:
    screen, out, name = Console(quiet), resolve_path(recipe.out, "out"), finetune_identity(recipe)
    with runs.open_run(out, name, screen) as told:
        if told or not recipe.seeds:
            return told or _train(recipe, out, name, screen)
        return run_seeds(recipe, out, recipe.seeds, partial(_run_seed, recipe, quiet), name, screen)


def _run_seed(recipe: FinetuneRecipe, quiet: bool, seed: int, out: Path) -> dict[str, Any]:
    return _run_recipe(msgspec.structs.replace(recipe, seed=seed, seeds=(), out=str(out)), quiet)


def _train(recipe: FinetuneRecipe, out: Path, identity: str, console: Console) -> dict[str, Any]:
    pupil = _setup(recipe, console)
    task, learn, dev = pupil.examples
    read = partial(_build_batches, recipe, task, pupil.predictor)
    reading = read(learn)
    trainer = Trainer(
        pupil.model, _wrap_objective(recipe, pupil.objective), recipe.train.with_default_duration().resolve_epochs(reading.batches_per_epoch), out, seed=recipe.seed,
        quiet=console.quiet, fingerprint=identity, param_schedule=_build_param_schedule(recipe, pupil.model),
        eval_sets={"dev": partial(_list_batches, read(dev))} if dev else None, score_fn=pupil.score if dev else None,
    )  # fmt: skip
    summary = trainer.fit(reading)
    found = pupil.finish()
    result = _build_result(summary, pupil, found)
    if trainer.is_main_process:
        record = {"stage": "finetune", "task": to_dict(found.task if found else pupil.predictor.task), "length": recipe.length}
        card = {"identity": identity, "result": result, **(found.card if found else {})}
        record |= runs.read_family(resolve_path(recipe.model, "model")) if isinstance(recipe.model, str) else {}
        runs.publish(out, pupil.model, pupil.predictor.tokenizer, card, record, recipe)
    console.print_table(
        str(out), [(name, f"{value:.4f}") for name, value in result["dev"].items()] or [("step", str(result["step"]))]
    )
    return {"out": str(out), "made": True, **result}


def _build_result(summary: dict[str, Any], run: FinetuneRun, evaluation: Evaluation | None) -> dict[str, Any]:
    """How the training went, the scores on the dev file, and the one of them that the run is compared with others by."""
    told = ("step", "best_step", "loss", "tokens", "seconds", "skipped", "rollbacks")
    result = {name: summary[name] for name in told} | {"examples": len(run.examples.train), "dev": {}}
    return result | ({"dev": evaluation.scores, "metric": run.metric} if evaluation else {})


def _setup(recipe: FinetuneRecipe, console: Console) -> FinetuneRun:
    """Everything that is wrong with model, examples and settings is said here, before the training."""
    base, tokenizer = _load_base(recipe, console)
    examples = read_examples(recipe, tokenizer, console)
    metric = resolve_best_metric(examples.task, recipe.best)
    tokenizer, weights = add_special_tokens(examples.task, base, tokenizer)
    objective = build_task_objective(examples.task, recipe.features)
    config = _build_config(recipe, base, weights, objective)
    if isinstance(examples.task, Seq2Seq):
        config = seq2seq.build_seq2seq_config(recipe, examples.task, base, config)
    model = _init_model(recipe, config, weights, base, console)
    model.attach_tokenizer(tokenizer)
    return FinetuneRun(examples, objective, Predictor(model, tokenizer, {}, examples.task, recipe.length), metric)


def _load_base(recipe: FinetuneRecipe, console: Console) -> tuple[Model, Tokenizer]:
    if not isinstance(recipe.model, str):
        return build_new_model(recipe.model, recipe.tokenizer, recipe.vectors, recipe.seed, console)
    return checkpoint.load(resolve_path(recipe.model, "model"))[:2]


def _build_config(recipe: FinetuneRecipe, base: Model, weights: dict[str, Tensor], objective: TaskObjective) -> ModelConfig:
    encoder = base.config.encoder
    if recipe.dropout is not None:
        encoder = msgspec.structs.replace(encoder, dropout=recipe.dropout)
    if recipe.length > encoder.positions:
        raise UserError(f"length {recipe.length} is more than the model's {encoder.positions} positions; lower it")
    if recipe.lm and not encoder.is_causal:
        raise UserError(f"lm={recipe.lm:g} asks each token for the next, which this model sees already; leave it out, or begin "
                       "from a causal model")  # fmt: skip
    vocabulary = len(weights["tokens.weight"]) if "tokens.weight" in weights else base.config.vocabulary
    heads = objective.heads() | ({regularizers.LM_HEAD: regularizers.auxiliary_lm_head(base.config.heads)} if recipe.lm else {})
    return ModelConfig(encoder=encoder, vocabulary=vocabulary, heads=heads)


def _init_model(
    recipe: FinetuneRecipe, config: ModelConfig, weights: dict[str, Tensor], base: Model, console: Console
) -> Model:
    """The model to train: what is frozen is, what stands beside it does."""
    model = build_model(config, recipe.seed)
    model.set_gradient_checkpointing(recipe.train.recompute)
    if not recipe.scratch:
        model.encoder.load_state_dict(weights)
    if isinstance(recipe.task, Seq2Seq):
        seq2seq.init_from_base(recipe, model, base, console)
    if recipe.lm and not recipe.scratch:
        regularizers.init_auxiliary_lm_head(model, base)
    if recipe.lora:
        lora.inject_adapters(model, recipe.lora, recipe.seed)
    freeze(model, recipe.freeze)
    if isinstance(recipe.task, TextSimilarity):
        model.encoder.pooler.requires_grad_(False)  # vectors are not pooled by it
    return model


def _build_param_schedule(recipe: FinetuneRecipe, model: Model) -> ParamScheduleFn:
    train = recipe.train
    return build_param_schedule(len(model.encoder.stack.blocks), train.layer_decay, train.thaw, train.head_rate)


def _wrap_objective(recipe: FinetuneRecipe, objective: TaskObjective) -> Objective:
    """The objective as it is trained on."""
    lesson: Objective = RDrop(objective, recipe.rdrop) if recipe.rdrop and isinstance(objective, Supervised) else objective
    lesson = AuxiliaryLM(objective, recipe.lm) if recipe.lm and isinstance(objective, Supervised) else lesson
    return AdversarialObjective(lesson, recipe.adversary) if recipe.adversary else lesson


def _build_batches(recipe: FinetuneRecipe, task: TaskConfig, predictor: Predictor, examples: list[Any]) -> ExampleBatches:
    encoded = task.encode(examples, predictor.tokenizer, recipe.length)
    if isinstance(task, Seq2Seq):
        return Seq2SeqBatches(
            task, encoded, recipe.train.batch_tokens, recipe.seed, is_prefix_lm=predictor.model.decoder is None
        )
    kind = AuxiliaryLMBatches if recipe.lm else ExampleBatches
    return kind(task, encoded, recipe.train.batch_tokens, recipe.seed)


def _list_batches(batches: ExampleBatches) -> list[Batch]:
    return [batches(k) for k in range(batches.batches_per_epoch)]
