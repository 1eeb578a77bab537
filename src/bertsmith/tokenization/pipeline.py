"""What surrounds a vocabulary of each kind: how text is cleaned, cut into words, and put together again."""

import re
from collections.abc import Sequence
from itertools import chain

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from .chinese import Cut
from .fast_encode import BERT_RUNS, CLAUSES, SPACED_RUNS
from .hex_bytes import BYTES
from .tokenizer import UNK, bert, marked
from .trainers import WORD_START, Kind

REMEMBERED = 300_000  # runs whose words are kept


def around(kind: Kind, model: models.Model, lowercase: bool, segments: bool = False) -> Rust:
    """A whole tokenizer: BERT's words for most kinds, raw bytes with their spaces for the byte kinds.

    `segments` leaves ideographs together, for the segmenter of `Tokenizer(..., segments=True)`.
    """
    if kind in ("byte", "byte-bpe"):
        rust = Rust(model)
        rust.normalizer = normalizers.Lowercase() if lowercase else None
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "byte-bpe")
        rust.decoder = decoders.ByteLevel()
        return marked(rust)
    rust = bert(model, lowercase)
    if segments:
        rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=False)
    if kind == "unigram":
        mark = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
        rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark])
        rust.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    return rust


def in_hex(specials: Sequence[str]) -> Rust:
    """A whole tokenizer of bytes written in hex, a token each: the special tokens, then the bytes in order."""
    ids = {piece: number for number, piece in enumerate([*specials, *BYTES])}
    rust = Rust(models.WordLevel(ids, unk_token=UNK))
    rust.normalizer = normalizers.Lowercase()
    pairs = pre_tokenizers.Split(Regex(r"\S\S"), "isolated")
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pairs])
    rust.decoder = decoders.Fuse()
    return marked(rust)


class Words:
    """Blocks of text to the words a vocabulary of this kind is learnt from; each distinct run is cleaned once."""

    def __init__(self, kind: Kind, lowercase: bool, segments: bool = False) -> None:
        self.raw = kind in ("byte", "byte-bpe")
        self.runs: re.Pattern[str] = SPACED_RUNS if self.raw else CLAUSES if segments else BERT_RUNS
        cleaning = normalizers.BertNormalizer(lowercase=lowercase, handle_chinese_chars=not segments)
        self.normalizer = normalizers.Lowercase() if self.raw else cleaning
        self.cut = Cut() if segments else None
        self.lowercase = lowercase
        self.known: dict[str, list[str]] = {}

    def __call__(self, text: str) -> list[str]:
        runs = self.runs.findall(text)
        if len(self.known) > REMEMBERED:
            self.known = {}
        for run in set(runs) - self.known.keys():
            self.known[run] = self._words(run)
        return list(chain.from_iterable(map(self.known.__getitem__, runs)))

    def _words(self, run: str) -> list[str]:
        if run == "\n":
            return []
        if not self.raw:
            split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(self.normalizer.normalize_str(run))
            return [part for word, _ in split for part in (self.cut(word) if self.cut else [word])]
        text = self.normalizer.normalize_str(run) if self.lowercase else run
        spaced = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True, trim_offsets=False)
        return [text[a:b] for _, (a, b) in spaced.pre_tokenize_str(text)]
