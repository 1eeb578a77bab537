"""A pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from typing import Annotated, Literal

import msgspec

from .. import runs
from ..config import Amount, Chance, Config, Count, Positive, Whole
from ..errors import BadInput
from ..model.config import EncoderConfig
from ..model.decoders import DecoderConfig
from ..model.heads.features import Features
from ..model.lora import Lora
from ..objectives.regularizers import Adversary
from ..pretraining.setup import Length
from ..tasks import Generate, Similar, TaskConfig
from ..tasks.base import Long
from ..train.config import Train
from . import seq2seq
from .examples import Data


class Teaching(Train, frozen=True):
    """The words of `train.*`, with what fine-tuning wants where nothing is said."""

    batch_tokens: Annotated[Count, "tokens of one micro-batch"] = 2048
    rate: Annotated[Positive, "peak learning rate"] = 5e-5
    warmup: Annotated[Amount, "rise of the rate: below 1 a share of the run, from 1 up steps"] = 0.1
    spike: Annotated[Amount, "skip an update whose gradient is this many times the usual; 0 for never"] = 0.0  # rare examples
    layer_decay: Annotated[Positive, "each layer learns at this share of the rate of the one above it"] = 1.0
    thaw: Annotated[Chance, "share of the run over which layers begin to learn, from the top down; 0: all at once"] = 0.0
    head_rate: Annotated[Positive, "the head learns at this many times the rate"] = 1.0

    def timed(self) -> Train:
        if self.workers:
            raise BadInput("train.workers: examples are encoded before training, nothing is made ahead of it; leave it out")
        said = (self.steps, self.epochs, self.minutes) != (None, None, None)
        return self if said else msgspec.structs.replace(self, epochs=3.0)


class FinetuneRecipe(Config, frozen=True):
    """A task, a model to begin from, and the files of examples."""

    task: Annotated[TaskConfig, "what to learn"]
    model: Annotated[str | EncoderConfig, "the checkpoint folder to begin from; or, with a tokenizer, a preset or table: anew"]
    data: Annotated[Data, "the files"]
    out: Annotated[str, "the checkpoint folder to make"]
    tokenizer: Annotated[str | None, "of a model that begins anew: the folder `tokenizer` made"] = None
    vectors: Annotated[str | None, "a file or folder of word vectors, with which the table of a new model begins"] = None
    decoder: Annotated[
        DecoderConfig | None, "task=generate: what writes; attention begins as the encoder. None: the encoder itself (UniLM)"
    ] = None
    length: Annotated[Length, "longest sequence"] = 128
    train: Annotated[Teaching, "how long (three epochs, if nothing is said), how fast, in what numbers"] = Teaching()
    long: Annotated[Long | None, "texts over the length, where the task has a choice: as task.long"] = None
    freeze: Annotated[
        Whole | Literal["embeddings", "all"], "embeddings and so many blocks from below do not learn; all: the head alone"
    ] = 0
    features: Annotated[Features | None, "what the head reads, instead of the last layer alone"] = None
    lora: Annotated[Lora | None, "learn small matrices beside the encoder's own, which stay; they are added at the end"] = None
    adversary: Annotated[Adversary | None, "also learn from embeddings moved against the model"] = None
    lm: Annotated[Amount, "a causal model also foretells the examples' texts, which counts so much (0.5 in GPT); 0: not"] = 0.0
    rdrop: Annotated[Amount, "read every batch twice, and let the difference cost this much (R-Drop); 0: once"] = 0.0
    dropout: Annotated[Chance | None, "on embeddings and what each part adds, while it learns; as in pre-training, if none"] = (
        None
    )
    best: Annotated[str | None, "the score that train.stop and seeds choose by; the task's main one, if none"] = None
    scratch: Annotated[bool, "forget what pre-training learnt: the control of every claim that it helps"] = False
    seed: Annotated[int, "of new weights, order and dropout"] = 0
    seeds: Annotated[tuple[int, ...], "several, one run each: mean and deviation of their scores, and the best kept"] = ()


def check_recipe(recipe: FinetuneRecipe) -> None:
    """Settings that contradict each other, before anything is read."""
    if not recipe.data.dev and (recipe.seeds or recipe.best):
        raise BadInput("seeds are compared, and the best found, on a dev file: give data.dev, or leave out seeds and best")
    if recipe.best and not recipe.seeds and not recipe.train.stop:
        raise BadInput(f"best={recipe.best} chooses among seeds, or where train.stop ends a run; give either, or leave it out")
    if isinstance(recipe.model, str) and (recipe.tokenizer or recipe.vectors):
        raise BadInput(f"model={recipe.model} brings its own tokenizer and table; leave out tokenizer and vectors")
    if not isinstance(recipe.model, str):
        _check_new(recipe)
    seq2seq.check(recipe)
    if recipe.lora and recipe.freeze:
        raise BadInput("lora leaves the encoder as it is already; leave out freeze")
    if recipe.scratch and (recipe.lora or recipe.freeze):
        raise BadInput("scratch=true begins with random weights, which must all learn; leave out freeze and lora")
    if getattr(recipe.task, "template", "") and (recipe.lora or recipe.freeze):
        raise BadInput("guide tokens of task.template begin alike and must learn; leave out freeze and lora, or the template")
    if recipe.lm and (isinstance(recipe.task, Similar | Generate) or recipe.features or recipe.rdrop):
        raise BadInput("lm is for tasks with a head of their own that reads the last layer once; leave out lm, or features "
                       "and rdrop")  # fmt: skip
    if isinstance(recipe.task, Similar) and (recipe.rdrop or recipe.train.thaw):
        raise BadInput("task=similar has no head for rdrop to compare, or for train.thaw to begin with; leave them out")


def _check_new(recipe: FinetuneRecipe) -> None:
    if recipe.scratch or recipe.lora or recipe.freeze not in (0, "embeddings"):
        raise BadInput("a new model begins with random weights, which must all learn; leave out scratch, freeze and lora")
    if recipe.freeze == "embeddings" and not recipe.vectors:
        raise BadInput("freeze=embeddings keeps the vectors a model begins with: give vectors=FILE, or leave it out")


def finetune_identity(recipe: FinetuneRecipe) -> str:
    """A name for all that decides what the run makes."""
    begun = {"model": recipe.model} if isinstance(recipe.model, str) else {}
    read = {"tokenizer": recipe.tokenizer, "vectors": recipe.vectors}
    return runs.identity(recipe, **{**begun, **read, "data.train": recipe.data.train, "data.dev": recipe.data.dev})
