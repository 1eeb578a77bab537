"""The tokenizer of a folder, taken along as it is, and written out as transformers reads it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ...artifacts import read_json, write_json, write_whole
from ...errors import BadInput
from ...tokenization.tokenizer import END, WORD_END, Tokenizer

SLOW = ("BertNormalizer", "BertPreTokenizer", "WordPiece")  # what BertTokenizer does


def taken(folder: Path, given: Path | None, lowercase: bool | None) -> Tokenizer:
    """The tokenizer at `given`, or the one in the folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt."""
    if given is not None:
        given = given / "tokenizer.json" if (given / "tokenizer.json").exists() else given
        return _google(given, lowercase) if given.suffix != ".json" else _whole(given, lowercase)
    if (folder / "tokenizer.json").exists():
        return _whole(folder / "tokenizer.json", lowercase)
    if (folder / "vocab.txt").exists():
        return _google(folder / "vocab.txt", lowercase)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _merged(folder)
    raise BadInput(f"{folder} holds no tokenizer.json and no vocab.txt; give one with tokenizer=FILE")


def written(folder: Path, tokenizer: Tokenizer, positions: int, segments: int, causal: bool = False) -> None:
    """tokenizer.json, tokenizer_config.json and, for BERT's own kind, vocab.txt."""
    rust = Rust.from_str(tokenizer.data.decode())
    if rust.post_processor is None:
        rust.post_processor = _template(tokenizer, segments, causal)
    write_whole(folder / "tokenizer.json", rust.to_str(pretty=True).encode())
    state = tokenizer.state
    google = tuple((state[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")) == SLOW
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _special(tokenizer), strict=True))
    config: dict[str, Any] = {f"{name}_token": piece for name, piece in names.items()} | {"model_max_length": positions}
    config |= {"tokenizer_class": "BertTokenizer" if google else "PreTrainedTokenizerFast"}
    if google:
        cleaning = state["normalizer"]
        config |= {"do_lower_case": cleaning["lowercase"], "strip_accents": cleaning["strip_accents"]}
        config |= {"tokenize_chinese_chars": cleaning["handle_chinese_chars"]}
        (folder / "vocab.txt").write_text("\n".join(tokenizer.pieces) + "\n", encoding="utf-8")
    if segments < 2:
        config["model_input_names"] = ["input_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", config)


def _whole(path: Path, lowercase: bool | None) -> Tokenizer:
    if lowercase is not None:
        raise BadInput(f"lowercase={str(lowercase).lower()} is for a vocab.txt; {path} says itself what it does with case")
    return Tokenizer.load(path)


def _google(path: Path, lowercase: bool | None) -> Tokenizer:
    """As the tokenizer_config.json beside it cleans text; where that says nothing, by the case of the pieces."""
    beside = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
    told = read_json(beside) if beside.exists() else {}
    told = told if isinstance(told, dict) else {}
    fold = told.get("do_lower_case") if lowercase is None else lowercase
    tokenizer = _numbered(path, fold if isinstance(fold, bool) else None)
    accents, characters = told.get("strip_accents"), told.get("tokenize_chinese_chars", True)
    if isinstance(accents, bool) or characters is False:
        fold = bool(json.loads(tokenizer.rust.to_str())["normalizer"]["lowercase"])
        tokenizer.rust.normalizer = normalizers.BertNormalizer(True, characters is not False, accents, fold)
    return tokenizer


def _numbered(path: Path, lowercase: bool | None) -> Tokenizer:
    """As Google's own code reads a vocab.txt: an id is the number of a line, also of a blank one, which stands for nothing."""
    lines = path.read_bytes().split(b"\n") if path.suffix == ".txt" and path.is_file() else []
    if all(line.strip() for line in lines[:-1]):
        return Tokenizer.load(path, lowercase)
    pieces = [line.decode("utf-8-sig", "replace").rstrip("\r") for line in lines]
    named = [piece if piece.strip() else f"[unused-{number}]" for number, piece in enumerate(pieces)]
    return Tokenizer.google(named if pieces[-1] else named[:-1], lowercase, str(path))


def _merged(folder: Path) -> Tokenizer:
    """RoBERTa's and GPT-2's, as their first releases kept them, or GPT's, whose pieces say where a word ends."""
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    try:
        rust = Rust(models.BPE.from_file(*files))
        ends = any(piece.endswith(WORD_END) for piece in rust.get_vocab())
        if ends:
            rust = Rust(models.BPE.from_file(*files, unk_token="<unk>", end_of_word_suffix=WORD_END))
    except Exception as error:  # the library raises bare Exception
        raise BadInput(f"{files[0]} and merges.txt are no tokenizer of merged pieces: {error}") from None
    if ends:
        rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.BPEDecoder(suffix=WORD_END)
    else:
        rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", END)
    rust.add_special_tokens([name for name in names if rust.token_to_id(name) is not None])
    return Tokenizer(rust, str(folder / "vocab.json"))


def _special(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.pieces[number] for number in (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask)]


def _template(tokenizer: Tokenizer, segments: int, causal: bool) -> processors.TemplateProcessing:
    """[CLS] A [SEP] B [SEP], the second of them in segment B where there is one; a text to be written on has no end yet."""
    _, _, cls, sep, _ = _special(tokenizer)
    second = max(min(segments, 2) - 1, 0)
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0" if causal else f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:{second} {sep}:{second}",
        special_tokens=[(cls, tokenizer.cls), (sep, tokenizer.sep)],
    )
