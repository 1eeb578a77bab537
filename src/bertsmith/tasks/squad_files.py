"""Read SQuAD and CMRC JSON, or rows of .jsonl and .parquet: questions, contexts and answers with verified character offsets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..tokenization.files import read_decompressed
from ..tokenization.tables import UTF8, find_lone_surrogate, is_json, normalize_encoding
from .base import Example
from .special_tokens import TemplateFiller
from .table_rows import SKIP_HINT, BadRow, ExampleRow, read_rows

_FORMAT_HINT = "give SQuAD's JSON: data > paragraphs > context and qas > id, question, answers > text, answer_start"


@dataclass(frozen=True, kw_only=True)
class QuestionAnsweringExample(Example):
    """A question and its context; `line` is the number of the question in the file, from 1."""

    question: str
    context: str
    answers: tuple[str, ...] | None = None  # None: not known; empty: no answer in the context
    span: tuple[int, int] | None = None  # characters [start, end) of the first answer found in the context

    @property
    def texts(self) -> list[str]:
        return [self.question, self.context]

    @property
    def location(self) -> str:
        return f"{self.source}, question {self.id}" if self.source else "a question"


def read_questions(
    path: Path,
    no_answer: bool | None,
    fill_template: TemplateFiller = lambda value: (),
    encoding: str = UTF8,
) -> Iterator[QuestionAnsweringExample | BadRow]:
    """Every question of a file, or a BadRow in its place; a question without an answer is an error unless `no_answer`.

    The file is SQuAD's JSON, or has a row per question as in Hugging Face's datasets (.jsonl, .parquet): `question`,
    `context` and `answers`, {"text": [...], "answer_start": [...]}.

    With `no_answer=None` answers are ignored. If an answer is not at its `answer_start`, the nearest occurrence is used.
    Template columns are fields of the question, its paragraph or its article.
    """
    for number, records in _read_records(path, encoding):
        if isinstance(records, BadRow):
            yield records
            continue
        try:
            if problem := find_lone_surrogate([records[0], records[1].get("context")]):
                raise _bad_question(path, number, records[0], problem)
            example = _parse_question(path, number, records[1], records[0], no_answer)
            yield replace(example, special_tokens=fill_template(partial(_lookup_field, path, number, records)))
        except BadRow as error:
            yield error


def find_answer_start(context: str, answer: str, start: int) -> int | None:
    """Offset of `answer` in the context: `start` if it is there, else the nearest occurrence; None if there is none."""
    if start >= 0 and context.startswith(answer, start):
        return start
    after = context.find(answer, max(start, 0))
    before = context.rfind(answer, 0, max(start, 0) + len(answer))
    candidates = [offset for offset in (before, after) if offset >= 0]
    return min(candidates, key=lambda offset: abs(offset - start), default=None)


def _lookup_field(path: Path, number: int, records: list[dict[str, Any]], name: str) -> str:
    for record in records:
        if name in record:
            value = record[name]
            return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    raise _bad_question(path, number, records[0], f"the question, its paragraph and its article have no field {name!r}")


def _parse_question(path: Path, number: int, paragraph: Any, qa: Any, no_answer: bool | None) -> QuestionAnsweringExample:
    if not isinstance(qa, dict) or not isinstance(qa.get("question"), str):
        raise _bad_question(path, number, qa, "`question` is missing or not a text")
    if not isinstance(paragraph.get("context"), str):
        raise _bad_question(path, number, qa, "`context` is missing in its paragraph, or not a text")
    if no_answer is None:
        qa = {name: value for name, value in qa.items() if name not in ("answers", "is_impossible")}
    context, question_id = paragraph["context"], str(qa.get("id", number))
    answers = None if qa.get("answers") is None else _parse_answers(path, number, qa)
    if qa.get("is_impossible"):
        answers = []
    if answers == [] and not no_answer:
        raise UserError(
            f"{path}, question {question_id} has no answer, as in SQuAD 2.0; set task.no_answer=true to train on such questions"
        )
    span = _answer_span(context, answers or [])
    if answers and span is None:
        raise _bad_question(path, number, qa, f"its answer {answers[0][0][:60]!r} does not occur in the context")
    texts = None if answers is None else tuple(text for text, _ in answers)
    return QuestionAnsweringExample(
        question=qa["question"],
        context=context,
        id=question_id,
        answers=texts,
        span=span,
        source=str(path),
        line=number,
    )


def _parse_answers(path: Path, number: int, qa: dict[str, Any]) -> list[tuple[str, int]]:
    answers = []
    for answer in _split_answers(qa["answers"]):
        fields = answer if isinstance(answer, dict) else {}
        text, start = fields.get("text"), fields.get("answer_start", -1)
        if not isinstance(text, str) or not isinstance(start, int):
            raise _bad_question(path, number, qa, "its answers are not objects with `text` and `answer_start`")
        answers.append((text, start))
    return answers


def _split_answers(answers: Any) -> list[Any]:
    """A list of {"text", "answer_start"}, also from one with lists of all texts and starts, as datasets on the hub have it."""
    if isinstance(answers, dict) and isinstance(texts := answers.get("text"), list):
        starts = answers.get("answer_start")
        starts = starts if isinstance(starts, list) and len(starts) == len(texts) else [-1] * len(texts)
        return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    return answers if isinstance(answers, list) else [answers]


def _answer_span(context: str, answers: list[tuple[str, int]]) -> tuple[int, int] | None:
    for text, answer_start in answers:
        if text.strip() and (start := find_answer_start(context, text, answer_start)) is not None:
            return start, start + len(text)
    return None


def _read_records(path: Path, encoding: str) -> Iterator[tuple[int, Any]]:
    """(number from 1, [question, paragraph, article]) of every question; of a table its line and [row, row], or a BadRow."""
    if _is_table(path):
        for row in read_rows(path, encoding=encoding):
            yield (row.line, [row.values, row.values]) if isinstance(row, ExampleRow) else (0, row)
        return
    number = 0
    for article in _require_list(_load_json(path, encoding), "data", path, "the file"):
        for paragraph in _require_list(article, "paragraphs", path, "an article"):
            for qa in _require_list(paragraph, "qas", path, "a paragraph"):
                number += 1
                yield number, [qa, paragraph, article]


def _is_table(path: Path) -> bool:
    try:
        return is_json(path)
    except UserError:  # SQuAD files have any suffix
        return False


def _load_json(path: Path, encoding: str) -> Any:
    name = normalize_encoding(encoding)
    try:
        data = b"".join(data for data, _ in read_decompressed(path, name.startswith(("utf-16", "utf-32"))))
        return json.loads(data.decode(name).removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {name.upper()} at byte {error.start:,}; {_FORMAT_HINT}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}; {_FORMAT_HINT}") from None


def _require_list(value: Any, name: str, path: Path, parent: str) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(name), list):
        raise UserError(f"{path}: {parent} has no list `{name}`; {_FORMAT_HINT}")
    return value[name]


def _bad_question(path: Path, number: int, qa: Any, problem: str) -> BadRow:
    question_id = qa.get("id", f"number {number:,}") if isinstance(qa, dict) else f"number {number:,}"
    return BadRow(f"{path}, question {question_id}: {problem}; fix it, or skip such questions with {SKIP_HINT}")
