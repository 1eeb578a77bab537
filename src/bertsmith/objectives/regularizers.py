"""Regularizers for fine-tuning, as wrappers of an objective.

- AdversarialObjective: adversarial perturbations of the embeddings (FGM, PGD)
- RDrop: consistency of two dropout masks (Liang et al. 2021)
- AuxiliaryLM: auxiliary language modelling loss (GPT, Radford et al. 2018)
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from ..config import Config, PosFloat, PosInt
from ..model.batch import Inputs
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..train.objective import Batch, Loss, Objective
from .base import Ints
from .supervised import ExampleBatches, Supervised

FP16_LOSS_SCALES = tuple(2.0**exponent for exponent in range(16, -1, -4))  # from the first scale of torch's GradScaler


class AdversarialConfig(Config, frozen=True):
    """One step along the gradient (FGM, Miyato et al. 2017), or several, projected onto a ball (PGD, Madry et al. 2018)."""

    epsilon: Annotated[PosFloat, "largest L2 norm of the perturbation of a sequence's embeddings"] = 1.0
    steps: Annotated[PosInt, "gradient ascent steps, one forward and backward pass each (1: FGM, more: PGD)"] = 1
    step_size: Annotated[PosFloat, "L2 norm of one gradient ascent step"] = 1.0

    @classmethod
    def presets(cls) -> dict[str, "AdversarialConfig"]:
        return {"fgm": cls(), "pgd": cls(steps=3, step_size=0.3)}


@dataclass(frozen=True)
class AdversarialObjective:
    """Clean loss plus the loss with adversarially perturbed embeddings; in eval mode the clean loss alone."""

    base_objective: Objective
    config: AdversarialConfig

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        perturbation = torch.zeros(batch.num_tokens, model.config.encoder.embedding_dim, device=batch.inputs.input_ids.device)
        clean, perturbation = self._ascend(model, batch, recurrent_state, perturbation)
        for _ in range(self.config.steps - 1):
            _, perturbation = self._ascend(model, batch, recurrent_state, perturbation)
        adversarial = self.base_objective.compute_loss(model, _perturb(batch, perturbation), recurrent_state)
        return replace(clean, parts={name: part + adversarial.parts[name] for name, part in clean.parts.items()})

    def _ascend(
        self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...], perturbation: Tensor
    ) -> tuple[Loss, Tensor]:
        """The loss at this perturbation, and the perturbation after one step of gradient ascent.

        perturbation: (tokens, embedding_size). For each sequence the step has L2 norm `step_size`, and the result is projected
        onto the ball of radius `epsilon`.
        """
        perturbation = perturbation.requires_grad_()
        loss = self.base_objective.compute_loss(model, _perturb(batch, perturbation), recurrent_state)
        mean_loss = torch.stack([part.float() / max(1, batch.target_counts[name]) for name, part in loss.parts.items()]).sum()
        grad = _scaled_grad(mean_loss, perturbation)
        layout, a = batch.inputs.layout, self.config
        ascended = perturbation.detach() + a.step_size * grad / _sequence_norms(grad, layout)
        return loss, ascended * (a.epsilon / _sequence_norms(ascended, layout)).clamp(max=1.0)


def _perturb(batch: Batch[Inputs], perturbation: Tensor) -> Batch[Inputs]:
    return replace(batch, inputs=replace(batch.inputs, embedding_delta=perturbation))


def _scaled_grad(loss: Tensor, x: Tensor) -> Tensor:
    """The gradient with respect to x (float32) times some power of two, which leaves its direction as it is.

    Under fp16 autocast the loss is scaled, lest the gradient underflow on its way, as much as it goes without an overflow; the
    result is brought near 1, lest its square underflow.
    """
    device = x.device.type
    is_fp16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    for scale in FP16_LOSS_SCALES if is_fp16 else (1.0,):
        (grad,) = torch.autograd.grad(loss * scale, x, retain_graph=True)
        if not is_fp16 or bool(grad.isfinite().all()):
            break
    exponent = torch.frexp(grad.abs().amax()).exponent.clamp(-100, 100)
    return torch.ldexp(grad, -exponent)


def _sequence_norms(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, 1): L2 norm over all tokens of the sequence a token belongs to, at least 1e-20."""
    squares = x.new_zeros(layout.num_sequences).index_add(0, layout.seq_id, x.square().sum(-1))
    return layout.broadcast(squares.sqrt().clamp(min=1e-20))[:, None]


@dataclass(frozen=True)
class RDrop:
    """R-Drop (Liang et al. 2021): mean loss of two forward passes with different dropout, plus `weight` times their
    symmetric KL divergence."""

    base_objective: Supervised
    weight: float

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        logits, other_logits = (self.base_objective.compute_outputs(model, batch).float() for _ in range(2))
        loss, other_loss = (
            self.base_objective.loss_from_logits(outputs, batch, self.base_objective.transitions(model))
            for outputs in (logits, other_logits)
        )
        mean_loss = (loss.parts["task"] + other_loss.parts["task"]) / 2
        return replace(
            loss, parts={"task": mean_loss + self.weight * self.base_objective.consistency_loss(logits, other_logits, batch)}
        )


@dataclass(frozen=True)
class AuxiliaryLM:
    """Task loss plus `weight` times the next-token loss on the same texts (Radford et al. 2018, section 3.2)."""

    base_objective: Supervised
    weight: float

    def compute_loss(self, model: Model, batch: Batch[Inputs], recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        hidden_states = model(batch.inputs)
        task = self.base_objective.loss_from_logits(
            self.base_objective.compute_outputs(model, batch, hidden_states).float(),
            batch,
            self.base_objective.transitions(model),
        )
        predicting = hidden_states.index_select(0, batch.targets["lm_indices"])
        lm_loss, num_correct = model.cross_entropy(LM_HEAD, predicting, batch.targets["lm_target_ids"])
        metrics = {**task.metrics, "lm_accuracy": (num_correct, batch.target_counts["lm"])}
        return Loss({**task.parts, "lm": self.weight * lm_loss}, metrics)


class AuxiliaryLMBatches(ExampleBatches):
    """Example batches with next-token targets: every token but the first of each sequence."""

    def build(self, groups: list[Ints]) -> Batch[Inputs]:
        batch = super().build(groups)
        layout, input_ids = batch.inputs.layout, batch.inputs.input_ids
        indices = (layout.seq_id[1:] == layout.seq_id[:-1]).nonzero().squeeze(1)
        targets = {**batch.targets, "lm_indices": indices, "lm_target_ids": input_ids[indices + 1]}
        return replace(batch, targets=targets, target_counts={**batch.target_counts, "lm": max(1, len(indices))})


def auxiliary_lm_head(pretrained_heads: dict[str, HeadConfig]) -> HeadConfig:
    """The LM head of pre-training, or one tied to the token embeddings."""
    return pretrained_heads.get(LM_HEAD, LMHeadConfig(transform=False, bias=False))


def init_auxiliary_lm_head(model: Model, pretrained: Model) -> None:
    """Copies the weights of the pre-trained LM head, if there is one."""
    if LM_HEAD in pretrained.heads:
        pretrained_weights: dict[str, Tensor] = pretrained.heads[LM_HEAD].state_dict()
        weights = model.heads[LM_HEAD].state_dict()
        model.heads[LM_HEAD].load_state_dict(
            {name: _extend_rows(pretrained_weights[name], weight) for name, weight in weights.items()}
        )


def _extend_rows(old: Tensor, new: Tensor) -> Tensor:
    """`old` extended by the last rows of `new`: special tokens of the task are appended to the vocabulary."""
    return old if old.shape == new.shape else torch.cat([old, new[len(old) :]])
