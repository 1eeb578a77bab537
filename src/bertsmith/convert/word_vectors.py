"""Import of word-vector files (word2vec, GloVe, fastText) as checkpoints, and export of token embeddings as such files."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tokenizers import normalizers

from .. import __version__
from ..artifacts import MANIFEST, atomic_folder, checksum, fingerprint, read_object, read_result
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
from ..writing import check_output_file, check_writable, lock_output


def import_vectors(recipe: Config, source: Path, out: Path, lowercase: bool | None, console: Console) -> dict[str, Any]:
    """Convert a word-vector file to a checkpoint whose tokenizer has exactly the words of the file."""
    with lock_output(out):
        if is_new := not (out / MANIFEST).exists():
            check_writable(out)
            vectors = read_vectors(source)  # before its checksum is computed: it may be damaged, and huge
        files = {path.name: checksum(path) for path in vector_files(source) if path.is_file()}
        identity = fingerprint([lowercase, *files.values()])
        if is_new:
            tokenizer = build_tokenizer(vectors.words, lowercase, str(source))
            result: dict[str, Any] = {
                "family": "vectors", "vocab_size": len(tokenizer), "vector_size": vectors.vector_size,
                "words": len(vectors), "reachable_words": count_reachable_words(tokenizer, vectors.words),
            }  # fmt: skip
            card = {"identity": identity, "files": files, "result": result}
            _publish(recipe, out, _build_model(vectors, tokenizer), tokenizer, card)
        elif read_object(out / "card.json").get("identity") != identity:
            raise UserError(f"{out} contains another model; choose another out, or remove it")
        else:
            console.info(f"{out} already exists, converted from the same file")
    result = read_result(out)
    console.info(f"{out}: {result['words']:,} words, {result['vector_size']} dimensions")
    if unreachable := int(result["words"]) - int(result["reachable_words"]):
        console.info(
            f"{unreachable:,} of them contain punctuation or spaces, at which the tokenizer splits text: they never occur in "
            "encoded text, but you can look them up"
        )
    return {"out": str(out), "created": is_new, **result}


def build_tokenizer(words: list[str], lowercase: bool | None = None, source: str = "vectors") -> Tokenizer:
    """Word-level tokenizer, special tokens first; lowercases if no word has a capital letter; keeps accents.

    If there are Chinese words of several characters, Chinese text is segmented by jieba.
    """
    if lowercase is None:
        lowercase = not any("A" <= letter <= "Z" for word in words if word not in SPECIAL_TOKENS for letter in word)
    use_jieba = any(len(IDEOGRAPH.findall(word)) > 1 for word in words)
    tokens = [*SPECIAL_TOKENS, *(word for word in words if word not in SPECIAL_TOKENS)]
    backend = assemble_tokenizer("word", build_model(Vocabulary("word", tokens)), lowercase, use_jieba)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=False, handle_chinese_chars=not use_jieba
    )
    return Tokenizer(backend, source, use_jieba)


def count_reachable_words(tokenizer: Tokenizer, words: list[str]) -> int:
    """Number of words that the tokenizer encodes as a single token."""
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(words, add_special_tokens=False)
    ids = tokenizer.backend_tokenizer.get_vocab()
    return sum(encoding.ids == [ids[word]] for encoding, word in zip(encodings, words, strict=True))


def export_vectors(
    source: Path, out: Path, file_format: Format | None, console: Console, overwrite: bool = False
) -> dict[str, Any]:
    """Write a model's token embeddings as a word-vector file, without special tokens and continuation subwords."""
    vectors = load_vectors(source)
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file name ending in .txt, .bin or .npy")
    for file in vector_files(out):
        check_output_file(file, source, overwrite=True)
    with lock_output(out, *vector_files(out)):
        write_vectors(out, vectors, file_format, overwrite)
    console.info(f"{out}: {len(vectors):,} words, {vectors.vector_size} dimensions")
    return {"out": str(out), "words": len(vectors), "vector_size": vectors.vector_size, "sha256": checksum(out)}


def _build_model(vectors: KeyedVectors, tokenizer: Tokenizer) -> Model:
    """A bag-of-vectors model with the rows of the file in the tokenizer's order; special tokens without a vector are zero."""
    model = Model(bag_of_vectors(len(tokenizer), vectors.vector_size), init_weights=False)
    table = torch.zeros(len(tokenizer), vectors.vector_size)
    ids = tokenizer.backend_tokenizer.get_vocab()
    table[[ids[word] for word in vectors.words]] = torch.from_numpy(vectors.matrix)
    model.encoder.word_embeddings.weight.data = table
    return model


def _publish(recipe: Config, out: Path, bag_model: Model, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
    versions = {"bertsmith": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    card |= {"command": command_line(), "versions": versions, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    record = {
        "stage": "import",
        "recipe": to_dict(recipe),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "version": __version__,
    }
    with atomic_folder(out) as part:
        checkpoint.write_files(part, bag_model, tokenizer, card, record | {"family": "vectors"})
