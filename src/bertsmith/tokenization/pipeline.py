"""What surrounds a vocabulary of each kind: how text is cleaned, cut into words, and put together again."""

import re
from collections.abc import Sequence
from itertools import chain

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from .chinese import JiebaPreTokenizer
from .fast_encode import BERT_RUN_PATTERN, BYTE_LEVEL_RUN_PATTERN, CLAUSE_PATTERN
from .hex_bytes import HEX_BYTES
from .tokenizer import UNK, build_bert_tokenizer, register_special_tokens
from .trainers import WORD_START, TokenizerKind

MAX_CACHED_RUNS = 300_000  # runs whose words are kept


def assemble_tokenizer(kind: TokenizerKind, model: models.Model, lowercase: bool, segment_chinese: bool = False) -> Rust:
    """A whole tokenizer: BERT's words for most kinds, raw bytes with their spaces for the byte kinds.

    `segments` leaves ideographs together, for the segmenter of `Tokenizer(..., segments=True)`.
    """
    if kind in ("byte", "byte-bpe"):
        rust = Rust(model)
        rust.normalizer = normalizers.Lowercase() if lowercase else None
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "byte-bpe")
        rust.decoder = decoders.ByteLevel()
        return register_special_tokens(rust)
    rust = build_bert_tokenizer(model, lowercase)
    if segment_chinese:
        rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=False)
    if kind == "unigram":
        mark = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
        rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark])
        rust.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    return rust


def build_hex_tokenizer(special_tokens: Sequence[str]) -> Rust:
    """A whole tokenizer of bytes written in hex, a token each: the special tokens, then the bytes in order."""
    ids = {piece: number for number, piece in enumerate([*special_tokens, *HEX_BYTES])}
    rust = Rust(models.WordLevel(ids, unk_token=UNK))
    rust.normalizer = normalizers.Lowercase()
    pairs = pre_tokenizers.Split(Regex(r"\S\S"), "isolated")
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pairs])
    rust.decoder = decoders.Fuse()
    return register_special_tokens(rust)


class WordSplitter:
    """Blocks of text to the words a vocabulary of this kind is learnt from; each distinct run is cleaned once."""

    def __init__(self, kind: TokenizerKind, lowercase: bool, segment_chinese: bool = False) -> None:
        self.is_byte_level = kind in ("byte", "byte-bpe")
        self.run_pattern: re.Pattern[str] = (
            BYTE_LEVEL_RUN_PATTERN if self.is_byte_level else CLAUSE_PATTERN if segment_chinese else BERT_RUN_PATTERN
        )
        cleaning = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=not segment_chinese)
        self.normalizer = normalizers.Lowercase() if self.is_byte_level else cleaning
        self.segmenter = JiebaPreTokenizer() if segment_chinese else None
        self.lowercase = lowercase
        self.cache: dict[str, list[str]] = {}

    def __call__(self, text: str) -> list[str]:
        runs = self.run_pattern.findall(text)
        if len(self.cache) > MAX_CACHED_RUNS:
            self.cache = {}
        for run in set(runs) - self.cache.keys():
            self.cache[run] = self._split_run(run)
        return list(chain.from_iterable(map(self.cache.__getitem__, runs)))

    def _split_run(self, run: str) -> list[str]:
        if run == "\n":
            return []
        if not self.is_byte_level:
            split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(self.normalizer.normalize_str(run))
            return [part for word, _ in split for part in (self.segmenter(word) if self.segmenter else [word])]
        text = self.normalizer.normalize_str(run) if self.lowercase else run
        spaced = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True, trim_offsets=False)
        return [text[a:b] for _, (a, b) in spaced.pre_tokenize_str(text)]
