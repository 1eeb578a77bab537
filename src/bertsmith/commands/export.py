"""`bertsmith export`: write a checkpoint as a Hugging Face folder, ONNX, OpenVINO, int8 weights or a word vector file."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, atomic_folder, checksum, read_finished_run, resolve_path
from ..config import Config
from ..console import Console
from ..convert.huggingface import folder
from ..convert.huggingface.readme import render_readme
from ..convert.int8 import export_int8
from ..convert.model2vec import export_model2vec
from ..convert.onnx.folder import export_graphs
from ..convert.parity import check_parity
from ..convert.word_vectors import export_vectors
from ..errors import UserError
from ..inference import output_files
from ..model import checkpoint
from ..pretrained.card import CardFacts
from ..recipes import read_recipe
from ..writing import check_writable, lock_output, resolve_output, write_atomic


class Recipe(Config, frozen=True):
    """The model, the format and the output."""

    model: Annotated[str, "checkpoint folder, or the name of a shipped model"]
    out: Annotated[str, "output folder; with format=vectors, the file"]
    overwrite: Annotated[bool, "vectors: replace an existing file; default: refuse"] = False
    format: Annotated[
        Literal["hf", "onnx", "openvino", "int8", "vectors", "model2vec"],
        "hf: Hugging Face folder; onnx, openvino: graphs that answer without torch, checked against it; "
        "int8: quantized bertsmith checkpoint, a quarter as large; "
        "vectors: token embeddings as a word vector file (.bin, .npy, else text); model2vec: a static student for model2vec",
    ] = "hf"
    precision: Annotated[
        Literal["fp32", "int8"],
        "onnx, openvino: int8 computes linear layers in int8 and makes a smaller folder; nothing is written where the mean "
        "cosine of sentence embeddings to float32 is below 0.99",
    ] = "fp32"
    check: Annotated[bool, "hf: also compare outputs with transformers on random ids"] = False
    header: Annotated[bool, "vectors, as text: write word2vec's header line; false for GloVe's format"] = True
    card: Annotated[str | None, "int8: TOML file with the contents of card.md (summary, language, data, scores ...)"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Write the export and read it back to verify it: equal to the model's weights, or with int8 within rounding."""
    console, out, source = Console(quiet), resolve_output(recipe.out), resolve_path(recipe.model, "model")
    if recipe.precision != "fp32" and recipe.format not in ("onnx", "openvino"):
        way_out = "leave it out" if recipe.format == "int8" else "set format=onnx or openvino, or leave it out"
        raise UserError(f"precision={recipe.precision} applies to graphs; {way_out} (format=int8 stores weights as int8)")
    if recipe.format == "vectors":
        if recipe.check or recipe.card is not None:
            raise UserError("format=vectors does not take check or card; leave them out")
        return export_vectors(source, out, None if recipe.header else "glove", console, recipe.overwrite)
    if recipe.overwrite:
        raise UserError("overwrite=true is for the file of format=vectors; to export to a folder again, remove it")
    identity = output_files.compute_run_id(recipe, recipe.model, recipe.card)
    if recipe.format == "int8":
        if recipe.check:
            raise UserError("check=true applies to format=hf only; leave it out (format=int8 always compares the weights)")
        facts = read_recipe(CardFacts, resolve_path(recipe.card, "card")) if recipe.card is not None else None
        return export_int8(source, out, facts, console, identity)
    if recipe.card is not None:
        raise UserError("card applies to format=int8 only; leave it out")
    if recipe.format == "model2vec":
        if recipe.check:
            raise UserError("check=true applies to format=hf only; leave it out (format=model2vec always compares the vectors)")
        return export_model2vec(source, out, console, identity)
    if recipe.format in ("onnx", "openvino"):
        if recipe.check:
            raise UserError(f"check=true applies to format=hf only; leave it out (format={recipe.format} always compares)")
        return export_graphs(source, out, recipe.format, console, identity, recipe.precision)
    return _export_huggingface(recipe, source, out, console, identity)


def _export_huggingface(recipe: Recipe, source: Path, out: Path, console: Console, identity: str) -> dict[str, Any]:
    model, tokenizer, _ = checkpoint.load(source)
    record = folder.read_record(source)
    with lock_output(out):
        if finished := read_finished_run(out, identity):
            console.info(f"{out} already exists, exported from the same model")
            return {"out": str(out), **finished, "files": _file_checksums(out)}
        check_writable(out)
        run: dict[str, Any] = {"identity": identity}
        with atomic_folder(out, run) as staging:
            target = folder.write(staging, model, tokenizer, record)
            family, architecture = target.family, target.architecture
            folder.verify_roundtrip(staging, target.model, architecture)
            write_atomic(staging / "README.md", render_readme(out.absolute().name, architecture, record.task).encode())
            differences = check_parity(target.model, staging, family, architecture) if recipe.check else {}
            run["result"] = {"class": architecture.name, "family": family.model_type, "differences": differences}
    for note in (*target.changes, *(record.task.export_notes() if record.task else ())):
        console.info(note)
    if not architecture.pooler_module and model.config.encoder.pooler_act != "none":
        console.info(f"encoder.pooler: not exported, since {architecture.name} has no pooler")
    for name, value in differences.items():
        console.info(f"checked: {name}: maximum difference from transformers {value:.1e}")
    console.info(f"{out}: {architecture.name}, with the weights of {source}")
    return {"out": str(out), **run["result"], "files": _file_checksums(out)}


def _file_checksums(out: Path) -> dict[str, str]:
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(out).as_posix(): checksum(path) for path in paths}
