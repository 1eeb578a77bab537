"""Text files to a tokenizer folder, new or extended from another, with a report of how well it fits them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from ..artifacts import (
    MANIFEST,
    atomic_folder,
    check_writable,
    checksum,
    fingerprint,
    lock_output,
    read_json,
    resolve_path,
    write_json,
)
from ..config import Config, PosInt, RecipeError, to_dict
from ..console import Console
from ..errors import UserError
from . import documents, files, hex_bytes
from .extend import LONE_IDEOGRAPH_THRESHOLD, build_word_splitter, extend_tokenizer, extensible_kind, lone_ideograph_fraction
from .pipeline import WordSplitter, assemble_tokenizer, build_hex_tokenizer
from .report import TokenizerQuality, measure_quality
from .tokenizer import SPECIAL_TOKENS, Tokenizer
from .trainers import TokenizerKind, build_model, train_vocabulary
from .word_counts import WordCounts, count_words
from .wordpiece_trainer import MergeScore


class Recipe(Config, frozen=True):
    """Text, and the kind and size of the vocabulary to learn from it, or the tokenizer to extend for it."""

    texts: Annotated[tuple[str, ...], "files, folders or patterns: .txt .gz .xz .bz2 .zst .jsonl .tsv .csv .parquet"]
    out: Annotated[str, "the tokenizer folder to make"]
    column: Annotated[str, "of .tsv .csv .jsonl .parquet: where the documents stand, one a row"] = "text"
    kind: Annotated[TokenizerKind, "how words are cut into pieces; word: not at all, rare ones are [UNK]"] = "wordpiece"
    size: Annotated[PosInt, "pieces at most, special tokens among them"] = 30_000
    hex: Annotated[bool, "kind=byte: texts are bytes written in hex, here and wherever this tokenizer is used"] = False
    language: Annotated[Literal["en", "zh"], "kind=word: zh cuts Chinese words, by jieba, else an ideograph is a word"] = "en"
    lowercase: Annotated[bool, "fold case (and, for all but the byte kinds, accents)"] = True
    least: Annotated[PosInt, "occurrences a pair, a word (kind=word) or a new piece of `extend` needs to become a piece"] = 2
    alphabet: Annotated[PosInt, "characters at most, the most frequent ones"] = 6_000
    score: Annotated[MergeScore, "wordpiece: gain in likelihood, or the ratio count(ab) / count(a) count(b)"] = "gain"
    extend: Annotated[str | None, "a tokenizer (folder, tokenizer.json, vocab.txt) to add pieces to; its ids stay"] = None
    add: Annotated[PosInt | None, "with extend: new pieces at most, those that shorten the text most"] = None


INHERITED_SETTINGS = (
    "kind",
    "size",
    "hex",
    "language",
    "lowercase",
    "alphabet",
    "score",
)  # what a tokenizer that is extended brings
NUM_SHOWN = 20  # new pieces
COSTLIEST_WORDS = "costliest words"  # a list, too long for two columns


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Counts words (spilling to disk), learns the pieces, and says how well they fit."""
    screen, out = Console(quiet), resolve_path(recipe.out, "out")
    paths = files.find_files(recipe.texts)
    settings = {name: value for name, value in to_dict(recipe).items() if name not in ("texts", "out")}
    parent = _load_parent(recipe)
    if parent is not None:
        settings["extend"] = parent.fingerprint
    identity = fingerprint([settings, [checksum(path) for path in paths]])
    with lock_output(out):
        if (out / MANIFEST).exists():
            return _report_result(out, identity, screen)
        check_writable(out)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.counts-") as folder:
            made = _train if parent is None else partial(_extend, parent)
            tokenizer, card = made(recipe, paths, Path(folder), screen)
        _write_folder(out, tokenizer, {"identity": identity, **card})
    return _report_result(out, identity, screen, created=True)


def _train(recipe: Recipe, paths: list[Path], folder: Path, console: Console) -> tuple[Tokenizer, dict[str, Any]]:
    with console.progress_bar("counting words", "bytes") as bar:
        words = hex_bytes.split_bytes if recipe.hex else WordSplitter(recipe.kind, recipe.lowercase, recipe.language == "zh")
        counts = count_words(_read_texts(recipe, paths, bar), words, folder=folder)
    with console.progress_bar("learning pieces") as bar:
        learnt = train_vocabulary(
            recipe.kind, counts, recipe.size, special_tokens=SPECIAL_TOKENS, min_frequency=recipe.least, limit_alphabet=recipe.alphabet,
            score=recipe.score, progress=bar,
        )  # fmt: skip
    segments = recipe.language == "zh"
    rust = (
        build_hex_tokenizer(SPECIAL_TOKENS)
        if recipe.hex
        else assemble_tokenizer(recipe.kind, build_model(learnt), recipe.lowercase, segments)
    )
    tokenizer = Tokenizer(rust, recipe.out, segments)
    card = {"kind": recipe.kind, "size": len(tokenizer), "tokenizer": tokenizer.fingerprint, "settings": to_dict(recipe)}
    return tokenizer, {**card, "quality": asdict(_measure(counts, tokenizer))}


def _load_parent(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer to extend, if one is; settings that go with the other way are refused."""
    if recipe.hex and recipe.kind != "byte":
        raise RecipeError(f"hex=true reads a token a byte: say kind=byte, not {recipe.kind}, or leave it out")
    if recipe.language == "zh" and recipe.kind != "word":
        raise RecipeError(f"language=zh makes Chinese words of kind=word; {recipe.kind} knows no segmenter: leave it out")
    if recipe.extend is None:
        if recipe.add is not None:
            raise RecipeError(f"add={recipe.add} goes with extend=TOKENIZER; how large a new vocabulary is, `size` says")
        return None
    new = Recipe(texts=(), out="")
    for name in INHERITED_SETTINGS:
        if getattr(recipe, name) != getattr(new, name):
            raise RecipeError(f"extend={recipe.extend} brings its own {name}; leave it out (add=N says how many pieces to add)")
    if recipe.add is None:
        raise RecipeError("extend needs to know how many pieces to add at most: add=1000")
    return Tokenizer.load(resolve_path(recipe.extend, "extend"))


def _extend(
    parent: Tokenizer, recipe: Recipe, paths: list[Path], folder: Path, console: Console
) -> tuple[Tokenizer, dict[str, Any]]:
    with console.progress_bar("counting words", "bytes") as bar:
        counts = count_words(_read_texts(recipe, paths, bar), build_word_splitter(parent), folder=folder)
    if lone_ideograph_fraction(counts) >= LONE_IDEOGRAPH_THRESHOLD:
        console.info("Chinese characters are words by themselves for this tokenizer: no new piece joins them; those it does not "
                   "know are added")  # fmt: skip
    with console.progress_bar("adding pieces") as bar:
        extension = extend_tokenizer(parent, counts, recipe.add or 0, recipe.least, bar)
    tokenizer, before = extension.tokenizer, asdict(_measure(counts, parent))
    card = {
        "kind": extensible_kind(parent),
        "size": len(tokenizer),
        "tokenizer": tokenizer.fingerprint,
        "settings": to_dict(recipe),
    }
    card |= {"parent": {"tokenizer": parent.fingerprint, "size": len(parent), "source": parent.source, "quality": before}}
    return tokenizer, {**card, "gains": extension.gains, "quality": asdict(_measure(counts, tokenizer))}


def _read_texts(recipe: Recipe, paths: list[Path], progress: Callable[[int, int], None]) -> Iterator[str]:
    total, reading = (
        files.total_bytes(paths),
        documents.ReadOptions(recipe.column, hex_bytes.find_hex_error if recipe.hex else None),
    )
    for block in documents.read_blocks(paths, options=reading):
        yield block.text
        progress(block.bytes_read, total)


def _measure(counts: WordCounts, tokenizer: Tokenizer) -> TokenizerQuality:
    def ids(words: list[str]) -> list[list[int]]:
        return [e.ids for e in tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)]

    return measure_quality(counts, ids, tokenizer.unk_token_id, len(tokenizer))


def _write_folder(out: Path, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    with atomic_folder(out) as part:
        tokenizer.save(part)
        write_json(part / "card.json", card)
        if card["kind"] in ("wordpiece", "char"):  # what Google's own code, and many others', reads
            (part / "vocab.txt").write_text("\n".join(tokenizer.id_to_token) + "\n", encoding="utf-8")


def _report_result(out: Path, identity: str, console: Console, created: bool = False) -> dict[str, Any]:
    card = read_json(out / "card.json")
    if card.get("identity") != identity:
        raise UserError(f"{out} holds a tokenizer of other text or settings; choose another out, or remove it")
    if not created:
        console.info(f"{out} is there already, made from the same text by the same settings")
    quality, result = TokenizerQuality(**card["quality"]), {"kind": card["kind"], "size": card["size"], **card["quality"]}
    if "parent" in card:
        result |= _report_gains(card, out, console)
    else:
        console.print_table(f"{out}: {card['kind']}, {card['size']:,} pieces", quality.table())
    return {"out": str(out), "made": created, **result}


def _report_gains(card: dict[str, Any], out: Path, console: Console) -> dict[str, Any]:
    """The old tokenizer beside the new one on the same text, and what was added."""
    parent, gains = card["parent"], card["gains"]
    before, after = TokenizerQuality(**parent["quality"]), TokenizerQuality(**card["quality"])
    rows = zip(before.table(), after.table(), strict=True)
    title = f"{out}: {card['kind']}, {parent['size']:,} + {len(gains):,} pieces"
    console.print_table(
        title, [("", "before", "after"), *((name, old, new) for (name, old), (_, new) in rows if name != COSTLIEST_WORDS)]
    )
    console.info(f"tokens each new piece saved when it was added, the first {min(NUM_SHOWN, len(gains))}:")
    console.info("  " + ", ".join(f"{piece} {gain:,}" for piece, gain in gains[:NUM_SHOWN]))
    if len(gains) < card["settings"]["add"]:
        console.info(f"no more than {len(gains):,}: what is left occurs too rarely, or saves nothing")
    was = {"size": parent["size"], "fertility": before.fertility, "unknown": before.unknown}
    return {"added": len(gains), "before": was, "gains": gains[:NUM_SHOWN]}
