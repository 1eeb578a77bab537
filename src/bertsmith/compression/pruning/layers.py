"""Which layers a shallower model does without: the top ones, every other one, or those that the loss misses least."""

from collections.abc import Callable
from typing import Literal

from ...model.model import Model
from .structure import remove_layers

LayerChoice = Literal["loss", "top", "alternate"]


def choose_layers(choice: LayerChoice, model: Model, count: int, compute_loss: Callable[[Model], float] | None) -> list[int]:
    """`count` layers to remove, ascending (0: the lowest).

    - loss: one after another, the layer without which `compute_loss` of the model is lowest
    - top: the highest (Sajjad et al. 2020)
    - alternate: evenly spaced, the first and the last layer stay (DistilBERT's initialization, where half is removed)
    """
    num_layers = model.config.encoder.num_hidden_layers
    if choice == "top":
        return list(range(num_layers - count, num_layers))
    if choice == "alternate":
        num_kept = num_layers - count
        step = (num_layers - 1) / max(1, num_kept - 1)
        kept = {int(layer * step + 0.5) for layer in range(num_kept)}
        return [layer for layer in range(num_layers) if layer not in kept]
    assert compute_loss is not None, "choice=loss is measured on examples"
    removed: list[int] = []
    while len(removed) < count:
        candidates = [layer for layer in range(num_layers) if layer not in removed]
        losses = {layer: compute_loss(remove_layers(model, [*removed, layer])) for layer in candidates}
        removed = sorted([*removed, min(candidates, key=lambda layer: losses[layer])])
    return removed
