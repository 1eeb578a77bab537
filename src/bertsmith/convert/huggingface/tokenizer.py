"""Import of a folder's tokenizer, and export in the files that transformers reads."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ...artifacts import read_json
from ...errors import UserError
from ...reading import read_bytes, require_regular
from ...tokenization.tokenizer import END_OF_TEXT, END_OF_WORD_SUFFIX, MAX_FILE_BYTES, Tokenizer
from ...writing import write_atomic, write_json

BERT_TOKENIZER_PARTS = ("BertNormalizer", "BertPreTokenizer", "WordPiece")  # components of BertTokenizer


def read_tokenizer(folder: Path, tokenizer_path: Path | None, lowercase: bool | None) -> Tokenizer:
    """The tokenizer at `tokenizer_path` if given, else the folder's tokenizer.json, vocab.txt, or vocab.json and merges.txt."""
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
    raise UserError(f"{folder} contains no tokenizer.json or vocab.txt; set tokenizer=FILE")


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int, type_vocab_size: int, is_causal: bool = False) -> None:
    """Write tokenizer.json, tokenizer_config.json and, for a BertTokenizer, vocab.txt."""
    backend = Rust.from_str(tokenizer.json_bytes.decode())
    if backend.post_processor is None:
        backend.post_processor = _build_template(tokenizer, type_vocab_size, is_causal)
    write_atomic(folder / "tokenizer.json", backend.to_str(pretty=True).encode())
    state = tokenizer.json_dict
    is_bert_tokenizer = not is_causal and (  # transformers' BertTokenizer always appends [SEP]
        tuple((state[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")) == BERT_TOKENIZER_PARTS
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _special_tokens(tokenizer), strict=True))
    config: dict[str, Any] = {f"{name}_token": token for name, token in names.items()} | {"model_max_length": max_length}
    config |= {"tokenizer_class": "BertTokenizer" if is_bert_tokenizer else "PreTrainedTokenizerFast"}
    if is_bert_tokenizer:
        normalizer = state["normalizer"]
        config |= {"do_lower_case": normalizer["lowercase"], "strip_accents": normalizer["strip_accents"]}
        config |= {"tokenize_chinese_chars": normalizer["handle_chinese_chars"]}
        (folder / "vocab.txt").write_text("\n".join(tokenizer.id_to_token) + "\n", encoding="utf-8")
    if type_vocab_size < 2:
        config["model_input_names"] = ["input_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", config)


def _load_tokenizer_json(path: Path, lowercase: bool | None) -> Tokenizer:
    if lowercase is not None:
        raise UserError(
            f"lowercase={str(lowercase).lower()} applies to a vocab.txt only, and {path} has its own setting; leave it out"
        )
    return Tokenizer.load(path)


def _load_vocab_txt(path: Path, lowercase: bool | None) -> Tokenizer:
    """A WordPiece vocabulary, normalised as tokenizer_config.json says; without it, cased if the vocabulary is."""
    config_path = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
    config = read_json(config_path) if config_path.exists() else {}
    config = config if isinstance(config, dict) else {}
    do_lower_case = config.get("do_lower_case") if lowercase is None else lowercase
    tokenizer = _load_vocab_lines(path, do_lower_case if isinstance(do_lower_case, bool) else None)
    strip_accents, tokenize_chinese = config.get("strip_accents"), config.get("tokenize_chinese_chars", True)
    if isinstance(strip_accents, bool) or tokenize_chinese is False:
        do_lower_case = bool(json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"]["lowercase"])
        tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(
            True, tokenize_chinese is not False, strip_accents, do_lower_case
        )
    return tokenizer


def _load_vocab_lines(path: Path, lowercase: bool | None) -> Tokenizer:
    """Ids are line numbers as in Google's code, so a blank line takes an id too: it becomes an unused token."""
    lines = read_bytes(path, MAX_FILE_BYTES).split(b"\n") if path.suffix == ".txt" and path.is_file() else []
    if all(line.strip() for line in lines[:-1]):
        return Tokenizer.load(path, lowercase)
    tokens = [line.decode("utf-8-sig", "replace").rstrip("\r") for line in lines]
    unique_tokens = [token if token.strip() else f"[unused-{token_id}]" for token_id, token in enumerate(tokens)]
    return Tokenizer.from_vocab(unique_tokens if tokens[-1] else unique_tokens[:-1], lowercase, str(path))


def _load_bpe(folder: Path) -> Tokenizer:
    """Byte-level BPE of RoBERTa and GPT-2, or the BPE of GPT, whose tokens mark the end of a word."""
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    for name in files:
        require_regular(Path(name))
    try:
        backend = Rust(models.BPE.from_file(*files))
        has_word_ends = any(token.endswith(END_OF_WORD_SUFFIX) for token in backend.get_vocab())
        if has_word_ends:
            backend = Rust(models.BPE.from_file(*files, unk_token="<unk>", end_of_word_suffix=END_OF_WORD_SUFFIX))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{files[0]} and merges.txt are not a valid BPE tokenizer: {error}") from None
    if has_word_ends:
        backend.normalizer, backend.pre_tokenizer = (
            normalizers.BertNormalizer(lowercase=True),
            pre_tokenizers.BertPreTokenizer(),
        )
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    else:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", END_OF_TEXT)
    backend.add_special_tokens([name for name in names if backend.token_to_id(name) is not None])
    tokenizer = Tokenizer(backend, str(folder / "vocab.json"))
    len(tokenizer)  # its ids are checked
    return tokenizer


def _special_tokens(tokenizer: Tokenizer) -> list[str]:
    """pad, unk, cls, sep, mask."""
    return [
        tokenizer.id_to_token[token_id]
        for token_id in (
            tokenizer.pad_token_id,
            tokenizer.unk_token_id,
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.mask_token_id,
        )
    ]


def _build_template(tokenizer: Tokenizer, type_vocab_size: int, is_causal: bool) -> processors.TemplateProcessing:
    """[CLS] A [SEP] B [SEP], B with token type 1 if there are two; a causal model's single text has no [SEP]."""
    _, _, cls, sep, _ = _special_tokens(tokenizer)
    second_type_id = max(min(type_vocab_size, 2) - 1, 0)
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0" if is_causal else f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:{second_type_id} {sep}:{second_type_id}",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )
