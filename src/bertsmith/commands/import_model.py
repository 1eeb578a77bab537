"""`bertsmith import`: convert a Hugging Face, TensorFlow or ELMo checkpoint, or a word vector file, to a bertsmith folder."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch

from .. import __version__, hub_names, tensors
from ..artifacts import MANIFEST, atomic_folder, checksum, fingerprint, read_json, read_object, resolve_path, verify_manifest
from ..config import Config, Probability, to_dict
from ..console import Console
from ..convert import elmo, tf_checkpoint
from ..convert.huggingface import folder, hub, reformer
from ..convert.huggingface.family import Family
from ..convert.huggingface.mapping import ConvertedModel
from ..convert.huggingface.sentence_transformers import read_modules
from ..convert.huggingface.tokenizer import read_tokenizer
from ..convert.parity import check_parity
from ..convert.word_vectors import import_vectors
from ..errors import UserError
from ..model import checkpoint
from ..model.heads.embedding import EMBEDDING_HEAD
from ..model.model import Model
from ..runs import command_line
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_writable, lock_output, resolve_output


class Recipe(Config, frozen=True):
    """The checkpoint to convert and the output folder."""

    source: Annotated[str, "Hugging Face folder or hub name, TensorFlow checkpoint, ELMo folder, or word vector file"]
    out: Annotated[str, "output checkpoint folder"]
    tokenizer: Annotated[str | None, "tokenizer.json or vocab.txt, if the source has none"] = None
    lowercase: Annotated[
        bool | None, "lowercase text, for a vocab.txt without config; default: inferred from the vocabulary"
    ] = None
    attention_dropout: Annotated[
        Probability, "attention dropout for further training (0.1 in BERT); above 0 is slower on a GPU"
    ] = 0.0
    check: Annotated[bool, "compare outputs with transformers on random ids"] = False


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Write the converted checkpoint, unless it already exists in `out`."""
    console, out = Console(quiet), resolve_output(recipe.out)
    if (vector_file := resolve_path(recipe.source, "source")).is_file() and tf_checkpoint.find_prefix(vector_file) is None:
        if recipe.check or recipe.tokenizer is not None or recipe.attention_dropout:
            raise UserError(
                f"{vector_file} is a word vector file; leave out check, tokenizer and attention_dropout, which do not "
                "apply to it"
            )
        return import_vectors(recipe, vector_file, out, recipe.lowercase, console)
    with lock_output(out):
        if not (out / MANIFEST).exists():
            check_writable(out)
        source = _resolve_source(recipe, quiet)
        _verify_source(source)
        if elmo_files := elmo.find_files(source):
            return _import_elmo(recipe, *elmo_files, out, console)
        if reformer.is_reformer(source):
            return _import_reformer(recipe, source, out, console)
        modules = read_modules(source)  # of sentence-transformers
        source = modules.encoder_folder if modules else source
        family, converted, files = _read_checkpoint(source, recipe.attention_dropout)
        converted = modules.add_to(converted) if modules else converted
        tokenizer = _read_tokenizer(recipe, source, converted.model)
        checksums = {path.name: checksum(path) for path in files}
        task = list[Any]()
        if modules:
            if modules.lowercases and tokenizer.encode("A").ids != tokenizer.encode("a").ids:
                raise UserError(f"{source} lowercases texts before it tokenizes them (do_lower_case), its tokenizer does not; "
                               "this is not supported")  # fmt: skip
            checksums |= {f"{path.parent.name}/{path.name}": checksum(path) for path in modules.files}
            head = converted.model.config.heads.get(EMBEDDING_HEAD)
            task = [to_dict(converted.task), converted.max_length, *([to_dict(head)] if head else [])]
        identity = fingerprint([_identity_settings(recipe), checksums, tokenizer.fingerprint, *task])
        result = _build_result(family.model_type, converted, tokenizer)
        if recipe.check:
            result["differences"] = _compare_with_transformers(converted, source, family)
        if created := not _is_finished(out, identity, console):
            _publish(recipe, tokenizer, converted, {"identity": identity, "files": checksums, "result": result})
    return _report_result(out, result, console, created)


def _resolve_source(recipe: Recipe, quiet: bool) -> Path:
    """Path of the source folder or checkpoint prefix; a name that is not a local path is downloaded from the hub."""
    source = resolve_path(recipe.source, "source")
    exists = source.exists() or tf_checkpoint.find_prefix(source) is not None
    repo_id = None if exists else hub_names.find_repo_id(recipe.source)
    return source if repo_id is None else hub.download(repo_id, quiet)


def _verify_source(source: Path) -> None:
    """Compare a folder that `export` wrote with its manifest; other programs write none, or another file of that name."""
    if (
        not (source / MANIFEST).is_file()
        or not isinstance(manifest := read_json(source / MANIFEST), dict)
        or "files" not in manifest
    ):
        return
    try:
        verify_manifest(source)
    except UserError as error:
        raise UserError(f"{error}, or remove {MANIFEST} if you changed the folder on purpose") from None


def _read_checkpoint(source: Path, attention_dropout: float) -> tuple[Family, ConvertedModel, list[Path]]:
    prefix = tf_checkpoint.find_prefix(source)
    if prefix is not None and not (source / "config.json").exists():
        return tf_checkpoint.read(prefix, attention_dropout)
    if not source.is_dir():
        raise UserError(f"there is no folder {source}, and no TensorFlow checkpoint {source}.index; download the model first")
    if not (source / "config.json").exists():
        raise UserError(f"{source} contains no config.json (Hugging Face), *.index (TensorFlow) or *options.json (ELMo)")
    return folder.read(source, attention_dropout)


def _read_tokenizer(recipe: Recipe, source: Path, model: Model) -> Tokenizer:
    tokenizer_path = resolve_path(recipe.tokenizer, "tokenizer") if recipe.tokenizer is not None else None
    tokenizer = read_tokenizer(source if source.is_dir() else source.parent, tokenizer_path, recipe.lowercase)
    if len(tokenizer) > model.config.vocab_size:
        raise UserError(f"{tokenizer.source} has {len(tokenizer):,} tokens, but the model's vocab_size is "
                        f"{model.config.vocab_size:,}; "
                       "give the tokenizer of this model")  # fmt: skip
    return tokenizer


def _identity_settings(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in to_dict(recipe).items() if name in ("lowercase", "attention_dropout")}


def _import_elmo(recipe: Recipe, options: Path, weights: Path, out: Path, console: Console) -> dict[str, Any]:
    """ELMo reads characters, so published models have no vocabulary: without a tokenizer, words are split at whitespace."""
    if recipe.check:
        raise UserError("check=true compares with transformers, which does not support ELMo; leave it out")
    tokenizer_override = (
        Tokenizer.load(resolve_path(recipe.tokenizer, "tokenizer"), recipe.lowercase) if recipe.tokenizer is not None else None
    )
    model, tokenizer = elmo.read(options, weights, tokenizer_override)
    converted, checksums = ConvertedModel(model, None, [], []), {path.name: checksum(path) for path in (options, weights)}
    identity, result = (
        fingerprint([_identity_settings(recipe), checksums, tokenizer.fingerprint]),
        _build_result(elmo.FAMILY, converted, tokenizer),
    )
    if created := not _is_finished(out, identity, console):
        _publish(recipe, tokenizer, converted, {"identity": identity, "files": checksums, "result": result})
    return _report_result(out, result, console, created)


def _import_reformer(recipe: Recipe, source: Path, out: Path, console: Console) -> dict[str, Any]:
    if recipe.attention_dropout:
        raise UserError("attention_dropout is not supported for Reformer, whose config.json sets it; leave it out")
    converted, files = reformer.read(source)
    tokenizer, checksums = _read_tokenizer(recipe, source, converted.model), {path.name: checksum(path) for path in files}
    identity, result = (
        fingerprint([_identity_settings(recipe), checksums, tokenizer.fingerprint]),
        _build_result(reformer.MODEL_TYPE, converted, tokenizer),
    )
    if recipe.check:
        result["differences"] = reformer.check_parity(converted.model, source)
    if created := not _is_finished(out, identity, console):
        _publish(recipe, tokenizer, converted, {"identity": identity, "files": checksums, "result": result})
    return _report_result(out, result, console, created)


def _build_result(family: str, converted: ConvertedModel, tokenizer: Tokenizer) -> dict[str, Any]:
    config = converted.model.config
    return {
        "family": family, "num_hidden_layers": config.encoder.num_hidden_layers, "hidden_size": config.encoder.hidden_size,
        "heads": sorted(config.heads),
        "task": None if converted.task is None else converted.task.__struct_config__.tag,
        "vocab_size": config.vocab_size, "num_tokens": len(tokenizer),
        "max_position_embeddings": config.encoder.max_position_embeddings,
        "parameters": sum(weight.numel() for weight in converted.model.parameters()),
        "unexpected_keys": converted.unexpected_keys, "missing_keys": converted.missing_keys,
    }  # fmt: skip


def _compare_with_transformers(converted: ConvertedModel, source: Path, family: Family) -> dict[str, float]:
    if not source.is_dir() or not (source / "config.json").exists():
        raise UserError("check=true compares with transformers, which cannot read a TensorFlow checkpoint; leave it out, and "
                       "check the model with `bertsmith export format=hf check=true`")  # fmt: skip
    architecture = folder.select_architecture(family, converted.model, converted.task)
    with folder.standard_names(source) as renamed:
        return check_parity(converted.model, renamed, family, architecture)


def _publish(recipe: Recipe, tokenizer: Tokenizer, converted: ConvertedModel, card: dict[str, Any]) -> None:
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"source": recipe.source, "command": command_line(), "versions": versions}
    card |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    record = {
        "stage": "import",
        "recipe": to_dict(recipe),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "version": __version__,
    }
    record["family"] = card["result"]["family"]
    if converted.task is not None:
        max_length = converted.max_length or converted.model.config.encoder.max_position_embeddings
        record |= {"task": to_dict(converted.task), "max_length": max_length}
    with atomic_folder(resolve_output(recipe.out)) as staging:
        checkpoint.write_files(staging, converted.model, tokenizer, card, record)
        if converted.extra_tensors:
            tensors.save_tensors(converted.extra_tensors, staging / folder.EXTRA_TENSORS_FILE)


def _is_finished(out: Path, identity: str, console: Console) -> bool:
    if not (out / MANIFEST).exists():
        return False
    card = read_object(out / "card.json")
    if card.get("identity") != identity:
        raise UserError(f"{out} contains another model; choose another out, or remove it")
    console.info(f"{out} already exists, converted from the same files")
    return True


def _report_result(out: Path, result: dict[str, Any], console: Console, created: bool) -> dict[str, Any]:
    names = (
        "family", "heads", "num_hidden_layers", "hidden_size", "max_position_embeddings", "vocab_size", "parameters",
    )  # fmt: skip
    console.print_table(str(out), [(name, _format_value(result[name])) for name in names])
    for name in result["unexpected_keys"]:
        console.info(f"unexpected key: {name} belongs to a head that bertsmith does not have; it is not imported")
    for name in result["missing_keys"]:
        console.info(f"missing key: {name} is not in the source; initialized at random")
    for name, value in result.get("differences", {}).items():
        console.info(f"checked: {name}: maximum difference from transformers {value:.1e}")
    return {"out": str(out), "created": created, **result}


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
