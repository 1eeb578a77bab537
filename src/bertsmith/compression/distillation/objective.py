"""Distillation as an objective of the trainer: the losses of a task or a language model, and those of the teacher's states."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...model.batch import Inputs
from ...model.heads import LM_HEAD
from ...model.model import Model
from ...objectives import PretrainObjective
from ...objectives.contrastive import Contrastive
from ...objectives.mlm import with_output_indices
from ...objectives.supervised import Supervised
from ...objectives.task_losses import soft_label_loss
from ...train.objective import Batch, Loss
from .layers import map_layers
from .losses import attention_loss, cosine_loss, distribution_loss, hidden_state_loss, relation_loss
from .predictions import TEACHER_LOGITS
from .recipe import Losses
from .states import ForwardStates, check_attention, run_model

PROJECTIONS = "distillation"  # module of a student in training; `remove_projections` drops it
Parts = dict[str, Tensor]
Metrics = dict[str, tuple[Tensor | float, Tensor | float]]


@dataclass(frozen=True)
class StateLosses:
    """The losses between inner states, and the layers they compare; parts of a `Loss`, one target per token."""

    loss: Losses
    layer_map: tuple[int, ...]  # layer of the teacher, from 1, for each layer of the student
    relation_layer: int  # of the teacher
    relation_heads: int

    @classmethod
    def build(cls, loss: Losses, student: Model, teacher: Model) -> "StateLosses":
        """Raises a UserError for losses that this student and teacher cannot have."""
        num_layers, num_teacher_layers = (len(model.encoder.stack.group_indices) for model in (student, teacher))
        by_layer = loss.hidden_states or loss.attentions
        layer_map = map_layers(loss.layer_map, num_layers, num_teacher_layers) if by_layer and num_layers else []
        relation_layer = loss.relation_layer or num_teacher_layers
        if relation_layer > num_teacher_layers:
            raise UserError(f"loss.relation_layer={relation_layer}: the teacher has layers 1 to {num_teacher_layers}")
        for key in ("attentions", "relations"):
            if getattr(loss, key):
                check_attention(student, "student", f"loss.{key}")
                check_attention(teacher, "teacher", f"loss.{key}")
        heads, teacher_heads = (getattr(model.config.encoder.mixer, "num_attention_heads", 1) for model in (student, teacher))
        if heads != teacher_heads and (loss.attentions or (loss.relations and "qk" in loss.relation_types)):
            raise UserError(f"the student has {heads} attention heads and the teacher {teacher_heads}: their attention scores "
                           "cannot be compared; set student.num_attention_heads to the teacher's, or use loss.relations=1 with "
                           "loss.relation_types=qq,kk,vv")  # fmt: skip
        relation_heads = loss.relation_heads or teacher_heads
        for who, model in (("student", student), ("teacher", teacher)):
            if loss.relations and model.config.encoder.hidden_size % relation_heads:
                raise UserError(f"{relation_heads} relation heads do not divide the {who}'s hidden_size of "
                               f"{model.config.encoder.hidden_size}; set loss.relation_heads to one that does")  # fmt: skip
        return cls(loss, tuple(layer_map), relation_layer, relation_heads)

    @property
    def names(self) -> list[str]:
        """The parts that are computed."""
        return self.names_of(self.loss)

    @staticmethod
    def names_of(loss: Losses) -> list[str]:
        """The parts that are computed with these weights."""
        return [name for name in ("hidden_states", "embeddings", "attentions", "relations", "cosine") if getattr(loss, name)]

    def attention_layers(self, of_teacher: bool) -> set[int]:
        """Layers whose queries and keys are compared, counted from 1."""
        layers = set(self.layer_map) if of_teacher else set(range(1, len(self.layer_map) + 1))
        last = self.relation_layer if of_teacher else -1
        return (layers if self.loss.attentions else set()) | ({last} if self.loss.relations else set())

    def compute(self, model: Model, student: ForwardStates, teacher: ForwardStates, inputs: Inputs) -> Parts:
        """Weighted losses summed over tokens."""
        project = getattr(model, PROJECTIONS, nn.ModuleDict())
        fit: Callable[[str, Tensor], Tensor] = lambda name, x: project[name](x) if name in project else x
        functions: dict[str, Callable[[], Tensor]] = {
            "hidden_states": lambda: sum(
                (
                    hidden_state_loss(
                        fit("hidden_states", student.layer_states[layer]), teacher.layer_states[teacher_layer]
                    ).sum()
                    for layer, teacher_layer in enumerate(self.layer_map, start=1)
                ),
                start=torch.zeros((), device=inputs.input_ids.device),
            ),
            "embeddings": lambda: hidden_state_loss(fit("embeddings", student.layer_states[0]), teacher.layer_states[0]).sum(),
            "attentions": lambda: self._attentions(student, teacher, inputs),
            "relations": lambda: self._relations(student, teacher, inputs),
            "cosine": lambda: cosine_loss(fit("cosine", student.hidden_states), teacher.hidden_states).sum(),
        }
        return {name: getattr(self.loss, name) * functions[name]() for name in self.names}

    def _attentions(self, student: ForwardStates, teacher: ForwardStates, inputs: Inputs) -> Tensor:
        total = torch.zeros((), device=inputs.input_ids.device)
        for layer, teacher_layer in enumerate(self.layer_map, start=1):
            scores, mask = student.attention[layer].scores(inputs.layout)
            teacher_scores, _ = teacher.attention[teacher_layer].scores(inputs.layout)
            total = total + attention_loss(scores, teacher_scores, mask, inputs.layout).sum()
        return total

    def _relations(self, student: ForwardStates, teacher: ForwardStates, inputs: Inputs) -> Tensor:
        """Sum over `relation_types`, as in MiniLM."""
        total, layout = torch.zeros((), device=inputs.input_ids.device), inputs.layout
        states, teacher_states = student.attention[max(student.attention)], teacher.attention[self.relation_layer]
        for kind in self.loss.relation_types:
            if kind == "qk":
                scores, mask = states.scores(layout)
                losses = distribution_loss(scores, teacher_states.scores(layout)[0], mask, layout)
            else:
                vectors = states.vectors(kind[0]), teacher_states.vectors(kind[0])
                losses = relation_loss(*vectors, self.relation_heads, layout)
            total = total + losses.sum()
        return total


def add_projections(student: Model, teacher: Model, states: StateLosses, seed: int) -> None:
    """Add to the student the linear maps from its hidden states to the teacher's, where the sizes differ."""
    size, teacher_size = student.config.encoder.hidden_size, teacher.config.encoder.hidden_size
    names = [name for name in states.names if name in ("hidden_states", "embeddings", "cosine")]
    if size == teacher_size or not names:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student.add_module(PROJECTIONS, nn.ModuleDict({name: nn.Linear(size, teacher_size) for name in names}))


def remove_projections(student: Model) -> None:
    """Undo `add_projections`: a published student has the weights of an ordinary model only."""
    if hasattr(student, PROJECTIONS):
        delattr(student, PROJECTIONS)


@dataclass(frozen=True)
class Distillation:
    """What the objectives of both stages share: the teacher, and the losses between inner states."""

    teacher: Model
    states: StateLosses

    @property
    def loss(self) -> Losses:
        return self.states.loss

    def forward_teacher(self, inputs: Inputs) -> ForwardStates:
        """States of the teacher."""
        return run_model(self.teacher_on(inputs), inputs, self.states.attention_layers(of_teacher=True))

    def teacher_on(self, inputs: Inputs) -> Model:
        """The teacher, moved to the device of the inputs."""
        is_there = next(self.teacher.parameters()).device == inputs.input_ids.device
        return self.teacher if is_there else self.teacher.to(inputs.input_ids.device)

    def forward_student(self, model: Model, inputs: Inputs) -> ForwardStates:
        layers = {
            len(model.encoder.stack.group_indices) if n < 0 else n for n in self.states.attention_layers(of_teacher=False)
        }
        return run_model(model, inputs, layers)


@dataclass(frozen=True)
class TaskDistillation(Distillation):
    """Task stage: the loss of the labels, soft labels and inner states. In eval mode the loss of the labels alone."""

    task: Supervised | Contrastive

    @staticmethod
    def add_targets(batch: Batch[Inputs], names: list[str]) -> Batch[Inputs]:
        """The batch with a count of targets for every part of the loss; names: those of the inner states."""
        counts = dict.fromkeys(names, batch.num_tokens)
        return replace(batch, target_counts={**batch.target_counts, "soft_labels": batch.target_counts["task"], **counts})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.task.compute_loss(model, batch)
        student = self.forward_student(model, batch.inputs) if self.states.names else None
        outputs = self.task.compute_outputs(model, batch, student.hidden_states if student else None).float()
        parts, metrics = self._hard_labels(model, outputs, batch)
        if not self.loss.soft_labels and student is None:
            return Loss(parts, metrics)
        with torch.no_grad():
            teacher = self.forward_teacher(batch.inputs) if student else None
        if self.loss.soft_labels:
            teacher_outputs = self._teacher_outputs(batch, teacher)
            soft_labels = self.task.soft_labels(outputs, teacher_outputs, batch, self.loss.temperature)
            parts["soft_labels"] = self.loss.soft_labels * soft_labels
        if student and teacher:
            parts |= self.states.compute(model, student, teacher, batch.inputs)
        return Loss(parts, metrics)

    @torch.no_grad()
    def _teacher_outputs(self, batch: Batch[Inputs], teacher: ForwardStates | None) -> Tensor:
        """Logits of the teacher: those that the batch brings, or computed now."""
        if TEACHER_LOGITS in batch.targets:
            return batch.targets[TEACHER_LOGITS]
        model = self.teacher_on(batch.inputs)
        return self.task.compute_outputs(model, batch, teacher.hidden_states if teacher else None).float()

    def _hard_labels(self, model: Model, outputs: Tensor, batch: Batch[Inputs]) -> tuple[Parts, Metrics]:
        if not self.loss.hard_labels:
            return {}, {}
        loss = self.task.loss_from_outputs(model, outputs, batch)
        return {name: self.loss.hard_labels * part for name, part in loss.parts.items()}, loss.metrics


@dataclass(frozen=True)
class CorpusDistillation(Distillation):
    """General stage: the language model's loss, soft labels of its tokens, and inner states. In eval mode the first alone."""

    language_model: PretrainObjective

    @staticmethod
    def add_targets(batch: Batch[Inputs], names: list[str], all_tokens: bool) -> Batch[Inputs]:
        """The batch with a count of targets for every part of the loss; names: those of the inner states."""
        counts = dict.fromkeys(names, batch.num_tokens)
        counts["soft_labels"] = batch.num_tokens if all_tokens else len(batch.targets["output_indices"])
        return replace(batch, target_counts={**batch.target_counts, **counts})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.language_model.compute_loss(model, batch)
        parts, metrics = Parts(), Metrics()
        indices = batch.targets["output_indices"]
        if self.states.names or self.loss.tokens == "all":
            student = self.forward_student(model, batch.inputs)
            with torch.no_grad():
                teacher = self.forward_teacher(batch.inputs)
            parts |= self.states.compute(model, student, teacher, batch.inputs)
            target_states = student.hidden_states[indices]
            pair = (student.hidden_states, teacher.hidden_states) if self.loss.tokens == "all" else (
                target_states, teacher.hidden_states[indices]
            )  # fmt: skip
        else:  # only masked tokens are read: the last layer and the heads compute no others
            inputs = with_output_indices(batch.inputs, indices)
            target_states = model(inputs)
            with torch.no_grad():
                pair = target_states, self.forward_teacher(inputs).hidden_states if self.loss.soft_labels else target_states
        if self.loss.soft_labels:
            logits = model.compute_logits(LM_HEAD, pair[0])
            with torch.no_grad():
                teacher_logits = self.teacher.compute_logits(LM_HEAD, pair[1])
            parts["soft_labels"] = self.loss.soft_labels * soft_label_loss(logits, teacher_logits, self.loss.temperature).sum()
        if self.loss.hard_labels:
            total, num_correct = model.cross_entropy(LM_HEAD, target_states, batch.targets["target_ids"])
            name, accuracy = ("mlm", "mlm_accuracy") if "mlm" in batch.target_counts else ("lm", "accuracy")
            parts[name] = self.loss.hard_labels * total
            metrics[accuracy] = num_correct, batch.target_counts[name]
        return Loss(parts, metrics)
