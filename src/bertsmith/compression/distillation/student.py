"""The student before training: a checkpoint, a preset, or a smaller model like its teacher that starts from its layers."""

from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from ...artifacts import resolve_path
from ...console import Console
from ...errors import UserError
from ...finetuning.run import BaseModel
from ...model import checkpoint
from ...model.config import EncoderConfig
from ...model.model import Model, ModelConfig, build_model
from .layers import initial_layers
from .recipe import DistillRecipe, Shape, find_preset
from .teacher import Teacher

LAYERS = "stack.layers."


class Student(NamedTuple):
    """The student's encoder, with the heads of its checkpoint if it has one, tokenizer and card; and where it comes from."""

    base: BaseModel
    origin: str

    def describe(self) -> str:
        """One line: layers, parameters, and what the weights start from."""
        model = self.base.model
        size = sum(parameter.numel() for parameter in model.parameters())
        return f"student: {model.config.encoder.num_hidden_layers} layers, {size:,} parameters, starts from {self.origin}"


def build_student(recipe: DistillRecipe, teacher: Teacher) -> Student:
    if isinstance(recipe.student, Shape):
        return _like_teacher(recipe.student, recipe.seed, teacher)
    assert isinstance(recipe.student, str), "student=static has a run of its own"
    preset = find_preset(recipe.student)
    if preset is None:
        return Student(BaseModel(*checkpoint.load(resolve_path(recipe.student, "student"))), recipe.student)
    config = ModelConfig(encoder=preset, vocab_size=len(teacher.tokenizer))
    return Student(
        BaseModel(build_model(config, recipe.seed, teacher.tokenizer).eval(), teacher.tokenizer, {}), "random weights"
    )


def copy_heads(model: Model, sources: list[Model], console: Console) -> None:
    """Start the heads of `model` from the first source that has a head of the same name and sizes."""
    for name, head in model.heads.items():
        shapes = {key: tensor.shape for key, tensor in head.state_dict().items()}
        for source in sources:
            weights = source.heads[name].state_dict() if name in source.heads else {}
            if {key: tensor.shape for key, tensor in weights.items()} == shapes:
                head.load_state_dict(weights)
                break
        else:
            console.info(f"student: the head {name} starts from random weights")


def check_vocabulary(teacher: Teacher, student: BaseModel, recipe: DistillRecipe) -> None:
    """Raises a UserError if student and teacher divide texts into different tokens."""
    if student.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise UserError(
            f"student={recipe.student} has another tokenizer than the teacher, and their tokens cannot be compared; what "
            "works: a new student, which takes the teacher's tokenizer (student.num_hidden_layers=3, or a preset)"
        )


def _like_teacher(shape: Shape, seed: int, teacher: Teacher) -> Student:
    config = shrink_encoder(teacher.model.config.encoder, shape)
    model = build_model(ModelConfig(encoder=config, vocab_size=teacher.model.config.vocab_size), seed, teacher.tokenizer)
    same_width = config == msgspec.structs.replace(
        teacher.model.config.encoder, num_hidden_layers=config.num_hidden_layers, num_hidden_groups=None
    )
    if shape.init_layers not in (None, "none") and not same_width:
        raise UserError(f"student.init_layers={shape.init_layers} needs a student of the teacher's sizes, with fewer layers; "
                       "leave it out, or the other keys of student")  # fmt: skip
    layers: list[int] = []
    if same_width and shape.init_layers != "none":
        num_teacher_layers = len(teacher.model.encoder.stack.group_indices)
        layers = initial_layers(shape.init_layers or "uniform", config.num_hidden_layers, num_teacher_layers)
        _copy_layers(model, teacher.model, layers)
    origin = f"the teacher's layers {', '.join(map(str, layers))}" if layers else "random weights"
    card = {"finetuning": teacher.card["finetuning"]} if layers and "finetuning" in teacher.card else {}
    return Student(BaseModel(model.eval(), teacher.tokenizer, card), origin)


def shrink_encoder(encoder: EncoderConfig, shape: Shape) -> EncoderConfig:
    """The teacher's config with the keys of `shape`; without any, half of its layers."""
    hidden_size = shape.hidden_size or encoder.hidden_size
    layers = shape.num_hidden_layers if shape.num_hidden_layers is not None else max(1, encoder.num_hidden_layers // 2)
    changes: dict[str, Any] = {"num_hidden_layers": layers, "num_hidden_groups": None, "hidden_size": hidden_size}
    heads = getattr(encoder.mixer, "num_attention_heads", None)
    if shape.num_attention_heads and heads is None:
        raise UserError("student.num_attention_heads: the teacher's layers have no attention heads; leave it out")
    if heads is not None:
        default_heads = max(1, heads * hidden_size // encoder.hidden_size)
        new_heads = shape.num_attention_heads or default_heads
        changes["mixer"] = msgspec.structs.replace(encoder.mixer, num_attention_heads=new_heads)
    if shape.intermediate_size and encoder.feedforward is None:
        raise UserError("student.intermediate_size: the teacher has no feed-forward layers; leave it out")
    if encoder.feedforward is not None:
        default_size = max(1, encoder.feedforward.intermediate_size * hidden_size // encoder.hidden_size)
        inner = shape.intermediate_size or default_size
        changes["feedforward"] = msgspec.structs.replace(encoder.feedforward, intermediate_size=inner)
    if hidden_size != encoder.hidden_size:
        changes["initializer_range"] = None  # the default for its width
    return msgspec.structs.replace(encoder, **changes)


def _copy_layers(student: Model, teacher: Model, layers: list[int]) -> None:
    """Embeddings, final norm and pooler of the teacher, and block n of the student from layer `layers[n]`, counted from 1."""
    source, stack = teacher.encoder.state_dict(), teacher.encoder.stack
    weights: dict[str, Tensor] = {name: tensor for name, tensor in source.items() if not name.startswith(LAYERS)}
    for number, layer in enumerate(layers):
        prefix = f"{LAYERS}{number}."
        for group in (0, stack.group_indices[layer - 1]):  # what only a first layer has (the T5 bias) comes from the first
            block_prefix = f"{LAYERS}{group}."
            weights |= {
                prefix + name.removeprefix(block_prefix): tensor
                for name, tensor in source.items()
                if name.startswith(block_prefix)
            }
    expected = student.encoder.state_dict()
    student.encoder.load_state_dict({**expected, **{name: weights[name] for name in expected.keys() & weights.keys()}})
