"""What is measured on: text of your own (`texts=`), or the English this machine already has."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from bertsmith import api
from bertsmith.text import files


@dataclass(frozen=True)
class Material:
    folder: Path
    texts: list[Path]
    tokenizer: Path


def material(folder: Path, texts: str | None, vocabulary: str | None) -> Material:
    if texts is None:
        from bertsmith.quickstart import gather

        gather(folder / "text.txt")
        texts = str(folder / "text.txt")
    paths = files.found(texts.split(","))
    if vocabulary:
        target = folder / Path(vocabulary).name
        shutil.copy(vocabulary, target)
    else:
        target = folder / "tokenizer"
        api.train_tokenizer(texts=[str(path) for path in paths[:1]], size=30_000, out=str(target), quiet=True)
    return Material(folder, paths, target)
