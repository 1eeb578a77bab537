"""A checkpoint folder of ours to a folder that other libraries read."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, checksum, claimed, named, new_folder, vacant
from ..config import Config
from ..convert import huggingface
from ..convert.agreement import agreed
from ..model import checkpoint
from ..screen import Screen


class Recipe(Config, frozen=True):
    """A model, the format and where it goes."""

    model: Annotated[str, "the checkpoint folder"]
    out: Annotated[str, "the folder to make"]
    format: Annotated[Literal["hf"], "hf: a Hugging Face folder, for transformers"] = "hf"
    check: Annotated[bool, "compare with transformers on random ids, besides the weights bit for bit"] = False


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Writes the folder and reads it back: what is there is what the model holds."""
    screen, out, source = Screen(quiet), named(recipe.out, "out"), named(recipe.model, "model")
    model, tokenizer, _ = checkpoint.load(source)
    record = huggingface.recorded(source)
    with claimed(out):
        vacant(out)
        with new_folder(out) as part:
            target = huggingface.write(part, model, tokenizer, record)
            family, form = target.family, target.form
            huggingface.identical(part, target.model, form)
            apart = agreed(model, part, family, form) if recipe.check else {}
    if target.model is not model:
        screen.say(f"added to the positions: encoder.segments, which {form.name} has no place for")
    if not form.pooler:
        screen.say(f"left out: encoder.pooler, which {form.name} has no place for")
    for name, value in apart.items():
        screen.say(f"checked: {name} differs from transformers' by {value:.1e} at most")
    screen.say(f"{out}: {form.name}, every weight as in {source}")
    return {"out": str(out), "class": form.name, "family": family.kind, "differences": apart, "files": _sums(out)}


def _sums(out: Path) -> dict[str, str]:
    return {path.name: checksum(path) for path in sorted(out.iterdir()) if path.is_file() and path.name != MANIFEST}
