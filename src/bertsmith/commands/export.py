"""`bertsmith export`: write a checkpoint as a Hugging Face folder, with int8 weights, or as a word vector file."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, atomic_folder, check_writable, checksum, lock_output, resolve_path, write_atomic
from ..config import Config
from ..console import Console
from ..convert.huggingface import folder
from ..convert.huggingface.readme import render_readme
from ..convert.int8 import export_int8
from ..convert.parity import check_parity
from ..convert.word_vectors import export_vectors
from ..errors import UserError
from ..model import checkpoint
from ..pretrained.card import CardFacts
from ..recipes import read_recipe


class Recipe(Config, frozen=True):
    """The model, the format and the output."""

    model: Annotated[str, "checkpoint folder, or the name of a shipped model"]
    out: Annotated[str, "output folder; with format=vectors, the file"]
    format: Annotated[
        Literal["hf", "int8", "vectors"],
        "hf: Hugging Face folder; int8: quantized bertsmith checkpoint, a quarter as large; "
        "vectors: token embeddings as a word vector file (.bin, .npy, else text)",
    ] = "hf"
    check: Annotated[bool, "hf: also compare outputs with transformers on random ids"] = False
    header: Annotated[bool, "vectors, as text: write word2vec's header line; false for GloVe's format"] = True
    card: Annotated[str | None, "int8: TOML file with the contents of card.md (summary, language, data, scores ...)"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Write the export and read it back to verify it: equal to the model's weights, or with int8 within rounding."""
    console, out, source = Console(quiet), resolve_path(recipe.out, "out"), resolve_path(recipe.model, "model")
    if recipe.format == "vectors":
        if recipe.check or recipe.card is not None:
            raise UserError("format=vectors does not take check or card; leave them out")
        return export_vectors(source, out, None if recipe.header else "glove", console)
    if recipe.format == "int8":
        if recipe.check:
            raise UserError("check=true applies to format=hf only; leave it out (format=int8 always compares the weights)")
        return export_int8(
            source, out, read_recipe(CardFacts, resolve_path(recipe.card, "card")) if recipe.card is not None else None, console
        )
    if recipe.card is not None:
        raise UserError("card applies to format=int8 only; leave it out")
    return _export_huggingface(recipe, source, out, console)


def _export_huggingface(recipe: Recipe, source: Path, out: Path, console: Console) -> dict[str, Any]:
    model, tokenizer, _ = checkpoint.load(source)
    record = folder.read_record(source)
    with lock_output(out):
        check_writable(out)
        with atomic_folder(out) as staging:
            target = folder.write(staging, model, tokenizer, record)
            family, architecture = target.family, target.architecture
            folder.verify_roundtrip(staging, target.model, architecture)
            write_atomic(staging / "README.md", render_readme(out.absolute().name, architecture, record.task).encode())
            differences = check_parity(target.model, staging, family, architecture) if recipe.check else {}
    for note in (*target.changes, *(record.task.export_notes() if record.task else ())):
        console.info(note)
    if not architecture.pooler_module and model.config.encoder.pooler_act != "none":
        console.info(f"encoder.pooler: not exported, since {architecture.name} has no pooler")
    for name, value in differences.items():
        console.info(f"checked: {name}: maximum difference from transformers {value:.1e}")
    console.info(f"{out}: {architecture.name}, with the weights of {source}")
    return {
        "out": str(out),
        "class": architecture.name,
        "family": family.model_type,
        "differences": differences,
        "files": _file_checksums(out),
    }


def _file_checksums(out: Path) -> dict[str, str]:
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(out).as_posix(): checksum(path) for path in paths}
