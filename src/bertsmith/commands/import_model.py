"""Somebody else's checkpoint, or vectors, to a folder of ours: the model, its tokenizer, and what of it found no place."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch

from .. import __version__, tensors
from ..artifacts import MANIFEST, checksum, claimed, fingerprint, named, new_folder, read_json, vacant
from ..config import Chance, Config, plain
from ..console import Screen
from ..convert import elmo, tf_checkpoint
from ..convert.huggingface import folder, hub, reformer
from ..convert.huggingface.mapping import Fitted
from ..convert.huggingface.names import Family
from ..convert.huggingface.tokenizer import taken
from ..convert.parity import agreed
from ..convert.word_vectors import imported
from ..errors import BadInput
from ..model import checkpoint
from ..model.model import Model
from ..runs import command
from ..tokenization.tokenizer import Tokenizer


class Recipe(Config, frozen=True):
    """A checkpoint and where it goes."""

    source: Annotated[str, "a Hugging Face folder or hub name, a TensorFlow checkpoint (folder, prefix, .index), or vectors"]
    out: Annotated[str, "the checkpoint folder to make"]
    tokenizer: Annotated[str | None, "a tokenizer.json or vocab.txt, where the source has none"] = None
    lowercase: Annotated[bool | None, "fold case, for a vocab.txt that does not say; without it, by its pieces"] = None
    attention_dropout: Annotated[Chance, "when trained further: most sources say 0.1; above 0 is slower on a GPU"] = 0.0
    check: Annotated[bool, "compare with transformers on random ids"] = False


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Makes the folder, or says that it is there already."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    if (file := named(recipe.source, "source")).is_file() and tf_checkpoint.prefix_of(file) is None:
        if recipe.check or recipe.tokenizer is not None or recipe.attention_dropout:
            raise BadInput(f"{file} is a file of vectors: check, tokenizer and attention_dropout are for other sources")
        return imported(recipe, file, out, recipe.lowercase, screen)
    with claimed(out):
        if not (out / MANIFEST).exists():
            vacant(out)
        source = _source(recipe, quiet)
        if spelt := elmo.files_of(source):
            return _elmo(recipe, *spelt, out, screen)
        if reformer.written_there(source):
            return _reformer(recipe, source, out, screen)
        family, found, files = _read(source, recipe.attention_dropout)
        tokenizer = _tokenizer(recipe, source, found.model)
        sums = {path.name: checksum(path) for path in files}
        identity = fingerprint([_settings(recipe), sums, tokenizer.fingerprint])
        result = _result(family.kind, found, tokenizer)
        if recipe.check:
            result["differences"] = _checked(found, source, family)
        if made := not _finished(out, identity, screen):
            _publish(recipe, tokenizer, found, {"identity": identity, "files": sums, "result": result})
    return _told(out, result, screen, made)


def _source(recipe: Recipe, quiet: bool) -> Path:
    """The folder or prefix that is meant; what is no such thing here may be a name on the hub."""
    source = named(recipe.source, "source")
    there = source.exists() or tf_checkpoint.prefix_of(source) is not None
    return source if there or not hub.is_name(recipe.source) else hub.fetched(recipe.source, quiet)


def _read(source: Path, dropout: float) -> tuple[Family, Fitted, list[Path]]:
    prefix = tf_checkpoint.prefix_of(source)
    if prefix is not None and not (source / "config.json").exists():
        return tf_checkpoint.read(prefix, dropout)
    if not source.is_dir():
        raise BadInput(f"there is no folder {source}, and no TensorFlow checkpoint {source}.index; download the model first")
    if not (source / "config.json").exists():
        raise BadInput(f"{source} holds neither config.json (Hugging Face) nor a .index (TensorFlow) nor *options.json (ELMo)")
    return folder.read(source, dropout)


def _tokenizer(recipe: Recipe, source: Path, model: Model) -> Tokenizer:
    given = named(recipe.tokenizer, "tokenizer") if recipe.tokenizer is not None else None
    tokenizer = taken(source if source.is_dir() else source.parent, given, recipe.lowercase)
    if len(tokenizer) > model.config.vocabulary:
        raise BadInput(f"{tokenizer.source} has {len(tokenizer):,} pieces, the model's table only {model.config.vocabulary:,} "
                       "rows; it is another model's tokenizer")  # fmt: skip
    return tokenizer


def _settings(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in plain(recipe).items() if name in ("lowercase", "attention_dropout")}


def _elmo(recipe: Recipe, options: Path, weights: Path, out: Path, screen: Screen) -> dict[str, Any]:
    """Published ELMos have no vocabulary: words are spelt, and without a tokenizer they are what stands between blanks."""
    if recipe.check:
        raise BadInput("check=true compares with transformers, which reads no ELMo; leave it out")
    given = Tokenizer.load(named(recipe.tokenizer, "tokenizer"), recipe.lowercase) if recipe.tokenizer is not None else None
    model, tokenizer = elmo.read(options, weights, given)
    found, sums = Fitted(model, None, [], []), {path.name: checksum(path) for path in (options, weights)}
    identity, result = fingerprint([_settings(recipe), sums, tokenizer.fingerprint]), _result(elmo.KIND, found, tokenizer)
    if made := not _finished(out, identity, screen):
        _publish(recipe, tokenizer, found, {"identity": identity, "files": sums, "result": result})
    return _told(out, result, screen, made)


def _reformer(recipe: Recipe, source: Path, out: Path, screen: Screen) -> dict[str, Any]:
    if recipe.attention_dropout:
        raise BadInput("a Reformer's config.json says how much of its attention is dropped out; leave out attention_dropout")
    found, files = reformer.read(source)
    tokenizer, sums = _tokenizer(recipe, source, found.model), {path.name: checksum(path) for path in files}
    identity, result = fingerprint([_settings(recipe), sums, tokenizer.fingerprint]), _result(reformer.KIND, found, tokenizer)
    if recipe.check:
        result["differences"] = reformer.agreed(found.model, source)
    if made := not _finished(out, identity, screen):
        _publish(recipe, tokenizer, found, {"identity": identity, "files": sums, "result": result})
    return _told(out, result, screen, made)


def _result(kind: str, found: Fitted, tokenizer: Tokenizer) -> dict[str, Any]:
    config = found.model.config
    return {
        "family": kind, "layers": config.encoder.layers, "width": config.encoder.width, "heads": sorted(config.heads),
        "task": None if found.task is None else found.task.__struct_config__.tag,
        "vocabulary": config.vocabulary, "pieces": len(tokenizer), "positions": config.encoder.positions,
        "parameters": sum(weight.numel() for weight in found.model.parameters()),
        "unmatched": found.unmatched, "initialised": found.initialised,
    }  # fmt: skip


def _checked(found: Fitted, source: Path, family: Family) -> dict[str, float]:
    if not source.is_dir() or not (source / "config.json").exists():
        raise BadInput("check=true compares with transformers, which reads no TensorFlow checkpoint; leave it out, and "
                       "`export` with check=true")  # fmt: skip
    return agreed(found.model, source, family, folder.class_of(family, found.model, found.task))


def _publish(recipe: Recipe, tokenizer: Tokenizer, found: Fitted, card: dict[str, Any]) -> None:
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"source": recipe.source, "command": command(), "versions": versions}
    card |= {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    record = {"stage": "import", "recipe": plain(recipe), "tokenizer": tokenizer.fingerprint, "version": __version__}
    record["family"] = card["result"]["family"]
    if found.task is not None:
        record |= {"task": plain(found.task), "length": found.model.config.encoder.positions}
    with new_folder(named(recipe.out, "out")) as part:
        checkpoint.write(part, found.model, tokenizer, card, record)
        if found.rest:
            tensors.save(found.rest, part / folder.REST)


def _finished(out: Path, identity: str, screen: Screen) -> bool:
    if not (out / MANIFEST).exists():
        return False
    card = read_json(out / "card.json")
    if card.get("identity") != identity:
        raise BadInput(f"{out} holds another model; choose another out, or remove it")
    screen.say(f"{out} is there already, made from the same files")
    return True


def _told(out: Path, result: dict[str, Any], screen: Screen, made: bool) -> dict[str, Any]:
    names = ("family", "heads", "layers", "width", "positions", "vocabulary", "parameters")
    screen.table(str(out), [(name, _words(result[name])) for name in names])
    for name in result["unmatched"]:
        screen.say(f"unmatched: {name} is of a head that this model does not have, and is left out")
    for name in result["initialised"]:
        screen.say(f"new: {name} is not in the source, and begins at random")
    for name, value in result.get("differences", {}).items():
        screen.say(f"checked: {name} differs from transformers' by {value:.1e} at most")
    return {"out": str(out), "made": made, **result}


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
