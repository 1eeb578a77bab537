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

from ..artifacts import fingerprint, write_whole
from ..errors import BadInput
from . import chinese
from .characters import Lexicon, numbered
from .hex_bytes import BYTES, fault

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# What other families call the same five, in the same order.
ALIASES = {PAD: ("<pad>",), UNK: ("<unk>",), CLS: ("<s>",), SEP: ("</s>",), MASK: ("<mask>",)}
END, WORD_END = "<|endoftext|>", "</w>"  # the one special token of GPT-2; what a piece of GPT that ends a word ends with


class Tokenizer:
    """Text to ids and back. `tokenizer.json` is its whole state, in the format of the `tokenizers` library."""

    def __init__(self, rust: Rust, source: str = "tokenizer", segments: bool = False) -> None:
        """`segments`: Chinese words are its tokens, cut by jieba; the file says so too."""
        self.rust, self.source, self.segments = rust, source, segments
        self.lexicon: Lexicon | None = None  # of a tokenizer whose model spells words: `opened`
        if segments:
            self.data = chinese.install(rust)
        rust.no_padding()
        rust.no_truncation()
        self.pad, self.unk, self.cls, self.sep, self.mask = (self._special(name) for name in SPECIALS)
        rust.encode_special_tokens = True  # "[MASK]" in somebody's text is seven characters, never the token

    @classmethod
    def load(cls, path: Path, lowercase: bool | None = None) -> "Tokenizer":
        """From a folder with tokenizer.json, that file itself, or a vocab.txt as Google wrote them (.xz too)."""
        path = path / "tokenizer.json" if path.is_dir() and not (path / "vocab.txt").exists() else path
        path = next((p for p in (path / "tokenizer.json", path / "vocab.txt") if p.exists()), path)
        if not path.exists():
            raise BadInput(f"there is no tokenizer at {path}; give a tokenizer folder, a tokenizer.json or a vocab.txt")
        if path.suffix == ".json":
            return cls.parsed(path.read_bytes(), str(path))
        opening = lzma.open if path.suffix == ".xz" else open
        try:
            with opening(path, "rt", encoding="utf-8-sig") as file:
                pieces = [line.rstrip("\r\n") for line in file]
        except (UnicodeDecodeError, lzma.LZMAError) as error:
            raise BadInput(f"{path} is not a vocabulary, a UTF-8 text with a piece a line: {error}") from None
        return cls.google(pieces[:-1] if pieces[-1:] == [""] else pieces, lowercase, str(path))

    @classmethod
    def parsed(cls, data: bytes, source: str = "tokenizer.json") -> "Tokenizer":
        try:
            return cls(Rust.from_buffer(data), source, chinese.asked(data))
        except BadInput:
            raise
        except Exception as error:  # the library raises bare Exception
            raise BadInput(f"{source} is not a tokenizer.json: {error}") from None

    @classmethod
    def google(cls, pieces: Sequence[str], lowercase: bool | None = None, source: str = "vocab.txt") -> "Tokenizer":
        """BERT's own tokenizer over a vocabulary; cased if its pieces are, unless `lowercase` says otherwise."""
        if blank := next((line for line, piece in enumerate(pieces, 1) if not piece.strip(" \t")), None):
            raise BadInput(f"{source}, line {blank:,} is blank; remove it, or write [unused-{blank - 1}] there, which leaves "
                           "the lines below their ids")  # fmt: skip
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        if len(vocabulary) < len(pieces):
            twice = next(piece for number, piece in enumerate(pieces) if vocabulary[piece] != number)
            raise BadInput(f"{source} holds {twice!r} twice; a line of a vocab.txt is the name of one id")
        if lowercase is None:
            lowercase = not any(any("A" <= c <= "Z" for c in p) for p in pieces if not p.startswith(("[", "<")))
        return cls(bert(models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=100), lowercase), source)

    def save(self, folder: Path) -> None:
        write_whole(folder / "tokenizer.json", self.data)

    @cached_property
    def data(self) -> bytes:
        return self.rust.to_str(pretty=True).encode()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.data)

    @cached_property
    def pieces(self) -> list[str]:
        """Every piece, in the order of ids."""
        names = {number: piece for piece, number in self.rust.get_vocab(with_added_tokens=True).items()}
        return [names.get(number, f"[unused-{number}]") for number in range(max(names) + 1)]

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def state(self) -> dict[str, Any]:
        return json.loads(self.data)

    @cached_property
    def marks_starts(self) -> str | None:
        """What a piece that begins a word begins with, where such pieces are marked; else `##` marks the others."""
        written = json.dumps([self.state["pre_tokenizer"], self.state["decoder"]])
        return "Ġ" if "ByteLevel" in written else "▁" if "Metaspace" in written else None

    @cached_property
    def joins_spaces(self) -> bool:
        """Some piece is a word's beginning with the space before it; where each byte is a piece, none is."""
        mark = self.marks_starts
        return mark is not None and any(piece.startswith(mark) and piece.strip(mark) for piece in self.pieces)

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """For every id: it goes on with the word of the piece before it, unless it is the first of its text."""
        if self.marks_starts:
            begins = [piece.startswith(self.marks_starts) for piece in self.pieces]
            return ~np.array(begins) & ~self.special
        return np.array([piece.startswith("##") for piece in self.pieces])

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """For every id: it stands for no text (a special token, or a row nothing uses)."""
        added = {number for number, token in self.rust.get_added_tokens_decoder().items() if token.special}
        added |= {self.pad, self.unk, self.cls, self.sep, self.mask}
        unused = [n for n, p in enumerate(self.pieces) if p.startswith("[unused") and p.endswith("]")]
        flags = np.zeros(len(self), dtype=bool)
        flags[[*added, *unused]] = True
        return flags

    @cached_property
    def ordinary(self) -> NDArray[np.int64]:
        """The ids that stand for text: what a random replacement may be."""
        return np.flatnonzero(~self.special)

    @cached_property
    def hex(self) -> bool:
        """It reads bytes written in hex, and nothing else."""
        names = [self.pieces[number] for number in self.ordinary]
        return sorted(names) == sorted(BYTES)

    def readable(self, text: str) -> str:
        """The text as it is encoded; a tokenizer of bytes refuses what is no hex, which would be unknown tokens to it."""
        if self.hex and (wrong := fault(text)):
            raise BadInput(f"{text[:40]!r} is not hex: {wrong}; this model reads bytes written in hex")
        return whole(text)

    def with_specials(self, names: Sequence[str]) -> "Tokenizer":
        """The same tokenizer with more special tokens behind its last id; those it has already keep their ids."""
        rust = Rust.from_buffer(self.data)
        new = rust.add_special_tokens([name for name in names if rust.token_to_id(name) is None])
        rust.add_special_tokens(list(names))
        longer = Tokenizer(rust, self.source, self.segments)
        if len(longer) != len(self) + new:  # the library counts from the number of pieces, not from the last id
            raise BadInput(f"{self.source} has ids that no piece uses, where new tokens would lie on old ones; fill them "
                           "with pieces such as [unused-7]")  # fmt: skip
        return longer

    def opened(self) -> Lexicon:
        """From now on a word outside the vocabulary has a number behind it, and the lexicon knows how it is spelt."""
        self.lexicon = self.lexicon or Lexicon(self.pieces, self.cls, self.sep)
        return self.lexicon

    def encode(self, text: str) -> Encoding:
        """One text, without special tokens; `.ids` and `.offsets` into the text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], offsets: bool = True) -> list[Encoding]:
        """Many texts at once, quicker where nobody asks for the offsets."""
        read = [self.readable(text) for text in texts]
        many = self.rust.encode_batch if offsets or self.lexicon else self.rust.encode_batch_fast
        found = many(read, add_special_tokens=False)
        if self.lexicon is None:
            return found
        clean = self.rust.normalizer.normalize_str if self.rust.normalizer else str
        return [numbered(one, text, self.unk, clean, self.lexicon) for one, text in zip(found, read, strict=True)]

    def encode_marked(self, text: str) -> list[int]:
        """The ids of a text in which `[MASK]` stands for the mask token itself.

        Where pieces begin with the space before their word, the mask takes that space too, as it does in training.
        """
        *before, last = text.split(self.pieces[self.mask])
        if self.joins_spaces:
            before = [part.removesuffix(" ") for part in before]
        return [number for part in before for number in (*self.encode(part).ids, self.mask)] + self.encode(last).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.rust.decode([int(i) for i in ids], skip_special_tokens=False)

    @property
    def _only(self) -> tuple[str, ...]:
        """What stands for all five in vocabularies that have but one special token: GPT-2's, and GPT's."""
        merged = getattr(self.rust.model, "end_of_word_suffix", None) == WORD_END
        return (END, "<unk>") if merged else (END,)

    def _special(self, name: str) -> int:
        for alias in (name, *ALIASES[name], *self._only):
            if (number := self.rust.token_to_id(alias)) is not None:
                return number
        raise BadInput(f"{self.source} has no {name}; add a line {name} to it, or train a tokenizer with `bertsmith tokenizer`")


def bert(model: models.Model, lowercase: bool) -> Rust:
    """A model behind BERT's own cleaning and splitting, its specials marked as such."""
    rust = Rust(model)
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    return marked(rust)


def marked(rust: Rust) -> Rust:
    rust.add_special_tokens([name for name in SPECIALS if rust.token_to_id(name) is not None])
    return rust


def whole(text: str) -> str:
    """Lone surrogates, which no file can hold, become U+FFFD; all else stays."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
