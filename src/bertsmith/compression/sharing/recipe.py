"""The recipe of `share`: which weights layers share, the size of factorized embeddings; its checks and its identity."""

from typing import Annotated

from ... import runs
from ...config import PosInt
from ...errors import UserError
from ..recovery.recipe import RecoveryRecipe, check_training, data_files
from .layers import GroupInit


class ShareRecipe(RecoveryRecipe, frozen=True):
    """The new shape, and the examples on which the model is trained."""

    num_hidden_groups: Annotated[PosInt | None, "number of distinct layers that the others share (1 in ALBERT)"] = None
    group_init: Annotated[GroupInit, "weights of a shared layer: the average of its layers, or those of the first"] = "average"
    embedding_size: Annotated[
        PosInt | None, "size of the token table, whose truncated SVD is projected to the hidden size (128 in ALBERT)"
    ] = None


def check_recipe(recipe: ShareRecipe) -> None:
    """Raises a UserError for contradicting settings, before any file is read."""
    if recipe.num_hidden_groups is None and recipe.embedding_size is None:
        raise UserError("nothing is shared; set num_hidden_groups=1, or embedding_size=128")
    if recipe.num_hidden_groups is None and recipe.group_init != "average":
        raise UserError("group_init applies only to num_hidden_groups; leave it out")
    check_training(recipe)


def share_identity(recipe: ShareRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    return runs.compute_run_id(recipe, **data_files(recipe))
