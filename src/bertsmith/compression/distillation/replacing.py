"""Module replacing (BERT-of-Theseus, Xu et al. 2020): blocks of the student stand in for the teacher's at random.

The teacher's layers are divided into as many modules as the student has layers. In each batch a module is replaced by the
student's layer with a probability that rises to 1; the student's layers learn from the loss of the task alone, the teacher's
weights, the embeddings and the head stay. Then all modules are replaced, and the whole student is fine-tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ...config import Config, Probability
from ...errors import UserError
from ...model.batch import Inputs
from ...model.heads.features import FeatureClassifier
from ...model.model import Model
from ...model.transformer import Block
from ...objectives.contrastive import Contrastive
from ...objectives.supervised import Supervised
from ...rng import Stream, random_bits, uniform
from ...train.objective import Batch, Loss
from ...train.param_groups import ParamSchedule, ParamScheduleFn
from ..pruning.structure import check_layers
from .layers import map_layers

LAYERS = "encoder.stack.layers."


class Replacing(Config, frozen=True):
    """p(t) = min(1, rate + (1 - rate) t / end): the linear schedule of the paper; t: fraction of the run done."""

    replacing_rate: Annotated[Probability, "probability that a module is replaced, at the start of the run"] = 0.3
    end: Annotated[
        Probability, "fraction of the run after which all modules are replaced and the whole student is fine-tuned"
    ] = 0.5

    @classmethod
    def presets(cls) -> dict[str, "Replacing"]:
        return {"theseus": cls()}

    def probability(self, fraction_done: float) -> float:
        if fraction_done >= self.end:
            return 1.0
        return self.replacing_rate + (1 - self.replacing_rate) * fraction_done / self.end

    def choose(self, seed: int, k: int, fraction_done: float, num_modules: int) -> Tensor:
        """(modules,) bool: which are replaced in micro-batch k; a pure function of its arguments."""
        draws = uniform(random_bits(seed, Stream.MODULE_REPLACING, k, np.arange(num_modules)))
        return torch.from_numpy(draws < self.probability(fraction_done))


@dataclass(frozen=True)
class ModuleReplacing:
    """The loss of the task, computed by blocks of both models; in eval mode by the student alone."""

    teacher: Model
    task: Supervised | Contrastive
    modules: Sequence[Sequence[int]]  # layers of the teacher, from 0, that each layer of the student replaces

    @classmethod
    def build(cls, teacher: Model, student: Model, task: Supervised | Contrastive) -> "ModuleReplacing":
        """Raises a UserError for models whose blocks cannot stand in for each other."""
        encoder, other = teacher.config.encoder, student.config.encoder
        if any(isinstance(head, FeatureClassifier) for head in student.heads.values()):
            raise UserError("replacing needs a head on the last layer, and the teacher's reads others; leave it out")
        check_modules(teacher)
        if (encoder.hidden_size, encoder.norm) != (other.hidden_size, other.norm):
            raise UserError(
                f"replacing puts layers of the student (hidden size {other.hidden_size}) in place of the teacher's "
                f"({encoder.hidden_size}): their sizes must be equal; set only student.num_hidden_layers"
            )
        return cls(teacher, task, divide_modules(encoder.num_hidden_layers, other.num_hidden_layers))

    def add_targets(self, batch: Batch[Inputs], replacing: Replacing, seed: int, k: int, fraction_done: float) -> Batch[Inputs]:
        """The batch with the modules that are replaced in it."""
        chosen = replacing.choose(seed, k, fraction_done, len(self.modules))
        return replace(batch, targets={**batch.targets, "replaced": chosen})

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.task.compute_loss(model, batch)
        replaced = batch.targets["replaced"].tolist()
        outputs = self.task.compute_outputs(model, batch, self.forward(model, batch.inputs, replaced)).float()
        loss = self.task.loss_from_outputs(model, outputs, batch)
        return Loss(loss.parts, {**loss.metrics, "replaced": (float(sum(replaced)), float(len(replaced)))})

    def forward(self, model: Model, inputs: Inputs, replaced: Sequence[bool]) -> Tensor:
        """(tokens, hidden_size): the student's embeddings, of each module the student's layer or the teacher's, final norm."""
        if next(self.teacher.parameters()).device != inputs.input_ids.device:
            self.teacher.to(inputs.input_ids.device)
        stack, teacher_stack = model.encoder.stack, self.teacher.encoder.stack
        blocks = list[Block]()
        for layer, (module, is_replaced) in enumerate(zip(self.modules, replaced, strict=True)):
            blocks += [stack.block(layer)] if is_replaced else map(teacher_stack.block, module)
        return stack.forward_blocks(blocks, model.encoder.embed(inputs), inputs.layout)


def check_modules(teacher: Model) -> None:
    """Raises a UserError for a teacher whose layers cannot be replaced one by one."""
    encoder = teacher.config.encoder
    try:
        check_layers(encoder)
    except UserError:
        raise UserError("replacing needs a teacher with layers of one kind, the first like the others; leave it out") from None
    if encoder.reversible or encoder.separates_directions:
        raise UserError("replacing needs a teacher with one stream of hidden states; leave it out")


def divide_modules(num_teacher_layers: int, num_layers: int) -> list[list[int]]:
    """The teacher's layers, from 0, in as many runs as the student has layers: [0, 1], [2, 3], [4, 5] for three of six."""
    ends = map_layers("uniform", num_layers, num_teacher_layers)
    return [list(range(first, last)) for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def freeze_shared(schedule: ParamScheduleFn, replacing: Replacing) -> ParamScheduleFn:
    """Embeddings, final norm and head stay as the teacher's until all modules are replaced."""

    def param_schedule(name: str) -> ParamSchedule:
        own = schedule(name)
        return own if name.startswith(LAYERS) else own._replace(unfreeze_at=max(own.unfreeze_at, replacing.end))

    return param_schedule
