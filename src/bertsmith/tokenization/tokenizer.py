"""A tokenizer as a value: its vocabulary, its special ids, and the words its pieces make."""

import json
import lzma
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..artifacts import fingerprint, write_atomic
from ..errors import UserError
from . import chinese
from .characters import Lexicon, assign_oov_ids
from .hex_bytes import HEX_BYTES, find_hex_error

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# What other families call the same five, in the same order.
SPECIAL_TOKEN_ALIASES = {PAD: ("<pad>",), UNK: ("<unk>",), CLS: ("<s>",), SEP: ("</s>",), MASK: ("<mask>",)}
END_OF_TEXT, END_OF_WORD_SUFFIX = (
    "<|endoftext|>",
    "</w>",
)  # the one special token of GPT-2; what a piece of GPT that ends a word ends with


class Tokenizer:
    """Text to ids and back. `tokenizer.json` is its whole state, in the format of the `tokenizers` library."""

    def __init__(self, backend_tokenizer: Rust, source: str = "tokenizer", segment_chinese: bool = False) -> None:
        """`segments`: Chinese words are its tokens, cut by jieba; the file says so too."""
        self.backend_tokenizer, self.source, self.segment_chinese = backend_tokenizer, source, segment_chinese
        self.lexicon: Lexicon | None = None  # of a tokenizer whose model spells words: `opened`
        if segment_chinese:
            self.json_bytes = chinese.install_jieba(backend_tokenizer)
        backend_tokenizer.no_padding()
        backend_tokenizer.no_truncation()
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = (
            self._special_token_id(name) for name in SPECIAL_TOKENS
        )
        backend_tokenizer.encode_special_tokens = True  # "[MASK]" in somebody's text is seven characters, never the token

    @classmethod
    def load(cls, path: Path, lowercase: bool | None = None) -> "Tokenizer":
        """From a folder with tokenizer.json, that file itself, or a vocab.txt as Google wrote them (.xz too)."""
        path = path / "tokenizer.json" if path.is_dir() and not (path / "vocab.txt").exists() else path
        path = next((p for p in (path / "tokenizer.json", path / "vocab.txt") if p.exists()), path)
        if not path.exists():
            raise UserError(f"there is no tokenizer at {path}; give a tokenizer folder, a tokenizer.json or a vocab.txt")
        if path.suffix == ".json":
            return cls.from_json(path.read_bytes(), str(path))
        opening = lzma.open if path.suffix == ".xz" else open
        try:
            with opening(path, "rt", encoding="utf-8-sig") as file:
                pieces = [line.rstrip("\r\n") for line in file]
        except (UnicodeDecodeError, lzma.LZMAError) as error:
            raise UserError(f"{path} is not a vocabulary, a UTF-8 text with a piece a line: {error}") from None
        return cls.from_vocab(pieces[:-1] if pieces[-1:] == [""] else pieces, lowercase, str(path))

    @classmethod
    def from_json(cls, data: bytes, source: str = "tokenizer.json") -> "Tokenizer":
        try:
            return cls(Rust.from_buffer(data), source, chinese.uses_jieba(data))
        except UserError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{source} is not a tokenizer.json: {error}") from None

    @classmethod
    def from_vocab(cls, vocab: Sequence[str], lowercase: bool | None = None, source: str = "vocab.txt") -> "Tokenizer":
        """BERT's own tokenizer over a vocabulary; cased if its pieces are, unless `lowercase` says otherwise."""
        if blank := next((line for line, piece in enumerate(vocab, 1) if not piece.strip(" \t")), None):
            raise UserError(f"{source}, line {blank:,} is blank; remove it, or write [unused-{blank - 1}] there, which leaves "
                           "the lines below their ids")  # fmt: skip
        vocabulary = {piece: number for number, piece in enumerate(vocab)}
        if len(vocabulary) < len(vocab):
            twice = next(piece for number, piece in enumerate(vocab) if vocabulary[piece] != number)
            raise UserError(f"{source} holds {twice!r} twice; a line of a vocab.txt is the name of one id")
        if lowercase is None:
            lowercase = not any(any("A" <= c <= "Z" for c in p) for p in vocab if not p.startswith(("[", "<")))
        return cls(
            build_bert_tokenizer(models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=100), lowercase), source
        )

    def save(self, folder: Path) -> None:
        write_atomic(folder / "tokenizer.json", self.json_bytes)

    @cached_property
    def json_bytes(self) -> bytes:
        return self.backend_tokenizer.to_str(pretty=True).encode()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.json_bytes)

    @cached_property
    def id_to_token(self) -> list[str]:
        """Every piece, in the order of ids."""
        names = {number: piece for piece, number in self.backend_tokenizer.get_vocab(with_added_tokens=True).items()}
        return [names.get(number, f"[unused-{number}]") for number in range(max(names) + 1)]

    def __len__(self) -> int:
        return len(self.id_to_token)

    @cached_property
    def json_dict(self) -> dict[str, Any]:
        return json.loads(self.json_bytes)

    @cached_property
    def word_start_prefix(self) -> str | None:
        """What a piece that begins a word begins with, where such pieces are marked; else `##` marks the others."""
        written = json.dumps([self.json_dict["pre_tokenizer"], self.json_dict["decoder"]])
        return "Ġ" if "ByteLevel" in written else "▁" if "Metaspace" in written else None

    @cached_property
    def has_space_prefixed_tokens(self) -> bool:
        """Some piece is a word's beginning with the space before it; where each byte is a piece, none is."""
        mark = self.word_start_prefix
        return mark is not None and any(piece.startswith(mark) and piece.strip(mark) for piece in self.id_to_token)

    @cached_property
    def is_continuation(self) -> NDArray[np.bool_]:
        """For every id: it goes on with the word of the piece before it, unless it is the first of its text."""
        if self.word_start_prefix:
            begins = [piece.startswith(self.word_start_prefix) for piece in self.id_to_token]
            return ~np.array(begins) & ~self.is_special
        return np.array([piece.startswith("##") for piece in self.id_to_token])

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """For every id: it stands for no text (a special token, or a row nothing uses)."""
        added = {number for number, token in self.backend_tokenizer.get_added_tokens_decoder().items() if token.special}
        added |= {self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id}
        unused = [n for n, p in enumerate(self.id_to_token) if p.startswith("[unused") and p.endswith("]")]
        flags = np.zeros(len(self), dtype=bool)
        flags[[*added, *unused]] = True
        return flags

    @cached_property
    def non_special_ids(self) -> NDArray[np.int64]:
        """The ids that stand for text: what a random replacement may be."""
        return np.flatnonzero(~self.is_special)

    @cached_property
    def is_hex(self) -> bool:
        """It reads bytes written in hex, and nothing else."""
        names = [self.id_to_token[number] for number in self.non_special_ids]
        return sorted(names) == sorted(HEX_BYTES)

    def validate_text(self, text: str) -> str:
        """The text as it is encoded; a tokenizer of bytes refuses what is no hex, which would be unknown tokens to it."""
        if self.is_hex and (wrong := find_hex_error(text)):
            raise UserError(f"{text[:40]!r} is not hex: {wrong}; this model reads bytes written in hex")
        return replace_surrogates(text)

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """The same tokenizer with more special tokens behind its last id; those it has already keep their ids."""
        rust = Rust.from_buffer(self.json_bytes)
        new = rust.add_special_tokens([name for name in tokens if rust.token_to_id(name) is None])
        rust.add_special_tokens(list(tokens))
        longer = Tokenizer(rust, self.source, self.segment_chinese)
        if len(longer) != len(self) + new:  # the library counts from the number of pieces, not from the last id
            raise UserError(f"{self.source} has ids that no piece uses, where new tokens would lie on old ones; fill them "
                           "with pieces such as [unused-7]")  # fmt: skip
        return longer

    def enable_lexicon(self) -> Lexicon:
        """From now on a word outside the vocabulary has a number behind it, and the lexicon knows how it is spelt."""
        self.lexicon = self.lexicon or Lexicon(self.id_to_token, self.cls_token_id, self.sep_token_id)
        return self.lexicon

    def encode(self, text: str) -> Encoding:
        """One text, without special tokens; `.ids` and `.offsets` into the text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], return_offsets: bool = True) -> list[Encoding]:
        """Many texts at once, quicker where nobody asks for the offsets."""
        read = [self.validate_text(text) for text in texts]
        many = (
            self.backend_tokenizer.encode_batch if return_offsets or self.lexicon else self.backend_tokenizer.encode_batch_fast
        )
        found = many(read, add_special_tokens=False)
        if self.lexicon is None:
            return found
        clean = self.backend_tokenizer.normalizer.normalize_str if self.backend_tokenizer.normalizer else str
        return [
            assign_oov_ids(one, text, self.unk_token_id, clean, self.lexicon) for one, text in zip(found, read, strict=True)
        ]

    def encode_with_mask(self, text: str) -> list[int]:
        """The ids of a text in which `[MASK]` stands for the mask token itself.

        Where pieces begin with the space before their word, the mask takes that space too, as it does in training.
        """
        *before, last = text.split(self.id_to_token[self.mask_token_id])
        if self.has_space_prefixed_tokens:
            before = [part.removesuffix(" ") for part in before]
        return [number for part in before for number in (*self.encode(part).ids, self.mask_token_id)] + self.encode(last).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend_tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    @property
    def _fallback_special_tokens(self) -> tuple[str, ...]:
        """What stands for all five in vocabularies that have but one special token: GPT-2's, and GPT's."""
        merged = getattr(self.backend_tokenizer.model, "end_of_word_suffix", None) == END_OF_WORD_SUFFIX
        return (END_OF_TEXT, "<unk>") if merged else (END_OF_TEXT,)

    def _special_token_id(self, token: str) -> int:
        for alias in (token, *SPECIAL_TOKEN_ALIASES[token], *self._fallback_special_tokens):
            if (number := self.backend_tokenizer.token_to_id(alias)) is not None:
                return number
        raise UserError(
            f"{self.source} has no {token}; add a line {token} to it, or train a tokenizer with `bertsmith tokenizer`"
        )


def build_bert_tokenizer(model: models.Model, lowercase: bool) -> Rust:
    """A model behind BERT's own cleaning and splitting, its specials marked as such."""
    rust = Rust(model)
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    return register_special_tokens(rust)


def register_special_tokens(backend_tokenizer: Rust) -> Rust:
    backend_tokenizer.add_special_tokens([name for name in SPECIAL_TOKENS if backend_tokenizer.token_to_id(name) is not None])
    return backend_tokenizer


def replace_surrogates(text: str) -> str:
    """Lone surrogates, which no file can hold, become U+FFFD; all else stays."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
