"""Text files to a tokenizer folder, with a report of how well it fits them."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from ..artifacts import MANIFEST, checksum, claimed, fingerprint, named, new_folder, read_json, vacant, write_json
from ..config import Config, Count, plain
from ..errors import BadInput
from ..screen import Screen
from ..text import documents, files
from ..text.counts import WordCounts, count_words
from ..text.kinds import Words, around
from ..text.quality import Quality, measure
from ..text.tokenizer import SPECIALS, Tokenizer
from ..text.vocabulary import Kind, model, train
from ..text.wordpiece import Score


class Recipe(Config, frozen=True):
    """Text, and the kind and size of the vocabulary to learn from it."""

    texts: Annotated[tuple[str, ...], "files, folders or patterns: .txt .gz .xz .bz2 .zst .jsonl .parquet"]
    out: Annotated[str, "the tokenizer folder to make"]
    kind: Annotated[Kind, "how words are cut into pieces"] = "wordpiece"
    size: Annotated[Count, "pieces at most, special tokens among them"] = 30_000
    lowercase: Annotated[bool, "fold case (and, for all but the byte kinds, accents)"] = True
    least: Annotated[Count, "occurrences a pair needs to become a piece"] = 2
    alphabet: Annotated[Count, "characters at most, the most frequent ones"] = 6_000
    score: Annotated[Score, "wordpiece: gain in likelihood, or the ratio count(ab) / count(a) count(b)"] = "gain"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Counts words (spilling to disk), learns the pieces, and says how well they fit."""
    screen, out = Screen(quiet), named(recipe.out, "out")
    paths = files.found(recipe.texts)
    settings = {name: value for name, value in plain(recipe).items() if name not in ("texts", "out")}
    identity = fingerprint([settings, [checksum(path) for path in paths]])
    with claimed(out):
        if (out / MANIFEST).exists():
            return _finished(out, identity, screen)
        vacant(out)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.counts-") as folder:
            tokenizer, card = _learnt(recipe, paths, Path(folder), screen)
        _publish(out, tokenizer, {"identity": identity, **card})
    return _finished(out, identity, screen, made=True)


def _learnt(recipe: Recipe, paths: list[Path], folder: Path, screen: Screen) -> tuple[Tokenizer, dict[str, Any]]:
    with screen.bar("counting words", "bytes") as bar:
        counts = count_words(_texts(paths, bar), Words(recipe.kind, recipe.lowercase), folder=folder)
    with screen.bar("learning pieces") as bar:
        learnt = train(
            recipe.kind, counts, recipe.size, specials=SPECIALS, least=recipe.least, alphabet=recipe.alphabet,
            score=recipe.score, progress=bar,
        )  # fmt: skip
    tokenizer = Tokenizer(around(recipe.kind, model(learnt), recipe.lowercase), recipe.out)
    card = {"kind": recipe.kind, "size": len(tokenizer), "tokenizer": tokenizer.fingerprint, "settings": plain(recipe)}
    return tokenizer, {**card, "quality": asdict(_quality(counts, tokenizer))}


def _texts(paths: list[Path], bar: Callable[[int, int], None]) -> Iterator[str]:
    total = files.size(paths)
    for block in documents.blocks(paths):
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
    quality = Quality(**card["quality"])
    screen.table(f"{out}: {card['kind']}, {card['size']:,} pieces", quality.table())
    return {"out": str(out), "made": made, "kind": card["kind"], "size": card["size"], **card["quality"]}
