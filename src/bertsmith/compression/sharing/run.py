"""A run of `share`: change the shape, train with the original model as the teacher, publish."""

from typing import Any

from ... import runs
from ...console import Console
from ...runs import Run
from ...writing import resolve_output
from ..recovery.run import Smaller, load_source, publish, read_setup, train
from ..recovery.teacher import Teacher
from .embeddings import check_table, factorize_embeddings
from .layers import check_groups, share_layers
from .recipe import ShareRecipe, check_recipe, share_identity


def share(recipe: ShareRecipe, quiet: bool = False) -> dict[str, Any]:
    """Share weights, resume an interrupted run, or return the result of a finished one."""
    check_recipe(recipe)
    console, out = Console(quiet), resolve_output(recipe.out)
    with runs.open_run(out, share_identity(recipe), console) as run:
        return run.finished_result or _share(recipe, run)


def _share(recipe: ShareRecipe, run: Run) -> dict[str, Any]:
    source, summary = load_source(recipe), dict[str, Any]()
    encoder = source.model.config.encoder
    if recipe.num_hidden_groups is not None:
        check_groups(encoder, recipe.num_hidden_groups)
    if recipe.embedding_size is not None:
        check_table(encoder, recipe.embedding_size)
    setup, model = read_setup(recipe, source, run.console), source.model
    if recipe.num_hidden_groups is not None:
        model = share_layers(model, recipe.num_hidden_groups, recipe.group_init)
    if recipe.embedding_size is not None:
        model, summary["embedding_error"] = factorize_embeddings(model, recipe.embedding_size)
        run.console.info(f"token embeddings: relative error {summary['embedding_error']:.2%} of rank {recipe.embedding_size}")
    if setup is not None:
        smaller = Smaller(model, source.tokenizer, Teacher(source.model, range(encoder.num_hidden_layers)))
        summary |= train(recipe, "share", run, source, setup, smaller)
    return publish(recipe, "share", run, source, setup, model, source.tokenizer, summary)
