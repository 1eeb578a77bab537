"""A distillation run: the task stage trains like `finetune`, the general stage like `pretrain`, with the teacher's losses."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import runs
from ...artifacts import resolve_path
from ...config import Config, from_dict, to_dict
from ...console import Console
from ...corpus.store import Corpus
from ...errors import UserError
from ...finetuning.recipe import FinetuneRecipe
from ...finetuning.run import BaseModel, FinetuneRun, TaskStage, train_on_task
from ...model.batch import Inputs
from ...model.heads import LM_HEAD
from ...model.model import Model, ModelConfig, build_model
from ...objectives.contrastive import Contrastive
from ...objectives.supervised import ExampleBatches, Supervised
from ...objectives.task_objective import build_task_objective
from ...pretraining.run import train_on_corpus
from ...pretraining.setup import PretrainRecipe, PretrainSetup, check_model, split_corpus
from ...runs import Run
from ...train.config import TrainConfig
from ...train.objective import Batch, Objective
from ...train.trainer import BatchFn
from ...writing import resolve_output
from .augmentation import augment_examples, check_sources, load_sources
from .objective import CorpusDistillation, StateLosses, TaskDistillation, add_projections, remove_projections
from .predictions import cache_predictions, is_worthwhile
from .recipe import DistillRecipe, Shape, check_recipe, distill_identity
from .replacing import ModuleReplacing, Replacing, check_modules, freeze_shared
from .static.recipe import Static
from .static.run import distill_static
from .student import build_student, check_vocabulary, copy_heads
from .teacher import Teacher

CORPUS_DEFAULTS = {"batch_tokens": 8192, "learning_rate": 5e-4, "early_stopping_patience": 0}


def distill(recipe: DistillRecipe, quiet: bool = False) -> dict[str, Any]:
    """Train the student, resume an interrupted run, or return the result of a finished one."""
    check_recipe(recipe)
    with runs.open_run(resolve_output(recipe.out), distill_identity(recipe), Console(quiet)) as run:
        if run.finished_result:
            return run.finished_result
        teacher = Teacher.load(recipe.teacher)
        if isinstance(recipe.student, Static):
            return distill_static(recipe, recipe.student, teacher, run)
        if recipe.data:
            teacher.require_task()
        elif recipe.loss.soft_labels:
            teacher.check_language_model()
        if recipe.augmentation is not None:
            check_sources(recipe.augmentation)
        student = build_student(recipe, teacher)
        check_vocabulary(teacher, student.base, recipe)
        StateLosses.build(recipe.loss, student.base.model, teacher.model)  # its errors come before the data is read
        run.console.info(student.describe())
        if recipe.replacing is not None:
            return _replace_modules(recipe, recipe.replacing, teacher, student.base, run)
        train = _distill_on_corpus if recipe.corpus else _distill_on_task
        return train(recipe, teacher, student.base, run)


def _record(recipe: DistillRecipe, teacher: Teacher) -> dict[str, Any]:
    """For config.json: the family of weights, which the student shares if it is like its teacher."""
    family = {"family": teacher.config["family"]} if "family" in teacher.config else {}
    return {"stage": "distill"} | (family if isinstance(recipe.student, Shape) else {})


# -- task stage


def _distill_on_task(recipe: DistillRecipe, teacher: Teacher, student: BaseModel, run: Run) -> dict[str, Any]:
    def setup(finetuning: FinetuneRun) -> Objective:
        objective = finetuning.objective
        assert isinstance(objective, Supervised | Contrastive)
        _check_labels(teacher, finetuning)
        copy_heads(finetuning.model, [student.model, teacher.model], run.console)
        states = StateLosses.build(recipe.loss, finetuning.model, teacher.model)
        add_projections(finetuning.model, teacher.model, states, recipe.seed)
        return TaskDistillation(teacher.model, states, objective)

    names = StateLosses.names_of(recipe.loss)
    stage = TaskStage(
        "distill", recipe, setup, partial(_expand, recipe, teacher, run), partial(_build_batches, recipe, teacher, run, names),
        finish=remove_projections, record=_record(recipe, teacher),
    )  # fmt: skip
    return train_on_task(_finetune_recipe(recipe, teacher), run, student, stage)


def _replace_modules(
    recipe: DistillRecipe, replacing: Replacing, teacher: Teacher, student: BaseModel, run: Run
) -> dict[str, Any]:
    """The task stage with module replacing in place of losses of the teacher."""
    objectives = list[ModuleReplacing]()

    def setup(finetuning: FinetuneRun) -> Objective:
        objective = finetuning.objective
        assert isinstance(objective, Supervised | Contrastive)
        _check_labels(teacher, finetuning)
        copy_heads(finetuning.model, [student.model, teacher.model], run.console)
        objectives.append(ModuleReplacing.build(teacher.model, finetuning.model, objective))
        return objectives[0]

    def build_batches(batches: ExampleBatches, config: TrainConfig) -> BatchFn:
        add_targets = partial(objectives[0].add_targets, replacing=replacing, seed=recipe.seed)
        return lambda k, fraction_done: add_targets(batches(k), k=k, fraction_done=fraction_done)

    check_modules(teacher.model)
    stage = TaskStage(
        "distill", recipe, setup, partial(_expand, recipe, teacher, run), build_batches,
        wrap_schedule=partial(freeze_shared, replacing=replacing), record=_record(recipe, teacher),
    )  # fmt: skip
    return train_on_task(_finetune_recipe(recipe, teacher), run, student, stage)


def _expand(recipe: DistillRecipe, teacher: Teacher, run: Run, examples: list[Any]) -> list[Any]:
    """The training examples, with augmented copies if the recipe has them."""
    if (config := recipe.augmentation) is None:
        return examples
    sources = partial(load_sources, config, recipe.train.device)
    return augment_examples(config, teacher.require_task(), examples, sources, run, recipe.seed)


def _build_batches(
    recipe: DistillRecipe, teacher: Teacher, run: Run, names: list[str], batches: ExampleBatches, config: TrainConfig
) -> BatchFn:
    """Batches with counts of the teacher's targets; with its logits, if soft labels are all that it teaches."""
    objective = build_task_objective(batches.task)
    if not (recipe.loss.soft_labels and not names and isinstance(objective, Supervised) and is_worthwhile(batches, config)):
        return lambda k, fraction_done: TaskDistillation.add_targets(batches(k), names)
    cached = cache_predictions(teacher.model, objective, batches, run, recipe.train.device)
    return lambda k, fraction_done: cached.add_targets(
        TaskDistillation.add_targets(batches(k), names), batches.group_indices(k)
    )


def _finetune_recipe(recipe: DistillRecipe, teacher: Teacher) -> FinetuneRecipe:
    """The task stage as a recipe of `finetune`: the teacher's task and lengths."""
    values = {
        "task": to_dict(teacher.task), "model": str(resolve_path(recipe.teacher, "teacher")), "data": to_dict(recipe.data),
        "out": recipe.out, "max_length": recipe.max_length or teacher.max_length, "train": to_dict(recipe.train),
        "metric_for_best_model": recipe.metric_for_best_model, "seed": recipe.seed,
    }  # fmt: skip
    return from_dict(FinetuneRecipe, values, "distill")


def _check_labels(teacher: Teacher, finetuning: FinetuneRun) -> None:
    task, labels = finetuning.examples.task, getattr(finetuning.examples.task, "labels", ())
    if tuple(labels) != tuple(teacher.labels):
        raise UserError(f"the task has the labels {', '.join(labels)}, and the teacher {', '.join(teacher.labels)}; "
                       "give data of the teacher's task")  # fmt: skip
    if getattr(task, "special_tokens", ()) and len(finetuning.predictor.tokenizer) != len(teacher.tokenizer):
        raise UserError("the data has special tokens that the teacher does not know; give data of the teacher's task")


# -- general stage


@dataclass(frozen=True)
class DistillSetup(PretrainSetup):
    """A pre-training run whose model is the student, and whose objective has the teacher's losses besides."""

    distill_recipe: DistillRecipe
    teacher: Teacher
    student: BaseModel

    def build_model(self, console: Console) -> Model:
        model = build_model(self.config, self.recipe.seed, self.corpus.tokenizer)
        model.encoder.load_state_dict(self.student.model.encoder.state_dict())
        copy_heads(model, [self.student.model, self.teacher.model], console)
        return model

    def build_training_objective(self, model: Model) -> CorpusDistillation:
        states = StateLosses.build(self.distill_recipe.loss, model, self.teacher.model)
        add_projections(model, self.teacher.model, states, self.recipe.seed)
        return CorpusDistillation(self.teacher.model, states, self.objective)

    def add_targets(self, batch: Batch[Inputs]) -> Batch[Inputs]:
        loss = self.distill_recipe.loss
        return CorpusDistillation.add_targets(batch, StateLosses.names_of(loss), loss.tokens == "all")

    def finish_model(self, model: Model) -> None:
        remove_projections(model)
        super().finish_model(model)

    @property
    def record(self) -> dict[str, Any]:
        return _record(self.distill_recipe, self.teacher)

    @property
    def card(self) -> dict[str, Any]:
        return {key: self.student.card[key] for key in ("finetuning",) if key in self.student.card}

    @property
    def published_recipe(self) -> Config:
        return self.distill_recipe


def _distill_on_corpus(recipe: DistillRecipe, teacher: Teacher, student: BaseModel, run: Run) -> dict[str, Any]:
    corpus = Corpus.open(resolve_path(recipe.corpus or "", "corpus"))
    if corpus.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise UserError(f"{corpus.path} was prepared with another tokenizer than the teacher's; prepare it again with "
                       f"tokenizer={recipe.teacher}")  # fmt: skip
    teacher_heads = teacher.model.config.heads
    heads = {LM_HEAD: teacher_heads[LM_HEAD]} if LM_HEAD in teacher_heads else recipe.objective.heads()
    pretrain = _pretrain_recipe(recipe)
    config = ModelConfig(encoder=student.model.config.encoder, vocab_size=student.model.config.vocab_size, heads=heads)
    check_model(pretrain, config)
    split = split_corpus(pretrain, corpus)
    setup = DistillSetup(pretrain, recipe.objective, config, corpus, *split, recipe, teacher, student)
    return train_on_corpus(setup, run)


def _pretrain_recipe(recipe: DistillRecipe) -> PretrainRecipe:
    """The general stage as a recipe of `pretrain`."""
    train = to_dict(recipe.train)
    train |= {key: default for key, default in CORPUS_DEFAULTS.items() if train[key] is None}
    values = {
        "corpus": recipe.corpus, "out": recipe.out, "objective": to_dict(recipe.objective), "train": train,
        "max_length": recipe.max_length or 128, "validation_split": recipe.validation_split, "eval_tokens": recipe.eval_tokens,
        "seed": recipe.seed,
    }  # fmt: skip
    return from_dict(PretrainRecipe, values, "distill")
