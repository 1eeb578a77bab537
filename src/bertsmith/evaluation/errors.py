"""What is wrong with the tags of a sentence: entities missed, made up, of another type, or with other borders."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np

from ..metrics.scores import average_ranks
from ..tasks import (
    MultipleChoice,
    QuestionAnswering,
    Seq2Seq,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from ..tasks.scorers.conlleval import Entity, are_span_tags, get_entities
from .evaluate import Evaluation

MAX_TOKENS = 120  # tokens of a sentence that are told


@dataclass(frozen=True)
class TextSpan:
    """A stretch of text, and what is to be said of it, if anything."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class EntityMistake:
    kind: str  # missed, made up, wrong type, wrong border, wrong type and border
    gold: Entity | None
    predicted: Entity | None

    @property
    def types(self) -> str:
        """As `PER` or, where another was said, `PER as LOC`."""
        names = [one.type or "word" for one in (self.gold, self.predicted) if one]
        return " as ".join(dict.fromkeys(names))

    @property
    def token_range(self) -> tuple[int, int]:
        """All tokens it is about."""
        both = [one for one in (self.gold, self.predicted) if one]
        return min(one.start for one in both), max(one.end for one in both)


@dataclass(frozen=True)
class SentenceMistakes:
    """A sentence that is not all right."""

    location: str
    gold: str
    prediction: str
    num_mistakes: int
    spans: list[TextSpan]


def find_entity_mistakes(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[EntityMistake]:
    """In the order of the sentence; an entity is told once, with the first of the other side that it overlaps."""
    if predicted_tags == gold_tags:
        return []
    found, there = (
        sorted(set(get_entities(predicted_tags)) - set(get_entities(gold_tags))),
        sorted(set(get_entities(gold_tags)) - set(get_entities(predicted_tags))),
    )
    told = []
    for true in there:
        over = next((one for one in found if one.start < true.end and true.start < one.end), None)
        if over:
            found.remove(over)
        told.append(EntityMistake(_mistake_kind(true, over), true, over))
    return sorted([*told, *(EntityMistake("made up", None, one) for one in found)], key=lambda fault: fault.token_range)


def count_entity_mistakes(predictions: Sequence[Any], examples: Sequence[Any]) -> list[tuple[str, str, int]]:
    """(kind, types, times) of all faults, most frequent first; nothing where tags mark no entities."""
    if not _has_entity_tags(predictions, examples):
        return []
    every = (
        fault for said, one in zip(predictions, examples, strict=True) for fault in find_entity_mistakes(said.tags, one.tags)
    )
    return [(*name, times) for name, times in Counter((fault.kind, fault.types) for fault in every).most_common()]


def find_sentence_mistakes(predictions: Sequence[Any], examples: Sequence[Any]) -> list[SentenceMistakes]:
    """Every sentence with a fault; where tags mark no entities, a wrong tag is a fault."""
    spans = _has_entity_tags(predictions, examples)
    rows = []
    for said, one in zip(predictions, examples, strict=True):
        if said.tags == one.tags:
            continue
        marks = _entity_marks(said.tags, one.tags) if spans else _tag_marks(said.tags, one.tags)
        if marks:
            told = _format_entities(one.tokens, one.tags, spans), _format_entities(one.tokens, said.tags, spans)
            rows.append(SentenceMistakes(one.location, *told, len(marks), _highlight_sentence(one.tokens, marks)))
    return rows


def _mistake_kind(gold: Entity, predicted: Entity | None) -> str:
    if predicted is None:
        return "missed"
    if (predicted.start, predicted.end) == (gold.start, gold.end):
        return "wrong type"
    return "wrong border" if predicted.type == gold.type else "wrong type and border"


def _has_entity_tags(predictions: Sequence[Any], examples: Sequence[Any]) -> bool:
    return are_span_tags(sorted({*chain.from_iterable(one.tags for one in (*predictions, *examples))}))


def _entity_marks(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[tuple[int, int, str]]:
    return [(*fault.token_range, f"{fault.kind}: {fault.types}") for fault in find_entity_mistakes(predicted_tags, gold_tags)]


def _tag_marks(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[tuple[int, int, str]]:
    pairs = enumerate(zip(predicted_tags, gold_tags, strict=True))
    return [(place, place + 1, f"{true} as {given}") for place, (given, true) in pairs if given != true]


def _format_entities(tokens: Sequence[str], tags: Sequence[str], has_entities: bool) -> str:
    """Entities as `PER Kim Young` one after another; of parts of speech nothing, since the text shows them."""
    if not has_entities:
        return ""
    found = [f"{one.type} {join_tokens(tokens[one.start : one.end])}".strip() for one in get_entities(tags)]
    return ", ".join(found) or "nothing"


def _highlight_sentence(tokens: Sequence[str], marks: list[tuple[int, int, str]]) -> list[TextSpan]:
    """The sentence with its marks, from the first on if it is very long; a token has one mark."""
    first = max(0, marks[0][0] - MAX_TOKENS // 4) if len(tokens) > MAX_TOKENS else 0
    last = min(len(tokens), first + MAX_TOKENS)
    owner = [""] * len(tokens)
    for number, (start, end, mark) in enumerate(marks):
        owner[start:end] = [f"{number} {mark}"] * (end - start)
    spans = [TextSpan("… ")] if first else []
    for mark, group in groupby(range(first, last), key=lambda place: owner[place]):
        places = list(group)
        before = token_separator(tokens[places[0] - 1], tokens[places[0]]) if places[0] > first else ""
        spans += [TextSpan(before)] * bool(before) + [
            TextSpan(join_tokens([tokens[i] for i in places]), mark.partition(" ")[2])
        ]
    return spans + [TextSpan(" …")] * (last < len(tokens))


def join_tokens(tokens: Sequence[str]) -> str:
    """Tokens as a text: with spaces, but none between Chinese characters."""
    return "".join(chain.from_iterable((token_separator(tokens[i - 1], one) if i else "", one) for i, one in enumerate(tokens)))


def token_separator(before: str, after: str) -> str:
    return "" if _is_cjk(before[-1:]) and _is_cjk(after[:1]) else " "


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"


MAX_TEXT_CHARS = 600  # characters of a text that are told
PASSAGE_CONTEXT_CHARS = 160  # characters of a passage on each side of an answer


@dataclass(frozen=True)
class Mistake:
    """`loss` orders them: nats for labels, distance for numbers, faults for tags, how sure and how wrong for answers."""

    kind: str
    place: str
    truth: str
    answer: str
    confidence: float | None
    loss: float
    texts: list[list[TextSpan]]


def find_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """All of them, worst first; equals in the order of the file."""
    kinds: dict[type, Callable[[Evaluation], list[Mistake]]] = {
        TextClassification: _label_mistakes, TextRegression: _regression_mistakes, TextSimilarity: _similarity_mistakes, TokenClassification: _tag_mistakes, QuestionAnswering: _answer_mistakes, MultipleChoice: _choice_mistakes,
        Seq2Seq: _generation_mistakes,
    }  # fmt: skip
    return sorted(kinds[type(evaluation.task)](evaluation), key=lambda one: -one.loss)


def _label_mistakes(evaluation: Evaluation) -> list[Mistake]:
    task, found = evaluation.task, []
    assert isinstance(task, TextClassification)
    for said, one in zip(evaluation.predictions, evaluation.examples, strict=True):
        if task.many:
            true = {label.strip() for label in one.label.split("|")} - {""}
            wrong, given = true.symmetric_difference(said.labels), " | ".join(said.labels)
            loss = sum(-np.log(max(said.scores[n] if n in true else 1 - said.scores[n], 1e-12)) for n in task.labels)
            sure = max((abs(said.scores[n] - (n in true)) for n in wrong), default=None)
        else:
            wrong, given = {said.label} - {one.label}, said.label
            loss, sure = -np.log(max(said.scores[one.label], 1e-12)), said.scores[said.label]
        if wrong:
            found.append(
                Mistake(
                    "label", one.location, one.label or "no label", given or "no label", sure, float(loss), _example_texts(one)
                )
            )
    return found


def _choice_mistakes(evaluation: Evaluation) -> list[Mistake]:
    found = []
    for said, one in zip(evaluation.predictions, evaluation.examples, strict=True):
        if said.choice != one.label:
            loss = float(-np.log(max(said.scores[one.label], 1e-12)))
            texts = [[TextSpan(_truncate(text))] for text in (one.context, one.question) if text]
            truth, sure = one.options[one.label], said.scores[said.choice]
            found.append(Mistake("option", one.location, _truncate(truth), _truncate(said.option), sure, loss, texts))
    return found


def _regression_mistakes(evaluation: Evaluation) -> list[Mistake]:
    pairs = zip(evaluation.predictions, evaluation.examples, strict=True)
    return [Mistake("number", one.location, f"{one.label:.4g}", f"{said.value:.4g}", None, abs(said.value - one.label), _example_texts(one))
            for said, one in pairs]  # fmt: skip


def _similarity_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """Cosines and scores are on two scales: what counts is how far apart their ranks are."""
    said, true = (np.array([one.score for one in side]) for side in (evaluation.predictions, evaluation.examples))
    apart = np.abs(average_ranks(said) - average_ranks(true)) / max(len(said) - 1, 1)
    rows = zip(said, true, apart, evaluation.examples, strict=True)
    return [
        Mistake("rank", one.location, f"{t:.4g}", f"{s:.4g}", None, float(far), _example_texts(one)) for s, t, far, one in rows
    ]


def _tag_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """A sentence each: the faults are marked where they stand."""
    return [
        Mistake("tags", one.location, one.gold, one.prediction, None, float(one.num_mistakes), [one.spans])
        for one in find_sentence_mistakes(evaluation.predictions, evaluation.examples)
    ]


def _answer_mistakes(evaluation: Evaluation) -> list[Mistake]:
    task, found = evaluation.task, []
    assert isinstance(task, QuestionAnswering)
    for said, one, f1 in zip(
        evaluation.predictions,
        evaluation.examples,
        task.per_example_scores(evaluation.predictions, evaluation.examples)[1],
        strict=True,
    ):
        if f1 < 1:
            kind = "missed" if not said.text else "made up" if not one.answers else "partly right" if f1 else "wrong"
            truth = " / ".join(dict.fromkeys(one.answers)) or "no answer"
            texts = [[TextSpan(one.question)], _highlight_passage(said, one)]
            found.append(
                Mistake(kind, one.location, truth, said.text or "no answer", said.score, float(1 - f1) * said.score, texts)
            )
    return found


def _generation_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """By how little of the longest common subsequence there is."""
    task, found = evaluation.task, []
    assert isinstance(task, Seq2Seq)
    scores = task.per_example_scores(evaluation.predictions, evaluation.examples)
    for said, one, shared, same in zip(
        evaluation.predictions, evaluation.examples, scores["rougeL"], scores["exact"], strict=True
    ):
        if not same:
            found.append(
                Mistake(
                    "text",
                    one.location,
                    _truncate(one.target),
                    _truncate(said.text),
                    None,
                    float(1 - shared),
                    _example_texts(one),
                )
            )
    return found


def _highlight_passage(prediction: Any, example: Any) -> list[TextSpan]:
    """The passage around what was said and what is true; where they overlap, both marks are one."""
    marks = [(*example.span, "true")] if example.span else []
    if prediction.start is not None:
        marks.append((prediction.start, prediction.end, "said"))
    marks.sort()
    if len(marks) == 2 and marks[0][1] > marks[1][0]:
        marks = [(marks[0][0], max(marks[0][1], marks[1][1]), "both")]
    if not marks:
        return [TextSpan(_truncate(example.context))]
    spans, at = [], max(0, marks[0][0] - PASSAGE_CONTEXT_CHARS)
    spans += [TextSpan("… ")] if at else []
    for start, end, mark in marks:
        gap = example.context[at:start]
        spans.append(
            TextSpan(
                gap
                if len(gap) <= 2 * PASSAGE_CONTEXT_CHARS
                else f"{gap[:PASSAGE_CONTEXT_CHARS]} … {gap[-PASSAGE_CONTEXT_CHARS:]}"
            )
        )
        spans.append(TextSpan(example.context[start:end], mark))
        at = end
    rest = example.context[at:]
    return [*spans, TextSpan(rest if len(rest) <= PASSAGE_CONTEXT_CHARS else f"{rest[:PASSAGE_CONTEXT_CHARS]} …")]


def _example_texts(example: Any) -> list[list[TextSpan]]:
    return [[TextSpan(_truncate(text))] for text in (example.text, getattr(example, "text_b", None)) if text is not None]


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]} … ({len(text):,} characters)"
