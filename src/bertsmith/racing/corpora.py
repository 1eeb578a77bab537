"""The corpora of a race: the text tokenized by each tokenizer, prepared once for all members that share it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts import MANIFEST, fingerprint, read_object, resolve_path
from ..config import from_dict
from ..corpus import prepare
from ..corpus.store import Corpus
from ..errors import UserError
from ..tokenization import train_tokenizer

if TYPE_CHECKING:
    from .run import RaceRecipe


DEFAULT_TOKENIZER = {"kind": "wordpiece", "vocab_size": 8000}


@dataclass(frozen=True)
class TokenizedText:
    """The training corpus and the validation corpus (if any) of one tokenizer."""

    corpus_path: Path | None = None
    valid_path: Path | None = None

    @property
    def corpus(self) -> Corpus:
        return Corpus.open(self.corpus_path or Path(), verify_checksums=False)

    @cached_property
    def card(self) -> dict[str, Any]:
        """Card of the validation corpus, or of the training corpus where documents of it are held out."""
        return dict(read_object((self.valid_path or self.corpus_path or Path()) / "card.json"))


CorpusCache = dict[str, TokenizedText]
TokenizerSource = str | dict[str, Any]  # a folder, or settings of `tokenizer`


def prepare_corpus(recipe: "RaceRecipe", member: dict[str, Any], out: Path, cache: CorpusCache, quiet: bool) -> TokenizedText:
    """The corpus of a member: a given folder, or prepared with its tokenizer; cached by tokenizer."""
    if corpus_path := member.get("corpus", None if "tokenizer" in member else recipe.corpus):
        return TokenizedText(Corpus.open(resolve_path(corpus_path, "corpus")).path)
    if not recipe.texts:
        raise UserError("a member with its own tokenizer needs texts=FILES, or a corpus that was prepared with it")
    tokenizer_source = member.get("tokenizer", recipe.tokenizer) or DEFAULT_TOKENIZER
    name = (
        f"{tokenizer_source.get('kind', 'wordpiece')}-{fingerprint(tokenizer_source)[:6]}"
        if isinstance(tokenizer_source, dict)
        else fingerprint(tokenizer_source)[:8]
    )
    if name not in cache:
        cache[name] = _build_corpus(recipe, tokenizer_source, out, name, quiet)
    return cache[name]


def _build_corpus(recipe: "RaceRecipe", tokenizer_source: TokenizerSource, out: Path, name: str, quiet: bool) -> TokenizedText:
    tokenizer_path = _build_tokenizer(recipe, tokenizer_source, out / "tokenizers" / name, quiet)

    def prepare_texts(texts: tuple[str, ...], folder: Path) -> Path:
        settings = {**recipe.prepare, "texts": list(texts), "tokenizer": str(tokenizer_path), "out": str(folder)}
        prepare.run(from_dict(prepare.Recipe, settings, "prepare"), quiet or (folder / MANIFEST).exists())
        return folder

    corpus_path = prepare_texts(recipe.texts, out / "corpora" / name)
    if not recipe.valid:
        return TokenizedText(corpus_path)
    return TokenizedText(corpus_path, prepare_texts(recipe.valid, out / "corpora" / f"{name}-valid"))


def _build_tokenizer(recipe: "RaceRecipe", source: TokenizerSource, folder: Path, quiet: bool) -> Path:
    if isinstance(source, str):
        return resolve_path(source, "tokenizer")
    settings = {**source, "texts": list(recipe.texts), "out": str(folder)}
    train_tokenizer.run(from_dict(train_tokenizer.Recipe, settings, "tokenizer"), quiet or (folder / MANIFEST).exists())
    return folder
