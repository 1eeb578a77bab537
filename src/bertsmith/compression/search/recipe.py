"""The recipe of `compress`: the model, the steps that are combined, the gate; its checks and its identity."""

from typing import Annotated, Literal

from msgspec import Meta

from ... import runs
from ...config import Config, Fraction, MaxLength, PosInt, Probability
from ...errors import UserError
from ...finetuning.examples import Data
from ..distillation.recipe import Losses
from ..recovery.recipe import RecoveryTrain

Precision = Literal["fp32", "int8"]
Unit = Literal["head", "neuron", "vocab"]


class CompressRecipe(Config, frozen=True):
    """The model, its data, the values of each step, and the score that must remain."""

    model: Annotated[str, "fine-tuned checkpoint folder"]
    data: Annotated[Data, "files of labelled examples: data.train to train on, data.dev to compare scores on"]
    out: Annotated[str, "output folder: the front (front.html, front.json), the chosen model (model/), all others (search/)"]
    gate: Annotated[
        Fraction, "share of the main dev metric that must remain; the smallest artifact that keeps it is chosen"
    ] = 0.99
    num_hidden_layers: Annotated[
        tuple[PosInt, ...] | None, "distill: layers of the students; default: half and a third of the model's; []: no students"
    ] = None
    amount: Annotated[
        tuple[Probability, ...],
        "prune: shares of heads and neurons that are removed, of the model and of its students; []: none",
    ] = (0.5,)
    unit: Annotated[
        tuple[Unit, ...], Meta(min_length=1), "prune: what is removed; vocab: tokens that the training examples do not use"
    ] = ("head", "neuron")
    precision: Annotated[
        tuple[Precision, ...],
        Meta(min_length=1),
        "quantize: precision of the graphs; int8 computes linear layers in int8, with int8 tables",
    ] = ("fp32", "int8")
    format: Annotated[Literal["onnx", "openvino"], "export: format of the graphs that are measured and written"] = "onnx"
    loss: Annotated[
        Losses | None,
        "distill: weights of the losses; default: labels, soft labels, and hidden_states (post-norm) or cosine (pre-norm)",
    ] = None
    max_length: Annotated[MaxLength | None, "maximum sequence length, in tokens; default: the model's"] = None
    train: Annotated[RecoveryTrain, "settings of each training: duration (default: 3 to 10 epochs by size) ..."] = (
        RecoveryTrain()
    )
    seed: Annotated[int, "random seed of data order and dropout"] = 0


def check_recipe(recipe: CompressRecipe) -> None:
    """Raises a UserError for settings that leave nothing to search, before any file is read."""
    if recipe.gate == 0:
        raise UserError("gate=0 lets every model pass; set the share of the score that must remain, such as gate=0.99")
    for key in ("num_hidden_layers", "amount", "unit", "precision"):
        values = getattr(recipe, key) or ()
        if len({*values}) < len(values):
            raise UserError(f"{key}={','.join(map(str, values))} names a value twice; leave one out")
    if 0 in recipe.amount or 1 in recipe.amount:
        raise UserError("amount is the share that is removed, above 0 and below 1; the unpruned models are always measured")
    if recipe.amount and recipe.unit == ("vocab",):
        raise UserError("unit=vocab alone has no amount, the training examples decide; add head or neuron")
    if recipe.num_hidden_layers == () and not recipe.amount and recipe.precision == ("fp32",):
        raise UserError("nothing is made smaller; set num_hidden_layers, amount or precision=int8")
    if runs.world_size() > 1:
        raise UserError("this stage runs in one process; run it without torchrun")


def compress_identity(recipe: CompressRecipe) -> str:
    """Hash of the recipe and its input files."""
    files = {f"data.{name}": getattr(recipe.data, name) for name in ("train", "dev", "test")}
    return runs.compute_run_id(recipe, model=recipe.model, **files)
