"""Examples in order, with those that cannot be used counted and left out, or stopping the work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import BadInput
from .tables import BadRow

E = TypeVar("E")


class Kept(Generic[E]):
    """What is good of examples and faults; `skipped` counts the faults, `faults` holds the first few in words."""

    def __init__(self, path: Path, found: Iterator[E | BadRow], skip_bad: bool = False) -> None:
        self.path, self.skipped, self.faults = path, 0, list[str]()
        self._found, self._skip, self._count = found, skip_bad, 0

    def __iter__(self) -> "Kept[E]":
        return self

    def beside(self) -> Iterator[E | BadRow]:
        """All of it, faults in their places; only a file that holds nothing is refused."""
        none = True
        for one in self._found:
            none = False
            yield one
        if none:
            raise BadInput(f"{self.path} holds nothing that can be used")

    def __next__(self) -> E:
        for example in self._found:
            if not isinstance(example, BadRow):
                self._count += 1
                return example
            if not self._skip:
                raise example
            self.skipped, self.faults = self.skipped + 1, [*self.faults, str(example)][:5]
        if not self._count:
            raise BadInput(f"{self.path} holds nothing that can be used" + (f": {self.faults[0]}" if self.faults else ""))
        raise StopIteration
