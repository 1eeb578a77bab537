"""The recipe of a fine-tuning run, its checks, and its identity."""

from typing import Annotated, Literal

import msgspec

from .. import runs
from ..config import Config, NonNegFloat, NonNegInt, PosFloat, PosInt, Probability
from ..errors import UserError
from ..model.config import EncoderConfig
from ..model.decoders import DecoderConfig
from ..model.heads.features import FeaturesConfig
from ..model.lora import LoraConfig
from ..objectives.regularizers import AdversarialConfig
from ..pretraining.setup import MaxLength
from ..tasks import Seq2Seq, TaskConfig, TextSimilarity
from ..tasks.base import LongText
from ..train.config import TrainConfig
from . import seq2seq
from .examples import Data


class FinetuneTrain(TrainConfig, frozen=True):
    """`train.*` with the defaults of fine-tuning, layer-wise learning rate decay and gradual unfreezing."""

    batch_tokens: Annotated[PosInt, "tokens of one micro-batch"] = 2048
    learning_rate: Annotated[PosFloat, "peak learning rate"] = 5e-5
    warmup_steps: Annotated[NonNegFloat, "rise of the rate: below 1 a share of the run, from 1 up steps"] = 0.1
    grad_spike_factor: Annotated[NonNegFloat, "skip an update whose gradient is this many times the usual; 0 for never"] = (
        0.0  # large gradients of rare examples are not anomalies
    )
    layer_lr_decay: Annotated[PosFloat, "each layer learns at this share of the rate of the one above it"] = 1.0
    gradual_unfreezing: Annotated[
        Probability, "share of the run over which layers begin to learn, from the top down; 0: all at once"
    ] = 0.0
    head_lr_multiplier: Annotated[PosFloat, "the head learns at this many times the rate"] = 1.0

    def with_default_duration(self) -> TrainConfig:
        """Three epochs, unless steps, epochs or minutes are set."""
        if self.workers:
            raise UserError("train.workers: examples are encoded before training, nothing is made ahead of it; leave it out")
        has_duration = (self.steps, self.epochs, self.minutes) != (None, None, None)
        return self if has_duration else msgspec.structs.replace(self, epochs=3.0)


class FinetuneRecipe(Config, frozen=True):
    """The task, the base model, the files of examples and the training settings."""

    task: Annotated[TaskConfig, "what to learn"]
    model: Annotated[str | EncoderConfig, "the checkpoint folder to begin from; or, with a tokenizer, a preset or table: anew"]
    data: Annotated[Data, "the files"]
    out: Annotated[str, "the checkpoint folder to make"]
    tokenizer: Annotated[str | None, "of a model that begins anew: the folder `tokenizer` made"] = None
    vectors: Annotated[str | None, "a file or folder of word vectors, with which the table of a new model begins"] = None
    decoder: Annotated[
        DecoderConfig | None, "task=generate: what writes; attention begins as the encoder. None: the encoder itself (UniLM)"
    ] = None
    max_length: Annotated[MaxLength, "longest sequence"] = 128
    train: Annotated[FinetuneTrain, "how long (three epochs, if nothing is said), how fast, in what numbers"] = FinetuneTrain()
    long_text: Annotated[LongText | None, "texts over the length, where the task has a choice: as task.long_text"] = None
    freeze: Annotated[
        NonNegInt | Literal["embeddings", "all"], "embeddings and so many blocks from below do not learn; all: the head alone"
    ] = 0
    features: Annotated[FeaturesConfig | None, "what the head reads, instead of the last layer alone"] = None
    lora: Annotated[
        LoraConfig | None, "learn small matrices beside the encoder's own, which stay; they are added at the end"
    ] = None
    adversary: Annotated[AdversarialConfig | None, "also learn from embeddings moved against the model"] = None
    aux_lm_weight: Annotated[
        NonNegFloat, "a causal model also foretells the examples' texts, which counts so much (0.5 in GPT); 0: not"
    ] = 0.0
    rdrop: Annotated[NonNegFloat, "read every batch twice, and let the difference cost this much (R-Drop); 0: once"] = 0.0
    hidden_dropout_prob: Annotated[
        Probability | None, "on embeddings and what each part adds, while it learns; as in pre-training, if none"
    ] = None
    metric_for_best_model: Annotated[
        str | None, "the score that train.early_stopping_patience and seeds choose by; the task's main one, if none"
    ] = None
    random_init: Annotated[bool, "forget what pre-training learnt: the control of every claim that it helps"] = False
    seed: Annotated[int, "of new weights, order and dropout"] = 0
    seeds: Annotated[tuple[int, ...], "several, one run each: mean and deviation of their scores, and the best kept"] = ()


def check_recipe(recipe: FinetuneRecipe) -> None:
    """Raise UserError for contradicting settings, before any file is read."""
    if not recipe.data.dev and (recipe.seeds or recipe.metric_for_best_model):
        raise UserError("seeds are compared, and the best found, on a dev file: give data.dev, or leave out seeds and best")
    if recipe.metric_for_best_model and not recipe.seeds and not recipe.train.early_stopping_patience:
        raise UserError(
            f"metric_for_best_model={recipe.metric_for_best_model} chooses among seeds, or where train.stop ends a run; give either, or leave it out"
        )
    if isinstance(recipe.model, str) and (recipe.tokenizer or recipe.vectors):
        raise UserError(f"model={recipe.model} brings its own tokenizer and table; leave out tokenizer and vectors")
    if not isinstance(recipe.model, str):
        _check_new_model(recipe)
    seq2seq.check_seq2seq(recipe)
    if recipe.lora and recipe.freeze:
        raise UserError("lora leaves the encoder as it is already; leave out freeze")
    if recipe.random_init and (recipe.lora or recipe.freeze):
        raise UserError("random_init=true begins with random weights, which must all learn; leave out freeze and lora")
    if getattr(recipe.task, "template", "") and (recipe.lora or recipe.freeze):
        raise UserError("guide tokens of task.template begin alike and must learn; leave out freeze and lora, or the template")
    if recipe.aux_lm_weight and (isinstance(recipe.task, TextSimilarity | Seq2Seq) or recipe.features or recipe.rdrop):
        raise UserError("aux_lm_weight is for tasks with a head that reads the last layer once; leave out aux_lm_weight, or "
                       "features and rdrop")  # fmt: skip
    if isinstance(recipe.task, TextSimilarity) and (recipe.rdrop or recipe.train.gradual_unfreezing):
        raise UserError("task=similar has no head for rdrop to compare, or for train.thaw to begin with; leave them out")


def _check_new_model(recipe: FinetuneRecipe) -> None:
    if recipe.random_init or recipe.lora or recipe.freeze not in (0, "embeddings"):
        raise UserError("a new model begins with random weights, which must all learn; leave out random_init, freeze and lora")
    if recipe.freeze == "embeddings" and not recipe.vectors:
        raise UserError("freeze=embeddings keeps the vectors a model begins with: give vectors=FILE, or leave it out")


def finetune_identity(recipe: FinetuneRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity make the same weights."""
    base = {"model": recipe.model} if isinstance(recipe.model, str) else {}
    inputs = {"tokenizer": recipe.tokenizer, "vectors": recipe.vectors}
    return runs.compute_run_id(recipe, **{**base, **inputs, "data.train": recipe.data.train, "data.dev": recipe.data.dev})
