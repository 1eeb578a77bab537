"""FLOPs of a pre-training recipe, and the number of steps (or epochs) that a budget allows."""

import math
from itertools import pairwise
from typing import Any

import torch
from msgspec.structs import replace

from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.model import Model
from ..objectives.base import PretrainObjective
from ..planning.step import mean_batch_tokens
from ..pretraining.setup import PretrainRecipe, PretrainSetup
from ..train.config import TrainConfig
from ..train.objective import Batch
from .flops import TRAIN_FORWARD_RATIO, RecurrentState, epoch_flops, train_flops_per_token

SAMPLE_TOKENS = 1024  # of the batch on which FLOPs are counted
FLOPS_PER_MINUTE = {
    "cuda": 3e14,
    "cpu": 5e12,
}  # of small models that share the device with other jobs; limits the save interval


def fit_to_budget(
    recipe: PretrainRecipe, corpus: Corpus, max_flops: float, max_epochs: float | None
) -> tuple[PretrainRecipe, float]:
    """The recipe with as many steps as fit into the budget, at least one, and the FLOPs they take.

    Word vectors train for whole epochs: `max_epochs`, or the objective's default, since they could not spend the budget.
    """
    if word_vectors := recipe.word_vector_objective:
        flops_per_epoch = epoch_flops(word_vectors, corpus)
        epochs = max(1, int(min(max_epochs or word_vectors.default_epochs or math.inf, max_flops // flops_per_epoch)))
        return replace(recipe, train=replace(recipe.train, steps=None, epochs=float(epochs))), epochs * flops_per_epoch
    step_flops, updates_per_epoch = measure_step_flops(recipe, corpus)
    steps = max(1, int(max_flops // step_flops))
    if max_epochs is not None:
        steps = min(steps, max(1, math.ceil(max_epochs * updates_per_epoch)))
    return replace(
        recipe, train=replace(recipe.train, steps=steps, save_every=_save_interval(recipe.train, step_flops))
    ), steps * step_flops


def count_spent_flops(recipe: PretrainRecipe, planned_flops: float, result: dict[str, Any]) -> float:
    """FLOPs that the finished run took: of the steps it did, or for GloVe of the co-occurrences it counted."""
    if word_vectors := recipe.word_vector_objective:
        counted = word_vectors.counted_flops(result, recipe.train.epochs or 0)
        return planned_flops if counted is None else TRAIN_FORWARD_RATIO * counted
    return planned_flops * result["step"] / recipe.train.steps if recipe.train.steps else planned_flops


def _save_interval(train: TrainConfig, step_flops: float) -> int:
    """Steps between checkpoints: the recipe's, or fewer if that would take much more than a minute."""
    if train.average_checkpoints:  # averages checkpoints, so the interval changes the result
        return train.save_every
    device = "cuda" if train.device != "cpu" and torch.cuda.is_available() else "cpu"
    return min(train.save_every, max(1, int(FLOPS_PER_MINUTE[device] // step_flops)))


@torch.no_grad()
def _batch_with_memory(
    model: Model, objective: PretrainObjective, loader: BatchLoader, length: int
) -> tuple[Batch[Inputs], RecurrentState]:
    """A batch, and the recurrent state with full memories that the model brings to it during training."""
    recurrent_state: RecurrentState = ()
    mem_len = max(model.train().encoder.stack.mem_lens, default=0)
    num_earlier = math.ceil(mem_len / length)
    for index in range(num_earlier):
        recurrent_state = objective.compute_loss(model, objective.to_batch(loader(index)), recurrent_state).recurrent_state
    return objective.to_batch(loader(num_earlier)), recurrent_state


def measure_step_flops(recipe: PretrainRecipe, corpus: Corpus) -> tuple[float, float]:
    """FLOPs of one update (weighted mean over phases) and updates per epoch of the first phase.

    Counted on a small batch of the corpus, and scaled to the tokens of an update.
    """
    setup, ends = PretrainSetup.from_recipe(recipe, corpus), [0.0, *(end for _, end in recipe.phases())]
    model, objective, loaders = setup.build_untrained_model(), setup.objective, setup.build_loaders()
    accumulation, micro_batch_flops = recipe.train.gradient_accumulation_steps, 0.0
    for length, loader, (start, end) in zip(recipe.max_length, loaders, pairwise(ends), strict=True):
        # where each distinct word is spelled once per batch, the cost is not proportional to tokens
        tokens = recipe.train.batch_tokens if setup.config.encoder.spells_words else max(SAMPLE_TOKENS, length)
        batch, recurrent_state = _batch_with_memory(model, objective, setup.build_loader(length, tokens), length)
        flops_per_token = train_flops_per_token(model, objective, batch, recurrent_state)
        micro_batch_flops += (end - start) * flops_per_token * mean_batch_tokens(loader)
    return micro_batch_flops * accumulation, loaders[0].batches_per_epoch / accumulation
