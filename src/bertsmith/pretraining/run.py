"""A corpus to a pre-trained model, in a run that can be killed and proved."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .. import runs
from ..artifacts import named
from ..config import plain
from ..console import Screen
from ..corpus.card import bits_per_byte
from ..corpus.loader import Ahead, Batches
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.embeddings import Characters
from ..model.mixers import MixerConfig, Recurrent
from ..model.model import Model
from ..objectives import BothWays, Causal
from ..objectives.pseudo_perplexity import alone
from ..objectives.word2vec import Tabled
from ..train import oom
from ..train.config import Train
from ..train.distributed import world
from ..train.trainer import Hook, Trainer
from .setup import PretrainRecipe, _begun, _streams, build_batches, build_model_config, pretrain_identity, split_corpus
from .word_vectors import filled

UNKNOWN = 0.01  # share of a corpus: above it, a model that spells its words is told what it misses


def pretrain(recipe: PretrainRecipe, quiet: bool = False, on_step: Hook = lambda step, row: None) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    corpus = Corpus.open(named(recipe.corpus, "corpus"))
    name = pretrain_identity(recipe)
    with runs.opened(out, name, screen) as told:
        if told or not isinstance(recipe.objective, Tabled):
            return told or _trained(recipe, out, corpus, name, screen, on_step)
        return filled(recipe, out, corpus, name, screen)


def _trained(recipe: PretrainRecipe, out: Path, corpus: Corpus, identity: str, screen: Screen, on_step: Hook) -> dict[str, Any]:
    learn, judge, judged = split_corpus(recipe, corpus)
    _tell_unread(recipe, corpus, screen)
    config = build_model_config(recipe, corpus)
    if config.encoder.placeless:
        turns = "model.mixer.rotary=10000, or " if "rotary" in config.encoder.mixer.__struct_fields__ else ""
        screen.warn(f"this model knows no positions, so it reads words in any order alike; set {turns}model.table=true")
    if recipe.init and recipe.model:
        screen.say(f"goes on with {_described(config.encoder.mixer)}")
    if _remembers(config.encoder) and not _streams(recipe):
        screen.warn("this model can remember the text before each sequence, and will not: nothing goes on from batch to batch; "
                    "set objective.view=streams, or model.mixer.remembers=0")  # fmt: skip
    if isinstance(config.encoder.front, Characters) and (unknown := corpus.card["unknown rate"]) > UNKNOWN:
        screen.warn(f"{unknown:.1%} of the corpus are words its tokenizer does not know, and all of them are spelt [UNK] here: "
                    "letters are learnt from the others alone; a larger `tokenizer size=` leaves fewer")  # fmt: skip
    readings = [build_batches(recipe, corpus, learn, length, config) for length, _ in recipe.phases()]

    def attempt(train: Train) -> tuple[Trainer, Model, dict[str, Any]]:
        model = _begun(recipe, config, corpus, screen)
        model.recompute(train.recompute)
        with Ahead(readings[0].maker, train.workers, world()) as ahead:
            trainer = Trainer(
                model, recipe.objective, train, out, seed=recipe.seed, fingerprint=identity, on_step=on_step,
                quiet=screen.quiet, trials=_trials(recipe, judge, judged, train.batch_tokens, screen),
                baseline=("words", corpus.card["unigram entropy"]),
            )  # fmt: skip
            return trainer, model, trainer.fit(partial(_batch, recipe, _cut(readings, train.batch_tokens), ahead))

    train = recipe.train.resolved(readings[0].an_epoch)  # as given: an epoch has as many updates, however they are split
    trainer, model, summary = oom.fitted(train, max(recipe.length), out, attempt, screen)
    model.finish()
    result = _result(summary, corpus, model) | _language(recipe, summary, judge.card) | oom.lowered(out)
    if trainer.leader:
        oom.forget(out)
        card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
        record = {"stage": "pretrain"} | (runs.descent(named(recipe.init, "init")) if recipe.init else {})
        runs.publish(out, model, corpus.tokenizer, card, record, recipe)
        screen.table(str(out), [(name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
                                for name, value in result.items() if isinstance(value, int | float)])  # fmt: skip
    return {"out": str(out), "made": True, **result}


def _described(mixer: MixerConfig) -> str:
    """Its kind, and what is not as usual."""
    usual, (kind, *told) = plain(type(mixer)()), plain(mixer).items()
    return ", ".join([f"mixer={kind[1]}", *(f"{name}={json.dumps(value)}" for name, value in told if value != usual[name])])


def _remembers(encoder: EncoderConfig) -> bool:
    """It is made to go on from text to text: Transformer-XL; adaptive spans alone want no memory to be of use."""
    return isinstance(encoder.mixer, Recurrent) and encoder.mixer.remembers > 0 and bool(encoder.layers)


def _cut(readings: list[Batches], tokens: int) -> list[Batches]:
    """The same samples in the same order, so many tokens at a time."""
    return [one if one.tokens == tokens else replace(one, tokens=tokens, plans={}) for one in readings]


def _batch(recipe: PretrainRecipe, readings: list[Batches], ahead: Ahead, k: int, done: float) -> Batch:
    """Micro-batch k of the phase the run is in."""
    phase = next((i for i, (_, end) in enumerate(recipe.phases()) if done < end), len(readings) - 1)
    return recipe.objective.batch(ahead(k, readings[phase].rows))


def _trials(
    recipe: PretrainRecipe, corpus: Corpus, documents: np.ndarray, tokens: int, screen: Screen
) -> dict[str, Callable[[], Iterator[Batch]]]:
    """Held-out text as it is trained on, and, where words are hidden, with each word hidden alone."""
    if not len(documents):
        if recipe.held_out:
            screen.warn(f"{corpus.path} has too few documents to hold some out: nothing is evaluated; give valid=FOLDER")
        return {}
    length = recipe.length[-1]
    held = recipe.objective.batches(corpus, documents, length, tokens, recipe.seed)
    held(0)  # what cannot be evaluated is found before the training, not after it

    def valid() -> Iterator[Batch]:
        return map(recipe.objective.batch, islice(held, max(1, recipe.eval_tokens // tokens)))

    trials: dict[str, Callable[[], Iterator[Batch]]] = {"valid": valid}
    if recipe.objective.hides:
        trials["alone"] = lambda: alone(corpus, documents, length, tokens, recipe.seed, recipe.eval_tokens // 2)
    return trials


def _result(summary: dict[str, Any], corpus: Corpus, model: Model) -> dict[str, Any]:
    result = {
        name: summary[name] for name in ("step", "loss", "tokens", "seconds", "tokens_per_second", "skipped", "rollbacks")
    }
    result |= {"unigram_entropy": corpus.card["unigram entropy"], "parameters": sum(p.numel() for p in model.parameters())}
    for name, value in summary["trials"].get("valid", {}).items():
        result[f"valid_{name.replace('.', '_')}"] = value
    if "loss" in summary["trials"].get("alone", {}):  # held-out text may be unknown words alone
        result["pseudo_perplexity"] = math.exp(min(summary["trials"]["alone"]["loss"], 700))
    return result


def _language(recipe: PretrainRecipe, summary: dict[str, Any], card: dict[str, Any]) -> dict[str, float]:
    """How well a model that reads from left to right foretells held-out text; in bits, where its bytes were counted."""
    nats = summary["trials"].get("valid", {}).get("loss")
    if nats is None or not isinstance(recipe.objective, Causal | BothWays):
        return {}
    bits = bits_per_byte(nats, card)
    return {"perplexity": math.exp(min(nats, 700))} | ({} if bits is None else {"bits_per_byte": bits})


def _tell_unread(recipe: PretrainRecipe, corpus: Corpus, screen: Screen) -> None:
    """Text that a reading in pairs meets only by chance."""
    lone = np.diff(corpus.documents) < 2
    share = float(np.diff(corpus.borders)[lone].sum() / max(1, corpus.borders[-1]))
    if recipe.objective.least > 1 and share > 0.05:
        screen.warn(f"{share:.0%} of the tokens stand in documents of one sentence, which pairs read only as a random B; "
                    "objective=masked reads everything")  # fmt: skip
