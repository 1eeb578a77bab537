"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import named
from ..config import Amount, Config, Count, Positive, plain
from ..errors import BadInput
from ..model import checkpoint
from ..model.model import ModelConfig, built
from ..model.types import Batch
from ..objectives.reading import Reading
from ..objectives.supervised import Supervised
from ..predict import Predictor
from ..screen import Screen
from ..tasks import Answering, Classify, Similar, TaskConfig
from ..tasks.base import averaged
from ..text.tokenizer import Tokenizer
from ..train.recipe import Train
from ..train.trainer import Trainer
from . import folder
from .pretrain import Length


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
    scratch: Annotated[bool, "forget what pre-training learnt: the control of every claim that it helps"] = False
    seed: Annotated[int, "of new weights, order and dropout"] = 0


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    name = folder.identity(recipe, model=recipe.model, train_file=recipe.data.train, dev_file=recipe.data.dev)
    with folder.opened(out, name, screen) as told:
        return told or _taught(recipe, out, name, screen)


def _taught(recipe: Recipe, out: Path, identity: str, screen: Screen) -> dict[str, Any]:
    base, tokenizer, _ = checkpoint.load(named(recipe.model, "model"))
    task, learn, judged = _examples(recipe, screen)
    objective = Supervised(task)
    config = ModelConfig(encoder=base.config.encoder, vocabulary=base.config.vocabulary, heads=objective.heads())
    if recipe.length > config.encoder.positions:
        raise BadInput(f"length {recipe.length} is more than the model's {config.encoder.positions} positions; lower it")
    model = built(config, recipe.seed)
    model.encoder.stack.recompute = recipe.train.recompute
    if not recipe.scratch:
        model.encoder.load_state_dict(base.encoder.state_dict())
    read = partial(_reading, recipe, task, tokenizer)
    reading = read(learn)
    train = recipe.train.timed().resolved(reading.an_epoch)
    trials = {"dev": partial(_all, read(judged))} if judged else {}
    trainer = Trainer(model, objective, train, out, seed=recipe.seed, trials=trials, quiet=screen.quiet, fingerprint=identity)
    summary = trainer.fit(reading)
    predictor = Predictor(model, tokenizer, {}, task, recipe.length)
    task, scores = judged_on(predictor, judged, tune=True) if judged else (task, {})
    names = ("step", "loss", "tokens", "seconds", "skipped", "rollbacks")
    result = {name: summary[name] for name in names} | {"examples": len(learn), "dev": scores}
    if trainer.leader:
        record = {"stage": "finetune", "task": plain(task), "length": recipe.length}
        folder.publish(out, model, tokenizer, {"identity": identity, "result": result}, record, recipe)
    screen.table(str(out), [(name, f"{value:.4f}") for name, value in scores.items()] or [("step", str(result["step"]))])
    return {"out": str(out), "made": True, **result}


def judged_on(predictor: Predictor, examples: list[Any], tune: bool = False) -> tuple[TaskConfig, dict[str, float]]:
    """The task, its threshold tuned on these examples if asked, and its scores there."""
    task = predictor.task
    assert task is not None
    encoded = task.encode(examples, predictor.tokenizer, predictor.length)
    scores = predictor.scores(encoded)
    if tune and isinstance(task, Classify):
        task = task.tuned(averaged(scores, encoded, len(examples)), examples)
    if tune and isinstance(task, Answering):
        task = task.tuned(task.decode(scores, encoded, examples), examples)
    return task, task.judge(task.decode(scores, encoded, examples), examples)  # type: ignore[arg-type]


def _examples(recipe: Recipe, screen: Screen) -> tuple[TaskConfig, list[Any], list[Any]]:
    task = recipe.task
    if isinstance(task, Similar):
        raise BadInput("task=similar has no training yet; task=regress learns the same files by a head")
    given: dict[str, Any] = {"skip_bad": recipe.data.skip_bad or task.skip_bad}
    if hasattr(task, "columns") and recipe.data.columns:
        given["columns"] = recipe.data.columns
    task = msgspec.structs.replace(task, **given)
    found: list[Any] = []
    for name in (recipe.data.train, recipe.data.dev):
        rows = task.read(named(name, "data")) if name else None
        found.append(list(rows) if rows is not None else [])
        if rows is not None and rows.skipped:
            screen.warn(f"{name}: {rows.skipped} rows left out, such as: {rows.faults[0]}")
    learn, judged = found
    return task.fitted(learn), learn, judged


def _reading(recipe: Recipe, task: TaskConfig, tokenizer: Tokenizer, examples: list[Any]) -> Reading:
    return Reading(task, task.encode(examples, tokenizer, recipe.length), recipe.train.batch_tokens, recipe.seed)


def _all(reading: Reading) -> list[Batch]:
    return [reading(k) for k in range(reading.an_epoch)]
