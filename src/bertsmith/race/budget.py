"""What pre-training costs in operations, whatever the member is made of, and how long a budget lets it learn."""

import math
from itertools import pairwise
from typing import Any

import torch
from msgspec.structs import replace

from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.embeddings import CharCNNConfig
from ..model.model import Model, build_model
from ..objectives.glove import Glove
from ..objectives.word2vec import WordVectorObjective
from ..planning.step import mean_batch_tokens
from ..pretraining.setup import PretrainRecipe, build_batches, build_model_config, split_corpus
from ..train.config import TrainConfig
from .flops import RecurrentState, epoch_flops, glove_flops, train_flops_per_token

SAMPLE_TOKENS = 1024  # tokens that are read to count
FLOPS_PER_MINUTE = {"cuda": 3e14, "cpu": 5e12}  # operations of small models, others beside them, from save to save at most


def fit_to_budget(
    recipe: PretrainRecipe, corpus: Corpus, max_flops: float, max_epochs: float | None
) -> tuple[PretrainRecipe, float]:
    """The recipe with as many steps as fit into the budget, one at least, and the operations they take.

    Tables of words are filled in whole epochs: as many as the budget names, or as are usual, for no table can spend it.
    """
    if isinstance(recipe.objective, WordVectorObjective):
        each = epoch_flops(recipe.objective, corpus)
        whole = max(1, int(min(max_epochs or recipe.objective.default_epochs or math.inf, max_flops // each)))
        return replace(recipe, train=replace(recipe.train, steps=None, epochs=float(whole))), whole * each
    step, updates = measure_step_flops(recipe, corpus)
    steps = max(1, int(max_flops // step))
    if max_epochs is not None:
        steps = min(steps, max(1, math.ceil(max_epochs * updates)))
    return replace(
        recipe, train=replace(recipe.train, steps=steps, save_every=_save_interval(recipe.train, step))
    ), steps * step


def count_spent_flops(recipe: PretrainRecipe, planned_flops: float, result: dict[str, Any]) -> float:
    """What the run took after all: the steps it did; how many pairs GloVe has is known when they are counted."""
    if isinstance(recipe.objective, Glove) and "entries" in result:
        return glove_flops(recipe.objective, 2 * result["entries"] * (recipe.train.epochs or 0))
    return planned_flops * result["step"] / recipe.train.steps if recipe.train.steps else planned_flops


def _save_interval(train: TrainConfig, step_flops: float) -> int:
    """Steps from save to save: as many as are asked for, or fewer, where they would take much more than a minute."""
    if train.average:  # of the saves, so that they decide the result
        return train.save_every
    kind = "cuda" if train.device != "cpu" and torch.cuda.is_available() else "cpu"
    return min(train.save_every, max(1, int(FLOPS_PER_MINUTE[kind] // step_flops)))


@torch.no_grad()
def _batch_with_memory(model: Model, recipe: PretrainRecipe, loader: BatchLoader, length: int) -> tuple[Batch, RecurrentState]:
    """A batch, and what a model that remembers brings to it once its memories are full, as they are in training."""
    carry: RecurrentState = ()
    full = max((mixer.mem_len for mixer in model.train().encoder.stack.mixers), default=0)
    before = math.ceil(full / length)
    for number in range(before):
        carry = recipe.objective.compute_loss(model, recipe.objective.to_batch(loader(number)), carry).recurrent_state
    return recipe.objective.to_batch(loader(before)), carry


def measure_step_flops(recipe: PretrainRecipe, corpus: Corpus) -> tuple[float, float]:
    """Operations of one update, in the mean over phases of several lengths, and updates in an epoch of the first.

    What reading some of the corpus takes is counted, for as many tokens as an update has.
    """
    config, ends = build_model_config(recipe, corpus), [0.0, *(end for _, end in recipe.phases())]
    learn, _, _ = split_corpus(recipe, corpus)
    readings = [build_batches(recipe, corpus, learn, length, config) for length in recipe.length]
    model = build_model(config, recipe.seed)
    model.attach_tokenizer(corpus.tokenizer)
    spells = isinstance(config.encoder.front, CharCNNConfig)  # a word once a batch, however often it stands there
    each = 0.0
    for length, reading, (begin, end) in zip(recipe.length, readings, pairwise(ends), strict=True):
        tokens = recipe.train.batch_tokens if spells else max(SAMPLE_TOKENS, length)
        few = replace(recipe, train=replace(recipe.train, batch_tokens=tokens))
        batch, carry = _batch_with_memory(model, recipe, build_batches(few, corpus, learn, length, config), length)
        each += (end - begin) * train_flops_per_token(model, recipe.objective, batch, carry) * mean_batch_tokens(reading)
    return each * recipe.train.accumulate, readings[0].batches_per_epoch / recipe.train.accumulate
