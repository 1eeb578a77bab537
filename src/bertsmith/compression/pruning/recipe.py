"""The recipe of `prune`: the model, what is removed from it, and how it is trained; its checks and its identity."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ... import runs
from ...artifacts import content_hash
from ...config import PosFloat, PosInt, Probability
from ...errors import UserError
from ...tokenization.files import find_files
from ..recovery.recipe import RecoveryRecipe, check_training, data_files
from .layers import LayerChoice
from .masks import Importance, Scope
from .schedule import CubicSchedule

Unit = Literal["head", "neuron", "layer", "vocab", "weight", "block"]
STRUCTURED, UNSTRUCTURED = ("head", "neuron"), ("weight", "block")  # units with a mask in training


class PruneRecipe(RecoveryRecipe, frozen=True):
    """The units that are removed, and the examples on which the model is trained."""

    unit: Annotated[
        tuple[Unit, ...], Meta(min_length=1),
        "what is removed: head, neuron (of the feed-forward), layer, vocab; or set to zero: weight, block; or several",
    ] = ("head", "neuron")  # fmt: skip
    amount: Annotated[Probability, "share of each unit that is removed; not for vocab"] = 0.5
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
    scores_learning_rate: Annotated[PosFloat, "importance=movement: learning rate of the scores"] = 1e-2

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
    if recipe.amount != defaults.amount and units == {"vocab"}:
        raise UserError("amount does not apply to unit=vocab, where the texts decide; leave it out")
    for key in ("importance", "scope", "sparsity_schedule"):
        if getattr(recipe, key) != getattr(defaults, key) and not recipe.masked_units:
            raise UserError(f"{key} applies only to unit=head, neuron, weight and block; leave it out")
    if recipe.importance == "gradient" and units & {*UNSTRUCTURED}:
        raise UserError("importance=gradient scores heads and neurons; for unit=weight and block use movement or magnitude")
    if recipe.scores_learning_rate != defaults.scores_learning_rate and recipe.resolved_importance != "movement":
        raise UserError("scores_learning_rate applies only to importance=movement; leave it out")
    if recipe.data is None:
        _check_without_data(recipe)
    if recipe.train.compile:
        raise UserError("train.compile does not work with masks that change during training; leave it out")
    if recipe.train.average_checkpoints:
        raise UserError("train.average_checkpoints would average weights of different sparsity; leave it out")
    check_training(recipe, ("sparsity_schedule",))
    recipe.sparsity_schedule.check()


def _check_without_data(recipe: PruneRecipe) -> None:
    if recipe.resolved_importance != "magnitude" or recipe.drop_layers == "loss":
        key = "drop_layers=loss" if recipe.drop_layers == "loss" else f"importance={recipe.importance}"
        raise UserError(f"{key} is measured on examples; set data.train=FILE, or choose another")
    if "vocab" in recipe.unit and not recipe.texts:
        raise UserError("unit=vocab keeps the tokens of a corpus; set texts=FILE, or data.train=FILE")


def prune_identity(recipe: PruneRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    paths = find_files(recipe.texts) if recipe.texts else []
    texts = tuple(content_hash(path) or str(path) for path in paths)
    return runs.compute_run_id(msgspec.structs.replace(recipe, texts=texts), **data_files(recipe))
