"""A pruning run: remove layers and tokens, train with masks that close, take the masked units out, publish."""

from copy import deepcopy
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from ... import runs
from ...console import Console
from ...errors import UserError
from ...model.model import Model
from ...objectives.supervised import ExampleBatches
from ...objectives.task_objective import TaskObjective
from ...runs import Run
from ...tokenization import documents
from ...tokenization.files import find_files
from ...tokenization.shrink import ShrunkTokenizer, count_used_tokens, shrink_tokenizer
from ...tokenization.tokenizer import Tokenizer
from ...train.param_groups import ParamSchedule, ParamScheduleFn
from ...train.setup import isolate_torch_state, prepare
from ...train.step import evaluate
from ...writing import resolve_output
from ..recovery.recipe import RecoveryTrain
from ..recovery.run import Setup, Smaller, Source, build_batches, load_source, publish, read_setup, train
from ..recovery.teacher import Teacher, TeacherObjective
from .layers import choose_layers
from .masks import SCORES_SUFFIX, MaskedUnit, Pruner
from .objective import PruningObjective
from .recipe import PruneRecipe, check_recipe, prune_identity
from .structure import KeptUnits, check_heads, check_layers, check_neurons, find_live_units, remove_layers, remove_units
from .vocabulary import check_vocabulary, select_rows

SCORED_BATCHES = 32  # batches of training examples that drop_layers=loss is measured on


def prune(recipe: PruneRecipe, quiet: bool = False) -> dict[str, Any]:
    """Prune, resume an interrupted run, or return the result of a finished one."""
    check_recipe(recipe)
    console, out = Console(quiet), resolve_output(recipe.out)
    with runs.open_run(out, prune_identity(recipe), console) as run:
        return run.finished_result or _prune(recipe, run)


def _prune(recipe: PruneRecipe, run: Run) -> dict[str, Any]:
    source = load_source(recipe)
    _check_units(recipe, source.model)
    setup = read_setup(recipe, source, run.console)
    smaller = _remove_layers_and_tokens(recipe, source, setup, run.console)
    pruners = [
        Pruner(smaller.model, cast(MaskedUnit, unit), recipe.resolved_importance, recipe.resolved_scope, recipe.block_size)
        for unit in recipe.masked_units
    ]
    summary: dict[str, Any] = {"unit": list(recipe.unit)}
    if setup is not None:
        wrap = partial(_wrap_objective, recipe, pruners)
        summary |= train(recipe, "prune", run, source, setup, smaller, wrap, partial(_set_scores_rate, recipe))
    model = _take_out(recipe, smaller.model, pruners)
    return publish(recipe, "prune", run, source, setup, model, smaller.tokenizer, summary)


def _check_units(recipe: PruneRecipe, model: Model) -> None:
    """Raises a UserError for units that this model does not have."""
    encoder = model.config.encoder
    if recipe.masked_units and not encoder.num_hidden_layers:
        raise UserError(f"{recipe.model} has no layers; its vocabulary can be pruned (unit=vocab)")
    checks = {"head": check_heads, "neuron": check_neurons, "layer": check_layers}
    for unit in recipe.unit:
        if unit in checks:
            checks[unit](encoder)
    if "vocab" in recipe.unit:
        check_vocabulary(model)
    if "layer" in recipe.unit and not 0 < _num_removed(recipe, model) < encoder.num_hidden_layers:
        raise UserError(f"amount={recipe.amount:g} of {encoder.num_hidden_layers} layers removes "
                       f"{_num_removed(recipe, model)}; choose an amount that removes some and leaves some")  # fmt: skip


# -- layers and tokens, which are removed before training


def _remove_layers_and_tokens(recipe: PruneRecipe, source: Source, setup: Setup | None, console: Console) -> Smaller:
    """The model without some layers and tokens, and the original one, without these tokens, as its teacher."""
    model, teacher, tokenizer = source.model, source.model, source.tokenizer
    layers = list(range(model.config.encoder.num_hidden_layers))
    if "layer" in recipe.unit:
        removed = _choose_layers(recipe, source, setup, console)
        model, layers = remove_layers(model, removed), [layer for layer in layers if layer not in removed]
    if "vocab" in recipe.unit:
        shrunk = _shrink_tokenizer(recipe, tokenizer, setup)
        console.info(f"vocabulary: {len(shrunk.tokenizer):,} of {len(tokenizer):,} tokens stay")
        model, teacher, tokenizer = select_rows(model, shrunk), select_rows(teacher, shrunk), shrunk.tokenizer
    return Smaller(deepcopy(model) if model is source.model else model, tokenizer, Teacher(teacher, layers))


def _num_removed(recipe: PruneRecipe, model: Model) -> int:
    return round(recipe.amount * model.config.encoder.num_hidden_layers)


def _choose_layers(recipe: PruneRecipe, source: Source, setup: Setup | None, console: Console) -> list[int]:
    choice = recipe.drop_layers or ("loss" if setup else "alternate")
    compute_loss = partial(_mean_loss, build_batches(recipe, setup, source.tokenizer), setup.objective) if setup else None
    removed = choose_layers(choice, source.model, _num_removed(recipe, source.model), compute_loss)
    numbers = ", ".join(str(layer + 1) for layer in removed)
    console.info(f"removed layers {numbers} of {source.model.config.encoder.num_hidden_layers} (drop_layers={choice})")
    return removed


def _mean_loss(batches: ExampleBatches, objective: TaskObjective, model: Model) -> float:
    """Mean loss on training examples, without dropout."""
    num_batches = min(SCORED_BATCHES, batches.batches_per_epoch)
    config = msgspec.structs.replace(RecoveryTrain(), steps=1, batch_tokens=1, learning_rate=1.0)
    setup = prepare(model, config)
    with isolate_torch_state(setup):
        return evaluate(setup, objective, (batches(k) for k in range(num_batches)))["loss"]


def _shrink_tokenizer(recipe: PruneRecipe, tokenizer: Tokenizer, setup: Setup | None) -> ShrunkTokenizer:
    """The tokenizer without the tokens that the texts, or the training examples, do not use."""
    if recipe.texts:
        blocks = documents.read_blocks(find_files(recipe.texts))
        counts = count_used_tokens(tokenizer, (line for block in blocks for line in block.text.splitlines()))
    else:
        assert setup is not None
        encoded = setup.objective.task.encode(setup.examples.train, tokenizer, setup.max_length)
        counts = np.bincount(np.concatenate(encoded.input_ids), minlength=len(tokenizer))
    return shrink_tokenizer(tokenizer, counts[: len(tokenizer)] > 0)


# -- heads, neurons, weights and blocks, which are masked in training


def _wrap_objective(recipe: PruneRecipe, pruners: list[Pruner], objective: TeacherObjective) -> PruningObjective:
    return PruningObjective(objective, pruners, recipe.amount, recipe.sparsity_schedule)


def _set_scores_rate(recipe: PruneRecipe, schedule: ParamScheduleFn, learning_rate: float) -> ParamScheduleFn:
    """The scores of movement pruning have a learning rate of their own."""
    scores = ParamSchedule(recipe.scores_learning_rate / learning_rate)
    return lambda name: scores if name.endswith(SCORES_SUFFIX) else schedule(name)


def _take_out(recipe: PruneRecipe, model: Model, pruners: list[Pruner]) -> Model:
    """The model without masks: masked heads and neurons are removed, masked weights are 0.

    With unit=block and weight, heads and neurons that no weight reads any more are removed, too.
    """
    model.eval()
    for pruner in pruners:
        pruner.update(recipe.amount, is_final=True)
    units = {pruner.unit: pruner.kept_units() for pruner in pruners if pruner.unit in ("head", "neuron")}
    for pruner in pruners:
        pruner.remove()
    if not units:
        return remove_units(model, find_live_units(model)) if pruners and _can_remove_units(model) else model
    unpruned = [None] * len(model.encoder.stack.layers)
    kept = zip(units.get("head", unpruned), units.get("neuron", unpruned), strict=True)
    return remove_units(model, [KeptUnits(*pair) for pair in kept])


def _can_remove_units(model: Model) -> bool:
    try:
        check_heads(model.config.encoder)
        check_neurons(model.config.encoder)
    except UserError:
        return False
    return True
