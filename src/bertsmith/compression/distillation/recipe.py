"""The recipe of `distill`: the teacher, the student, what it learns from, and the losses."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from ... import runs
from ...artifacts import resolve_path
from ...config import Config, MaxLength, NonNegFloat, NonNegInt, NumLayers, PosFloat, PosInt, Probability, Variant
from ...errors import UserError
from ...finetuning.examples import Data
from ...model.config import EncoderConfig
from ...objectives import CausalLM, MaskedLM
from ...pretrained import shipped
from ...train.config import TrainConfig
from .augmentation import Augmentation
from .layers import InitLayers, LayerMap
from .replacing import Replacing
from .static.recipe import Static

Relation = Literal["qk", "qq", "kk", "vv"]


class Shape(Variant, frozen=True, tag="shape"):
    """A new student like its teacher, but for these keys; with the teacher's width it starts from layers of the teacher."""

    num_hidden_layers: Annotated[NumLayers | None, "number of layers; default: half of the teacher's"] = None
    hidden_size: Annotated[PosInt | None, "hidden size; default: the teacher's"] = None
    num_attention_heads: Annotated[PosInt | None, "attention heads; default: heads of the teacher's size"] = None
    intermediate_size: Annotated[PosInt | None, "feed-forward size; default: in proportion to hidden_size"] = None
    init_layers: Annotated[
        InitLayers | tuple[PosInt, ...] | None,
        "teacher layers, from 1, that the student starts from; default: uniform, or none if its sizes differ",
    ] = None


class Losses(Config, frozen=True):
    """Weights of the losses, each a mean over its targets; 0: not computed."""

    soft_labels: Annotated[NonNegFloat, "KL of the teacher's and the student's predictions, times temperature^2"] = 1.0
    temperature: Annotated[PosFloat, "temperature of soft_labels"] = 2.0
    tokens: Annotated[Literal["masked", "all"], "corpus: positions of soft_labels (all: DistilBERT)"] = "masked"
    hard_labels: Annotated[NonNegFloat, "loss of the labels (data) or of the language model (corpus)"] = 1.0
    hidden_states: Annotated[NonNegFloat, "squared error of each layer's output, projected if the sizes differ (TinyBERT)"] = (
        0.0
    )
    embeddings: Annotated[NonNegFloat, "squared error of the embeddings, projected if the sizes differ (TinyBERT)"] = 0.0
    attentions: Annotated[NonNegFloat, "squared error of attention scores; as many heads as the teacher (TinyBERT)"] = 0.0
    relations: Annotated[NonNegFloat, "KL of the relations of queries, keys and values in the last layer (MiniLM)"] = 0.0
    relation_types: Annotated[
        tuple[Relation, ...], Meta(min_length=1), "qk: attention distribution; qq, kk, vv: scaled dot products of one kind"
    ] = ("qk", "vv")
    relation_heads: Annotated[PosInt | None, "relation heads of qq, kk and vv (MiniLMv2: 48); default: teacher's heads"] = None
    relation_layer: Annotated[PosInt | None, "teacher layer, from 1, of the relations; default: the last"] = None
    cosine: Annotated[NonNegFloat, "1 - cosine of the last hidden states, projected if the sizes differ (DistilBERT)"] = 0.0
    layer_map: Annotated[
        LayerMap | tuple[PosInt, ...],
        "teacher layer of each student layer: uniform (m N / M), last, or a list counted from 1",
    ] = "uniform"

    @classmethod
    def presets(cls) -> dict[str, "Losses"]:
        """The losses of the papers."""
        return {
            "distilbert": cls(soft_labels=5.0, hard_labels=2.0, cosine=1.0, tokens="all"),
            "tinybert": cls(soft_labels=0.0, hard_labels=0.0, hidden_states=1.0, embeddings=1.0, attentions=1.0),
            "minilm": cls(soft_labels=0.0, hard_labels=0.0, relations=1.0),
            "minilmv2": cls(soft_labels=0.0, hard_labels=0.0, relations=1.0, relation_types=("qq", "kk", "vv")),
        }

    @property
    def compares_layers(self) -> bool:
        """Whether a loss compares inner states, token by token."""
        return any((self.hidden_states, self.embeddings, self.attentions, self.relations, self.cosine))


class DistillTrain(TrainConfig, frozen=True):
    """`train.*` with the defaults of fine-tuning (data) or of distillation on text (corpus)."""

    batch_tokens: Annotated[PosInt | None, "tokens per micro-batch; default: data: 16 to 32 examples; corpus: 8192"] = None  # type: ignore[assignment]
    learning_rate: Annotated[PosFloat | None, "peak learning rate; default: data: as finetune; corpus: 5e-4"] = None  # type: ignore[assignment]
    warmup_steps: Annotated[NonNegFloat, "warmup: steps, or below 1 a fraction of the run"] = 0.1
    early_stopping_patience: Annotated[
        NonNegInt | None, "stop after this many evaluations without improvement; 0: never; default: data: as finetune"
    ] = None  # type: ignore[assignment]
    grad_spike_factor: Annotated[
        NonNegFloat, "skip updates whose gradient norm exceeds this multiple of the median; 0: never"
    ] = 0.0


class DistillRecipe(Config, frozen=True):
    """Teacher, student, data or corpus, losses and training settings."""

    teacher: Annotated[str, "model to learn from: a checkpoint, fine-tuned for data, pre-trained for corpus"]
    out: Annotated[str, "output checkpoint folder"]
    student: Annotated[
        str | Shape | Static, "a checkpoint or preset, static (a table of token vectors), or keys that differ from the teacher"
    ] = Shape()
    data: Annotated[Data | None, "task stage: files of labelled examples, of the teacher's task"] = None
    corpus: Annotated[str | None, "general stage: corpus folder made by `prepare` with the teacher's tokenizer"] = None
    loss: Annotated[Losses, "weights of the losses: distilbert, tinybert, minilm, minilmv2, or a table"] = Losses()
    replacing: Annotated[
        Replacing | None, "data: module replacing (BERT-of-Theseus): theseus, or a table; the loss is that of the labels"
    ] = None
    augmentation: Annotated[
        Augmentation | None, "data: copies of the training examples with replaced words (TinyBERT); needs augmentation.model"
    ] = None
    objective: Annotated[MaskedLM | CausalLM, "corpus: how text is masked and packed: mlm, or clm for a causal teacher"] = (
        MaskedLM()
    )
    max_length: Annotated[MaxLength | None, "maximum sequence length; default: data: the teacher's; corpus: 128"] = None
    validation_split: Annotated[Probability, "corpus: fraction of documents held out for validation"] = 0.01
    eval_tokens: Annotated[PosInt, "corpus: maximum tokens per evaluation"] = 131_072
    metric_for_best_model: Annotated[str | None, "data: metric for early stopping; default: the task's main one"] = None
    train: Annotated[DistillTrain, "training settings: duration, batch size, learning rate ..."] = DistillTrain()
    seed: Annotated[int, "random seed of new weights, data order, masking and dropout"] = 0


def find_preset(name: str) -> EncoderConfig | None:
    """The preset of that name, unless it names a folder or a shipped model."""
    is_folder = bool(name.strip()) and (Path(name).expanduser().exists() or shipped.find_folder(name) is not None)
    return None if is_folder else EncoderConfig.presets().get(name)


def check_recipe(recipe: DistillRecipe) -> None:
    """Raises a UserError for contradicting settings, before any file is read."""
    if isinstance(recipe.student, Static):
        _check_static(recipe)
        return
    if (recipe.data is None) == (recipe.corpus is None):
        raise UserError(
            "distill needs either data (task stage: data.train=FILE) or corpus (general stage: corpus=FOLDER), not both"
        )
    default = DistillRecipe(teacher="", out="")
    keys = (
        ("metric_for_best_model", "replacing", "augmentation")
        if recipe.corpus
        else ("objective", "validation_split", "eval_tokens")
    )
    for key in keys:
        if getattr(recipe, key) != getattr(default, key):
            raise UserError(f"{key} applies only with {'data' if recipe.corpus else 'corpus'}; leave it out")
    if recipe.replacing is not None:
        _check_replacing(recipe)
    loss = recipe.loss
    if not any((loss.soft_labels, loss.hard_labels, loss.compares_layers)):
        raise UserError("every loss has the weight 0, so there is nothing to learn; set one, such as loss.soft_labels=1")
    if recipe.data and loss.tokens != "masked":
        raise UserError("loss.tokens applies only with corpus; leave it out")
    if recipe.train.compile and (loss.attentions or loss.relations):
        raise UserError("train.compile does not work with loss.attentions and loss.relations, which look into the "
                       "layers; leave it out")  # fmt: skip
    if recipe.train.gradient_checkpointing and (loss.attentions or loss.relations):
        raise UserError("train.gradient_checkpointing does not work with loss.attentions and loss.relations; leave it out")
    if recipe.data and recipe.train.workers:
        raise UserError(f"train.workers={recipe.train.workers} has no effect with data; leave it out")


def _check_replacing(recipe: DistillRecipe) -> None:
    if recipe.loss != Losses():
        raise UserError("replacing learns from the labels alone, through the teacher's layers; leave out loss")
    shape = recipe.student
    if isinstance(shape, Shape) and any((shape.hidden_size, shape.num_attention_heads, shape.intermediate_size)):
        raise UserError("replacing needs a student of the teacher's sizes, with fewer layers; set only "
                       "student.num_hidden_layers and student.init_layers")  # fmt: skip
    if recipe.train.compile or recipe.train.gradient_checkpointing:
        raise UserError("train.compile and train.gradient_checkpointing do not work with replacing; leave them out")


def _check_static(recipe: DistillRecipe) -> None:
    default = DistillRecipe(teacher="", out="")
    for key in (
        "data",
        "loss",
        "objective",
        "validation_split",
        "eval_tokens",
        "metric_for_best_model",
        "replacing",
        "augmentation",
    ):
        if getattr(recipe, key) != getattr(default, key):
            raise UserError(
                f"{key} does not apply to student=static, which learns the teacher's sentence vectors; leave it out"
            )
    if recipe.corpus is None and (recipe.train != default.train or recipe.max_length):
        raise UserError("student=static is trained on the sentences of a corpus; set corpus=FOLDER, or leave out train and "
                       "max_length")  # fmt: skip


def distill_identity(recipe: DistillRecipe) -> str:
    """Hash of the recipe and its input files: runs with the same identity produce the same weights."""
    files: dict[str, str | None] = {"teacher": recipe.teacher}
    if recipe.corpus is not None:
        files["corpus"] = recipe.corpus
    if recipe.data is not None:
        files |= {f"data.{name}": getattr(recipe.data, name) for name in ("train", "dev", "test")}
    if isinstance(recipe.student, str) and find_preset(recipe.student) is None:
        files["student"] = recipe.student
    if recipe.augmentation is not None:
        source = str(resolve_path(recipe.augmentation.model, "model"))
        files |= {"augmentation.model": source, "augmentation.vectors": recipe.augmentation.vectors}
    return runs.compute_run_id(recipe, **files)
