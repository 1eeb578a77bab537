"""A corpus to a pre-trained model, in a run that can be killed and proved."""

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from .. import runs
from ..artifacts import named
from ..config import Chance, Config, Count, Share, parse
from ..console import Screen
from ..corpus.loader import Batches
from ..corpus.sampling import Streams
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..model.model import Model, ModelConfig, built
from ..model.surgery import adopted, going_on, grown, swapped
from ..objectives import BothWays, Causal, ObjectiveConfig, Pairs, Replaced
from ..objectives.word2vec import Tabled
from ..tokenization.extend import extends, origins
from ..tokenization.tokenizer import Tokenizer
from ..train.config import Train
from ..train.distributed import world
from ..word_vectors.models import given, vectors_of
from .word_vectors import agreed

Length = Annotated[int, Meta(ge=8, le=2**31)]  # less leaves no room for text between [CLS] and [SEP]


class PretrainRecipe(Config, frozen=True):
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


def pretrain_identity(recipe: PretrainRecipe) -> str:
    """A name for all that decides what the run makes."""
    return runs.identity(recipe, corpus=recipe.corpus, valid=recipe.valid, init=recipe.init, vectors=recipe.vectors)


def _streams(recipe: PretrainRecipe) -> bool:
    return isinstance(getattr(recipe.objective, "view", None), Streams)


def split_corpus(recipe: PretrainRecipe, corpus: Corpus) -> tuple[np.ndarray, Corpus, np.ndarray]:
    """Documents to learn from, and the corpus and documents to be judged on."""
    if recipe.valid:
        valid = Corpus.open(named(recipe.valid, "valid"))
        if valid.card["tokenizer"] != corpus.card["tokenizer"]:
            raise BadInput(f"{valid.path} was made with another tokenizer than {corpus.path}; run `prepare` on it with "
                           f"tokenizer={corpus.path}")  # fmt: skip
        return np.arange(len(corpus.documents) - 1), valid, np.arange(len(valid.documents) - 1)
    learn, judged = corpus.split(recipe.held_out, recipe.seed, recipe.objective.least)
    return learn, corpus, judged


def build_model_config(recipe: PretrainRecipe, corpus: Corpus) -> ModelConfig:
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


def build_batches(recipe: PretrainRecipe, corpus: Corpus, documents: np.ndarray, length: int, config: ModelConfig) -> Batches:
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


def _begun(recipe: PretrainRecipe, config: ModelConfig, corpus: Corpus, screen: Screen) -> Model:
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
