"""A checkpoint folder of ours to another form: a folder that other libraries read, or a small one to ship."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, checksum, claimed, named, new_folder, vacant
from ..config import Config, read
from ..console import Screen
from ..convert.huggingface import folder
from ..convert.int8 import packed
from ..convert.parity import agreed
from ..convert.word_vectors import exported
from ..errors import BadInput
from ..model import checkpoint
from ..pretrained.card import Facts


class Recipe(Config, frozen=True):
    """A model, the format and where it goes."""

    model: Annotated[str, "the checkpoint folder, or the name of a shipped model"]
    out: Annotated[str, "the folder to make; vectors: the file"]
    format: Annotated[
        Literal["hf", "packed", "vectors"],
        "hf: a Hugging Face folder, for transformers; packed: ours, weights in int8, a quarter as large; "
        "vectors: the words of the token table, .bin and .npy by their ending, else text",
    ] = "hf"
    check: Annotated[bool, "hf: compare with transformers on random ids, besides the weights bit for bit"] = False
    header: Annotated[bool, "vectors, as text: word2vec's first line; without it, GloVe's format"] = True
    card: Annotated[str | None, "packed: a TOML of facts for card.md: summary, language, data, recipe, scores ..."] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Writes the folder and reads it back: what is there is what the model holds, or packed, as near as rounding leaves it."""
    screen, out, source = Screen(quiet), named(recipe.out, "out"), named(recipe.model, "model")
    if recipe.format == "vectors":
        if recipe.check or recipe.card is not None:
            raise BadInput("check and card are not for format=vectors; leave them out")
        return exported(source, out, None if recipe.header else "glove", screen)
    if recipe.format == "packed":
        if recipe.check:
            raise BadInput("check=true is for format=hf; packed weights are compared with the model's own in any case")
        return packed(source, out, read(Facts, named(recipe.card, "card")) if recipe.card is not None else None, screen)
    if recipe.card is not None:
        raise BadInput("card is for format=packed; leave it out")
    return _exported(recipe, source, out, screen)


def _exported(recipe: Recipe, source: Path, out: Path, screen: Screen) -> dict[str, Any]:
    model, tokenizer, _ = checkpoint.load(source)
    record = folder.recorded(source)
    with claimed(out):
        vacant(out)
        with new_folder(out) as part:
            target = folder.write(part, model, tokenizer, record)
            family, form = target.family, target.form
            folder.identical(part, target.model, form)
            apart = agreed(model, part, family, form) if recipe.check else {}
    if target.model is not model:
        screen.say(f"added to the positions: encoder.segments, which {form.name} has no place for")
    if not form.pooler and model.config.encoder.pooler != "none":
        screen.say(f"left out: encoder.pooler, which {form.name} has no place for")
    for name, value in apart.items():
        screen.say(f"checked: {name} differs from transformers' by {value:.1e} at most")
    screen.say(f"{out}: {form.name}, every weight as in {source}")
    return {"out": str(out), "class": form.name, "family": family.kind, "differences": apart, "files": _sums(out)}


def _sums(out: Path) -> dict[str, str]:
    return {path.name: checksum(path) for path in sorted(out.iterdir()) if path.is_file() and path.name != MANIFEST}
