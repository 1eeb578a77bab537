"""Keys of the stages that make a fine-tuned model smaller and train it further, and what both check."""

from typing import Annotated, Literal

from ... import runs
from ...config import Config, MaxLength
from ...errors import UserError
from ...finetuning.examples import Data
from ...finetuning.recipe import FinetuneTrain
from .teacher import RecoveryLosses


class RecoveryTrain(FinetuneTrain, frozen=True):
    """`train.*` of fine-tuning, without early stopping: the weights of the last step are kept."""

    early_stopping_patience: Annotated[Literal[0], "0: the weights of the last step are kept"] = 0


class RecoveryRecipe(Config, frozen=True):
    """The model, the examples that it is trained on, and how."""

    model: Annotated[str, "checkpoint folder: fine-tuned; without data also pre-trained"]
    out: Annotated[str, "output checkpoint folder"]
    data: Annotated[Data | None, "files of labelled examples to train on; none: no training"] = None
    loss: Annotated[RecoveryLosses, "weights of the losses of the labels and of the original model"] = RecoveryLosses()
    max_length: Annotated[MaxLength | None, "maximum sequence length, in tokens; default: the model's"] = None
    train: Annotated[RecoveryTrain, "training settings: duration (default: 3 to 10 epochs by size), learning rate ..."] = (
        RecoveryTrain()
    )
    seed: Annotated[int, "random seed of data order and dropout"] = 0


def check_training(recipe: RecoveryRecipe, keys_of_data: tuple[str, ...] = ()) -> None:
    """Raises a UserError for training settings that have no effect or do not work; `keys_of_data` also need data."""
    if recipe.data is None:
        defaults = type(recipe)(model="", out="")
        for key in ("train", "loss", "max_length", *keys_of_data):
            if getattr(recipe, key) != getattr(defaults, key):
                raise UserError(
                    f"{key} applies only with data, on which the model is trained; set data.train=FILE, or leave it out"
                )
    if recipe.train.workers:
        raise UserError(
            f"train.workers={recipe.train.workers} has no effect: examples are encoded before training; leave it out"
        )
    if runs.world_size() > 1:
        raise UserError("this stage runs in one process; run it without torchrun")


def data_files(recipe: RecoveryRecipe) -> dict[str, str | None]:
    """The input files, by dotted key, for `runs.compute_run_id`."""
    files: dict[str, str | None] = {"model": recipe.model}
    if recipe.data is not None:
        files |= {f"data.{name}": getattr(recipe.data, name) for name in ("train", "dev", "test")}
    return files
