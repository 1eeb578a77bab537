"""What pre-training costs in operations, whatever the member is made of, and how long a budget lets it learn."""

import math
from typing import Any

from msgspec.structs import replace

from ..corpus.store import Corpus
from ..model.fronts import Characters
from ..model.model import built
from ..objectives.glove import Glove
from ..objectives.tabled import Tabled
from ..plan.batches import usual
from ..race.flops import per_token
from ..race.words import an_epoch, of_pairs
from . import pretrain

READ = 1024  # tokens that are read to count
USUAL = 25  # epochs of a table of words, where its objective says nothing


def afforded(recipe: pretrain.Recipe, corpus: Corpus, flops: float, epochs: float | None) -> tuple[pretrain.Recipe, float]:
    """The recipe with as many steps as fit into the budget, one at least, and the operations they take.

    Tables of words are filled in whole epochs: as many as the budget names, or as are usual, for no table can spend it.
    """
    if isinstance(recipe.objective, Tabled):
        each = an_epoch(recipe.objective, corpus)
        whole = max(1, int(min(epochs or getattr(recipe.objective, "usual", USUAL), flops // each)))
        return replace(recipe, train=replace(recipe.train, steps=None, epochs=float(whole))), whole * each
    step, updates = cost(recipe, corpus)
    steps = max(1, int(flops // step))
    if epochs is not None:
        steps = min(steps, max(1, math.ceil(epochs * updates)))
    return replace(recipe, train=replace(recipe.train, steps=steps)), steps * step


def spent(recipe: pretrain.Recipe, planned: float, result: dict[str, Any]) -> float:
    """What the run took after all: how many pairs GloVe has is known when they are counted."""
    if isinstance(recipe.objective, Glove) and "entries" in result:
        return of_pairs(recipe.objective, 2 * result["entries"] * (recipe.train.epochs or 0))
    return planned


def cost(recipe: pretrain.Recipe, corpus: Corpus) -> tuple[float, float]:
    """Operations of one update, and updates in an epoch.

    What reading some of the corpus takes is counted, for as many tokens as an update has.
    """
    config, length = pretrain.model_config(recipe, corpus), recipe.length[0]
    learn, _, _ = pretrain.split(recipe, corpus)
    reading = pretrain.reading(recipe, corpus, learn, length, config)
    spells = isinstance(config.encoder.front, Characters)  # a word once a batch, however often it stands there
    tokens = recipe.train.batch_tokens if spells else max(READ, length)
    few = replace(recipe, train=replace(recipe.train, batch_tokens=tokens))
    batch = recipe.objective.batch(pretrain.reading(few, corpus, learn, length, config)(0))
    model = built(config, recipe.seed)
    model.meet(corpus.tokenizer)
    each = per_token(model, recipe.objective, batch) * usual(reading)
    return each * recipe.train.accumulate, reading.an_epoch / recipe.train.accumulate
