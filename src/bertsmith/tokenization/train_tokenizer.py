"""The `tokenizer` stage: trains a tokenizer on text files, or extends an existing one, and reports its quality."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from ..artifacts import MANIFEST, atomic_folder, checksum, fingerprint, read_object, resolve_path
from ..config import Config, PosInt, RecipeError, to_dict
from ..console import Console
from ..errors import UserError
from ..writing import check_writable, lock_output, make_temp_folder, resolve_output, write_json
from . import documents, files, hex_bytes
from .extend import LONE_IDEOGRAPH_THRESHOLD, build_word_splitter, extend_tokenizer, extensible_kind, lone_ideograph_fraction
from .pipeline import WordSplitter, assemble_tokenizer, build_hex_tokenizer
from .report import COSTLIEST_WORDS, TokenizerQuality, measure_quality
from .tables import normalize_encoding
from .tokenizer import SPECIAL_TOKENS, Tokenizer
from .trainers import TokenizerKind, build_model, train_vocabulary
from .word_counts import WordCounts, count_words
from .wordpiece_trainer import MergeScore


class Recipe(Config, frozen=True):
    """Recipe of `bertsmith tokenizer`: texts, and the kind and size of the vocabulary or the tokenizer to extend."""

    texts: Annotated[tuple[str, ...], "text files, folders or globs (.txt .jsonl .tsv .csv .parquet; .gz .xz .bz2 .zst)"]
    out: Annotated[str, "output folder of the tokenizer"]
    column: Annotated[str, "text column of .tsv, .csv, .jsonl and .parquet files; one document per row"] = "text"
    encoding: Annotated[str, "encoding of the files: utf-8 (with or without byte order mark), gb18030, latin-1 ..."] = "utf-8"
    kind: Annotated[TokenizerKind, "tokenization algorithm; word: whole words only, rare ones become [UNK]"] = "wordpiece"
    vocab_size: Annotated[PosInt, "maximum vocabulary size, special tokens included (30,522 in BERT)"] = 30_000
    hex: Annotated[bool, "kind=byte: texts are hex-encoded bytes, in training and wherever the tokenizer is used"] = False
    language: Annotated[
        Literal["en", "zh"], "kind=word: zh segments Chinese words with jieba; en: each ideograph is a word"
    ] = "en"
    lowercase: Annotated[bool, "lowercase the text and, except for byte-level kinds, strip accents"] = True
    min_frequency: Annotated[PosInt, "minimum count of a merged pair, of a word (kind=word) or of an added token (extend)"] = 2
    limit_alphabet: Annotated[PosInt, "maximum number of distinct characters; the most frequent are kept"] = 6_000
    score: Annotated[MergeScore, "kind=wordpiece: merge by likelihood gain, or by count(ab) / (count(a) count(b))"] = "gain"
    extend: Annotated[str | None, "tokenizer (folder, tokenizer.json or vocab.txt) to add tokens to; its ids are kept"] = None
    add: Annotated[PosInt | None, "with extend: maximum number of added tokens, chosen by how much they shorten the text"] = (
        None
    )


# Settings that an extended tokenizer takes from its parent.
INHERITED_SETTINGS = ("kind", "vocab_size", "hex", "language", "lowercase", "limit_alphabet", "score")
NUM_SHOWN = 20  # new tokens listed in the report


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Count words (spilling to disk), train or extend the tokenizer, write its folder and report its quality."""
    console, out = Console(quiet), resolve_output(recipe.out)
    paths = files.find_files(recipe.texts)
    settings = {name: value for name, value in to_dict(recipe).items() if name not in ("texts", "out")}
    parent = _load_parent(recipe)
    if parent is not None:
        settings["extend"] = parent.fingerprint
    identity = fingerprint([settings, [checksum(path) for path in paths]])
    with lock_output(out):
        if (out / MANIFEST).exists():
            return _report_result(out, identity, console)
        check_writable(out)
        counts_folder = make_temp_folder(out.absolute())
        try:
            make_tokenizer = _train if parent is None else partial(_extend, parent)
            tokenizer, card = make_tokenizer(recipe, paths, counts_folder, console)
        finally:
            shutil.rmtree(counts_folder, ignore_errors=True)
        _write_folder(out, tokenizer, {"identity": identity, **card})
    return _report_result(out, identity, console, created=True)


def _train(recipe: Recipe, paths: list[Path], folder: Path, console: Console) -> tuple[Tokenizer, dict[str, Any]]:
    with console.progress_bar("counting words", "bytes") as bar:
        split_words = (
            hex_bytes.split_bytes if recipe.hex else WordSplitter(recipe.kind, recipe.lowercase, recipe.language == "zh")
        )
        counts = count_words(_read_texts(recipe, paths, bar), split_words, folder=folder)
    with console.progress_bar("training the vocabulary") as bar:
        vocabulary = train_vocabulary(
            recipe.kind,
            counts,
            recipe.vocab_size,
            special_tokens=SPECIAL_TOKENS,
            min_frequency=recipe.min_frequency,
            limit_alphabet=recipe.limit_alphabet,
            score=recipe.score,
            progress=bar,
        )
    segment_chinese = recipe.language == "zh"
    backend = (
        build_hex_tokenizer(SPECIAL_TOKENS)
        if recipe.hex
        else assemble_tokenizer(recipe.kind, build_model(vocabulary), recipe.lowercase, segment_chinese)
    )
    tokenizer = Tokenizer(backend, recipe.out, segment_chinese)
    card = {
        "kind": recipe.kind,
        "vocab_size": len(tokenizer),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "settings": to_dict(recipe),
    }
    return tokenizer, {**card, "quality": asdict(_measure(counts, tokenizer))}


def _load_parent(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer to extend, or None; RecipeError for settings that do not apply."""
    if recipe.hex and recipe.kind != "byte":
        raise RecipeError(f"hex=true needs kind=byte, not {recipe.kind}: each byte of the hex text is one token")
    if recipe.language == "zh" and recipe.kind != "word":
        raise RecipeError(f"language=zh segments Chinese words for kind=word only, not for {recipe.kind}; leave it out")
    if recipe.extend is None:
        if recipe.add is not None:
            raise RecipeError(f"add={recipe.add} needs extend=TOKENIZER; for a new tokenizer set vocab_size")
        return None
    defaults = Recipe(texts=(), out="")
    for name in INHERITED_SETTINGS:
        if getattr(recipe, name) != getattr(defaults, name):
            raise RecipeError(f"{name} is taken from extend={recipe.extend}; leave it out (add=N sets how many tokens to add)")
    if recipe.add is None:
        raise RecipeError("extend needs add, the maximum number of tokens to add: add=1000")
    return Tokenizer.load(resolve_path(recipe.extend, "extend"))


def _extend(
    parent: Tokenizer, recipe: Recipe, paths: list[Path], folder: Path, console: Console
) -> tuple[Tokenizer, dict[str, Any]]:
    with console.progress_bar("counting words", "bytes") as bar:
        counts = count_words(_read_texts(recipe, paths, bar), build_word_splitter(parent), folder=folder)
    if lone_ideograph_fraction(counts) >= LONE_IDEOGRAPH_THRESHOLD:
        console.info(
            "this tokenizer makes every Chinese character a word of its own: no new token joins several of them, but "
            "characters outside the vocabulary are added"
        )
    with console.progress_bar("adding tokens") as bar:
        extension = extend_tokenizer(parent, counts, recipe.add or 0, recipe.min_frequency, bar)
    tokenizer, parent_quality = extension.tokenizer, asdict(_measure(counts, parent))
    card = {
        "kind": extensible_kind(parent),
        "vocab_size": len(tokenizer),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "settings": to_dict(recipe),
    }
    card["parent"] = {
        "tokenizer_fingerprint": parent.fingerprint,
        "vocab_size": len(parent),
        "source": parent.source,
        "quality": parent_quality,
    }
    return tokenizer, {**card, "added_tokens": extension.added_tokens, "quality": asdict(_measure(counts, tokenizer))}


def _read_texts(recipe: Recipe, paths: list[Path], progress: Callable[[int, int], None]) -> Iterator[str]:
    total, options = (
        files.total_bytes(paths),
        documents.ReadOptions(
            recipe.column, hex_bytes.find_hex_error if recipe.hex else None, normalize_encoding(recipe.encoding)
        ),
    )
    for block in documents.read_blocks(paths, options=options):
        yield block.text
        progress(block.bytes_read, total)


def _measure(counts: WordCounts, tokenizer: Tokenizer) -> TokenizerQuality:
    def encode_words(words: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)]

    return measure_quality(counts, encode_words, tokenizer.unk_token_id, len(tokenizer))


def _write_folder(out: Path, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    with atomic_folder(out) as folder:
        tokenizer.save(folder)
        write_json(folder / "card.json", card)
        if card["kind"] in ("wordpiece", "char"):  # the file that Google's code and many other libraries read
            (folder / "vocab.txt").write_text("\n".join(tokenizer.id_to_token) + "\n", encoding="utf-8")


def _report_result(out: Path, identity: str, console: Console, created: bool = False) -> dict[str, Any]:
    card = read_object(out / "card.json")
    if card.get("identity") != identity:
        raise UserError(
            f"{out} contains a tokenizer trained on other texts or with other settings; choose another out, or remove it"
        )
    if not created:
        console.info(f"{out} already exists, trained on the same texts with the same settings")
    quality, result = (
        TokenizerQuality(**card["quality"]),
        {"kind": card["kind"], "vocab_size": card["vocab_size"], **card["quality"]},
    )
    if "parent" in card:
        result |= _report_extension(card, out, console)
    else:
        console.print_table(f"{out}: {card['kind']}, {card['vocab_size']:,} tokens", quality.table())
    return {"out": str(out), "created": created, **result}


def _report_extension(card: dict[str, Any], out: Path, console: Console) -> dict[str, Any]:
    """Report parent and extended tokenizer side by side on the same text, and the added tokens."""
    parent, added_tokens = card["parent"], card["added_tokens"]
    before, after = TokenizerQuality(**parent["quality"]), TokenizerQuality(**card["quality"])
    rows = zip(before.table(), after.table(), strict=True)
    title = f"{out}: {card['kind']}, {parent['vocab_size']:,} + {len(added_tokens):,} tokens"
    console.print_table(
        title, [("", "before", "after"), *((name, old, new) for (name, old), (_, new) in rows if name != COSTLIEST_WORDS)]
    )
    console.info(f"the first {min(NUM_SHOWN, len(added_tokens))} added tokens, and how many tokens each saved:")
    console.info("  " + ", ".join(f"{token} {saved:,}" for token, saved in added_tokens[:NUM_SHOWN]))
    if len(added_tokens) < card["settings"]["add"]:
        console.info(f"only {len(added_tokens):,} added: other candidates are rarer than min_frequency, or save no tokens")
    parent_summary = {
        "vocab_size": parent["vocab_size"],
        "fertility": before.fertility,
        "unknown_word_rate": before.unknown_word_rate,
    }
    return {"num_added_tokens": len(added_tokens), "parent": parent_summary, "added_tokens": added_tokens[:NUM_SHOWN]}
