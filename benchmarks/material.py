"""What is measured on: text of your own (`texts=`), unpacked first, or the English this machine already has."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bertsmith import api
from bertsmith.tokenization import documents, files


@dataclass(frozen=True)
class Material:
    """A folder to work in, the keys of the command line, and text, made when somebody asks for it."""

    folder: Path
    given: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def texts(self) -> list[Path]:
        texts = self.given.get("texts")
        if texts is None:
            from bertsmith.quickstart.docstrings import gather, written

            (self.folder / "text.txt").write_bytes(written(gather()))
            texts = str(self.folder / "text.txt")
        found = files.found(texts.split(","))
        return [_unpacked(path, self.folder / f"{number}.txt") for number, path in enumerate(found)]

    @cached_property
    def tokenizer(self) -> Path:
        if vocabulary := self.given.get("vocabulary"):
            target = self.folder / Path(vocabulary).name
            shutil.copy(vocabulary, target)
        else:
            target = self.folder / "tokenizer"
            api.train_tokenizer(texts=[str(path) for path in self.texts[:1]], size=30_000, out=str(target), quiet=True)
        return target

    def number(self, name: str, usual: int) -> int:
        return int(self.given.get(name, usual))


def _unpacked(path: Path, plain: Path) -> Path:
    """Unpacking is no side's merit: both begin with plain text."""
    with plain.open("w", encoding="utf-8") as out:
        for block in documents.blocks([path]):
            out.write(block.text + ("\n\n" if block.ends else "\n"))
    return plain
