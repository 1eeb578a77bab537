"""What is tried: the model and its students, each as it is and pruned, each in several precisions."""

from dataclasses import dataclass
from typing import NamedTuple

from ...errors import UserError
from .recipe import CompressRecipe, Precision


@dataclass(frozen=True)
class Trained:
    """A model that is trained: a student of `num_hidden_layers` or the model itself (None), pruned by `amount` (0: not)."""

    num_hidden_layers: int | None = None
    amount: float = 0.0

    @property
    def is_original(self) -> bool:
        return self == Trained()

    @property
    def parent(self) -> "Trained | None":
        """The model that it is pruned from, or the teacher of a student."""
        if self.amount:
            return Trained(self.num_hidden_layers)
        return None if self.num_hidden_layers is None else Trained()

    @property
    def folder(self) -> str:
        """Name of its folder."""
        parts = [] if self.num_hidden_layers is None else [f"{self.num_hidden_layers}-layers"]
        return "-".join([*parts, *([f"pruned-{100 * self.amount:g}"] if self.amount else [])]) or "original"

    def describe(self) -> str:
        count = self.num_hidden_layers
        layers = "original" if count is None else f"{count} layer{'s' * (count > 1)}"
        return f"{layers}, {100 * self.amount:g}% pruned" if self.amount else layers


class Candidate(NamedTuple):
    """An artifact: a trained model exported in a precision."""

    trained: Trained
    precision: Precision

    @property
    def folder(self) -> str:
        return f"{self.trained.folder}-{self.precision}"

    def describe(self) -> str:
        return f"{self.trained.describe()}, {self.precision}"


REFERENCE = Candidate(Trained(), "fp32")  # what the others are compared with


def list_trained(recipe: CompressRecipe, num_layers: int) -> list[Trained]:
    """The models to train, a parent before what is made from it; the original comes first."""
    layers = recipe.num_hidden_layers
    if layers is None:
        layers = tuple(dict.fromkeys(count for part in (2, 3) if 0 < (count := num_layers // part) < num_layers))
    if wrong := [count for count in layers if count >= num_layers]:
        raise UserError(
            f"num_hidden_layers={wrong[0]}: {recipe.model} has {num_layers} layers; students need fewer, [] trains none"
        )
    parents = [Trained(), *(Trained(count) for count in layers)]
    return [model for parent in parents for model in (parent, *(Trained(parent.num_hidden_layers, a) for a in recipe.amount))]


def list_candidates(recipe: CompressRecipe, trained: Trained) -> list[Candidate]:
    """The artifacts of a model; the original is also exported in fp32, to compare with."""
    precisions = dict.fromkeys((*(["fp32"] if trained.is_original else []), *recipe.precision))
    return [Candidate(trained, precision) for precision in precisions]  # type: ignore[arg-type]
