"""Files that are not what they were, weights that are no numbers, a tokenizer that lacks what BERT needs."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from ..artifacts import MANIFEST, verify
from ..errors import BadInput
from ..text.tokenizer import Tokenizer
from .finding import Finding, number


def damaged(folder: Path) -> Iterator[Finding]:
    try:
        if (folder / MANIFEST).exists():
            verify(folder)
    except BadInput as error:
        yield Finding(
            "damaged folder", "problem", str(error),
            "a file is not what it was when the folder was made: nothing else about it can be believed",
            "make the folder again, or copy it again, whole, from where it came",
        )  # fmt: skip


def tokenizer_of(folder: Path) -> tuple[Tokenizer | None, list[Finding]]:
    """The tokenizer of a folder; or none, and why it cannot be used."""
    try:
        return Tokenizer.load(folder / "tokenizer.json"), []
    except BadInput as error:
        masks = "has no [MASK]" in str(error)
        name = "masks missing" if masks else "wrong vocabulary: tokens missing"
        means = "no word can be hidden, so none can be asked for" if masks else "texts cannot be read as BERT reads them"
        way_out = "add that line to the vocabulary, or train a tokenizer, and prepare the text again with it"
        return None, [Finding(name, "problem", str(error).split(";")[0], means, way_out, "tokenizer=FOLDER")]


def lost(weights: dict[str, Tensor], rate: float | None) -> Iterator[Finding]:
    bad = [name for name, weight in weights.items() if weight.is_floating_point() and not weight.isfinite().all()]
    if bad:
        yield Finding(
            "weights lost", "problem", f"{len(bad)} of {len(weights)} tensors hold NaN or infinity, {bad[0]} among them",
            "an update ruined the weights: every answer of this model is NaN",
            "begin again, or from an older checkpoint, at a lower rate; where it was fp16, take bf16 or fp32",
            f"train.rate={number(rate / 10)}" if rate else None,
        )  # fmt: skip
