"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from torch import Tensor

from ..artifacts import named
from ..config import Amount, Chance, Config, Count, Positive, Whole, plain
from ..errors import BadInput
from ..evaluate.judge import Judged, judged
from ..evaluate.measures import deciding
from ..model import checkpoint, lora
from ..model.decoders import DecoderConfig
from ..model.encoder import EncoderConfig
from ..model.features import Features
from ..model.lora import Lora
from ..model.model import Model, ModelConfig, built
from ..model.types import Batch
from ..objectives import aside
from ..objectives.adversarial import Adversarial, Adversary
from ..objectives.aside import Aside, Foretold
from ..objectives.reading import Reading
from ..objectives.supervised import Supervised
from ..objectives.teaching import Lesson, teaching
from ..objectives.translate import Replies
from ..objectives.twice import Twice
from ..predict import Predictor
from ..screen import Screen
from ..tasks import Generate, Similar, TaskConfig
from ..tasks.base import Long
from ..text.tokenizer import Tokenizer
from ..train.loss import Objective
from ..train.pace import Paces
from ..train.recipe import Train
from ..train.trainer import Trainer
from . import folder, writers
from .begun import begun
from .examples import Data, Examples, examples_of
from .guided import guided
from .pretrain import Length
from .seeds import several
from .ways import freeze, paces


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
    model: Annotated[str | EncoderConfig, "the checkpoint folder to begin from; or, with a tokenizer, a preset or table: anew"]
    data: Annotated[Data, "the files"]
    out: Annotated[str, "the checkpoint folder to make"]
    tokenizer: Annotated[str | None, "of a model that begins anew: the folder `tokenizer` made"] = None
    vectors: Annotated[str | None, "a file or folder of word vectors, with which the table of a new model begins"] = None
    decoder: Annotated[
        DecoderConfig | None, "task=generate: what writes; attention begins as the encoder. None: the encoder itself (UniLM)"
    ] = None
    length: Annotated[Length, "longest sequence"] = 128
    train: Annotated[Teaching, "how long (three epochs, if nothing is said), how fast, in what numbers"] = Teaching()
    long: Annotated[Long | None, "texts over the length, where the task has a choice: as task.long"] = None
    freeze: Annotated[
        Whole | Literal["embeddings", "all"], "embeddings and so many blocks from below do not learn; all: the head alone"
    ] = 0
    features: Annotated[Features | None, "what the head reads, instead of the last layer alone"] = None
    lora: Annotated[Lora | None, "learn small matrices beside the encoder's own, which stay; they are added at the end"] = None
    adversary: Annotated[Adversary | None, "also learn from embeddings moved against the model"] = None
    lm: Annotated[Amount, "a causal model also foretells the examples' texts, which counts so much (0.5 in GPT); 0: not"] = 0.0
    rdrop: Annotated[Amount, "read every batch twice, and let the difference cost this much (R-Drop); 0: once"] = 0.0
    dropout: Annotated[Chance | None, "on embeddings and what each part adds, while it learns; as in pre-training, if none"] = (
        None
    )
    best: Annotated[str | None, "the score that train.stop and seeds choose by; the task's main one, if none"] = None
    scratch: Annotated[bool, "forget what pre-training learnt: the control of every claim that it helps"] = False
    seed: Annotated[int, "of new weights, order and dropout"] = 0
    seeds: Annotated[tuple[int, ...], "several, one run each: mean and deviation of their scores, and the best kept"] = ()


@dataclass(frozen=True)
class Pupil:
    """What is taught: a model and its task, the examples, and the score by which its weights are compared."""

    examples: Examples
    objective: Lesson
    predictor: Predictor
    metric: str

    @property
    def model(self) -> Model:
        return self.predictor.model

    def score(self) -> float:
        """The one number by which weights are compared while they learn."""
        training = self.model.training
        self.predictor.task = task = self.objective.settled(self.model)
        self.model.eval()
        scores = task.judge(self.predictor.answers(self.examples.dev), self.examples.dev)
        self.model.train(training)
        return scores[self.metric]

    def finished(self) -> Judged | None:
        """Ready to answer, and what it answers to the dev file, if there is one."""
        lora.merge(self.model)
        self.model.eval()
        self.predictor.task = self.objective.settled(self.model)
        return judged(self.predictor, self.examples.dev, tune=True) if self.examples.dev else None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    check(recipe)
    return _run(recipe, quiet)


def _run(recipe: Recipe, quiet: bool) -> dict[str, Any]:
    screen, out, name = Screen(quiet), named(recipe.out, "out"), identity_of(recipe)
    with folder.opened(out, name, screen) as told:
        if told or not recipe.seeds:
            return told or _taught(recipe, out, name, screen)
        return several(recipe, out, recipe.seeds, partial(_one, recipe, quiet), name, screen)


def check(recipe: Recipe) -> None:
    """Settings that contradict each other, before anything is read."""
    if not recipe.data.dev and (recipe.seeds or recipe.best):
        raise BadInput("seeds are compared, and the best found, on a dev file: give data.dev, or leave out seeds and best")
    if recipe.best and not recipe.seeds and not recipe.train.stop:
        raise BadInput(f"best={recipe.best} chooses among seeds, or where train.stop ends a run; give either, or leave it out")
    if isinstance(recipe.model, str) and (recipe.tokenizer or recipe.vectors):
        raise BadInput(f"model={recipe.model} brings its own tokenizer and table; leave out tokenizer and vectors")
    if not isinstance(recipe.model, str):
        _check_new(recipe)
    writers.check(recipe)
    if recipe.lora and recipe.freeze:
        raise BadInput("lora leaves the encoder as it is already; leave out freeze")
    if recipe.scratch and (recipe.lora or recipe.freeze):
        raise BadInput("scratch=true begins with random weights, which must all learn; leave out freeze and lora")
    if getattr(recipe.task, "template", "") and (recipe.lora or recipe.freeze):
        raise BadInput("guide tokens of task.template begin alike and must learn; leave out freeze and lora, or the template")
    if recipe.lm and (isinstance(recipe.task, Similar | Generate) or recipe.features or recipe.rdrop):
        raise BadInput("lm is for tasks with a head of their own that reads the last layer once; leave out lm, or features "
                       "and rdrop")  # fmt: skip
    if isinstance(recipe.task, Similar) and (recipe.rdrop or recipe.train.thaw):
        raise BadInput("task=similar has no head for rdrop to compare, or for train.thaw to begin with; leave them out")


def _check_new(recipe: Recipe) -> None:
    if recipe.scratch or recipe.lora or recipe.freeze not in (0, "embeddings"):
        raise BadInput("a new model begins with random weights, which must all learn; leave out scratch, freeze and lora")
    if recipe.freeze == "embeddings" and not recipe.vectors:
        raise BadInput("freeze=embeddings keeps the vectors a model begins with: give vectors=FILE, or leave it out")


def identity_of(recipe: Recipe) -> str:
    """A name for all that decides what the run makes."""
    begun = {"model": recipe.model} if isinstance(recipe.model, str) else {}
    read = {"tokenizer": recipe.tokenizer, "vectors": recipe.vectors}
    return folder.identity(recipe, **{**begun, **read, "data.train": recipe.data.train, "data.dev": recipe.data.dev})


def _one(recipe: Recipe, quiet: bool, seed: int, out: Path) -> dict[str, Any]:
    return _run(msgspec.structs.replace(recipe, seed=seed, seeds=(), out=str(out)), quiet)


def _taught(recipe: Recipe, out: Path, identity: str, screen: Screen) -> dict[str, Any]:
    pupil = _enrolled(recipe, screen)
    task, learn, dev = pupil.examples
    read = partial(_reading, recipe, task, pupil.predictor)
    reading = read(learn)
    trainer = Trainer(
        pupil.model, _lesson(recipe, pupil.objective), recipe.train.timed().resolved(reading.an_epoch), out, seed=recipe.seed,
        quiet=screen.quiet, fingerprint=identity, paces=_paces(recipe, pupil.model),
        trials={"dev": partial(_all, read(dev))} if dev else None, score=pupil.score if dev else None,
    )  # fmt: skip
    summary = trainer.fit(reading)
    found = pupil.finished()
    result = _result(summary, pupil, found)
    if trainer.leader:
        record = {"stage": "finetune", "task": plain(found.task if found else pupil.predictor.task), "length": recipe.length}
        card = {"identity": identity, "result": result, **(found.card if found else {})}
        record |= folder.descent(named(recipe.model, "model")) if isinstance(recipe.model, str) else {}
        folder.publish(out, pupil.model, pupil.predictor.tokenizer, card, record, recipe)
    screen.table(str(out), [(name, f"{value:.4f}") for name, value in result["dev"].items()] or [("step", str(result["step"]))])
    return {"out": str(out), "made": True, **result}


def _result(summary: dict[str, Any], pupil: Pupil, found: Judged | None) -> dict[str, Any]:
    """How the training went, the scores on the dev file, and the one of them that the run is compared with others by."""
    told = ("step", "best_step", "loss", "tokens", "seconds", "skipped", "rollbacks")
    result = {name: summary[name] for name in told} | {"examples": len(pupil.examples.learn), "dev": {}}
    return result | ({"dev": found.scores, "metric": pupil.metric} if found else {})


def _enrolled(recipe: Recipe, screen: Screen) -> Pupil:
    """Everything that is wrong with model, examples and settings is said here, before the training."""
    base, tokenizer = _base(recipe, screen)
    examples = examples_of(recipe, tokenizer, screen)
    metric = deciding(examples.task, recipe.best)
    tokenizer, weights = guided(examples.task, base, tokenizer)
    objective = teaching(examples.task, recipe.features)
    config = _config(recipe, base, weights, objective)
    if isinstance(examples.task, Generate):
        config = writers.writing(recipe, examples.task, base, config)
    model = _begun(recipe, config, weights, base, screen)
    model.meet(tokenizer)
    return Pupil(examples, objective, Predictor(model, tokenizer, {}, examples.task, recipe.length), metric)


def _base(recipe: Recipe, screen: Screen) -> tuple[Model, Tokenizer]:
    if not isinstance(recipe.model, str):
        return begun(recipe.model, recipe.tokenizer, recipe.vectors, recipe.seed, screen)
    return checkpoint.load(named(recipe.model, "model"))[:2]


def _config(recipe: Recipe, base: Model, weights: dict[str, Tensor], objective: Lesson) -> ModelConfig:
    encoder = base.config.encoder
    if recipe.dropout is not None:
        encoder = msgspec.structs.replace(encoder, dropout=recipe.dropout)
    if recipe.length > encoder.positions:
        raise BadInput(f"length {recipe.length} is more than the model's {encoder.positions} positions; lower it")
    if recipe.lm and not encoder.causal:
        raise BadInput(f"lm={recipe.lm:g} asks each token for the next, which this model sees already; leave it out, or begin "
                       "from a causal model")  # fmt: skip
    vocabulary = len(weights["tokens.weight"]) if "tokens.weight" in weights else base.config.vocabulary
    heads = objective.heads() | ({aside.HEAD: aside.head(base.config.heads)} if recipe.lm else {})
    return ModelConfig(encoder=encoder, vocabulary=vocabulary, heads=heads)


def _begun(recipe: Recipe, config: ModelConfig, weights: dict[str, Tensor], base: Model, screen: Screen) -> Model:
    """The model to train: what is frozen is, what stands beside it does."""
    model = built(config, recipe.seed)
    model.recompute(recipe.train.recompute)
    if not recipe.scratch:
        model.encoder.load_state_dict(weights)
    if isinstance(recipe.task, Generate):
        writers.begin(recipe, model, base, screen)
    if recipe.lm and not recipe.scratch:
        aside.begin(model, base)
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
    lesson = Aside(objective, recipe.lm) if recipe.lm and isinstance(objective, Supervised) else lesson
    return Adversarial(lesson, recipe.adversary) if recipe.adversary else lesson


def _reading(recipe: Recipe, task: TaskConfig, predictor: Predictor, examples: list[Any]) -> Reading:
    encoded = task.encode(examples, predictor.tokenizer, recipe.length)
    if isinstance(task, Generate):
        return Replies(task, encoded, recipe.train.batch_tokens, recipe.seed, joint=predictor.model.decoder is None)
    kind = Foretold if recipe.lm else Reading
    return kind(task, encoded, recipe.train.batch_tokens, recipe.seed)


def _all(reading: Reading) -> list[Batch]:
    return [reading(k) for k in range(reading.an_epoch)]
