"""Text files to a tokenizer folder, new or extended from another, with a report of how well it fits them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, checksum, claimed, fingerprint, named, new_folder, read_json, vacant, write_json
from ..config import Config, Count, RecipeError, plain
from ..console import Screen
from ..errors import BadInput
from . import documents, files, hex_bytes
from .extend import ALONE, extended, kind_of, lone_ideographs, words_of
from .pipeline import Words, around, in_hex
from .report import Quality, measure
from .tokenizer import SPECIALS, Tokenizer
from .trainers import Kind, model, train
from .word_counts import WordCounts, count_words
from .wordpiece_trainer import Score


class Recipe(Config, frozen=True):
    """Text, and the kind and size of the vocabulary to learn from it, or the tokenizer to extend for it."""

    texts: Annotated[tuple[str, ...], "files, folders or patterns: .txt .gz .xz .bz2 .zst .jsonl .tsv .csv .parquet"]
    out: Annotated[str, "the tokenizer folder to make"]
    column: Annotated[str, "of .tsv .csv .jsonl .parquet: where the documents stand, one a row"] = "text"
    kind: Annotated[Kind, "how words are cut into pieces; word: not at all, rare ones are [UNK]"] = "wordpiece"
    size: Annotated[Count, "pieces at most, special tokens among them"] = 30_000
    hex: Annotated[bool, "kind=byte: texts are bytes written in hex, here and wherever this tokenizer is used"] = False
    language: Annotated[Literal["en", "zh"], "kind=word: zh cuts Chinese words, by jieba, else an ideograph is a word"] = "en"
    lowercase: Annotated[bool, "fold case (and, for all but the byte kinds, accents)"] = True
    least: Annotated[Count, "occurrences a pair, a word (kind=word) or a new piece of `extend` needs to become a piece"] = 2
    alphabet: Annotated[Count, "characters at most, the most frequent ones"] = 6_000
    score: Annotated[Score, "wordpiece: gain in likelihood, or the ratio count(ab) / count(a) count(b)"] = "gain"
    extend: Annotated[str | None, "a tokenizer (folder, tokenizer.json, vocab.txt) to add pieces to; its ids stay"] = None
    add: Annotated[Count | None, "with extend: new pieces at most, those that shorten the text most"] = None


OF_ITS_OWN = ("kind", "size", "hex", "language", "lowercase", "alphabet", "score")  # what a tokenizer that is extended brings
SHOWN = 20  # new pieces
COSTLY = "costliest words"  # a list, too long for two columns


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Counts words (spilling to disk), learns the pieces, and says how well they fit."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    paths = files.found(recipe.texts)
    settings = {name: value for name, value in plain(recipe).items() if name not in ("texts", "out")}
    parent = _parent(recipe)
    if parent is not None:
        settings["extend"] = parent.fingerprint
    identity = fingerprint([settings, [checksum(path) for path in paths]])
    with claimed(out):
        if (out / MANIFEST).exists():
            return _finished(out, identity, screen)
        vacant(out)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.counts-") as folder:
            made = _learnt if parent is None else partial(_extended, parent)
            tokenizer, card = made(recipe, paths, Path(folder), screen)
        _publish(out, tokenizer, {"identity": identity, **card})
    return _finished(out, identity, screen, made=True)


def _learnt(recipe: Recipe, paths: list[Path], folder: Path, screen: Screen) -> tuple[Tokenizer, dict[str, Any]]:
    with screen.bar("counting words", "bytes") as bar:
        words = hex_bytes.words if recipe.hex else Words(recipe.kind, recipe.lowercase, recipe.language == "zh")
        counts = count_words(_texts(recipe, paths, bar), words, folder=folder)
    with screen.bar("learning pieces") as bar:
        learnt = train(
            recipe.kind, counts, recipe.size, specials=SPECIALS, least=recipe.least, alphabet=recipe.alphabet,
            score=recipe.score, progress=bar,
        )  # fmt: skip
    segments = recipe.language == "zh"
    rust = in_hex(SPECIALS) if recipe.hex else around(recipe.kind, model(learnt), recipe.lowercase, segments)
    tokenizer = Tokenizer(rust, recipe.out, segments)
    card = {"kind": recipe.kind, "size": len(tokenizer), "tokenizer": tokenizer.fingerprint, "settings": plain(recipe)}
    return tokenizer, {**card, "quality": asdict(_quality(counts, tokenizer))}


def _parent(recipe: Recipe) -> Tokenizer | None:
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
    for name in OF_ITS_OWN:
        if getattr(recipe, name) != getattr(new, name):
            raise RecipeError(f"extend={recipe.extend} brings its own {name}; leave it out (add=N says how many pieces to add)")
    if recipe.add is None:
        raise RecipeError("extend needs to know how many pieces to add at most: add=1000")
    return Tokenizer.load(named(recipe.extend, "extend"))


def _extended(
    parent: Tokenizer, recipe: Recipe, paths: list[Path], folder: Path, screen: Screen
) -> tuple[Tokenizer, dict[str, Any]]:
    with screen.bar("counting words", "bytes") as bar:
        counts = count_words(_texts(recipe, paths, bar), words_of(parent), folder=folder)
    if lone_ideographs(counts) >= ALONE:
        screen.say("Chinese characters are words by themselves for this tokenizer: no new piece joins them; those it does not "
                   "know are added")  # fmt: skip
    with screen.bar("adding pieces") as bar:
        extension = extended(parent, counts, recipe.add or 0, recipe.least, bar)
    tokenizer, before = extension.tokenizer, asdict(_quality(counts, parent))
    card = {"kind": kind_of(parent), "size": len(tokenizer), "tokenizer": tokenizer.fingerprint, "settings": plain(recipe)}
    card |= {"parent": {"tokenizer": parent.fingerprint, "size": len(parent), "source": parent.source, "quality": before}}
    return tokenizer, {**card, "gains": extension.gains, "quality": asdict(_quality(counts, tokenizer))}


def _texts(recipe: Recipe, paths: list[Path], bar: Callable[[int, int], None]) -> Iterator[str]:
    total, reading = files.size(paths), documents.Reading(recipe.column, hex_bytes.fault if recipe.hex else None)
    for block in documents.blocks(paths, reading=reading):
        yield block.text
        bar(block.read, total)


def _quality(counts: WordCounts, tokenizer: Tokenizer) -> Quality:
    def ids(words: list[str]) -> list[list[int]]:
        return [e.ids for e in tokenizer.rust.encode_batch_fast(words, add_special_tokens=False)]

    return measure(counts, ids, tokenizer.unk, len(tokenizer))


def _publish(out: Path, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    with new_folder(out) as part:
        tokenizer.save(part)
        write_json(part / "card.json", card)
        if card["kind"] in ("wordpiece", "char"):  # what Google's own code, and many others', reads
            (part / "vocab.txt").write_text("\n".join(tokenizer.pieces) + "\n", encoding="utf-8")


def _finished(out: Path, identity: str, screen: Screen, made: bool = False) -> dict[str, Any]:
    card = read_json(out / "card.json")
    if card.get("identity") != identity:
        raise BadInput(f"{out} holds a tokenizer of other text or settings; choose another out, or remove it")
    if not made:
        screen.say(f"{out} is there already, made from the same text by the same settings")
    quality, result = Quality(**card["quality"]), {"kind": card["kind"], "size": card["size"], **card["quality"]}
    if "parent" in card:
        result |= _tell_gains(card, out, screen)
    else:
        screen.table(f"{out}: {card['kind']}, {card['size']:,} pieces", quality.table())
    return {"out": str(out), "made": made, **result}


def _tell_gains(card: dict[str, Any], out: Path, screen: Screen) -> dict[str, Any]:
    """The old tokenizer beside the new one on the same text, and what was added."""
    parent, gains = card["parent"], card["gains"]
    before, after = Quality(**parent["quality"]), Quality(**card["quality"])
    rows = zip(before.table(), after.table(), strict=True)
    title = f"{out}: {card['kind']}, {parent['size']:,} + {len(gains):,} pieces"
    screen.table(title, [("", "before", "after"), *((name, old, new) for (name, old), (_, new) in rows if name != COSTLY)])
    screen.say(f"tokens each new piece saved when it was added, the first {min(SHOWN, len(gains))}:")
    screen.say("  " + ", ".join(f"{piece} {gain:,}" for piece, gain in gains[:SHOWN]))
    if len(gains) < card["settings"]["add"]:
        screen.say(f"no more than {len(gains):,}: what is left occurs too rarely, or saves nothing")
    was = {"size": parent["size"], "fertility": before.fertility, "unknown": before.unknown}
    return {"added": len(gains), "before": was, "gains": gains[:SHOWN]}
