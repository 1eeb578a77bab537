"""The recipe of `quantize`: what computes in int8, how its ranges are found, and the gate; its checks and its identity."""

from typing import Annotated, Literal

from ... import runs
from ...config import PosInt, Probability
from ...errors import UserError
from ..recovery.recipe import RecoveryRecipe, check_training, data_files
from .weights import TableBits

Mode = Literal["dynamic", "static", "qat"]


class QuantizeRecipe(RecoveryRecipe, frozen=True):
    """The model, the data of calibration and training, and how much of the score must remain."""

    mode: Annotated[
        Mode | None,
        "ranges of activations: of each batch (dynamic), measured on data (static), learned in training (qat); default: static "
        "with data or corpus, else dynamic",
    ] = None
    corpus: Annotated[str | None, "without data: corpus folder made by `prepare`, to calibrate on; default: random ids"] = None
    calibration_samples: Annotated[PosInt, "number of training examples, or runs of the corpus, to measure ranges on"] = 256
    percentile: Annotated[
        float | None, "static, qat: share of the activations inside the range, such as 99.99; default: all of them"
    ] = None
    embedding_bits: Annotated[TableBits, "bits of the embedding tables: 8, 4, or 32 for float32"] = 8
    gate: Annotated[
        Probability,
        "least share of the main dev metric, or without dev examples least mean cosine of sentence embeddings, that must "
        "remain; else nothing is written",
    ] = 0.99
    modules_to_not_convert: Annotated[
        tuple[str, ...], "layers that stay in float32, by the names of their weights or the beginning of them"
    ] = ()
    sensitivity: Annotated[bool, "report the error of the outputs when each layer alone is quantized"] = False

    @property
    def resolved_mode(self) -> Mode:
        return self.mode or ("static" if self.data is not None or self.corpus is not None else "dynamic")


def check_recipe(recipe: QuantizeRecipe) -> None:
    """Raises a UserError for contradicting settings, before any file is read."""
    mode = recipe.resolved_mode
    if mode == "qat" and recipe.data is None:
        raise UserError("mode=qat trains the model on labelled examples; set data.train=FILE, or use mode=static or dynamic")
    if recipe.corpus is not None and recipe.data is not None:
        raise UserError("data and corpus both give texts to calibrate on; leave out corpus")
    if recipe.percentile is not None:
        if mode == "dynamic":
            raise UserError("percentile applies to mode=static and qat; leave it out, or set mode=static")
        if not 50 <= recipe.percentile <= 100:
            raise UserError(f"percentile={recipe.percentile:g} is not between 50 and 100; use 99.99, or leave it out")
    if mode != "qat":
        for key in ("train", "loss"):
            if getattr(recipe, key) != getattr(QuantizeRecipe(model="", out=""), key):
                raise UserError(f"{key} applies only to mode=qat, which trains the model; leave it out")
    if recipe.train.compile:
        raise UserError("train.compile does not work with fake quantization; leave it out")
    check_training(recipe)


def quantize_identity(recipe: QuantizeRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    return runs.compute_run_id(recipe, **data_files(recipe), corpus=recipe.corpus)
