"""The corpora of a race: the text as each tokenizer cuts it, made once for all members that share it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts import MANIFEST, fingerprint, named, read_json
from ..config import parse
from ..corpus import prepare
from ..corpus.store import Corpus
from ..errors import BadInput
from ..tokenization import train_tokenizer

if TYPE_CHECKING:
    from .run import RaceRecipe


PIECES = {"kind": "wordpiece", "size": 8000}


@dataclass(frozen=True)
class Cut:
    """The text as one tokenizer cuts it: to learn from, and to be judged on."""

    corpus: Path | None = None
    valid: Path | None = None

    @property
    def opened(self) -> Corpus:
        return Corpus.open(self.corpus or Path(), check=False)

    @cached_property
    def card(self) -> dict[str, Any]:
        """Of the text that is judged on, or, where some is held out, of all."""
        return dict(read_json((self.valid or self.corpus or Path()) / "card.json"))


Corpora = dict[str, Cut]
Given = str | dict[str, Any]  # a folder, or settings of `tokenizer`


def corpus_of(recipe: "RaceRecipe", source: dict[str, Any], out: Path, known: Corpora, quiet: bool) -> Cut:
    """The corpus of a member, made if need be, once for all that share its tokenizer."""
    if place := source.get("corpus", None if "tokenizer" in source else recipe.corpus):
        return Cut(Corpus.open(named(place, "corpus")).path)
    if not recipe.texts:
        raise BadInput("a tokenizer of its own needs texts=FILES to cut; give texts, or a corpus made with it")
    given = source.get("tokenizer", recipe.tokenizer) or PIECES
    name = f"{given.get('kind', 'wordpiece')}-{fingerprint(given)[:6]}" if isinstance(given, dict) else fingerprint(given)[:8]
    if name not in known:
        known[name] = _made(recipe, given, out, name, quiet)
    return known[name]


def _made(recipe: "RaceRecipe", given: Given, out: Path, name: str, quiet: bool) -> Cut:
    words = _tokenizer(recipe, given, out / "tokenizers" / name, quiet)

    def prepared(texts: tuple[str, ...], place: Path) -> Path:
        settings = {**recipe.prepare, "texts": list(texts), "tokenizer": str(words), "out": str(place)}
        prepare.run(parse(prepare.Recipe, settings, "prepare"), quiet or (place / MANIFEST).exists())
        return place

    corpus = prepared(recipe.texts, out / "corpora" / name)
    if not recipe.valid:
        return Cut(corpus)
    return Cut(corpus, prepared(recipe.valid, out / "corpora" / f"{name}-valid"))


def _tokenizer(recipe: "RaceRecipe", given: Given, place: Path, quiet: bool) -> Path:
    if isinstance(given, str):
        return named(given, "tokenizer")
    settings = {**given, "texts": list(recipe.texts), "out": str(place)}
    train_tokenizer.run(parse(train_tokenizer.Recipe, settings, "tokenizer"), quiet or (place / MANIFEST).exists())
    return place
