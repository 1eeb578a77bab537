"""The tokenizer of a folder, taken along as it is, and written out as transformers reads it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ...artifacts import read_json, write_atomic, write_json
from ...errors import UserError
from ...tokenization.tokenizer import END_OF_TEXT, END_OF_WORD_SUFFIX, Tokenizer

BERT_TOKENIZER_PARTS = ("BertNormalizer", "BertPreTokenizer", "WordPiece")  # what BertTokenizer does


def read_tokenizer(folder: Path, tokenizer_path: Path | None, lowercase: bool | None) -> Tokenizer:
    """The tokenizer at `given`, or the one in the folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt."""
    if tokenizer_path is not None:
        tokenizer_path = tokenizer_path / "tokenizer.json" if (tokenizer_path / "tokenizer.json").exists() else tokenizer_path
        return (
            _load_vocab_txt(tokenizer_path, lowercase)
            if tokenizer_path.suffix != ".json"
            else _load_tokenizer_json(tokenizer_path, lowercase)
        )
    if (folder / "tokenizer.json").exists():
        return _load_tokenizer_json(folder / "tokenizer.json", lowercase)
    if (folder / "vocab.txt").exists():
        return _load_vocab_txt(folder / "vocab.txt", lowercase)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return _load_bpe(folder)
    raise UserError(f"{folder} holds no tokenizer.json and no vocab.txt; give one with tokenizer=FILE")


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int, type_vocab_size: int, is_causal: bool = False) -> None:
    """tokenizer.json, tokenizer_config.json and, for BERT's own kind, vocab.txt."""
    rust = Rust.from_str(tokenizer.json_bytes.decode())
    if rust.post_processor is None:
        rust.post_processor = _build_template(tokenizer, type_vocab_size, is_causal)
    write_atomic(folder / "tokenizer.json", rust.to_str(pretty=True).encode())
    state = tokenizer.json_dict
    google = tuple((state[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")) == BERT_TOKENIZER_PARTS
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _special_tokens(tokenizer), strict=True))
    config: dict[str, Any] = {f"{name}_token": piece for name, piece in names.items()} | {"model_max_length": max_length}
    config |= {"tokenizer_class": "BertTokenizer" if google else "PreTrainedTokenizerFast"}
    if google:
        cleaning = state["normalizer"]
        config |= {"do_lower_case": cleaning["lowercase"], "strip_accents": cleaning["strip_accents"]}
        config |= {"tokenize_chinese_chars": cleaning["handle_chinese_chars"]}
        (folder / "vocab.txt").write_text("\n".join(tokenizer.id_to_token) + "\n", encoding="utf-8")
    if type_vocab_size < 2:
        config["model_input_names"] = ["input_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", config)


def _load_tokenizer_json(path: Path, lowercase: bool | None) -> Tokenizer:
    if lowercase is not None:
        raise UserError(f"lowercase={str(lowercase).lower()} is for a vocab.txt; {path} says itself what it does with case")
    return Tokenizer.load(path)


def _load_vocab_txt(path: Path, lowercase: bool | None) -> Tokenizer:
    """As the tokenizer_config.json beside it cleans text; where that says nothing, by the case of the pieces."""
    beside = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
    told = read_json(beside) if beside.exists() else {}
    told = told if isinstance(told, dict) else {}
    fold = told.get("do_lower_case") if lowercase is None else lowercase
    tokenizer = _load_vocab_lines(path, fold if isinstance(fold, bool) else None)
    accents, characters = told.get("strip_accents"), told.get("tokenize_chinese_chars", True)
    if isinstance(accents, bool) or characters is False:
        fold = bool(json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"]["lowercase"])
        tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(True, characters is not False, accents, fold)
    return tokenizer


def _load_vocab_lines(path: Path, lowercase: bool | None) -> Tokenizer:
    """As Google's own code reads a vocab.txt: an id is the number of a line, also of a blank one, which stands for nothing."""
    lines = path.read_bytes().split(b"\n") if path.suffix == ".txt" and path.is_file() else []
    if all(line.strip() for line in lines[:-1]):
        return Tokenizer.load(path, lowercase)
    pieces = [line.decode("utf-8-sig", "replace").rstrip("\r") for line in lines]
    named = [piece if piece.strip() else f"[unused-{number}]" for number, piece in enumerate(pieces)]
    return Tokenizer.from_vocab(named if pieces[-1] else named[:-1], lowercase, str(path))


def _load_bpe(folder: Path) -> Tokenizer:
    """RoBERTa's and GPT-2's, as their first releases kept them, or GPT's, whose pieces say where a word ends."""
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    try:
        rust = Rust(models.BPE.from_file(*files))
        ends = any(piece.endswith(END_OF_WORD_SUFFIX) for piece in rust.get_vocab())
        if ends:
            rust = Rust(models.BPE.from_file(*files, unk_token="<unk>", end_of_word_suffix=END_OF_WORD_SUFFIX))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{files[0]} and merges.txt are no tokenizer of merged pieces: {error}") from None
    if ends:
        rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    else:
        rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", END_OF_TEXT)
    rust.add_special_tokens([name for name in names if rust.token_to_id(name) is not None])
    return Tokenizer(rust, str(folder / "vocab.json"))


def _special_tokens(tokenizer: Tokenizer) -> list[str]:
    return [
        tokenizer.id_to_token[number]
        for number in (
            tokenizer.pad_token_id,
            tokenizer.unk_token_id,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.mask_token_id,
        )
    ]


def _build_template(tokenizer: Tokenizer, type_vocab_size: int, is_causal: bool) -> processors.TemplateProcessing:
    """[CLS] A [SEP] B [SEP], the second of them in segment B where there is one; a text to be written on has no end yet."""
    _, _, cls, sep, _ = _special_tokens(tokenizer)
    second = max(min(type_vocab_size, 2) - 1, 0)
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0" if is_causal else f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:{second} {sep}:{second}",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )
