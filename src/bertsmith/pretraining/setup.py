"""The recipe of a pre-training run, and `PretrainSetup`: the corpus split, model config, batches and weights it makes.

`pretrain`, `plan` and `race` all build theirs here, so that what is planned is what is trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from msgspec import Meta

from .. import runs
from ..artifacts import resolve_path
from ..config import Config, Fraction, MaxLength, PosFloat, PosInt, Probability, from_dict
from ..console import Console
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..errors import UserError
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.model import Model, ModelConfig, build_model
from ..model.surgery import convert_weights, merge_mixer_config, replace_mixer, resize_token_embeddings
from ..objectives import (
    NextSentenceMLM,
    ObjectiveConfig,
    PretrainObjective,
    WordVectorObjective,
    require_network,
    word_vector_objective,
)
from ..objectives.base import EvalSet
from ..tokenization.extend import is_extension, map_to_parent_ids
from ..tokenization.tokenizer import Tokenizer
from ..train.config import TrainConfig
from ..train.objective import Batch, Objective
from ..word_vectors.models import init_embeddings, load_vectors
from .word_vectors import check_user_keys

MAX_UNKNOWN_FRACTION = 0.01  # of the tokens; above it, a model that spells words warns
MIN_RELATIVE_STD = 0.5  # of the default standard deviation of initial weights; with less, a model learns late
MAX_UNREAD_FRACTION = 0.05  # of the tokens; above it, an objective of sentence pairs warns of documents with one sentence


class PretrainTrain(TrainConfig, frozen=True):
    """`train.*` with a default learning rate that depends on the objective."""

    learning_rate: Annotated[
        PosFloat | None,
        "peak learning rate; default: 1e-4, skip-gram 0.025, cbow 0.15, glove 0.05",
    ] = None  # type: ignore[assignment]  # a PretrainRecipe sets it


class PretrainRecipe(Config, frozen=True):
    """The corpus, the model, the objective and the training settings."""

    corpus: Annotated[str, "corpus folder made by `prepare`"]
    out: Annotated[str, "output checkpoint folder"]
    model: Annotated[EncoderConfig | None, "preset name or table; default: bert-base; with init, only model.mixer"] = None
    objective: Annotated[
        ObjectiveConfig,
        "mlm-nsp (BERT), mlm-sop (ALBERT), mlm (RoBERTa), rtd (ELECTRA), clm (GPT), bilm (ELMo), "
        "or word vectors: skip-gram, cbow, glove",
    ] = NextSentenceMLM()
    max_length: Annotated[
        tuple[MaxLength, ...], Meta(min_length=1), "maximum sequence length; several for phases, such as [128, 512]"
    ] = (128,)
    phase_fractions: Annotated[
        tuple[Fraction, ...], "fraction of the run for each max_length; default: equal, of two [0.9, 0.1]"
    ] = ()
    train: Annotated[PretrainTrain, "training settings: duration, batch size, optimizer, precision ..."] = PretrainTrain()
    valid: Annotated[str | None, "validation corpus; default: documents held out by validation_split"] = None
    validation_split: Annotated[Probability, "fraction of documents held out for validation, without `valid`"] = 0.01
    eval_tokens: Annotated[PosInt, "maximum tokens per evaluation"] = 131_072
    init: Annotated[str | None, "checkpoint to continue from; the corpus has its tokenizer, or an extension of it"] = None
    vectors: Annotated[str | None, "word vectors (file or folder) to initialize the token embeddings with"] = None
    seed: Annotated[int, "random seed of weights, data order, masking and dropout"] = 0

    def __post_init__(self) -> None:
        if self.train.learning_rate is None:
            default = self.objective.default_learning_rate or TrainConfig().learning_rate
            msgspec.structs.force_setattr(self, "train", msgspec.structs.replace(self.train, learning_rate=default))

    def phases(self) -> list[tuple[int, float]]:
        """(sequence length, fraction of the run at which its phase ends), in order."""
        fractions = self.phase_fractions or (
            (0.9, 0.1) if len(self.max_length) == 2 else (1 / len(self.max_length),) * len(self.max_length)
        )
        if len(fractions) != len(self.max_length) or abs(sum(fractions) - 1) > 1e-6:
            raise UserError(
                f"phase_fractions={list(fractions)} does not match max_length={list(self.max_length)}; "
                "give one fraction for each length, with a sum of 1"
            )
        return list(zip(self.max_length, np.cumsum(fractions).tolist(), strict=True))

    @property
    def network_objective(self) -> PretrainObjective:
        """The objective of a network; raises a UserError for word vectors, which have no batches of sequences."""
        return require_network(self.objective)

    @property
    def word_vector_objective(self) -> WordVectorObjective | None:
        """The objective, if it trains word vectors instead of a network."""
        return word_vector_objective(self.objective)

    def validate(self, user_values: dict[str, Any]) -> None:
        if word_vectors := self.word_vector_objective:
            check_user_keys(word_vectors, user_values)


def pretrain_identity(recipe: PretrainRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    return runs.compute_run_id(recipe, corpus=recipe.corpus, valid=recipe.valid, init=recipe.init, vectors=recipe.vectors)


@dataclass(frozen=True)
class PretrainSetup:
    """What a pre-training run of a network is assembled from."""

    recipe: PretrainRecipe
    objective: PretrainObjective
    config: ModelConfig
    corpus: Corpus
    train_documents: np.ndarray  # indices of documents in `corpus`
    valid_corpus: Corpus
    valid_documents: np.ndarray  # indices of documents in `valid_corpus`

    @classmethod
    def from_recipe(cls, recipe: PretrainRecipe, corpus: Corpus) -> Self:
        """Reads the validation corpus and the config of `init`; raises a UserError for parts that do not fit together."""
        split = split_corpus(recipe, corpus)
        config = build_model_config(recipe, corpus)
        check_model(recipe, config)
        return cls(recipe, recipe.network_objective, config, corpus, *split)

    def warn(self, console: Console) -> None:
        """Warnings of what can be trained, but hardly is what was meant."""
        recipe, corpus, encoder = self.recipe, self.corpus, self.config.encoder
        is_single = np.diff(corpus.document_offsets) < 2
        fraction = float(np.diff(corpus.document_token_offsets)[is_single].sum() / max(1, corpus.document_token_offsets[-1]))
        if self.objective.min_sentences > 1 and fraction > MAX_UNREAD_FRACTION:
            console.warn(f"{fraction:.0%} of the tokens are in documents of one sentence, which sentence pairs use only as a "
                         "random second segment; objective=mlm uses all text")  # fmt: skip
        if encoder.lacks_position_information:
            rope_hint = "model.mixer.rope_theta=10000, or " if "rope_theta" in encoder.mixer.__struct_fields__ else ""
            console.warn("this model has no position information: it cannot tell the order of tokens; set "
                         f"{rope_hint}model.position_embedding_type=absolute")  # fmt: skip
        default_std = msgspec.structs.replace(encoder, initializer_range=None).init_std
        if not recipe.init and encoder.num_hidden_layers and encoder.init_std < MIN_RELATIVE_STD * default_std:
            console.warn(f"model.initializer_range={encoder.init_std:g} is small for hidden_size={encoder.hidden_size}: "
                         "the model may stay at the unigram baseline for hundreds of steps; the default for this width is "
                         f"model.initializer_range={default_std:.2g}")  # fmt: skip
        if encoder.needs_streams and not self.objective.uses_streams:
            console.warn("model.mixer.mem_len has no effect, since batches do not continue the text of the batch before; "
                         "set objective.packing=streams, or model.mixer.mem_len=0")  # fmt: skip
        if encoder.spells_words and (unknown := corpus.card["unknown_rate"]) > MAX_UNKNOWN_FRACTION:
            console.warn(f"{unknown:.1%} of the tokens of {corpus.path} are [UNK], and the character CNN cannot use the "
                         "characters of these words; train a tokenizer with a larger vocab_size")  # fmt: skip
        if not len(self.valid_documents) and recipe.validation_split:
            console.warn(f"{self.valid_corpus.path} has too few documents for validation_split={recipe.validation_split:g}, "
                         "so nothing is evaluated; set valid=FOLDER to another corpus")  # fmt: skip

    # what a stage that trains in another way on a corpus (`distill`) replaces

    def build_training_objective(self, model: Model) -> Objective:
        """The objective that the trainer minimizes for this model, before its optimizer is built."""
        return self.objective

    def add_targets(self, batch: Batch[Inputs]) -> Batch[Inputs]:
        """A training batch with what the training objective needs besides."""
        return batch

    def finish_model(self, model: Model) -> None:
        """Remove from a trained model what only training needs."""
        model.drop_training_heads()

    @property
    def record(self) -> dict[str, Any]:
        """What config.json says of the run, besides the model and the recipe."""
        init = self.recipe.init
        return {"stage": "pretrain"} | (runs.read_family(resolve_path(init, "init")) if init else {})

    @property
    def card(self) -> dict[str, Any]:
        """Entries of card.json that do not come from the training."""
        return {}

    @property
    def published_recipe(self) -> Config:
        """The recipe that config.json records."""
        return self.recipe

    def build_loader(self, max_length: int, batch_tokens: int | None = None) -> BatchLoader:
        """Training batches of one sequence length; batch_tokens: None for that of the recipe."""
        batch_tokens = batch_tokens or self.recipe.train.batch_tokens
        return self.objective.build_batches(self.corpus, self.train_documents, max_length, batch_tokens, self.recipe.seed)

    def build_loaders(self) -> list[BatchLoader]:
        """Training batches of each phase."""
        return [self.build_loader(length) for length, _ in self.recipe.phases()]

    def select_loader(self, loaders: list[BatchLoader], fraction_done: float) -> BatchLoader:
        """The loader of the phase that the run is in after `fraction_done`."""
        phase_ends = [end for _, end in self.recipe.phases()]
        return loaders[next((i for i, end in enumerate(phase_ends) if fraction_done < end), len(loaders) - 1)]

    def build_eval_sets(self, batch_tokens: int) -> dict[str, EvalSet]:
        """What is evaluated on the validation documents, by split; empty without such documents."""
        if not len(self.valid_documents):
            return {}
        recipe = self.recipe
        return self.objective.eval_sets(
            self.valid_corpus, self.valid_documents, recipe.max_length[-1], batch_tokens, recipe.seed, recipe.eval_tokens
        )

    def build_untrained_model(self) -> Model:
        """The model with random weights, for the corpus's tokenizer."""
        return build_model(self.config, self.recipe.seed, self.corpus.tokenizer)

    def build_model(self, console: Console) -> Model:
        """The model that training starts from: random weights, those of `init`, or token embeddings from `vectors`."""
        recipe, model, tokenizer = self.recipe, self.build_untrained_model(), self.corpus.tokenizer
        if recipe.init:
            load_init_weights(model, resolve_path(recipe.init, "init"), tokenizer, console)
        if recipe.vectors is not None:
            init_embeddings(model, tokenizer, load_vectors(resolve_path(recipe.vectors, "vectors")), console)
        return model


def split_corpus(recipe: PretrainRecipe, corpus: Corpus) -> tuple[np.ndarray, Corpus, np.ndarray]:
    """Indices of the training documents, the validation corpus, and the indices of its validation documents."""
    if recipe.valid:
        valid = Corpus.open(resolve_path(recipe.valid, "valid"))
        if valid.card["tokenizer_fingerprint"] != corpus.card["tokenizer_fingerprint"]:
            raise UserError(f"{valid.path} was prepared with another tokenizer than {corpus.path}; prepare it again with "
                           f"tokenizer={corpus.path}")  # fmt: skip
        return np.arange(len(corpus.document_offsets) - 1), valid, np.arange(len(valid.document_offsets) - 1)
    train_documents, valid_documents = corpus.split(recipe.validation_split, recipe.seed, recipe.objective.min_sentences)
    return train_documents, corpus, valid_documents


def build_model_config(recipe: PretrainRecipe, corpus: Corpus | None, vocab_size: int = 0) -> ModelConfig:
    """Config of a new model, or of `init` with the objective's heads, the corpus's vocabulary and `model.mixer`.

    vocab_size: of a new model, where there is no corpus (`plan`).
    """
    heads, vocab_size = recipe.network_objective.heads(), vocab_size if corpus is None else len(corpus.tokenizer)
    if recipe.init is None:
        return ModelConfig(encoder=recipe.model or EncoderConfig.presets()["bert-base"], vocab_size=vocab_size, heads=heads)
    default = EncoderConfig()
    if recipe.model == default or (recipe.model and msgspec.structs.replace(recipe.model, mixer=default.mixer) != default):
        raise UserError(f"init={recipe.init} has its own model config; leave out `model`, or set only keys of model.mixer")
    if recipe.vectors is not None:
        raise UserError(f"init={recipe.init} has its own token embeddings; leave out `vectors`")
    init = resolve_path(recipe.init, "init")
    record = checkpoint.read_config(init)
    if corpus is not None:
        _check_tokenizer(corpus, init, record["tokenizer_fingerprint"])
    config = from_dict(ModelConfig, record["model"], str(init / "config.json"))
    encoder = config.encoder
    if recipe.model is not None:
        encoder = replace_mixer(encoder, merge_mixer_config(recipe.model.mixer, encoder.mixer))
    vocab_size = config.vocab_size if corpus is None else max(config.vocab_size, vocab_size)
    return ModelConfig(encoder=encoder, vocab_size=vocab_size, heads=heads)


def check_model(recipe: PretrainRecipe, config: ModelConfig) -> None:
    """Raises a UserError if model, objective, sequence lengths and number of processes do not fit together."""
    recipe.network_objective.check(config.encoder)
    if runs.world_size() > 1 and recipe.network_objective.uses_streams:
        raise UserError("objective.packing=streams does not work with several processes, since each batch continues the one "
                       "before; start it without torchrun, or use another, such as objective.packing=windows")  # fmt: skip
    if (length := max(recipe.max_length)) > config.encoder.max_position_embeddings:
        raise UserError(f"max_length={length} is more than the model's {config.encoder.max_position_embeddings} positions; "
                       f"lower it, or set model.max_position_embeddings={length}")  # fmt: skip


def load_init_weights(model: Model, init: Path, tokenizer: Tokenizer, console: Console) -> None:
    """Weights of the checkpoint folder `init`; tokens that it does not have get the mean embedding of their parts."""
    base, base_tokenizer, _ = checkpoint.load(init)
    weights = convert_weights(base.state_dict(), model.config.encoder)
    if (num_new := len(tokenizer) - len(base_tokenizer)) > 0:
        weights = resize_token_embeddings(weights, len(base_tokenizer), map_to_parent_ids(tokenizer, base_tokenizer))
        console.info(f"init: {num_new:,} new tokens start from the mean embedding of the old tokens they consist of")
    load_result = model.load_state_dict(weights, strict=False)
    for name in (*load_result.missing_keys, *load_result.unexpected_keys):
        status = "randomly initialized" if name in load_result.missing_keys else "not used by this objective"
        console.info(f"init: {name} is {status}")


def _check_tokenizer(corpus: Corpus, init: Path, init_fingerprint: str) -> None:
    """Raises a UserError if the corpus has neither the tokenizer of `init` nor an extension of it."""
    fingerprint = corpus.card["tokenizer_fingerprint"]
    if init_fingerprint != fingerprint and not is_extension(corpus.tokenizer, Tokenizer.load(init)):
        raise UserError(f"{corpus.path} was prepared with another tokenizer ({fingerprint[:8]}) than {init} "
                       f"({init_fingerprint[:8]}); prepare it again with tokenizer={init}, or with a tokenizer made by "
                       f"`bertsmith tokenizer extend={init}`")  # fmt: skip
