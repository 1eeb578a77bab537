"""What is measured on: text of your own (`texts=`), unpacked first, or the English this machine already has."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from bertsmith import api
from bertsmith.text import documents, files


@dataclass(frozen=True)
class Material:
    folder: Path
    texts: list[Path]
    tokenizer: Path


def material(folder: Path, texts: str | None, vocabulary: str | None) -> Material:
    if texts is None:
        from bertsmith.docstrings import gather

        gather(folder / "text.txt")
        texts = str(folder / "text.txt")
    paths = [_unpacked(path, folder / f"{number}.txt") for number, path in enumerate(files.found(texts.split(",")))]
    if vocabulary:
        target = folder / Path(vocabulary).name
        shutil.copy(vocabulary, target)
    else:
        target = folder / "tokenizer"
        api.train_tokenizer(texts=[str(path) for path in paths[:1]], size=30_000, out=str(target), quiet=True)
    return Material(folder, paths, target)


def _unpacked(path: Path, plain: Path) -> Path:
    """Unpacking is no side's merit: both begin with plain text."""
    with plain.open("w", encoding="utf-8") as out:
        for block in documents.blocks([path]):
            out.write(block.text + ("\n\n" if block.ends else "\n"))
    return plain
