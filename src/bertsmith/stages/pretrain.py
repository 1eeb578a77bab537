"""A corpus to a pre-trained model, in a run that can be killed and proved."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ..artifacts import named
from ..config import Chance, Config, Count, Share, parse, plain
from ..corpus.ahead import Ahead
from ..corpus.batches import Batches
from ..corpus.bits import bits_per_byte
from ..corpus.store import Corpus
from ..corpus.views import Streams
from ..errors import BadInput
from ..model import checkpoint
from ..model.encoder import EncoderConfig
from ..model.fronts import Characters
from ..model.grow import grown
from ..model.mixers import MixerConfig, Recurrent
from ..model.model import Model, ModelConfig, built
from ..model.swap import adopted, going_on, swapped
from ..model.types import Batch
from ..objectives import BothWays, Causal, ObjectiveConfig, Pairs, Replaced
from ..objectives.alone import alone
from ..objectives.tabled import Tabled
from ..screen import Screen
from ..text.extension import extends, origins
from ..text.tokenizer import Tokenizer
from ..train.ranks import world
from ..train.recipe import Train
from ..train.trainer import Hook, Trainer
from . import folder, memory
from .vectors import agreed, filled
from .words import given, vectors_of

UNKNOWN = 0.01  # share of a corpus: above it, a model that spells its words is told what it misses
Length = Annotated[int, Meta(ge=8, le=2**31)]  # less leaves no room for text between [CLS] and [SEP]


class Recipe(Config, frozen=True):
    """A corpus, a model, what it learns from, and for how long."""

    corpus: Annotated[str, "the folder `prepare` made"]
    out: Annotated[str, "the checkpoint folder to make"]
    model: Annotated[EncoderConfig | None, "a preset or a table; bert-base, if nothing and no init is given"] = None
    objective: Annotated[
        ObjectiveConfig,
        "pairs: masked words and sentence pairs; masked: words alone; replaced: ELECTRA's; causal: the next; both-ways: "
        "ELMo's; skip-gram, cbow, glove: vectors of words",
    ] = Pairs()
    length: Annotated[tuple[Length, ...], Meta(min_length=1), "longest sequence, or one for each phase: [128, 512]"] = (128,)
    shares: Annotated[tuple[Share, ...], "of the run for each length; two lengths share it 0.9 to 0.1"] = ()
    train: Annotated[Train, "how long, how fast, in what numbers"] = Train()
    valid: Annotated[str | None, "a corpus to evaluate on; without one, documents are held out"] = None
    held_out: Annotated[Chance, "share of the documents to evaluate on"] = 0.01
    eval_tokens: Annotated[Count, "tokens an evaluation reads at most"] = 131_072
    init: Annotated[str | None, "a checkpoint folder to go on from; the corpus may be of an extension of its tokenizer"] = None
    vectors: Annotated[str | None, "a file or folder of word vectors, with which the token table of a new model begins"] = None
    seed: Annotated[int, "of weights, order, pairs, masks and dropout"] = 0

    def phases(self) -> list[tuple[int, float]]:
        """Each length, and the share of the run at which it ends."""
        shares = self.shares or ((0.9, 0.1) if len(self.length) == 2 else (1 / len(self.length),) * len(self.length))
        if len(shares) != len(self.length) or abs(sum(shares) - 1) > 1e-6:
            raise BadInput(f"shares {list(shares)} do not go with length {list(self.length)}; one for each, adding up to 1")
        return list(zip(self.length, np.cumsum(shares).tolist(), strict=True))

    def hear(self, said: dict[str, Any]) -> None:
        if isinstance(self.objective, Tabled):
            agreed(self.objective, said)


def run(recipe: Recipe, quiet: bool = False, on_step: Hook = lambda step, row: None) -> dict[str, Any]:
    """Trains, or goes on with a run that was interrupted, or says that it is done already."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    corpus = Corpus.open(named(recipe.corpus, "corpus"))
    name = identity_of(recipe)
    with folder.opened(out, name, screen) as told:
        if told or not isinstance(recipe.objective, Tabled):
            return told or _trained(recipe, out, corpus, name, screen, on_step)
        return filled(recipe, out, corpus, name, screen)


def identity_of(recipe: Recipe) -> str:
    """A name for all that decides what the run makes."""
    return folder.identity(recipe, corpus=recipe.corpus, valid=recipe.valid, init=recipe.init, vectors=recipe.vectors)


def _trained(recipe: Recipe, out: Path, corpus: Corpus, identity: str, screen: Screen, on_step: Hook) -> dict[str, Any]:
    learn, judge, judged = split(recipe, corpus)
    _tell_unread(recipe, corpus, screen)
    config = model_config(recipe, corpus)
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
    readings = [reading(recipe, corpus, learn, length, config) for length, _ in recipe.phases()]

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
    trainer, model, summary = memory.fitted(train, max(recipe.length), out, attempt, screen)
    model.finish()
    result = _result(summary, corpus, model) | _language(recipe, summary, judge.card) | memory.lowered(out)
    if trainer.leader:
        memory.forget(out)
        card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
        record = {"stage": "pretrain"} | (folder.descent(named(recipe.init, "init")) if recipe.init else {})
        folder.publish(out, model, corpus.tokenizer, card, record, recipe)
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


def _streams(recipe: Recipe) -> bool:
    return isinstance(getattr(recipe.objective, "view", None), Streams)


def _cut(readings: list[Batches], tokens: int) -> list[Batches]:
    """The same samples in the same order, so many tokens at a time."""
    return [one if one.tokens == tokens else replace(one, tokens=tokens, plans={}) for one in readings]


def _batch(recipe: Recipe, readings: list[Batches], ahead: Ahead, k: int, done: float) -> Batch:
    """Micro-batch k of the phase the run is in."""
    phase = next((i for i, (_, end) in enumerate(recipe.phases()) if done < end), len(readings) - 1)
    return recipe.objective.batch(ahead(k, readings[phase].rows))


def split(recipe: Recipe, corpus: Corpus) -> tuple[np.ndarray, Corpus, np.ndarray]:
    """Documents to learn from, and the corpus and documents to be judged on."""
    if recipe.valid:
        valid = Corpus.open(named(recipe.valid, "valid"))
        if valid.card["tokenizer"] != corpus.card["tokenizer"]:
            raise BadInput(f"{valid.path} was made with another tokenizer than {corpus.path}; run `prepare` on it with "
                           f"tokenizer={corpus.path}")  # fmt: skip
        return np.arange(len(corpus.documents) - 1), valid, np.arange(len(valid.documents) - 1)
    learn, judged = corpus.split(recipe.held_out, recipe.seed, recipe.objective.least)
    return learn, corpus, judged


def model_config(recipe: Recipe, corpus: Corpus) -> ModelConfig:
    heads = recipe.objective.heads()
    if recipe.init is None:
        return ModelConfig(
            encoder=recipe.model or EncoderConfig.presets["bert-base"], vocabulary=len(corpus.tokenizer), heads=heads
        )
    usual = EncoderConfig()
    if recipe.model == usual or (recipe.model and msgspec.structs.replace(recipe.model, mixer=usual.mixer) != usual):
        raise BadInput(f"init={recipe.init} brings its own model; leave out `model`, or say no more of it than model.mixer")
    if recipe.vectors is not None:
        raise BadInput(f"init={recipe.init} brings its own token table; leave out `vectors`")
    init = named(recipe.init, "init")
    record = checkpoint.recorded(init)
    if record["tokenizer"] != corpus.card["tokenizer"] and not extends(corpus.tokenizer, Tokenizer.load(init)):
        raise BadInput(f"{corpus.path} was made with another tokenizer ({corpus.card['tokenizer'][:8]}) than {init} "
                       f"({record['tokenizer'][:8]}); run `prepare` again with tokenizer={init}, or with one that "
                       f"`bertsmith tokenizer extend={init}` makes")  # fmt: skip
    config = parse(ModelConfig, record["model"], str(init / "config.json"))
    encoder = config.encoder
    if recipe.model is not None:
        encoder = swapped(encoder, going_on(recipe.model.mixer, encoder.mixer))
    return ModelConfig(encoder=encoder, vocabulary=max(config.vocabulary, len(corpus.tokenizer)), heads=heads)


def reading(recipe: Recipe, corpus: Corpus, documents: np.ndarray, length: int, config: ModelConfig) -> Batches:
    if config.encoder.segments < 2 and isinstance(recipe.objective, Pairs):
        raise BadInput(f"model.segments={config.encoder.segments} has no segment B for sentence pairs; set it to 2, or "
                       "choose objective=masked")  # fmt: skip
    if isinstance(recipe.objective, Causal | BothWays):
        recipe.objective.check(config.encoder)
    if _streams(recipe) and isinstance(recipe.objective, Replaced):
        raise BadInput("objective=replaced carries no memory from batch to batch: its generator has none; choose another "
                       "objective.view, such as windows")  # fmt: skip
    if world() > 1 and _streams(recipe):
        raise BadInput("a stream goes on from each batch to the next, which other processes read; run it in one process, or "
                       "choose another objective.view, such as windows")  # fmt: skip
    if length > config.encoder.positions:
        raise BadInput(f"length {length} is more than the model's {config.encoder.positions} positions; lower it, or set "
                       f"model.positions={length}")  # fmt: skip
    return recipe.objective.batches(corpus, documents, length, recipe.train.batch_tokens, recipe.seed)


def _begun(recipe: Recipe, config: ModelConfig, corpus: Corpus, screen: Screen) -> Model:
    model = built(config, recipe.seed)
    model.meet(corpus.tokenizer)
    if recipe.init:
        before, tokenizer, _ = checkpoint.load(named(recipe.init, "init"))
        weights = adopted(before.state_dict(), config.encoder)
        if (new := len(corpus.tokenizer) - len(tokenizer)) > 0:
            weights = grown(weights, len(tokenizer), origins(corpus.tokenizer, tokenizer))
            screen.say(f"init: {new:,} new tokens begin as the mean of the old ones that spell them, {len(tokenizer):,} stay")
        found = model.load_state_dict(weights, strict=False)
        for name in (*found.missing_keys, *found.unexpected_keys):
            screen.say(f"init: {name} {'begins anew' if name in found.missing_keys else 'is not used by this objective'}")
    if recipe.vectors is not None:
        given(model, corpus.tokenizer, vectors_of(named(recipe.vectors, "vectors")), screen)
    return model


def _trials(
    recipe: Recipe, corpus: Corpus, documents: np.ndarray, tokens: int, screen: Screen
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


def _language(recipe: Recipe, summary: dict[str, Any], card: dict[str, Any]) -> dict[str, float]:
    """How well a model that reads from left to right foretells held-out text; in bits, where its bytes were counted."""
    nats = summary["trials"].get("valid", {}).get("loss")
    if nats is None or not isinstance(recipe.objective, Causal | BothWays):
        return {}
    bits = bits_per_byte(nats, card)
    return {"perplexity": math.exp(min(nats, 700))} | ({} if bits is None else {"bits_per_byte": bits})


def _tell_unread(recipe: Recipe, corpus: Corpus, screen: Screen) -> None:
    """Text that a reading in pairs meets only by chance."""
    lone = np.diff(corpus.documents) < 2
    share = float(np.diff(corpus.borders)[lone].sum() / max(1, corpus.borders[-1]))
    if recipe.objective.least > 1 and share > 0.05:
        screen.warn(f"{share:.0%} of the tokens stand in documents of one sentence, which pairs read only as a random B; "
                    "objective=masked reads everything")  # fmt: skip
