"""Files of word vectors to checkpoint folders, and any token table back to such files."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers

from .. import __version__
from ..artifacts import MANIFEST, atomic_folder, check_writable, checksum, fingerprint, lock_output, read_json
from ..config import Config, to_dict
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..model.model import Model
from ..runs import command_line
from ..tokenization.chinese import IDEOGRAPH
from ..tokenization.pipeline import assemble_tokenizer
from ..tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from ..tokenization.trainers import Vocabulary, build_model
from ..word_vectors import Format, KeyedVectors, read_vectors, write_vectors
from ..word_vectors.files import vector_files
from ..word_vectors.models import bag_of_vectors, load_vectors


def import_vectors(recipe: Config, source: Path, out: Path, lowercase: bool | None, console: Console) -> dict[str, Any]:
    """The folder of a file of vectors; its tokenizer knows these words and no others."""
    files = {path.name: checksum(path) for path in vector_files(source) if path.is_file()}
    identity = fingerprint([lowercase, *files.values()])
    with lock_output(out):
        if made := not (out / MANIFEST).exists():
            check_writable(out)
            vectors = read_vectors(source)
            tokenizer = build_tokenizer(vectors.words, lowercase, str(source))
            result = {"family": "vectors", "vocabulary": len(tokenizer), "width": vectors.vector_size, "words": len(vectors)}
            result["met"] = count_reachable_words(tokenizer, vectors.words)
            card = {"identity": identity, "files": files, "result": result}
            _publish(recipe, out, _build_model(vectors, tokenizer), tokenizer, card)
        elif read_json(out / "card.json").get("identity") != identity:
            raise UserError(f"{out} holds another model; choose another out, or remove it")
        else:
            console.info(f"{out} is there already, made from the same file")
    result = read_json(out / "card.json")["result"]
    console.info(f"{out}: {result['words']:,} words, {result['width']} numbers each")
    if rest := result["words"] - result["met"]:
        console.info(
            f"{rest:,} of them no text is cut into (BERT's words have no punctuation inside): they are there to look up"
        )
    return {"out": str(out), "made": made, **result}


def build_tokenizer(words: list[str], lowercase: bool | None = None, source: str = "vectors") -> Tokenizer:
    """Whole words of a list, special tokens first; case is folded if no word has a capital, accents are kept.

    Chinese words of several characters are cut by jieba.
    """
    if lowercase is None:
        lowercase = not any("A" <= letter <= "Z" for word in words if word not in SPECIAL_TOKENS for letter in word)
    segments = any(len(IDEOGRAPH.findall(word)) > 1 for word in words)
    pieces = [*SPECIAL_TOKENS, *(word for word in words if word not in SPECIAL_TOKENS)]
    rust = assemble_tokenizer("word", build_model(Vocabulary("word", pieces)), lowercase, segments)
    rust.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False, handle_chinese_chars=not segments)
    return Tokenizer(rust, source, segments)


def count_reachable_words(tokenizer: Tokenizer, words: list[str]) -> int:
    """How many of its words the tokenizer makes of a text that holds them."""
    found = tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)
    ids = tokenizer.backend_tokenizer.get_vocab()
    return sum(one.ids == [ids[word]] for one, word in zip(found, words, strict=True))


def export_vectors(source: Path, out: Path, file_format: Format | None, console: Console) -> dict[str, Any]:
    """Any model's token table as a file of vectors; special tokens, and pieces that begin no word, are left out."""
    vectors = load_vectors(source)
    if out.is_dir():
        raise UserError(f"{out} is a folder; give the name of a file: .txt, .bin or .npy")
    with lock_output(out):
        write_vectors(out, vectors, file_format)
    console.info(f"{out}: {len(vectors):,} words, {vectors.vector_size} numbers each")
    return {"out": str(out), "words": len(vectors), "width": vectors.vector_size, "sha256": checksum(out)}


def _build_model(vectors: KeyedVectors, tokenizer: Tokenizer) -> Model:
    """Rows of the file in the tokenizer's order; a special token the file has no vector for is zero: it says nothing."""
    found = Model(bag_of_vectors(len(tokenizer), vectors.vector_size), init_weights=False)
    table = torch.zeros(len(tokenizer), vectors.vector_size)
    ids = tokenizer.backend_tokenizer.get_vocab()
    table[[ids[word] for word in vectors.words]] = torch.from_numpy(vectors.matrix)
    found.encoder.tokens.weight.data = table
    return found


def _publish(recipe: Config, out: Path, bag_model: Model, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"command": command_line(), "versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record = {"stage": "import", "recipe": to_dict(recipe), "tokenizer": tokenizer.fingerprint, "version": __version__}
    with atomic_folder(out) as part:
        checkpoint.write_files(part, bag_model, tokenizer, card, record | {"family": "vectors"})
