"""Files of word vectors to checkpoint folders, and any token table back to such files."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers

from .. import __version__
from ..artifacts import MANIFEST, checksum, claimed, fingerprint, new_folder, read_json, vacant
from ..config import Config, plain
from ..console import Screen
from ..errors import BadInput
from ..model import checkpoint
from ..model.model import Model
from ..runs import command
from ..tokenization.chinese import IDEOGRAPH
from ..tokenization.pipeline import around
from ..tokenization.tokenizer import SPECIALS, Tokenizer
from ..tokenization.trainers import Vocabulary, model
from ..word_vectors import Format, Vectors, read, write
from ..word_vectors.files import files_of
from ..word_vectors.models import bag, vectors_of


def imported(recipe: Config, source: Path, out: Path, lowercase: bool | None, screen: Screen) -> dict[str, Any]:
    """The folder of a file of vectors; its tokenizer knows these words and no others."""
    files = {path.name: checksum(path) for path in files_of(source) if path.is_file()}
    identity = fingerprint([lowercase, *files.values()])
    with claimed(out):
        if made := not (out / MANIFEST).exists():
            vacant(out)
            vectors = read(source)
            tokenizer = tokenizer_of(vectors.words, lowercase, str(source))
            result = {"family": "vectors", "vocabulary": len(tokenizer), "width": vectors.width, "words": len(vectors)}
            result["met"] = met(tokenizer, vectors.words)
            card = {"identity": identity, "files": files, "result": result}
            _publish(recipe, out, _table(vectors, tokenizer), tokenizer, card)
        elif read_json(out / "card.json").get("identity") != identity:
            raise BadInput(f"{out} holds another model; choose another out, or remove it")
        else:
            screen.say(f"{out} is there already, made from the same file")
    result = read_json(out / "card.json")["result"]
    screen.say(f"{out}: {result['words']:,} words, {result['width']} numbers each")
    if rest := result["words"] - result["met"]:
        screen.say(f"{rest:,} of them no text is cut into (BERT's words have no punctuation inside): they are there to look up")
    return {"out": str(out), "made": made, **result}


def tokenizer_of(words: list[str], lowercase: bool | None = None, source: str = "vectors") -> Tokenizer:
    """Whole words of a list, special tokens first; case is folded if no word has a capital, accents are kept.

    Chinese words of several characters are cut by jieba.
    """
    if lowercase is None:
        lowercase = not any("A" <= letter <= "Z" for word in words if word not in SPECIALS for letter in word)
    segments = any(len(IDEOGRAPH.findall(word)) > 1 for word in words)
    pieces = [*SPECIALS, *(word for word in words if word not in SPECIALS)]
    rust = around("word", model(Vocabulary("word", pieces)), lowercase, segments)
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False, handle_chinese_chars=not segments)
    return Tokenizer(rust, source, segments)


def met(tokenizer: Tokenizer, words: list[str]) -> int:
    """How many of its words the tokenizer makes of a text that holds them."""
    found = tokenizer.rust.encode_batch_fast(words, add_special_tokens=False)
    ids = tokenizer.rust.get_vocab()
    return sum(one.ids == [ids[word]] for one, word in zip(found, words, strict=True))


def exported(source: Path, out: Path, form: Format | None, screen: Screen) -> dict[str, Any]:
    """Any model's token table as a file of vectors; special tokens, and pieces that begin no word, are left out."""
    vectors = vectors_of(source)
    if out.is_dir():
        raise BadInput(f"{out} is a folder; give the name of a file: .txt, .bin or .npy")
    with claimed(out):
        write(out, vectors, form)
    screen.say(f"{out}: {len(vectors):,} words, {vectors.width} numbers each")
    return {"out": str(out), "words": len(vectors), "width": vectors.width, "sha256": checksum(out)}


def _table(vectors: Vectors, tokenizer: Tokenizer) -> Model:
    """Rows of the file in the tokenizer's order; a special token the file has no vector for is zero: it says nothing."""
    found = Model(bag(len(tokenizer), vectors.width), drawn=False)
    table = torch.zeros(len(tokenizer), vectors.width)
    ids = tokenizer.rust.get_vocab()
    table[[ids[word] for word in vectors.words]] = torch.from_numpy(vectors.matrix)
    found.encoder.tokens.weight.data = table
    return found


def _publish(recipe: Config, out: Path, found: Model, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"command": command(), "versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record = {"stage": "import", "recipe": plain(recipe), "tokenizer": tokenizer.fingerprint, "version": __version__}
    with new_folder(out) as part:
        checkpoint.write(part, found, tokenizer, card, record | {"family": "vectors"})
