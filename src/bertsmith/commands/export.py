"""A checkpoint folder of ours to another form: a folder that other libraries read, or a small one to ship."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, atomic_folder, check_writable, checksum, lock_output, resolve_path
from ..config import Config, read_recipe
from ..console import Console
from ..convert.huggingface import folder
from ..convert.int8 import export_int8
from ..convert.parity import check_parity
from ..convert.word_vectors import export_vectors
from ..errors import UserError
from ..model import checkpoint
from ..pretrained.card import CardFacts


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
    screen, out, source = Console(quiet), resolve_path(recipe.out, "out"), resolve_path(recipe.model, "model")
    if recipe.format == "vectors":
        if recipe.check or recipe.card is not None:
            raise UserError("check and card are not for format=vectors; leave them out")
        return export_vectors(source, out, None if recipe.header else "glove", screen)
    if recipe.format == "packed":
        if recipe.check:
            raise UserError("check=true is for format=hf; packed weights are compared with the model's own in any case")
        return export_int8(
            source, out, read_recipe(CardFacts, resolve_path(recipe.card, "card")) if recipe.card is not None else None, screen
        )
    if recipe.card is not None:
        raise UserError("card is for format=packed; leave it out")
    return _export_huggingface(recipe, source, out, screen)


def _export_huggingface(recipe: Recipe, source: Path, out: Path, console: Console) -> dict[str, Any]:
    model, tokenizer, _ = checkpoint.load(source)
    record = folder.read_record(source)
    with lock_output(out):
        check_writable(out)
        with atomic_folder(out) as part:
            target = folder.write(part, model, tokenizer, record)
            family, form = target.family, target.architecture
            folder.verify_roundtrip(part, target.model, form)
            apart = check_parity(model, part, family, form) if recipe.check else {}
    if target.model is not model:
        console.info(f"added to the positions: encoder.segments, which {form.name} has no place for")
    if not form.pooler_module and model.config.encoder.pooler != "none":
        console.info(f"left out: encoder.pooler, which {form.name} has no place for")
    for name, value in apart.items():
        console.info(f"checked: {name} differs from transformers' by {value:.1e} at most")
    console.info(f"{out}: {form.name}, every weight as in {source}")
    return {
        "out": str(out),
        "class": form.name,
        "family": family.model_type,
        "differences": apart,
        "files": _file_checksums(out),
    }


def _file_checksums(out: Path) -> dict[str, str]:
    return {path.name: checksum(path) for path in sorted(out.iterdir()) if path.is_file() and path.name != MANIFEST}
