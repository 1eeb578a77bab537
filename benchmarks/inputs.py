"""Inputs of the benchmarks: the text of `texts=`, decompressed first, or docstrings of this machine; and a tokenizer."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bertsmith import api
from bertsmith.tokenization import documents, files


@dataclass(frozen=True)
class BenchmarkInputs:
    """Working folder, command line options, and lazily prepared text and tokenizer."""

    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def texts(self) -> list[Path]:
        texts = self.options.get("texts")
        if texts is None:
            from bertsmith.quickstart.docstrings import collect_documents, to_corpus_text

            (self.folder / "text.txt").write_bytes(to_corpus_text(collect_documents()))
            texts = str(self.folder / "text.txt")
        paths = files.find_files(texts.split(","))
        return [_unpack(path, self.folder / f"{index}.txt") for index, path in enumerate(paths)]

    @cached_property
    def tokenizer(self) -> Path:
        if tokenizer := self.options.get("tokenizer"):
            target = self.folder / Path(tokenizer).name
            shutil.copy(tokenizer, target)
        else:
            target = self.folder / "tokenizer"
            api.train_tokenizer(texts=[str(path) for path in self.texts[:1]], vocab_size=30_000, out=str(target), quiet=True)
        return target

    def int_option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


def _unpack(path: Path, target: Path) -> Path:
    """Decompressed copy: both libraries are measured on plain text."""
    with target.open("w", encoding="utf-8") as out:
        for block in documents.read_blocks([path]):
            out.write(block.text + ("\n\n" if block.ends_document else "\n"))
    return target
