"""The recipe of a pre-training run, and what it builds: corpus split, model config, batches, initial weights."""

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from .. import runs
from ..artifacts import resolve_path
from ..config import Config, Fraction, PosFloat, PosInt, Probability, from_dict
from ..console import Console
from ..corpus.loader import BatchLoader
from ..corpus.sampling import Streams
from ..corpus.store import Corpus
from ..errors import UserError
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..model.model import Model, ModelConfig, build_model
from ..model.surgery import convert_weights, merge_mixer_config, replace_mixer, resize_token_embeddings
from ..objectives import (
    BiLM,
    CausalLM,
    NextSentenceMLM,
    ObjectiveConfig,
    PretrainObjective,
    ReplacedTokenDetection,
    WordVectorObjective,
    require_network,
)
from ..tokenization.extend import is_extension, map_to_parent_ids
from ..tokenization.tokenizer import Tokenizer
from ..train.config import TrainConfig
from ..word_vectors.models import init_embeddings, load_vectors
from .word_vectors import check_user_keys

MaxLength = Annotated[int, Meta(ge=8, le=2**31)]  # less leaves no room for text between [CLS] and [SEP]


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
            default = (
                self.objective.default_learning_rate
                if isinstance(self.objective, WordVectorObjective)
                else TrainConfig().learning_rate
            )
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

    def validate(self, user_values: dict[str, Any]) -> None:
        if isinstance(self.objective, WordVectorObjective):
            check_user_keys(self.objective, user_values)


def pretrain_identity(recipe: PretrainRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    return runs.compute_run_id(recipe, corpus=recipe.corpus, valid=recipe.valid, init=recipe.init, vectors=recipe.vectors)


def uses_streams(recipe: PretrainRecipe) -> bool:
    """Whether batches continue the text of the batch before, as memory (Transformer-XL) needs."""
    return isinstance(getattr(recipe.objective, "packing", None), Streams)


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


def build_model_config(recipe: PretrainRecipe, corpus: Corpus) -> ModelConfig:
    """Config of a new model, or of `init` with the objective's heads, the corpus's vocabulary and `model.mixer`."""
    heads = recipe.network_objective.heads()
    if recipe.init is None:
        return ModelConfig(
            encoder=recipe.model or EncoderConfig.presets()["bert-base"], vocab_size=len(corpus.tokenizer), heads=heads
        )
    default = EncoderConfig()
    if recipe.model == default or (recipe.model and msgspec.structs.replace(recipe.model, mixer=default.mixer) != default):
        raise UserError(f"init={recipe.init} has its own model config; leave out `model`, or set only keys of model.mixer")
    if recipe.vectors is not None:
        raise UserError(f"init={recipe.init} has its own token embeddings; leave out `vectors`")
    init = resolve_path(recipe.init, "init")
    record = checkpoint.read_config(init)
    fingerprint = corpus.card["tokenizer_fingerprint"]
    if record["tokenizer_fingerprint"] != fingerprint and not is_extension(corpus.tokenizer, Tokenizer.load(init)):
        raise UserError(f"{corpus.path} was prepared with another tokenizer ({fingerprint[:8]}) than {init} "
                       f"({record['tokenizer_fingerprint'][:8]}); prepare it again with tokenizer={init}, or with a "
                       "tokenizer made by "
                       f"`bertsmith tokenizer extend={init}`")  # fmt: skip
    config = from_dict(ModelConfig, record["model"], str(init / "config.json"))
    encoder = config.encoder
    if recipe.model is not None:
        encoder = replace_mixer(encoder, merge_mixer_config(recipe.model.mixer, encoder.mixer))
    return ModelConfig(encoder=encoder, vocab_size=max(config.vocab_size, len(corpus.tokenizer)), heads=heads)


def build_batches(
    recipe: PretrainRecipe, corpus: Corpus, documents: np.ndarray, length: int, config: ModelConfig
) -> BatchLoader:
    """The loader of one phase, after checking that model, objective and sequence length are compatible."""
    if isinstance(recipe.objective, CausalLM | BiLM):
        recipe.objective.check(config.encoder)
    if uses_streams(recipe) and isinstance(recipe.objective, ReplacedTokenDetection):
        raise UserError("objective.packing=streams is not supported by objective=rtd, whose generator has no memory; use "
                       "another, such as objective.packing=windows")  # fmt: skip
    if runs.world_size() > 1 and uses_streams(recipe):
        raise UserError("objective.packing=streams does not work with several processes, since each batch continues the one "
                       "before; start it without torchrun, or use another, such as objective.packing=windows")  # fmt: skip
    if length > config.encoder.max_position_embeddings:
        raise UserError(f"max_length={length} is more than the model's {config.encoder.max_position_embeddings} positions; "
                       f"lower it, or set model.max_position_embeddings={length}")  # fmt: skip
    return recipe.network_objective.build_batches(corpus, documents, length, recipe.train.batch_tokens, recipe.seed)


def init_model(recipe: PretrainRecipe, config: ModelConfig, corpus: Corpus, console: Console) -> Model:
    """The model with random weights, those of `init`, or token embeddings from `vectors`; new tokens get mean embeddings."""
    model = build_model(config, recipe.seed)
    model.attach_tokenizer(corpus.tokenizer)
    if recipe.init:
        base, tokenizer, _ = checkpoint.load(resolve_path(recipe.init, "init"))
        weights = convert_weights(base.state_dict(), config.encoder)
        if (num_new := len(corpus.tokenizer) - len(tokenizer)) > 0:
            weights = resize_token_embeddings(weights, len(tokenizer), map_to_parent_ids(corpus.tokenizer, tokenizer))
            console.info(f"init: {num_new:,} new tokens start from the mean embedding of the old tokens they consist of")
        load_result = model.load_state_dict(weights, strict=False)
        for name in (*load_result.missing_keys, *load_result.unexpected_keys):
            status = "randomly initialized" if name in load_result.missing_keys else "not used by this objective"
            console.info(f"init: {name} is {status}")
    if recipe.vectors is not None:
        init_embeddings(model, corpus.tokenizer, load_vectors(resolve_path(recipe.vectors, "vectors")), console)
    return model
