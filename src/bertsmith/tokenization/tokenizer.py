"""The `Tokenizer` class: text to token ids and back, special token ids, and which tokens continue a word.

A thin layer over the `tokenizers` library: it adds special-token aliases of other model families, loading of vocab.txt,
vocabulary masks as numpy arrays, and out-of-vocabulary word ids for character-based models (ELMo).
"""

import copy
import json
import lzma
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFast

from ..artifacts import detect_kind, fingerprint, read_sealed, require_kind
from ..errors import UserError
from ..writing import write_atomic
from . import chinese
from .characters import Lexicon, assign_oov_ids
from .hex_bytes import HEX_BYTES, find_hex_error

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The same special tokens as RoBERTa, XLM-R and others spell them.
SPECIAL_TOKEN_ALIASES = {PAD: ("<pad>",), UNK: ("<unk>",), CLS: ("<s>",), SEP: ("</s>",), MASK: ("<mask>",)}
MAX_FILE_BYTES = 256 << 20  # of tokenizer.json and vocab.txt
MAX_UNUSED_IDS = 10_000  # besides as many as there are tokens
END_OF_TEXT, END_OF_WORD_SUFFIX = "<|endoftext|>", "</w>"  # GPT-2's only special token; suffix of GPT's word-final tokens


class Tokenizer:
    """Text to token ids and back. `tokenizer.json` is its complete state, in the format of the `tokenizers` library."""

    def __init__(self, backend_tokenizer: TokenizerFast, source: str = "tokenizer", segment_chinese: bool = False) -> None:
        """`segment_chinese`: jieba splits Chinese text into words before tokenization; tokenizer.json records this."""
        self.backend_tokenizer, self.source, self.segment_chinese = backend_tokenizer, source, segment_chinese
        self.open_vocabulary = False  # see `with_open_vocabulary`
        if segment_chinese:
            self.json_bytes = chinese.install_jieba(backend_tokenizer)
        backend_tokenizer.no_padding()
        backend_tokenizer.no_truncation()
        self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id = (
            self._special_token_id(name) for name in SPECIAL_TOKENS
        )
        # "[MASK]" in user text is encoded as plain characters, not as the special token.
        backend_tokenizer.encode_special_tokens = True

    @classmethod
    def load(cls, path: Path, lowercase: bool | None = None) -> "Tokenizer":
        """Load a folder with tokenizer.json or vocab.txt, a tokenizer.json, or a vocab.txt in Google's format (.xz too).

        `lowercase` applies to vocab.txt only; None infers it from the vocabulary.
        """
        path = path / "tokenizer.json" if path.is_dir() and not (path / "vocab.txt").exists() else path
        path = next((p for p in (path / "tokenizer.json", path / "vocab.txt") if p.exists()), path)
        if not path.exists():
            folder = path.parent if path.name == "tokenizer.json" else path
            if detect_kind(folder) is not None:
                require_kind(folder, "tokenizer")
            raise UserError(f"there is no tokenizer at {path}; give a tokenizer folder, a tokenizer.json or a vocab.txt")
        if path.suffix == ".json":
            return cls.from_json(read_sealed(path, MAX_FILE_BYTES), str(path))
        data = read_sealed(path, MAX_FILE_BYTES)
        try:
            text = (_decompress(data, path) if path.suffix == ".xz" else data).decode("utf-8-sig")
        except (UnicodeDecodeError, lzma.LZMAError, EOFError) as error:
            raise UserError(f"{path} is not a vocab.txt, a UTF-8 text file with one token per line: {error}") from None
        tokens = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
        return cls.from_vocab(tokens[:-1] if tokens[-1:] == [""] else tokens, lowercase, str(path))

    @classmethod
    def from_json(cls, data: bytes, source: str = "tokenizer.json") -> "Tokenizer":
        try:
            tokenizer = cls(TokenizerFast.from_buffer(data), source, chinese.uses_jieba(data))
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the library raises bare Exception, and PanicException, which is none
            raise UserError(f"{source} is not a tokenizer.json: {error}") from None
        len(tokenizer)  # its ids are checked
        return tokenizer

    @classmethod
    def from_vocab(cls, vocab: Sequence[str], lowercase: bool | None = None, source: str = "vocab.txt") -> "Tokenizer":
        """BERT's WordPiece tokenizer over `vocab`, where line i is the token of id i.

        `lowercase=None`: cased if any token outside brackets has an upper-case ASCII letter.
        """
        if blank_line := next((line for line, token in enumerate(vocab, 1) if not token.strip(" \t")), None):
            raise UserError(
                f"{source}, line {blank_line:,} is blank; remove it, or write [unused-{blank_line - 1}] there "
                "to keep the ids of the lines below"
            )
        token_to_id = {token: token_id for token_id, token in enumerate(vocab)}
        if len(token_to_id) < len(vocab):
            duplicate = next(token for token_id, token in enumerate(vocab) if token_to_id[token] != token_id)
            raise UserError(
                f"{source} contains {duplicate!r} twice; remove one, or rename it to [unused-ID] to keep the other ids"
            )
        if lowercase is None:
            lowercase = not any(any("A" <= c <= "Z" for c in t) for t in vocab if not t.startswith(("[", "<")))
        return cls(
            build_bert_tokenizer(models.WordPiece(token_to_id, unk_token=UNK, max_input_chars_per_word=100), lowercase), source
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
        """Token of every id; ids that no token has are named [unused-ID]."""
        tokens_by_id = {token_id: token for token, token_id in self.backend_tokenizer.get_vocab(with_added_tokens=True).items()}
        if (last := max(tokens_by_id, default=0)) > 2 * len(tokens_by_id) + MAX_UNUSED_IDS:  # the model has a row for each id
            raise UserError(
                f"{self.source} has {len(tokens_by_id):,} tokens, but ids up to {last:,}; it is damaged, or its ids have gaps"
            )
        return [tokens_by_id.get(token_id, f"[unused-{token_id}]") for token_id in range(last + 1)]

    def __len__(self) -> int:
        return len(self.id_to_token)

    @cached_property
    def json_dict(self) -> dict[str, Any]:
        return json.loads(self.json_bytes)

    @cached_property
    def word_start_prefix(self) -> str | None:
        """Prefix of word-initial tokens: "Ġ" (byte-level), "▁" (Metaspace), or None where `##` marks continuations instead."""
        components = json.dumps([self.json_dict["pre_tokenizer"], self.json_dict["decoder"]])
        return "Ġ" if "ByteLevel" in components else "▁" if "Metaspace" in components else None

    @cached_property
    def has_space_prefixed_tokens(self) -> bool:
        """Whether any token joins the preceding space with text, as " the" in GPT-2. False for a pure byte vocabulary."""
        prefix = self.word_start_prefix
        return prefix is not None and any(token.startswith(prefix) and token.strip(prefix) for token in self.id_to_token)

    @cached_property
    def is_continuation(self) -> NDArray[np.bool_]:
        """(vocab_size,) bool: the token continues the word of the token before it (unless it is the first of its text)."""
        if self.word_start_prefix:
            starts_word = [token.startswith(self.word_start_prefix) for token in self.id_to_token]
            return ~np.array(starts_word) & ~self.is_special
        return np.array([token.startswith("##") for token in self.id_to_token])

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """(vocab_size,) bool: special tokens and unused ids, which stand for no text."""
        added = {token_id for token_id, token in self.backend_tokenizer.get_added_tokens_decoder().items() if token.special}
        added |= {self.pad_token_id, self.unk_token_id, self.cls_token_id, self.sep_token_id, self.mask_token_id}
        unused = [i for i, t in enumerate(self.id_to_token) if t.startswith("[unused") and t.endswith("]")]
        flags = np.zeros(len(self), dtype=bool)
        flags[[*added, *unused]] = True
        return flags

    @cached_property
    def non_special_ids(self) -> NDArray[np.int64]:
        """Ids of ordinary tokens: the candidates for random replacement in MLM."""
        return np.flatnonzero(~self.is_special)

    @cached_property
    def is_hex(self) -> bool:
        """Whether the vocabulary is the 256 bytes written in hex, and nothing else."""
        tokens = [self.id_to_token[token_id] for token_id in self.non_special_ids]
        return sorted(tokens) == sorted(HEX_BYTES)

    def validate_text(self, text: str) -> str:
        """The text with lone surrogates replaced. A hex tokenizer raises UserError for text that is not hex, instead of
        encoding it as unknown tokens."""
        if self.is_hex and (error := find_hex_error(text)):
            raise UserError(
                f"{text[:40]!r} is not hexadecimal: {error}; this tokenizer (kind=byte hex=true) reads hex-encoded bytes"
            )
        return replace_surrogates(text)

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """A copy with additional special tokens after the last id; tokens that exist already keep their ids."""
        backend = TokenizerFast.from_buffer(self.json_bytes)
        num_added = backend.add_special_tokens([name for name in tokens if backend.token_to_id(name) is None])
        backend.add_special_tokens(list(tokens))
        extended = Tokenizer(backend, self.source, self.segment_chinese)
        extended.open_vocabulary = self.open_vocabulary
        # The library numbers new tokens from the vocabulary's size, not from its last id.
        if len(extended) != len(self) + num_added:
            raise UserError(f"{self.source} has ids without a token, so that new tokens would get ids in use; fill the "
                           "gaps with tokens such as [unused-7]")  # fmt: skip
        return extended

    @cached_property
    def lexicon(self) -> Lexicon:
        """The word of each id, of whose characters a CharCNN or fastText embedding is computed; with `open_vocabulary` it
        grows by the out-of-vocabulary words that are encoded."""
        return Lexicon(self.id_to_token, self.cls_token_id, self.sep_token_id)

    def with_open_vocabulary(self) -> "Tokenizer":
        """A copy that encodes each out-of-vocabulary word as an id of its own behind the vocabulary, instead of [UNK]; for
        models that embed a word by its characters and are built with this tokenizer, whose lexicon has the words."""
        opened = copy.copy(self)
        opened.__dict__.pop("lexicon", None)
        opened.open_vocabulary = True
        return opened

    def encode(self, text: str) -> Encoding:
        """Encode one text without special tokens; `.ids` and character `.offsets` into the text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], return_offsets: bool = True) -> list[Encoding]:
        """Encode many texts without special tokens; faster with `return_offsets=False`."""
        valid_texts = [self.validate_text(text) for text in texts]
        encode_all = (
            self.backend_tokenizer.encode_batch
            if return_offsets or self.open_vocabulary
            else self.backend_tokenizer.encode_batch_fast
        )
        encodings = encode_all(valid_texts, add_special_tokens=False)
        if not self.open_vocabulary:
            return encodings
        normalize = self.backend_tokenizer.normalizer.normalize_str if self.backend_tokenizer.normalizer else str
        return [
            assign_oov_ids(encoding, text, self.unk_token_id, normalize, self.lexicon)
            for encoding, text in zip(encodings, valid_texts, strict=True)
        ]

    def encode_with_mask(self, text: str) -> list[int]:
        """Ids of a text in which `[MASK]` is the mask token.

        With space-prefixed tokens ("Ġthe"), the space before `[MASK]` is dropped: in training, too, a mask replaces the
        token together with its space.
        """
        *before, last = text.split(self.id_to_token[self.mask_token_id])
        if self.has_space_prefixed_tokens:
            before = [part.removesuffix(" ") for part in before]
        return [token_id for part in before for token_id in (*self.encode(part).ids, self.mask_token_id)] + self.encode(
            last
        ).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend_tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    @property
    def _fallback_special_tokens(self) -> tuple[str, ...]:
        """The one special token that serves as all five in the vocabularies of GPT-2 and GPT."""
        is_gpt1 = getattr(self.backend_tokenizer.model, "end_of_word_suffix", None) == END_OF_WORD_SUFFIX
        return (END_OF_TEXT, "<unk>") if is_gpt1 else (END_OF_TEXT,)

    def _special_token_id(self, token: str) -> int:
        for alias in (token, *SPECIAL_TOKEN_ALIASES[token], *self._fallback_special_tokens):
            if (token_id := self.backend_tokenizer.token_to_id(alias)) is not None:
                return token_id
        raise UserError(
            f"{self.source} has no {token} token; add it to the vocabulary, or train a tokenizer with `bertsmith tokenizer`"
        )


def build_bert_tokenizer(model: models.Model, lowercase: bool) -> TokenizerFast:
    """`model` with BERT's normalizer, pre-tokenizer and decoder, and its special tokens registered."""
    backend = TokenizerFast(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return register_special_tokens(backend)


def register_special_tokens(backend_tokenizer: TokenizerFast) -> TokenizerFast:
    backend_tokenizer.add_special_tokens([name for name in SPECIAL_TOKENS if backend_tokenizer.token_to_id(name) is not None])
    return backend_tokenizer


def _decompress(data: bytes, path: Path) -> bytes:
    """The contents of an .xz file, which may be several compressed one after another."""
    chunks, num_bytes = list[bytes](), 0
    with lzma.open(BytesIO(data)) as file:
        while chunk := file.read(1 << 20):
            chunks.append(chunk)
            if (num_bytes := num_bytes + len(chunk)) > MAX_FILE_BYTES:
                raise UserError(f"{path} has more than {MAX_FILE_BYTES:,} bytes when decompressed; it is no vocab.txt")
    return b"".join(chunks)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
