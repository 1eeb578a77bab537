"""Guide tokens: special tokens that a template puts beside the texts of a row, such as [direction=c] for a packet's way."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Protocol

from ..config import Variant
from ..errors import UserError
from ..tokenization.tokenizer import SPECIAL_TOKEN_ALIASES, SPECIAL_TOKENS, Tokenizer

TemplateFiller = Callable[[Callable[[str], str]], tuple[str, ...]]  # the guides of a row, from what it holds in a column

MAX_SPECIAL_TOKENS = 1000  # guide tokens of one task: a column with more values says nothing that repeats
UNKNOWN_VALUE = "?"  # the value that stands for every value training did not meet, and for none at all

_TEMPLATE_ITEM = re.compile(r"(?P<guide>\[[^\[\]]+\])|\{(?P<slot>\w+)\}|(?P<stray>\S)")
_COLUMN = re.compile(r"\{([^{}]+)\}")
_RESERVED = {*SPECIAL_TOKENS, *(alias for names in SPECIAL_TOKEN_ALIASES.values() for alias in names)}


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids that stand before the first text of a sequence, before the second, and behind the last."""

    before_first: tuple[int, ...] = ()
    before_second: tuple[int, ...] = ()
    after_last: tuple[int, ...] = ()

    def max_text_tokens(self, max_length: int, is_pair: bool) -> int:
        """Tokens left for the texts of a sequence, beside its guides, [CLS] and [SEP]."""
        count = len(self.before_first) + len(self.after_last) + (len(self.before_second) if is_pair else 0)
        if (room := max_length - count - (3 if is_pair else 2)) < 2:
            raise UserError(f"{count} guide tokens leave no room for text in {max_length} tokens; take a greater length")
        return room


NO_SPECIAL_TOKENS = SpecialTokenIds()


class HasSpecialTokens(Protocol):
    """An example, as far as its guides go."""

    @property
    def guides(self) -> tuple[str, ...]:
        """Their names in the order of the template; none for a text that came without a row."""


class TemplateTask(Variant, frozen=True):
    """A task whose sequences may hold guide tokens, which no text can spell.

    The template names the texts of a sequence in order; a guide stands before the text it is written before, or at the end.
    What is in braces inside a guide is a column of the file: each of its values has a token. A value that training did
    not meet, none at all and a text without a row have the token of `?`. Guides are never cut off, and are in every window.
    """

    template: Annotated[
        str, "special tokens beside the texts: '[direction={direction}] {text}' has one for each value of that column"
    ] = ""
    guides: Annotated[tuple[str, ...], "the special tokens of the template; learnt from data.train"] = ()

    text_slots: ClassVar[tuple[str, ...]] = ("text", "text_b")  # the texts of a sequence, in order, as a template names them
    global_segment: ClassVar[int | None] = (
        None  # the segment that meets the whole sequence, beside [CLS], in a model of windows
    )

    def fill_template(self, get_value: Callable[[str], str]) -> tuple[str, ...]:
        """The guides of a row, by what it holds in a column."""
        return tuple(
            _COLUMN.sub(lambda found: get_value(found[1]).strip() or UNKNOWN_VALUE, one) for one in self._token_patterns()
        )

    def template_columns(self) -> list[str]:
        """The columns its guides are made of."""
        return [column for one in self._token_patterns() for column in _COLUMN.findall(one)]

    def collect_special_tokens(self, examples: Iterable[HasSpecialTokens]) -> tuple[str, ...]:
        """The guides of all these examples, and those of `?`, sorted."""
        found = {name for one in examples for name in one.guides} | set(self._unknown_tokens())
        if len(found) > MAX_SPECIAL_TOKENS:
            raise UserError(f"task.template={self.template} makes {len(found):,} guide tokens, more than {MAX_SPECIAL_TOKENS:,}; take columns "
                           "with few different values")  # fmt: skip
        return tuple(sorted(found))

    def encode_special_tokens(self, examples: Sequence[HasSpecialTokens], tokenizer: Tokenizer) -> list[SpecialTokenIds]:
        """The ids of each example's guides."""
        if not self.template:
            return [NO_SPECIAL_TOKENS] * len(examples)
        ids, others = {name: _token_id(name, tokenizer) for name in self.guides}, self._unknown_tokens()
        sizes = [len(part) for part in _parse_template(self.template, self.text_slots)]
        made = []
        for one in examples:
            names = zip(one.guides or others, others, strict=True)
            each = iter([ids[name if name in ids else other] for name, other in names])
            made.append(SpecialTokenIds(*(tuple(next(each) for _ in range(size)) for size in sizes)))
        return made

    def _token_patterns(self) -> list[str]:
        return [one for part in _parse_template(self.template, self.text_slots) for one in part]

    def _unknown_tokens(self) -> tuple[str, ...]:
        return tuple(_COLUMN.sub(UNKNOWN_VALUE, one) for one in self._token_patterns())


@cache
def _parse_template(template: str, slots: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The guides before the first text, before the second, and behind the last text that is named."""
    parts: list[tuple[str, ...]] = [(), ()]
    waiting, left = list[str](), list(slots)
    for found in _TEMPLATE_ITEM.finditer(template):
        if (guide := found["guide"]) and guide not in _RESERVED:
            waiting.append(guide)
        elif found["slot"] in left:
            place = slots.index(found["slot"])
            parts[place], waiting, left = tuple(waiting), [], list(slots[place + 1 :])
        else:
            raise _template_error(template, f"{found[0]} cannot stand there", slots)
    if template and len(left) == len(slots):
        raise _template_error(template, "it names no text", slots)
    return (*parts, tuple(waiting))


def _template_error(template: str, problem: str, slots: tuple[str, ...]) -> UserError:
    texts = " ".join(f"{{{slot}}}" for slot in slots)
    return UserError(f"task.template={template}: {problem}; it is made of {texts} in this order and of tokens of your own beside "
                    "them, such as [reply] or, with a column of the file, [speaker={speaker}]")  # fmt: skip


def _token_id(name: str, tokenizer: Tokenizer) -> int:
    if (number := tokenizer.backend_tokenizer.token_to_id(name)) is None:
        raise UserError(f"{tokenizer.source} has no guide token {name}; the tokenizer that fine-tuning saved has it")
    return number
