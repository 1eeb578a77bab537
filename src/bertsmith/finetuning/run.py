"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from .. import runs
from ..artifacts import named
from ..config import plain
from ..console import Screen
from ..errors import BadInput
from ..evaluation.evaluate import Judged, judged
from ..evaluation.measures import deciding
from ..inference.predictor import Predictor
from ..model import checkpoint, lora
from ..model.batch import Batch
from ..model.model import Model, ModelConfig, built
from ..objectives import regularizers
from ..objectives.regularizers import Adversarial, Aside, Foretold, Twice
from ..objectives.seq2seq import Replies
from ..objectives.supervised import Reading, Supervised
from ..objectives.task_objective import Lesson, teaching
from ..tasks import Generate, Similar, TaskConfig
from ..tokenization.tokenizer import Tokenizer
from ..train.loss import Objective
from ..train.param_groups import Paces
from ..train.trainer import Trainer
from . import seq2seq
from .examples import Examples, examples_of
from .recipe import FinetuneRecipe, check_recipe, finetune_identity
from .seeds import several
from .setup import begun, freeze, guided, paces


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


def finetune(recipe: FinetuneRecipe, quiet: bool = False) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    check_recipe(recipe)
    return _run(recipe, quiet)


def _run(recipe: FinetuneRecipe, quiet: bool) -> dict[str, Any]:
    screen, out, name = Screen(quiet), named(recipe.out, "out"), finetune_identity(recipe)
    with runs.opened(out, name, screen) as told:
        if told or not recipe.seeds:
            return told or _taught(recipe, out, name, screen)
        return several(recipe, out, recipe.seeds, partial(_one, recipe, quiet), name, screen)


def _one(recipe: FinetuneRecipe, quiet: bool, seed: int, out: Path) -> dict[str, Any]:
    return _run(msgspec.structs.replace(recipe, seed=seed, seeds=(), out=str(out)), quiet)


def _taught(recipe: FinetuneRecipe, out: Path, identity: str, screen: Screen) -> dict[str, Any]:
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
        record |= runs.descent(named(recipe.model, "model")) if isinstance(recipe.model, str) else {}
        runs.publish(out, pupil.model, pupil.predictor.tokenizer, card, record, recipe)
    screen.table(str(out), [(name, f"{value:.4f}") for name, value in result["dev"].items()] or [("step", str(result["step"]))])
    return {"out": str(out), "made": True, **result}


def _result(summary: dict[str, Any], pupil: Pupil, found: Judged | None) -> dict[str, Any]:
    """How the training went, the scores on the dev file, and the one of them that the run is compared with others by."""
    told = ("step", "best_step", "loss", "tokens", "seconds", "skipped", "rollbacks")
    result = {name: summary[name] for name in told} | {"examples": len(pupil.examples.learn), "dev": {}}
    return result | ({"dev": found.scores, "metric": pupil.metric} if found else {})


def _enrolled(recipe: FinetuneRecipe, screen: Screen) -> Pupil:
    """Everything that is wrong with model, examples and settings is said here, before the training."""
    base, tokenizer = _base(recipe, screen)
    examples = examples_of(recipe, tokenizer, screen)
    metric = deciding(examples.task, recipe.best)
    tokenizer, weights = guided(examples.task, base, tokenizer)
    objective = teaching(examples.task, recipe.features)
    config = _config(recipe, base, weights, objective)
    if isinstance(examples.task, Generate):
        config = seq2seq.writing(recipe, examples.task, base, config)
    model = _begun(recipe, config, weights, base, screen)
    model.meet(tokenizer)
    return Pupil(examples, objective, Predictor(model, tokenizer, {}, examples.task, recipe.length), metric)


def _base(recipe: FinetuneRecipe, screen: Screen) -> tuple[Model, Tokenizer]:
    if not isinstance(recipe.model, str):
        return begun(recipe.model, recipe.tokenizer, recipe.vectors, recipe.seed, screen)
    return checkpoint.load(named(recipe.model, "model"))[:2]


def _config(recipe: FinetuneRecipe, base: Model, weights: dict[str, Tensor], objective: Lesson) -> ModelConfig:
    encoder = base.config.encoder
    if recipe.dropout is not None:
        encoder = msgspec.structs.replace(encoder, dropout=recipe.dropout)
    if recipe.length > encoder.positions:
        raise BadInput(f"length {recipe.length} is more than the model's {encoder.positions} positions; lower it")
    if recipe.lm and not encoder.causal:
        raise BadInput(f"lm={recipe.lm:g} asks each token for the next, which this model sees already; leave it out, or begin "
                       "from a causal model")  # fmt: skip
    vocabulary = len(weights["tokens.weight"]) if "tokens.weight" in weights else base.config.vocabulary
    heads = objective.heads() | ({regularizers.HEAD: regularizers.head(base.config.heads)} if recipe.lm else {})
    return ModelConfig(encoder=encoder, vocabulary=vocabulary, heads=heads)


def _begun(recipe: FinetuneRecipe, config: ModelConfig, weights: dict[str, Tensor], base: Model, screen: Screen) -> Model:
    """The model to train: what is frozen is, what stands beside it does."""
    model = built(config, recipe.seed)
    model.recompute(recipe.train.recompute)
    if not recipe.scratch:
        model.encoder.load_state_dict(weights)
    if isinstance(recipe.task, Generate):
        seq2seq.begin(recipe, model, base, screen)
    if recipe.lm and not recipe.scratch:
        regularizers.begin(model, base)
    if recipe.lora:
        lora.adapt(model, recipe.lora, recipe.seed)
    freeze(model, recipe.freeze)
    if isinstance(recipe.task, Similar):
        model.encoder.pooler.requires_grad_(False)  # vectors are not pooled by it
    return model


def _paces(recipe: FinetuneRecipe, model: Model) -> Paces:
    train = recipe.train
    return paces(len(model.encoder.stack.blocks), train.layer_decay, train.thaw, train.head_rate)


def _lesson(recipe: FinetuneRecipe, objective: Lesson) -> Objective:
    """The objective as it is trained on."""
    lesson: Objective = Twice(objective, recipe.rdrop) if recipe.rdrop and isinstance(objective, Supervised) else objective
    lesson = Aside(objective, recipe.lm) if recipe.lm and isinstance(objective, Supervised) else lesson
    return Adversarial(lesson, recipe.adversary) if recipe.adversary else lesson


def _reading(recipe: FinetuneRecipe, task: TaskConfig, predictor: Predictor, examples: list[Any]) -> Reading:
    encoded = task.encode(examples, predictor.tokenizer, recipe.length)
    if isinstance(task, Generate):
        return Replies(task, encoded, recipe.train.batch_tokens, recipe.seed, joint=predictor.model.decoder is None)
    kind = Foretold if recipe.lm else Reading
    return kind(task, encoded, recipe.train.batch_tokens, recipe.seed)


def _all(reading: Reading) -> list[Batch]:
    return [reading(k) for k in range(reading.an_epoch)]
