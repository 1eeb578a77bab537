"""The recipe of a fine-tuning run, its checks, and its identity."""

from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from .. import runs
from ..artifacts import resolve_path
from ..config import Config, MaxLength, NonNegFloat, NonNegInt, PosFloat, PosInt, Probability
from ..errors import UserError
from ..model.adapter import is_adapter
from ..model.config import EncoderConfig, PoolingMode
from ..model.decoders import DecoderConfig
from ..model.heads.features import FeaturesConfig
from ..model.lora import LoraConfig
from ..objectives.regularizers import AdversarialConfig
from ..tasks import TaskConfig
from ..tasks.base import LongText
from ..tokenization.tables import name_file
from ..train.config import TrainConfig
from .examples import Data, with_labels_of_file


class FinetuneTrain(TrainConfig, frozen=True):
    """`train.*` with the defaults of fine-tuning, layer-wise learning rate decay and gradual unfreezing."""

    batch_tokens: Annotated[PosInt | None, "tokens per micro-batch; default: 16 to 32 examples of mean length"] = None  # type: ignore[assignment]  # set by finetuning.defaults
    learning_rate: Annotated[PosFloat | None, "peak learning rate; default: by the model's card or hidden size"] = None  # type: ignore[assignment]  # set by finetuning.defaults
    early_stopping_patience: Annotated[
        NonNegInt | None,
        "stop after this many evaluations without improvement, keep the best weights; 0: never; default: half of the epochs, "
        "if no duration is set",
    ] = None  # type: ignore[assignment]  # set by finetuning.defaults
    warmup_steps: Annotated[NonNegFloat, "warmup: steps, or below 1 a fraction of the run"] = 0.1
    grad_spike_factor: Annotated[
        NonNegFloat, "skip updates whose gradient norm exceeds this multiple of the median; 0: never"
    ] = 0.0  # large gradients of rare examples are not anomalies
    layer_lr_decay: Annotated[PosFloat, "layer-wise learning rate decay: factor per layer from the top (ULMFiT, ELECTRA)"] = 1.0
    gradual_unfreezing: Annotated[
        Probability, "fraction of the run over which layers are unfrozen from the top (ULMFiT); 0: none"
    ] = 0.0
    head_lr_multiplier: Annotated[PosFloat, "learning rate of the head, as a multiple of learning_rate"] = 1.0

    @property
    def has_duration(self) -> bool:
        return (self.steps, self.epochs, self.minutes) != (None, None, None)


class FinetuneRecipe(Config, frozen=True):
    """The task, the base model, the files of examples and the training settings."""

    task: Annotated[TaskConfig, "the task: classify, regress, tag, answer, choose, similar or generate"]
    model: Annotated[str | EncoderConfig, "pre-trained checkpoint; or, with tokenizer, a preset or table for a new model"]
    data: Annotated[Data, "files of labelled examples"]
    out: Annotated[str, "output checkpoint folder"]
    tokenizer: Annotated[str | None, "tokenizer folder, for a new model"] = None
    vectors: Annotated[str | None, "word vectors to initialize the token embeddings of a new model"] = None
    decoder: Annotated[
        DecoderConfig | None, "task=generate: transformer (initialized from the encoder) or rnn; default: UniLM"
    ] = None
    max_length: Annotated[MaxLength | None, "maximum sequence length, in tokens; default: the model's"] = None
    train: Annotated[
        FinetuneTrain, "training settings: duration (default: 3 to 10 epochs by size), batch size, optimizer ..."
    ] = FinetuneTrain()
    long_text: Annotated[LongText | None, "how to process texts longer than max_length; same as task.long_text"] = None
    freeze: Annotated[
        NonNegInt | Literal["embeddings", "all"], "freeze embeddings and this many lower layers; all: train only the head"
    ] = 0
    features: Annotated[FeaturesConfig | None, "layers that the head reads; default: the last"] = None
    pooling: Annotated[
        PoolingMode | None, "representation of a text for the head: cls, mean, max or concat (ULMFiT); default: the model's"
    ] = None
    lora: Annotated[LoraConfig | None, "LoRA: train low-rank updates, which are merged into the weights at the end"] = None
    adversary: Annotated[AdversarialConfig | None, "adversarial training on perturbed embeddings (FGM, PGD)"] = None
    aux_lm_weight: Annotated[NonNegFloat, "weight of an auxiliary LM loss, for causal models (0.5 in GPT); 0: none"] = 0.0
    rdrop: Annotated[NonNegFloat, "weight of the R-Drop loss (KL between two dropout passes); 0: none"] = 0.0
    hidden_dropout_prob: Annotated[
        Probability | None, "dropout of embeddings and sublayer outputs; default: by the model's card, or as in pre-training"
    ] = None
    metric_for_best_model: Annotated[
        str | None, "metric for early stopping and for the best seed; default: the task's main one"
    ] = None
    random_init: Annotated[bool, "start from random weights instead of the pre-trained ones (control)"] = False
    seed: Annotated[int, "random seed of new weights, data order and dropout"] = 0
    seeds: Annotated[tuple[int, ...], "several seeds, one run each: mean and deviation; the best model is kept"] = ()


def check_recipe(recipe: FinetuneRecipe) -> None:
    """Raise UserError for contradicting settings, before any file is read."""
    if not (recipe.data.dev or recipe.data.validation_split) and (recipe.seeds or recipe.metric_for_best_model):
        raise UserError("seeds and metric_for_best_model need a dev file to compare scores on; set data.dev, or leave them out")
    if recipe.train.workers:
        raise UserError(
            f"train.workers={recipe.train.workers} has no effect: examples are encoded before training; leave it out"
        )
    patience = recipe.train.early_stopping_patience
    stops_early = patience or (patience is None and not recipe.train.has_duration)
    if recipe.metric_for_best_model and not recipe.seeds and not stops_early:
        raise UserError(
            f"metric_for_best_model={recipe.metric_for_best_model} has no effect without seeds or "
            "train.early_stopping_patience; set one of them, or leave it out"
        )
    if isinstance(recipe.model, str) and (recipe.tokenizer or recipe.vectors):
        raise UserError(f"model={recipe.model} has its own tokenizer and embeddings; leave out tokenizer and vectors")
    if not isinstance(recipe.model, str):
        _check_new_model(recipe)
    if recipe.decoder and recipe.task.head_type != "lm":
        raise UserError("decoder is only for task=generate; leave it out")
    if recipe.lora and not recipe.lora.merge and is_adapter(resolve_path(str(recipe.model), "model")):
        raise UserError(f"model={recipe.model} is an adapter itself, so it cannot be the base of another; leave out lora.merge")
    if recipe.lora and recipe.freeze:
        raise UserError("lora freezes the encoder already; leave out freeze")
    if recipe.random_init and (recipe.lora or recipe.freeze):
        raise UserError("random_init=true starts from random weights, which all need training; leave out freeze and lora")
    if recipe.pooling and (recipe.features or recipe.task.head_type != "text"):
        raise UserError(
            f"pooling={recipe.pooling} needs a task with one answer for a text, such as classify, and no features; leave it out"
        )
    if getattr(recipe.task, "template", "") and (recipe.lora or recipe.freeze):
        raise UserError("task.template adds tokens whose embeddings need training; leave out freeze and lora, or the template")
    if recipe.aux_lm_weight and (recipe.features or recipe.rdrop):
        raise UserError(
            f"aux_lm_weight={recipe.aux_lm_weight:g} cannot be combined with features or rdrop; leave it out, or those"
        )
    for key, reason in recipe.task.unsupported.items():
        if attrgetter(key)(recipe):
            raise UserError(f"{key} cannot be used with task={recipe.task.__struct_config__.tag}, {reason}; leave it out")


def _check_new_model(recipe: FinetuneRecipe) -> None:
    if recipe.random_init or recipe.lora or recipe.freeze not in (0, "embeddings"):
        raise UserError(
            "a new model starts from random weights, which all need training; leave out random_init, freeze and lora"
        )
    if recipe.freeze == "embeddings" and not recipe.vectors:
        raise UserError("freeze=embeddings of a new model needs pre-trained vectors; set vectors=FILE, or leave it out")


def name_rows(recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The recipe to record: rows of a Python program by name, without the path of the file that held them."""
    names = {name: name_file(path) for name in ("train", "dev", "test") if (path := getattr(recipe.data, name))}
    return msgspec.structs.replace(recipe, data=msgspec.structs.replace(recipe.data, **names))


def finetune_identity(recipe: FinetuneRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    base = {"model": recipe.model} if isinstance(recipe.model, str) else {}
    files = {f"data.{name}": getattr(recipe.data, name) for name in ("train", "dev", "test")}
    recipe = msgspec.structs.replace(recipe, task=with_labels_of_file(recipe.task, recipe.data.encoding))
    return runs.compute_run_id(recipe, **base, **files, tokenizer=recipe.tokenizer, vectors=recipe.vectors)
