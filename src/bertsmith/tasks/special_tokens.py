"""Special tokens of a template: inserted beside the texts of a sequence, with values from the columns of a row.

For example `[direction={direction}] {text}` puts the token [direction=c] before the text of a row with direction "c".
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Protocol

from ..errors import UserError
from ..tokenization.tokenizer import SPECIAL_TOKEN_ALIASES, SPECIAL_TOKENS, Tokenizer
from .base import Task

TemplateFiller = Callable[[Callable[[str], str]], tuple[str, ...]]  # special tokens of a row, given a function column -> value

MAX_SPECIAL_TOKENS = 1000  # per task: a column with more values has hardly any that repeat
UNKNOWN_VALUE = "?"  # stands for values not seen in training and for missing values

_TEMPLATE_ITEM = re.compile(r"(?P<token>\[[^\[\]]+\])|\{(?P<slot>\w+)\}|(?P<stray>\S)")
_COLUMN = re.compile(r"\{([^{}]+)\}")
_RESERVED = {*SPECIAL_TOKENS, *(alias for names in SPECIAL_TOKEN_ALIASES.values() for alias in names)}


@dataclass(frozen=True)
class SpecialTokenIds:
    """Ids inserted before the first text of a sequence, before the second one, and after the last one."""

    before_first: tuple[int, ...] = ()
    before_second: tuple[int, ...] = ()
    after_last: tuple[int, ...] = ()

    def max_text_tokens(self, max_length: int, is_pair: bool) -> int:
        """Tokens left for the texts of a sequence of `max_length`, besides these tokens, [CLS] and [SEP]."""
        num_special = len(self.before_first) + len(self.after_last) + (len(self.before_second) if is_pair else 0)
        if (num_left := max_length - num_special - (3 if is_pair else 2)) < 2:
            raise UserError(f"max_length={max_length} leaves no room for text after {num_special} special tokens; raise it")
        return num_left


NO_SPECIAL_TOKENS = SpecialTokenIds()


class HasSpecialTokens(Protocol):
    """The part of an example that holds its special tokens."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Special tokens of the example, in the order of the template; empty for a text that does not come from a row."""


class TemplateTask(Task, frozen=True):
    """A task whose sequences may contain special tokens from a template; plain text never tokenizes to them.

    The template lists the texts of a sequence in order; a special token is inserted before the text it precedes, or at the
    end. A name in braces inside a token is a column of the file, and each of its values gets a token. Values not seen in
    training, missing values and texts without a row get the token of `?`. Special tokens are in every window and are
    never truncated.
    """

    template: Annotated[str, "special tokens from columns of the file, for example '[direction={direction}] {text}'"] = ""
    special_tokens: Annotated[tuple[str, ...], "special tokens of the template (set by training, from data.train)"] = ()

    text_slots: ClassVar[tuple[str, ...]] = ("text", "text_b")  # names of the texts of a sequence, in order

    def fill_template(self, get_value: Callable[[str], str]) -> tuple[str, ...]:
        """Special tokens of a row, given a function column -> value."""
        return tuple(
            _COLUMN.sub(lambda match: get_value(match[1]).strip() or UNKNOWN_VALUE, pattern)
            for pattern in self._token_patterns()
        )

    def template_columns(self) -> list[str]:
        """Columns used in the template."""
        return [column for pattern in self._token_patterns() for column in _COLUMN.findall(pattern)]

    def collect_special_tokens(self, examples: Iterable[HasSpecialTokens]) -> tuple[str, ...]:
        """All special tokens of the examples and those of `?`, sorted."""
        tokens = {token for example in examples for token in example.special_tokens} | set(self._unknown_tokens())
        if len(tokens) > MAX_SPECIAL_TOKENS:
            raise UserError(
                f"task.template={self.template} makes {len(tokens):,} special tokens, more than {MAX_SPECIAL_TOKENS:,}; "
                "use columns with few different values"
            )
        return tuple(sorted(tokens))

    def encode_special_tokens(self, examples: Sequence[HasSpecialTokens], tokenizer: Tokenizer) -> list[SpecialTokenIds]:
        """Ids of the special tokens of each example."""
        if not self.template:
            return [NO_SPECIAL_TOKENS] * len(examples)
        ids, unknown = {token: _token_id(token, tokenizer) for token in self.special_tokens}, self._unknown_tokens()
        counts = [len(part) for part in _parse_template(self.template, self.text_slots)]
        encoded = []
        for example in examples:
            pairs = zip(example.special_tokens or unknown, unknown, strict=True)
            token_ids = iter([ids[token if token in ids else fallback] for token, fallback in pairs])
            encoded.append(SpecialTokenIds(*(tuple(next(token_ids) for _ in range(count)) for count in counts)))
        return encoded

    def _token_patterns(self) -> list[str]:
        return [pattern for part in _parse_template(self.template, self.text_slots) for pattern in part]

    def _unknown_tokens(self) -> tuple[str, ...]:
        return tuple(_COLUMN.sub(UNKNOWN_VALUE, pattern) for pattern in self._token_patterns())


@cache
def _parse_template(template: str, slots: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Token patterns before the first text, before the second one, and after the last text of the template."""
    parts: list[tuple[str, ...]] = [(), ()]
    pending, remaining = list[str](), list(slots)
    for match in _TEMPLATE_ITEM.finditer(template):
        if (token := match["token"]) and token not in _RESERVED:
            pending.append(token)
        elif match["slot"] in remaining:
            slot = slots.index(match["slot"])
            parts[slot], pending, remaining = tuple(pending), [], list(slots[slot + 1 :])
        else:
            raise _template_error(template, f"{match[0]} is not allowed there", slots)
    if template and len(remaining) == len(slots):
        raise _template_error(template, "it contains no text", slots)
    return (*parts, tuple(pending))


def _template_error(template: str, problem: str, slots: tuple[str, ...]) -> UserError:
    texts = " ".join(f"{{{slot}}}" for slot in slots)
    return UserError(
        f"task.template={template}: {problem}; a template has {texts} in this order and special tokens between them, "
        "such as [reply] or, with the value of a column, [speaker={speaker}]"
    )


def _token_id(token: str, tokenizer: Tokenizer) -> int:
    if (token_id := tokenizer.backend_tokenizer.token_to_id(token)) is None:
        raise UserError(f"{tokenizer.source} has no special token {token}; use the tokenizer saved with the fine-tuned model")
    return token_id
