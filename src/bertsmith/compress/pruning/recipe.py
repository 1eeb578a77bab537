"""The recipe of `prune`: the model, what is removed from it, and how it is trained; its checks and its identity."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ... import runs
from ...artifacts import content_hash
from ...config import Config, MaxLength, PosFloat, PosInt, Probability
from ...errors import UserError
from ...finetuning.examples import Data
from ...finetuning.recipe import FinetuneTrain
from ...tokenization.files import find_files
from .layers import LayerChoice
from .masks import Importance, Scope
from .schedule import CubicSchedule
from .teacher import PruningLosses

Unit = Literal["head", "neuron", "layer", "vocab", "weight", "block"]
STRUCTURED, UNSTRUCTURED = ("head", "neuron"), ("weight", "block")  # units with a mask in training


class PruneTrain(FinetuneTrain, frozen=True):
    """`train.*` of fine-tuning, without early stopping: the model of the last step has the full sparsity."""

    early_stopping_patience: Annotated[Literal[0], "0: the weights of the last step are kept"] = 0  # type: ignore[assignment]


class PruneRecipe(Config, frozen=True):
    """The model, the units that are removed, the examples and the training settings."""

    model: Annotated[str, "checkpoint folder: fine-tuned, or (units without data) pre-trained"]
    out: Annotated[str, "output checkpoint folder"]
    unit: Annotated[
        tuple[Unit, ...], Meta(min_length=1),
        "what is removed: head, neuron (of the feed-forward), layer, vocab; or set to zero: weight, block; or several",
    ] = ("head", "neuron")  # fmt: skip
    amount: Annotated[Probability, "share of each unit that is removed; not for vocab"] = 0.5
    data: Annotated[
        Data | None, "files of labelled examples, to score units and to train on; none: magnitude, vocab and layer only"
    ] = None
    texts: Annotated[tuple[str, ...], "unit=vocab: text files whose tokens stay; default: the training examples"] = ()
    importance: Annotated[
        Importance | None,
        "score of a unit: gradient (|dL/dmask|, default of head, neuron), movement (default of weight, block), magnitude",
    ] = None
    scope: Annotated[
        Scope | None, "rank units in all layers together (global, default of head, neuron) or in each matrix (layer)"
    ] = None
    drop_layers: Annotated[
        LayerChoice | None, "unit=layer: loss (without which the loss is lowest, default), top, or alternate (every other one)"
    ] = None
    block_size: Annotated[tuple[PosInt, PosInt], "unit=block: rows and columns of a block"] = (32, 32)
    sparsity_schedule: Annotated[CubicSchedule, "when the sparsity rises, as fractions of the run"] = CubicSchedule()
    loss: Annotated[PruningLosses, "weights of the losses of labels and of the unpruned model"] = PruningLosses()
    scores_learning_rate: Annotated[PosFloat, "importance=movement: learning rate of the scores"] = 1e-2
    max_length: Annotated[MaxLength | None, "maximum sequence length, in tokens; default: the model's"] = None
    train: Annotated[PruneTrain, "training settings: duration (default: 3 to 10 epochs by size), learning rate ..."] = (
        PruneTrain()
    )
    seed: Annotated[int, "random seed of data order and dropout"] = 0

    @property
    def masked_units(self) -> tuple[str, ...]:
        """Units that have a mask in training."""
        return tuple(unit for unit in self.unit if unit in (*STRUCTURED, *UNSTRUCTURED))

    @property
    def resolved_importance(self) -> Importance:
        if self.importance is not None:
            return self.importance
        return "magnitude" if self.data is None else "movement" if {*self.unit} & {*UNSTRUCTURED} else "gradient"

    @property
    def resolved_scope(self) -> Scope:
        return self.scope or ("layer" if {*self.unit} & {*UNSTRUCTURED} else "global")


def check_recipe(recipe: PruneRecipe) -> None:
    """Raises a UserError for contradicting settings, before any file is read."""
    units, defaults = {*recipe.unit}, PruneRecipe(model="", out="")
    if len(units) < len(recipe.unit):
        raise UserError(f"unit={','.join(recipe.unit)} names a unit twice; leave one out")
    if units & {*UNSTRUCTURED} and len(units - {"vocab", "layer"}) > 1:
        raise UserError(f"unit={','.join(recipe.unit)}: weight and block cannot be combined with each other, head or neuron; "
                       "prune in two runs, the second with model= the result of the first")  # fmt: skip
    for key, unit in (("texts", "vocab"), ("drop_layers", "layer"), ("block_size", "block")):
        if getattr(recipe, key) != getattr(defaults, key) and unit not in units:
            raise UserError(f"{key} applies only to unit={unit}; leave it out")
    for key in ("importance", "scope", "sparsity_schedule"):
        if getattr(recipe, key) != getattr(defaults, key) and not recipe.masked_units:
            raise UserError(f"{key} applies only to unit=head, neuron, weight and block; leave it out")
    if recipe.importance == "gradient" and units & {*UNSTRUCTURED}:
        raise UserError("importance=gradient scores heads and neurons; for unit=weight and block use movement or magnitude")
    if recipe.scores_learning_rate != defaults.scores_learning_rate and recipe.resolved_importance != "movement":
        raise UserError("scores_learning_rate applies only to importance=movement; leave it out")
    if recipe.data is None:
        _check_without_data(recipe, defaults)
    if recipe.train.workers:
        raise UserError(
            f"train.workers={recipe.train.workers} has no effect: examples are encoded before training; leave it out"
        )
    if recipe.train.compile:
        raise UserError("train.compile does not work with masks that change during training; leave it out")
    if recipe.train.average_checkpoints:
        raise UserError("train.average_checkpoints would average weights of different sparsity; leave it out")
    if runs.world_size() > 1:
        raise UserError("prune runs in one process, which sees all gradients; run it without torchrun")
    recipe.sparsity_schedule.check()


def _check_without_data(recipe: PruneRecipe, defaults: PruneRecipe) -> None:
    if recipe.resolved_importance != "magnitude" or recipe.drop_layers == "loss":
        key = "drop_layers=loss" if recipe.drop_layers == "loss" else f"importance={recipe.importance}"
        raise UserError(f"{key} is measured on examples; set data.train=FILE, or choose another")
    if "vocab" in recipe.unit and not recipe.texts:
        raise UserError("unit=vocab keeps the tokens of a corpus; set texts=FILE, or data.train=FILE")
    for key in ("train", "loss", "sparsity_schedule", "max_length"):
        if getattr(recipe, key) != getattr(defaults, key):
            raise UserError(
                f"{key} applies only with data, on which the model is trained; set data.train=FILE, or leave it out"
            )


def prune_identity(recipe: PruneRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    files: dict[str, str | None] = {"model": recipe.model}
    if recipe.data is not None:
        files |= {f"data.{name}": getattr(recipe.data, name) for name in ("train", "dev", "test")}
    paths = find_files(recipe.texts) if recipe.texts else []
    texts = tuple(content_hash(path) or str(path) for path in paths)
    return runs.compute_run_id(msgspec.structs.replace(recipe, texts=texts), **files)
