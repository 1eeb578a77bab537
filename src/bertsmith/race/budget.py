"""What pre-training costs in operations, whatever the member is made of, and how long a budget lets it learn."""

import math
from itertools import pairwise
from typing import Any

import torch
from msgspec.structs import replace

from ..corpus.loader import Batches
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.embeddings import Characters
from ..model.model import Model, built
from ..objectives.glove import Glove
from ..objectives.word2vec import Tabled
from ..planning.step import usual
from ..pretraining.setup import PretrainRecipe, build_batches, build_model_config, split_corpus
from ..train.config import Train
from .flops import Carry, an_epoch, of_pairs, per_token

READ = 1024  # tokens that are read to count
A_MINUTE = {"cuda": 3e14, "cpu": 5e12}  # operations of small models, others beside them, from save to save at most


def afforded(recipe: PretrainRecipe, corpus: Corpus, flops: float, epochs: float | None) -> tuple[PretrainRecipe, float]:
    """The recipe with as many steps as fit into the budget, one at least, and the operations they take.

    Tables of words are filled in whole epochs: as many as the budget names, or as are usual, for no table can spend it.
    """
    if isinstance(recipe.objective, Tabled):
        each = an_epoch(recipe.objective, corpus)
        whole = max(1, int(min(epochs or recipe.objective.usual or math.inf, flops // each)))
        return replace(recipe, train=replace(recipe.train, steps=None, epochs=float(whole))), whole * each
    step, updates = cost(recipe, corpus)
    steps = max(1, int(flops // step))
    if epochs is not None:
        steps = min(steps, max(1, math.ceil(epochs * updates)))
    return replace(recipe, train=replace(recipe.train, steps=steps, save_every=_saving(recipe.train, step))), steps * step


def spent(recipe: PretrainRecipe, planned: float, result: dict[str, Any]) -> float:
    """What the run took after all: the steps it did; how many pairs GloVe has is known when they are counted."""
    if isinstance(recipe.objective, Glove) and "entries" in result:
        return of_pairs(recipe.objective, 2 * result["entries"] * (recipe.train.epochs or 0))
    return planned * result["step"] / recipe.train.steps if recipe.train.steps else planned


def _saving(train: Train, step: float) -> int:
    """Steps from save to save: as many as are asked for, or fewer, where they would take much more than a minute."""
    if train.average:  # of the saves, so that they decide the result
        return train.save_every
    kind = "cuda" if train.device != "cpu" and torch.cuda.is_available() else "cpu"
    return min(train.save_every, max(1, int(A_MINUTE[kind] // step)))


@torch.no_grad()
def _remembered(model: Model, recipe: PretrainRecipe, reading: Batches, length: int) -> tuple[Batch, Carry]:
    """A batch, and what a model that remembers brings to it once its memories are full, as they are in training."""
    carry: Carry = ()
    full = max((mixer.remembers for mixer in model.train().encoder.stack.mixers), default=0)
    before = math.ceil(full / length)
    for number in range(before):
        carry = recipe.objective.loss(model, recipe.objective.batch(reading(number)), carry).carry
    return recipe.objective.batch(reading(before)), carry


def cost(recipe: PretrainRecipe, corpus: Corpus) -> tuple[float, float]:
    """Operations of one update, in the mean over phases of several lengths, and updates in an epoch of the first.

    What reading some of the corpus takes is counted, for as many tokens as an update has.
    """
    config, ends = build_model_config(recipe, corpus), [0.0, *(end for _, end in recipe.phases())]
    learn, _, _ = split_corpus(recipe, corpus)
    readings = [build_batches(recipe, corpus, learn, length, config) for length in recipe.length]
    model = built(config, recipe.seed)
    model.meet(corpus.tokenizer)
    spells = isinstance(config.encoder.front, Characters)  # a word once a batch, however often it stands there
    each = 0.0
    for length, reading, (begin, end) in zip(recipe.length, readings, pairwise(ends), strict=True):
        tokens = recipe.train.batch_tokens if spells else max(READ, length)
        few = replace(recipe, train=replace(recipe.train, batch_tokens=tokens))
        batch, carry = _remembered(model, recipe, build_batches(few, corpus, learn, length, config), length)
        each += (end - begin) * per_token(model, recipe.objective, batch, carry) * usual(reading)
    return each * recipe.train.accumulate, readings[0].an_epoch / recipe.train.accumulate
