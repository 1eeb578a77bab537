"""Masks over weights in training: which units of a matrix stay, and the scores that decide it.

A unit is a rectangle of a weight matrix: a single weight, a block, or the columns of a head or a neuron in the matrix that
reads it. Scores by importance:

- gradient: |dL/dξ| of the unit's mask variable ξ, as a moving sum over batches (Michel et al. 2019; for neurons this is the
  first-order Taylor expansion of Molchanov et al. 2017)
- movement: a trained score per unit, with the gradient of the mask (straight-through; Sanh et al. 2020, Lagunas et al. 2021)
- magnitude: the L2 norm of the unit's weights
"""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...model.model import Model
from ...model.transformer import Block
from .structure import count_heads, count_neurons

Importance = Literal["gradient", "movement", "magnitude"]
MaskedUnit = Literal["head", "neuron", "weight", "block"]
Scope = Literal["global", "layer"]

SCORE_DECAY = 0.98  # of the moving sum of |dL/dξ| per batch
NEURON_MULTIPLE = 8  # the kept neurons of a layer are a multiple of this, so that they fill vector registers
SCORES_SUFFIX = ".scores"  # of the trained scores of movement pruning, by parameter name


class MaskedWeight(nn.Module):
    """Parametrization of a weight (rows, columns): W * ξ, where each entry of ξ covers a unit of `unit_shape` weights.

    `mask`: (ceil(rows / unit rows), ceil(columns / unit columns)) of 0 and 1. It is a buffer: checkpoints hold it.
    """

    mask: Tensor
    scores: Tensor
    is_final: Tensor

    def __init__(self, weight: Tensor, unit_shape: tuple[int, int], importance: Importance) -> None:
        super().__init__()
        self.unit_shape, self.importance = unit_shape, importance
        shape = [-(-size // unit) for size, unit in zip(weight.shape, unit_shape, strict=True)]
        self.register_buffer("mask", weight.new_ones(shape))
        self.register_buffer("is_final", torch.zeros((), dtype=torch.uint8, device=weight.device))  # the mask changes no more
        if importance == "movement":
            self.scores = nn.Parameter(weight.new_zeros(shape))
        else:
            self.register_buffer("scores", weight.new_zeros(shape))

    def forward(self, weight: Tensor) -> Tensor:
        mask = self.mask
        if self.is_final:
            return weight * self._expand(mask, weight.shape)
        if self.importance == "movement":
            mask = mask + (self.scores - self.scores.detach())  # straight-through: the gradient of the mask goes to the scores
        elif self.importance == "gradient" and self.training and torch.is_grad_enabled():
            mask = mask.clone().requires_grad_()
            mask.register_hook(self._accumulate)
        return weight * self._expand(mask, weight.shape)

    @torch.no_grad()
    def update_scores(self, weight: Tensor) -> Tensor:
        """The scores that decide now; those of magnitude are computed from `weight`, before masking."""
        if self.importance == "magnitude":
            rows, columns = self.unit_shape
            padded = nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
            units = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
            self.scores.copy_(units.square().sum((1, 3)).sqrt())
        return self.scores

    def _accumulate(self, grad: Tensor) -> None:
        self.scores.mul_(SCORE_DECAY).add_(grad.detach().abs())

    def _expand(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """(rows, columns): the mask of each weight; a dimension of one unit is broadcast."""
        for dim, (unit, size) in enumerate(zip(self.unit_shape, shape, strict=True)):
            if mask.shape[dim] > 1 and unit > 1:
                mask = mask.repeat_interleave(unit, dim).narrow(dim, 0, size)
        return mask


class Pruner:
    """The masks of a model's units of one kind, and which of them a sparsity leaves at 1.

    scope: `global` ranks the units of all layers together, `layer` removes the same share of each matrix. At least one head or
    neuron of a layer always stays.
    """

    def __init__(
        self, model: Model, unit: MaskedUnit, importance: Importance, scope: Scope, block_shape: tuple[int, int] = (1, 1)
    ) -> None:
        """Registers the masks on the model's matrices, in place."""
        self.unit, self.scope, self.importance = unit, scope, importance
        self.linears = [linear for block in model.encoder.stack.layers for linear in _find_linears(cast(Block, block), unit)]
        self.masks: list[MaskedWeight] = []
        for block, linear in self.linears:
            shape = _unit_shape(block, linear, unit, block_shape)
            masked = MaskedWeight(linear.weight, shape, importance).train(model.training)
            parametrize.register_parametrization(linear, "weight", masked)
            self.masks.append(masked)
        self.multiple = NEURON_MULTIPLE if unit == "neuron" else 1
        self.at_least = 1 if unit in ("head", "neuron") else 0

    @torch.no_grad()
    def update(self, sparsity: float, is_final: bool = False) -> None:
        """Sets the masks, unless they are final: the units with the highest scores stay, (1 - sparsity) of them."""
        if self.is_final:
            return
        scores = [
            masked.update_scores(cast(Tensor, linear.parametrizations.weight.original)).flatten()  # type: ignore[union-attr]
            for masked, (_, linear) in zip(self.masks, self.linears, strict=True)
        ]
        counts = count_kept(scores, 1 - sparsity, self.scope, self.importance, self.multiple, self.at_least)
        for masked, unit_scores, count in zip(self.masks, scores, counts, strict=True):
            masked.mask.view(-1).zero_()[unit_scores.topk(count, sorted=False).indices] = 1
            masked.is_final.fill_(is_final)

    @property
    def is_final(self) -> bool:
        """Whether the masks stay as they are."""
        return bool(self.masks[0].is_final)

    @property
    def sparsity(self) -> float:
        """Share of the units whose mask is 0."""
        return 1 - sum(float(masked.mask.sum()) for masked in self.masks) / sum(masked.mask.numel() for masked in self.masks)

    def kept_units(self) -> list[tuple[int, ...]]:
        """Indices of the units that stay, of each block (unit=head, neuron)."""
        return [tuple(masked.mask.flatten().nonzero().flatten().tolist()) for masked in self.masks]

    def remove(self) -> None:
        """Multiplies the masks into the weights and removes them from the model."""
        for _, linear in self.linears:
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=True)


def count_kept(
    scores: Sequence[Tensor], fraction: float, scope: Scope, importance: Importance, multiple: int = 1, at_least: int = 0
) -> list[int]:
    """Number of units of each matrix that stay, of its (units,) scores, so that about `fraction` of all stay.

    scope=global counts those of each matrix among the highest of all; gradient scores are first divided by their L2 norm in the
    matrix, as Michel et al. (2019, section 2.3) do. Counts are rounded to `multiple` where the matrix has more units.
    """
    sizes = [len(values) for values in scores]
    if fraction >= 1:
        return sizes
    if scope == "layer":
        exact = [fraction * size for size in sizes]
    else:
        ranked = [_normalize(values) if importance == "gradient" else values.clone() for values in scores]
        for values in ranked:
            values[values.topk(at_least).indices] = torch.inf
        top = torch.cat(ranked).topk(round(fraction * sum(sizes)), sorted=False).indices
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(top.device)
        exact = torch.bincount(owner[top], minlength=len(sizes)).tolist()
    rounded = [
        multiple * round(count / multiple) if size > multiple else round(count)
        for count, size in zip(exact, sizes, strict=True)
    ]
    return [min(max(count, at_least), size) for count, size in zip(rounded, sizes, strict=True)]


def _normalize(values: Tensor) -> Tensor:
    return values / values.norm().clamp(min=torch.finfo(values.dtype).tiny)


def _find_linears(block: Block, unit: MaskedUnit) -> list[tuple[Block, nn.Linear]]:
    """The matrices of a block that get a mask: those that read its heads or neurons, or all."""
    if unit == "head":
        return [(block, block.mixer.projections.output)]  # type: ignore[list-item,union-attr]
    if unit == "neuron":
        return [(block, block.feedforward.output)]  # type: ignore[list-item,union-attr]
    return [(block, module) for module in block.modules() if isinstance(module, nn.Linear)]


def _unit_shape(block: Block, linear: nn.Linear, unit: MaskedUnit, block_shape: tuple[int, int]) -> tuple[int, int]:
    if unit in ("weight", "block"):
        return (1, 1) if unit == "weight" else block_shape
    return linear.out_features, linear.in_features // (count_heads(block) if unit == "head" else count_neurons(block))
