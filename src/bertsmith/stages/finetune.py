"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from torch import Tensor

from ..artifacts import named
from ..config import Amount, Chance, Config, Count, Positive, Whole, parse, plain
from ..errors import BadInput
from ..evaluate.judge import judged
from ..evaluate.measures import names
from ..model import checkpoint, lora
from ..model.features import Features
from ..model.lora import Lora
from ..model.model import Model, ModelConfig, built
from ..model.types import Batch
from ..objectives.adversarial import Adversarial, Adversary
from ..objectives.reading import Reading
from ..objectives.supervised import Supervised
from ..objectives.teaching import Lesson, teaching
from ..objectives.twice import Twice
from ..predict import Predictor
from ..screen import Screen
from ..tasks import Answering, Classify, Regress, Similar, Tag, TaskConfig
from ..tasks.base import Long
from ..text.tokenizer import Tokenizer
from ..train.loss import Objective
from ..train.pace import Paces
from ..train.recipe import Train
from ..train.trainer import Trainer
from . import folder
from .guided import guided
from .pretrain import Length
from .seeds import several
from .ways import freeze, paces


class Data(Config, frozen=True):
    train: Annotated[str, "the file to learn from"]
    dev: Annotated[str | None, "the file to be judged on, and to tune thresholds on"] = None
    columns: Annotated[dict[str, str], "what text, text_b, label ... are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False


class Teaching(Train, frozen=True):
    """The words of `train.*`, with what fine-tuning wants where nothing is said."""

    batch_tokens: Annotated[Count, "tokens of one micro-batch"] = 2048
    rate: Annotated[Positive, "peak learning rate"] = 5e-5
    warmup: Annotated[Amount, "rise of the rate: below 1 a share of the run, from 1 up steps"] = 0.1
    spike: Annotated[Amount, "skip an update whose gradient is this many times the usual; 0 for never"] = 0.0  # rare examples
    layer_decay: Annotated[Positive, "each layer learns at this share of the rate of the one above it"] = 1.0
    thaw: Annotated[Chance, "share of the run over which layers begin to learn, from the top down; 0: all at once"] = 0.0
    head_rate: Annotated[Positive, "the head learns at this many times the rate"] = 1.0

    def timed(self) -> Train:
        if self.workers:
            raise BadInput("train.workers: examples are encoded before training, nothing is made ahead of it; leave it out")
        said = (self.steps, self.epochs, self.minutes) != (None, None, None)
        return self if said else msgspec.structs.replace(self, epochs=3.0)


class Recipe(Config, frozen=True):
    """A task, a model to begin from, and the files of examples."""

    task: Annotated[TaskConfig, "what to learn"]
    model: Annotated[str, "the checkpoint folder to begin from"]
    data: Annotated[Data, "the files"]
    out: Annotated[str, "the checkpoint folder to make"]
    length: Annotated[Length, "longest sequence"] = 128
    train: Annotated[Teaching, "how long (three epochs, if nothing is said), how fast, in what numbers"] = Teaching()
    long: Annotated[Long | None, "texts over the length, where the task has a choice: as task.long"] = None
    freeze: Annotated[Whole | Literal["all"], "embeddings and so many blocks from below do not learn; all: the head alone"] = 0
    features: Annotated[Features | None, "what the head reads, instead of the last layer alone"] = None
    lora: Annotated[Lora | None, "learn small matrices beside the encoder's own, which stay; they are added at the end"] = None
    adversary: Annotated[Adversary | None, "also learn from embeddings moved against the model"] = None
    rdrop: Annotated[Amount, "read every batch twice, and let the difference cost this much (R-Drop); 0: once"] = 0.0
    dropout: Annotated[Chance | None, "on embeddings and what each part adds, while it learns; as in pre-training, if none"] = (
        None
    )
    best: Annotated[str | None, "the score that train.stop and seeds choose by; the task's first, if none"] = None
    scratch: Annotated[bool, "forget what pre-training learnt: the control of every claim that it helps"] = False
    seed: Annotated[int, "of new weights, order and dropout"] = 0
    seeds: Annotated[tuple[int, ...], "several, one run each: mean and deviation of their scores, and the best kept"] = ()


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    check(recipe)
    return _run(recipe, quiet)


def _run(recipe: Recipe, quiet: bool) -> dict[str, Any]:
    screen, out, name = Screen(quiet), named(recipe.out, "out"), identity_of(recipe)
    with folder.opened(out, name, screen) as told:
        if told or not recipe.seeds:
            return told or _taught(recipe, out, name, screen)
        return several(recipe, out, recipe.seeds, partial(_one, recipe, quiet), recipe.best, name, screen)


def check(recipe: Recipe) -> None:
    """Settings that contradict each other, before anything is read."""
    if not recipe.data.dev and (recipe.seeds or recipe.best):
        raise BadInput("seeds are compared, and the best found, on a dev file: give data.dev, or leave out seeds and best")
    if recipe.best and not recipe.seeds and not recipe.train.stop:
        raise BadInput(f"best={recipe.best} chooses among seeds, or where train.stop ends a run; give either, or leave it out")
    if recipe.lora and recipe.freeze:
        raise BadInput("lora leaves the encoder as it is already; leave out freeze")
    if recipe.scratch and (recipe.lora or recipe.freeze):
        raise BadInput("scratch=true begins with random weights, which must all learn; leave out freeze and lora")
    if getattr(recipe.task, "template", "") and (recipe.lora or recipe.freeze):
        raise BadInput("guide tokens of task.template begin alike and must learn; leave out freeze and lora, or the template")
    if isinstance(recipe.task, Similar) and (recipe.rdrop or recipe.train.thaw):
        raise BadInput("task=similar has no head for rdrop to compare, or for train.thaw to begin with; leave them out")


def identity_of(recipe: Recipe) -> str:
    """A name for all that decides what the run makes."""
    return folder.identity(recipe, **{"model": recipe.model, "data.train": recipe.data.train, "data.dev": recipe.data.dev})


def _one(recipe: Recipe, quiet: bool, seed: int, out: Path) -> dict[str, Any]:
    return _run(msgspec.structs.replace(recipe, seed=seed, seeds=(), out=str(out)), quiet)


def _taught(recipe: Recipe, out: Path, identity: str, screen: Screen) -> dict[str, Any]:
    base, tokenizer, _ = checkpoint.load(named(recipe.model, "model"))
    task, learn, known = examples_of(recipe, tokenizer, screen)
    if recipe.best and recipe.best not in names(task):
        raise BadInput(f"best={recipe.best} is not a score of this task, which has {', '.join(names(task))}")
    tokenizer, weights = guided(task, base, tokenizer)
    objective = teaching(task, recipe.features)
    encoder = base.config.encoder
    if recipe.dropout is not None:
        encoder = msgspec.structs.replace(encoder, dropout=recipe.dropout)
    config = ModelConfig(encoder=encoder, vocabulary=len(weights["tokens.weight"]), heads=objective.heads())
    if recipe.length > config.encoder.positions:
        raise BadInput(f"length {recipe.length} is more than the model's {config.encoder.positions} positions; lower it")
    model = _begun(recipe, config, weights)
    read = partial(_reading, recipe, task, tokenizer)
    reading = read(learn)
    train = recipe.train.timed().resolved(reading.an_epoch)
    predictor = Predictor(model, tokenizer, {}, task, recipe.length)
    trainer = Trainer(
        model, _lesson(recipe, objective), train, out, seed=recipe.seed, quiet=screen.quiet, fingerprint=identity,
        trials={"dev": partial(_all, read(known))} if known else None, paces=_paces(recipe, model),
        score=partial(_score, objective, predictor, known, recipe.best) if known else None,
    )  # fmt: skip
    summary = trainer.fit(reading)
    lora.merge(model)
    model.eval()
    predictor.task = objective.settled(model)
    found = judged(predictor, known, tune=True) if known else None
    told = ("step", "best_step", "loss", "tokens", "seconds", "skipped", "rollbacks")
    result = {name: summary[name] for name in told} | {"examples": len(learn), "dev": found.scores if found else {}}
    if trainer.leader:
        record = {"stage": "finetune", "task": plain(found.task if found else predictor.task), "length": recipe.length}
        card = {"identity": identity, "result": result, **(found.card if found else {})}
        folder.publish(out, model, tokenizer, card, record | folder.descent(named(recipe.model, "model")), recipe)
    screen.table(str(out), [(name, f"{value:.4f}") for name, value in result["dev"].items()] or [("step", str(result["step"]))])
    return {"out": str(out), "made": True, **result}


def _begun(recipe: Recipe, config: ModelConfig, weights: dict[str, Tensor]) -> Model:
    """The model to train: what is frozen is, what stands beside it does."""
    model = built(config, recipe.seed)
    model.encoder.stack.recompute = recipe.train.recompute
    if not recipe.scratch:
        model.encoder.load_state_dict(weights)
    if recipe.lora:
        lora.adapt(model, recipe.lora, recipe.seed)
    freeze(model, recipe.freeze)
    if isinstance(recipe.task, Similar):
        model.encoder.pooler.requires_grad_(False)  # vectors are not pooled by it
    return model


def _paces(recipe: Recipe, model: Model) -> Paces:
    train = recipe.train
    return paces(len(model.encoder.stack.blocks), train.layer_decay, train.thaw, train.head_rate)


def _lesson(recipe: Recipe, objective: Lesson) -> Objective:
    """The objective as it is trained on."""
    lesson: Objective = Twice(objective, recipe.rdrop) if recipe.rdrop and isinstance(objective, Supervised) else objective
    return Adversarial(lesson, recipe.adversary) if recipe.adversary else lesson


def _score(objective: Lesson, predictor: Predictor, examples: list[Any], metric: str | None) -> float:
    """The one number by which weights are compared while they learn."""
    model = predictor.model
    training, predictor.task = model.training, objective.settled(model)
    model.eval()
    scores = predictor.task.judge(predictor.answers(examples), examples)
    model.train(training)
    return scores[metric] if metric else next(iter(scores.values()))


def examples_of(recipe: Recipe, tokenizer: Tokenizer, screen: Screen) -> tuple[TaskConfig, list[Any], list[Any]]:
    """The task with what it learns from its files before training, the examples to learn from and those to be judged on."""
    task = recipe.task
    given: dict[str, Any] = {"skip_bad": recipe.data.skip_bad or task.skip_bad}
    if hasattr(task, "columns") and recipe.data.columns:
        given["columns"] = recipe.data.columns
    if recipe.long:
        given["long"] = recipe.long
    if isinstance(task, Classify | Regress):
        if task.hex and not tokenizer.hex:
            raise BadInput(f"task.hex=true, but {recipe.model} reads text; `bertsmith tokenizer kind=byte hex=true` begins one "
                           "that reads bytes")  # fmt: skip
        given["hex"] = tokenizer.hex
    task = _with(task, given)
    found: list[Any] = []
    for name in (recipe.data.train, recipe.data.dev):
        rows = task.read(named(name, "data")) if name else None
        found.append(list(rows) if rows is not None else [])
        if rows is not None and rows.skipped:
            screen.warn(f"{name}: {rows.skipped} rows left out, such as: {rows.faults[0]}")
    learn, known = (_answered(task, examples) for examples in found)
    task = task.fitted(learn)
    if recipe.data.dev:
        _judgeable(task, known, recipe.data.dev)
    return task, learn, known


def _answered(task: TaskConfig, examples: list[Any]) -> list[Any]:
    """Without sentences that have no tags and questions that have no answers: nothing is learnt from or judged by them."""
    name = {Tag: "tags", Answering: "answers"}.get(type(task))
    return [one for one in examples if getattr(one, name) is not None] if name else examples


def _judgeable(task: TaskConfig, known: list[Any], place: str) -> None:
    """Found wanting now, not after the training."""
    lone = isinstance(task, Similar) and any(one.score is None for one in known)
    if not known or lone:
        raise BadInput(f"{place} holds nothing to be judged by: every example needs its {'score' if lone else 'answer'}")
    if not isinstance(task, Tag | Answering):
        task.fitted(known)  # refuses an example without its label


def _with(task: TaskConfig, given: dict[str, Any]) -> TaskConfig:
    """The task with these settings, refused where it has no such words."""
    kind = task.__struct_config__.tag
    return parse(TaskConfig, plain(task) | {"kind": kind} | given, f"task={kind}")  # type: ignore[arg-type]


def _reading(recipe: Recipe, task: TaskConfig, tokenizer: Tokenizer, examples: list[Any]) -> Reading:
    return Reading(task, task.encode(examples, tokenizer, recipe.length), recipe.train.batch_tokens, recipe.seed)


def _all(reading: Reading) -> list[Batch]:
    return [reading(k) for k in range(reading.an_epoch)]
