"""Normalizer, pre-tokenizer and decoder for each kind of vocabulary, and the matching word splitter for training it."""

import re
from collections.abc import Sequence
from itertools import chain

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFast

from .chinese import JiebaPreTokenizer
from .fast_encode import BERT_RUN_PATTERN, BYTE_LEVEL_RUN_PATTERN, CLAUSE_PATTERN
from .hex_bytes import HEX_BYTES
from .tokenizer import UNK, build_bert_tokenizer, register_special_tokens
from .trainers import WORD_START, TokenizerKind

MAX_CACHED_RUNS = 300_000  # text runs whose words are cached


def assemble_tokenizer(
    kind: TokenizerKind, model: models.Model, lowercase: bool, segment_chinese: bool = False
) -> TokenizerFast:
    """A complete tokenizer around `model`: BERT's pre-tokenization for most kinds, ByteLevel for "byte" and "byte-bpe".

    `segment_chinese` does not split Chinese characters: that is left to jieba in `Tokenizer(..., segment_chinese=True)`.
    """
    if kind in ("byte", "byte-bpe"):
        backend = TokenizerFast(model)
        backend.normalizer = normalizers.Lowercase() if lowercase else None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "byte-bpe")
        backend.decoder = decoders.ByteLevel()
        return register_special_tokens(backend)
    backend = build_bert_tokenizer(model, lowercase)
    if segment_chinese:
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=False)
    if kind == "unigram":
        metaspace = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), metaspace])
        backend.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    return backend


def build_hex_tokenizer(special_tokens: Sequence[str]) -> TokenizerFast:
    """A tokenizer for bytes written in hex, one token per byte: ids are the special tokens, then 00 to ff."""
    token_to_id = {token: token_id for token_id, token in enumerate([*special_tokens, *HEX_BYTES])}
    backend = TokenizerFast(models.WordLevel(token_to_id, unk_token=UNK))
    backend.normalizer = normalizers.Lowercase()
    byte_split = pre_tokenizers.Split(Regex(r"\S\S"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), byte_split])
    backend.decoder = decoders.Fuse()
    return register_special_tokens(backend)


class WordSplitter:
    """Splits text into the normalized words that a vocabulary of this kind is trained on; distinct runs are cached."""

    def __init__(self, kind: TokenizerKind, lowercase: bool, segment_chinese: bool = False) -> None:
        self.is_byte_level = kind in ("byte", "byte-bpe")
        self.run_pattern: re.Pattern[str] = (
            BYTE_LEVEL_RUN_PATTERN if self.is_byte_level else CLAUSE_PATTERN if segment_chinese else BERT_RUN_PATTERN
        )
        bert_normalizer = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=not segment_chinese)
        self.normalizer = normalizers.Lowercase() if self.is_byte_level else bert_normalizer
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
            words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(self.normalizer.normalize_str(run))
            return [part for word, _ in words for part in (self.segmenter(word) if self.segmenter else [word])]
        text = self.normalizer.normalize_str(run) if self.lowercase else run
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True, trim_offsets=False)
        return [text[start:end] for _, (start, end) in byte_level.pre_tokenize_str(text)]
