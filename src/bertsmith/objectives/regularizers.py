"""Adversarial training: a batch is paid for as it is, and again with its embeddings moved where it hurts most."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Config, PosFloat, PosInt
from ..model.batch import Batch
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.model import Model
from ..model.packing import Layout
from ..train.loss import Loss, Objective
from .base import Ints
from .supervised import ExampleBatches, Supervised


class AdversarialConfig(Config, frozen=True):
    """One step along the gradient (FGM, Miyato et al. 2017), or several that stay near (PGD, Madry et al. 2018)."""

    size: Annotated[PosFloat, "how far the embeddings of a sequence are moved, at most"] = 1.0
    steps: Annotated[PosInt, "steps to get there, a pass through the model and back each"] = 1
    stride: Annotated[PosFloat, "how far one step goes"] = 1.0

    presets: ClassVar[dict[str, "AdversarialConfig"]] = {}


AdversarialConfig.presets.update({"fgm": AdversarialConfig(), "pgd": AdversarialConfig(steps=3, stride=0.3)})


@dataclass(frozen=True)
class AdversarialObjective:
    """Any objective, made harder; judged without learning, it is as before."""

    base_objective: Objective
    config: AdversarialConfig

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        here = torch.zeros(batch.num_tokens, model.config.encoder.embedding_dim, device=batch.inputs.input_ids.device)
        clean, here = self._ascend(model, batch, recurrent_state, here)
        for _ in range(self.config.steps - 1):
            _, here = self._ascend(model, batch, recurrent_state, here)
        hard = self.base_objective.compute_loss(model, _perturb(batch, here), recurrent_state)
        return replace(clean, parts={name: part + hard.parts[name] for name, part in clean.parts.items()})

    def _ascend(
        self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...], perturbation: Tensor
    ) -> tuple[Loss, Tensor]:
        """What it costs here, and one step farther from zero: uphill, each sequence by itself, at most `size` away."""
        perturbation = perturbation.requires_grad_()
        loss = self.base_objective.compute_loss(model, _perturb(batch, perturbation), recurrent_state)
        whole = torch.stack([part / max(1, batch.target_counts[name]) for name, part in loss.parts.items()]).sum()
        (slope,) = torch.autograd.grad(whole, perturbation, retain_graph=True)
        layout, a = batch.inputs.layout, self.config
        there = perturbation.detach() + a.stride * slope / _sequence_norms(slope, layout)
        return loss, there * (a.size / _sequence_norms(there, layout)).clamp(max=1.0)


def _perturb(batch: Batch, perturbation: Tensor) -> Batch:
    return replace(batch, inputs=replace(batch.inputs, embedding_delta=perturbation))


def _sequence_norms(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, 1): of the vector that a whole sequence is, for each of its tokens; never 0."""
    squares = x.new_zeros(layout.num_sequences).index_add(0, layout.seq_id, x.square().sum(-1))
    return squares.sqrt().clamp(min=1e-20)[layout.seq_id, None]


@dataclass(frozen=True)
class RDrop:
    """Liang et al. 2021: the mean price of the two readings, and `weight` times how far they are apart."""

    base_objective: Supervised
    weight: float

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.base_objective.compute_loss(model, batch, recurrent_state)
        first, second = (self.base_objective.compute_outputs(model, batch).float() for _ in range(2))
        loss, other = (
            self.base_objective.loss_from_logits(scores, batch, self.base_objective.transitions(model))
            for scores in (first, second)
        )
        mean = (loss.parts["task"] + other.parts["task"]) / 2
        return replace(loss, parts={"task": mean + self.weight * self.base_objective.consistency_loss(first, second, batch)})


@dataclass(frozen=True)
class AuxiliaryLM:
    """Radford et al. 2018, section 3.2: what the task costs, and `weight` times what the next token does."""

    base_objective: Supervised
    weight: float

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        hidden = model(batch.inputs)
        task = self.base_objective.loss_from_logits(
            self.base_objective.compute_outputs(model, batch, hidden).float(), batch, self.base_objective.transitions(model)
        )
        rows = hidden.index_select(0, batch.targets["before"])
        total, right = model.cross_entropy(LM_HEAD, rows, batch.targets["next"])
        report = {**task.metrics, "next_accuracy": (right, batch.target_counts[LM_HEAD])}
        return Loss({**task.parts, LM_HEAD: self.weight * total}, report)


class AuxiliaryLMBatches(ExampleBatches):
    """Batches in which every token but the first of its sequence is also asked for, by the one before it."""

    def build(self, groups: list[Ints]) -> Batch:
        batch = super().build(groups)
        layout, tokens = batch.inputs.layout, batch.inputs.input_ids
        before = (layout.seq_id[1:] == layout.seq_id[:-1]).nonzero().squeeze(1)
        targets = {**batch.targets, "before": before, "next": tokens[before + 1]}
        return replace(batch, targets=targets, target_counts={**batch.target_counts, LM_HEAD: max(1, len(before))})


def auxiliary_lm_head(pretrained_heads: dict[str, HeadConfig]) -> HeadConfig:
    """The one that pre-training left, or the table of tokens alone."""
    return pretrained_heads.get(LM_HEAD, LMHeadConfig(transform=False, bias=False))


def init_auxiliary_lm_head(model: Model, pretrained: Model) -> None:
    """With what the head of pre-training has of its own."""
    if LM_HEAD in pretrained.heads:
        weights: dict[str, Tensor] = pretrained.heads[LM_HEAD].state_dict()
        own = model.heads[LM_HEAD].state_dict()
        model.heads[LM_HEAD].load_state_dict({name: _extend_rows(weights[name], mine) for name, mine in own.items()})


def _extend_rows(old: Tensor, new: Tensor) -> Tensor:
    """Guide tokens are new words behind the old ones: they keep what they begin with."""
    return old if old.shape == new.shape else torch.cat([old, new[len(old) :]])
