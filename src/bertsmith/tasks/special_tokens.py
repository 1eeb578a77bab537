"""Guide tokens: special tokens that a template puts beside the texts of a row, such as [direction=c] for a packet's way."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Protocol

from ..config import Variant
from ..errors import BadInput
from ..tokenization.tokenizer import ALIASES, SPECIALS, Tokenizer

Named = Callable[[Callable[[str], str]], tuple[str, ...]]  # the guides of a row, from what it holds in a column

MOST = 1000  # guide tokens of one task: a column with more values says nothing that repeats
OTHER = "?"  # the value that stands for every value training did not meet, and for none at all

_ITEM = re.compile(r"(?P<guide>\[[^\[\]]+\])|\{(?P<slot>\w+)\}|(?P<stray>\S)")
_COLUMN = re.compile(r"\{([^{}]+)\}")
_RESERVED = {*SPECIALS, *(alias for names in ALIASES.values() for alias in names)}


@dataclass(frozen=True)
class Guides:
    """Ids that stand before the first text of a sequence, before the second, and behind the last."""

    first: tuple[int, ...] = ()
    second: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def room(self, length: int, pair: bool) -> int:
        """Tokens left for the texts of a sequence, beside its guides, [CLS] and [SEP]."""
        count = len(self.first) + len(self.last) + (len(self.second) if pair else 0)
        if (room := length - count - (3 if pair else 2)) < 2:
            raise BadInput(f"{count} guide tokens leave no room for text in {length} tokens; take a greater length")
        return room


NONE = Guides()


class Row(Protocol):
    """An example, as far as its guides go."""

    @property
    def guides(self) -> tuple[str, ...]:
        """Their names in the order of the template; none for a text that came without a row."""


class Guided(Variant, frozen=True):
    """A task whose sequences may hold guide tokens, which no text can spell.

    The template names the texts of a sequence in order; a guide stands before the text it is written before, or at the end.
    What is in braces inside a guide is a column of the file: each of its values has a token. A value that training did
    not meet, none at all and a text without a row have the token of `?`. Guides are never cut off, and are in every window.
    """

    template: Annotated[
        str, "special tokens beside the texts: '[direction={direction}] {text}' has one for each value of that column"
    ] = ""
    guides: Annotated[tuple[str, ...], "the special tokens of the template; learnt from data.train"] = ()

    slots: ClassVar[tuple[str, ...]] = ("text", "text_b")  # the texts of a sequence, in order, as a template names them
    anchored: ClassVar[int | None] = None  # the segment that meets the whole sequence, beside [CLS], in a model of windows

    def named(self, value: Callable[[str], str]) -> tuple[str, ...]:
        """The guides of a row, by what it holds in a column."""
        return tuple(_COLUMN.sub(lambda found: value(found[1]).strip() or OTHER, one) for one in self._patterns())

    def wanted(self) -> list[str]:
        """The columns its guides are made of."""
        return [column for one in self._patterns() for column in _COLUMN.findall(one)]

    def met(self, examples: Iterable[Row]) -> tuple[str, ...]:
        """The guides of all these examples, and those of `?`, sorted."""
        found = {name for one in examples for name in one.guides} | set(self._others())
        if len(found) > MOST:
            raise BadInput(f"task.template={self.template} makes {len(found):,} guide tokens, more than {MOST:,}; take columns "
                           "with few different values")  # fmt: skip
        return tuple(sorted(found))

    def beside(self, examples: Sequence[Row], tokenizer: Tokenizer) -> list[Guides]:
        """The ids of each example's guides."""
        if not self.template:
            return [NONE] * len(examples)
        ids, others = {name: _id(name, tokenizer) for name in self.guides}, self._others()
        sizes = [len(part) for part in _parted(self.template, self.slots)]
        made = []
        for one in examples:
            names = zip(one.guides or others, others, strict=True)
            each = iter([ids[name if name in ids else other] for name, other in names])
            made.append(Guides(*(tuple(next(each) for _ in range(size)) for size in sizes)))
        return made

    def _patterns(self) -> list[str]:
        return [one for part in _parted(self.template, self.slots) for one in part]

    def _others(self) -> tuple[str, ...]:
        return tuple(_COLUMN.sub(OTHER, one) for one in self._patterns())


@cache
def _parted(template: str, slots: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The guides before the first text, before the second, and behind the last text that is named."""
    parts: list[tuple[str, ...]] = [(), ()]
    waiting, left = list[str](), list(slots)
    for found in _ITEM.finditer(template):
        if (guide := found["guide"]) and guide not in _RESERVED:
            waiting.append(guide)
        elif found["slot"] in left:
            place = slots.index(found["slot"])
            parts[place], waiting, left = tuple(waiting), [], list(slots[place + 1 :])
        else:
            raise _wrong(template, f"{found[0]} cannot stand there", slots)
    if template and len(left) == len(slots):
        raise _wrong(template, "it names no text", slots)
    return (*parts, tuple(waiting))


def _wrong(template: str, fault: str, slots: tuple[str, ...]) -> BadInput:
    texts = " ".join(f"{{{slot}}}" for slot in slots)
    return BadInput(f"task.template={template}: {fault}; it is made of {texts} in this order and of tokens of your own beside "
                    "them, such as [reply] or, with a column of the file, [speaker={speaker}]")  # fmt: skip


def _id(name: str, tokenizer: Tokenizer) -> int:
    if (number := tokenizer.rust.token_to_id(name)) is None:
        raise BadInput(f"{tokenizer.source} has no guide token {name}; the tokenizer that fine-tuning saved has it")
    return number
