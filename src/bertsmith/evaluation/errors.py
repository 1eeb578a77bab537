"""Error analysis: the wrong predictions of an evaluation by decreasing loss, for every task.

- `find_mistakes`: all wrong predictions with their texts, sorted by loss.
- `find_entity_mistakes`, `count_entity_mistakes`: entities that are missed, spurious, or have a wrong type or boundary.
- `find_sentence_mistakes`: tagged sentences with their wrong spans highlighted.
"""

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
from ..tasks.base import TableByTask
from ..tasks.scorers.conlleval import Entity, are_span_tags, get_entities
from .evaluate import Evaluation

MAX_TOKENS = 120  # tokens of a sentence that are shown
MAX_TEXT_CHARS = 600  # characters of a text that are shown
PASSAGE_CONTEXT_CHARS = 160  # characters of a passage on each side of an answer


@dataclass(frozen=True)
class TextSpan:
    """A span of a text; `mark` is gold, predicted, both, what is wrong with an entity, or empty for plain text."""

    text: str
    mark: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction: its location in the data, the gold answer, the prediction, and the texts.

    Mistakes are sorted by `loss`: NLL in nats for labels and options, absolute error for numbers, rank difference for
    similarity, number of wrong spans for tags, (1 - F1) * confidence for answers, 1 - ROUGE-L for generated texts.
    """

    kind: str
    location: str
    gold: str
    prediction: str
    confidence: float | None
    loss: float
    texts: list[list[TextSpan]]


@dataclass(frozen=True)
class EntityMistake:
    """An entity that is only in the gold tags, only in the predicted ones, or in both with another type or boundary."""

    kind: str  # missed, spurious, wrong type, wrong boundary, wrong type and boundary
    gold: Entity | None
    predicted: Entity | None

    @property
    def types(self) -> str:
        """`PER`, or `PER as LOC` where gold and predicted types differ."""
        names = [entity.type or "word" for entity in (self.gold, self.predicted) if entity]
        return " as ".join(dict.fromkeys(names))

    @property
    def token_range(self) -> tuple[int, int]:
        """[start, end) of the tokens that the gold and the predicted entity cover together."""
        entities = [entity for entity in (self.gold, self.predicted) if entity]
        return min(entity.start for entity in entities), max(entity.end for entity in entities)


@dataclass(frozen=True)
class SentenceMistakes:
    """A sentence with at least one wrong entity or tag; `gold` and `prediction` list its entities."""

    location: str
    gold: str
    prediction: str
    num_mistakes: int
    spans: list[TextSpan]


def find_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """All wrong predictions by decreasing loss; ties in the order of the examples."""
    finders = TableByTask[Callable[[Evaluation], list[Mistake]]](
        {
            TextClassification: _label_mistakes,
            TextRegression: _regression_mistakes,
            TextSimilarity: _similarity_mistakes,
            TokenClassification: _tag_mistakes,
            QuestionAnswering: _answer_mistakes,
            MultipleChoice: _choice_mistakes,
            Seq2Seq: _generation_mistakes,
        }
    )
    return sorted(finders[type(evaluation.task)](evaluation), key=lambda mistake: -mistake.loss)


def find_entity_mistakes(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[EntityMistake]:
    """In sentence order; each wrong gold entity is paired with the first wrong predicted entity that overlaps it."""
    if predicted_tags == gold_tags:
        return []
    predicted, gold = set(get_entities(predicted_tags)), set(get_entities(gold_tags))
    only_predicted, only_gold = sorted(predicted - gold), sorted(gold - predicted)
    mistakes = []
    for entity in only_gold:
        overlapping = next((other for other in only_predicted if other.start < entity.end and entity.start < other.end), None)
        if overlapping:
            only_predicted.remove(overlapping)
        mistakes.append(EntityMistake(_mistake_kind(entity, overlapping), entity, overlapping))
    mistakes += [EntityMistake("spurious", None, entity) for entity in only_predicted]
    return sorted(mistakes, key=lambda mistake: mistake.token_range)


def count_entity_mistakes(predictions: Sequence[Any], examples: Sequence[Any]) -> list[tuple[str, str, int]]:
    """(kind, types, count) of all entity mistakes, most frequent first; empty where tags mark no entities."""
    if not _has_entity_tags(predictions, examples):
        return []
    mistakes = (
        mistake
        for prediction, example in zip(predictions, examples, strict=True)
        for mistake in find_entity_mistakes(prediction.tags, example.tags)
    )
    counts = Counter((mistake.kind, mistake.types) for mistake in mistakes)
    return [(*kind_and_types, count) for kind_and_types, count in counts.most_common()]


def find_sentence_mistakes(predictions: Sequence[Any], examples: Sequence[Any]) -> list[SentenceMistakes]:
    """Every sentence with a wrong entity, or with a wrong tag where tags mark no entities."""
    has_entities = _has_entity_tags(predictions, examples)
    rows = []
    for prediction, example in zip(predictions, examples, strict=True):
        if prediction.tags == example.tags:
            continue
        find_marks = _entity_marks if has_entities else _tag_marks
        if marks := find_marks(prediction.tags, example.tags):
            gold, predicted = (_format_entities(example.tokens, x.tags, has_entities) for x in (example, prediction))
            highlighted = _highlight_sentence(example.tokens, marks)
            rows.append(SentenceMistakes(example.location, gold, predicted, len(marks), highlighted))
    return rows


def _label_mistakes(evaluation: Evaluation) -> list[Mistake]:
    task, mistakes = evaluation.task, []
    assert isinstance(task, TextClassification)
    for pred, example in zip(evaluation.predictions, evaluation.examples, strict=True):
        if task.multi_label:
            gold = {label.strip() for label in example.label.split("|")} - {""}
            wrong, predicted = gold.symmetric_difference(pred.labels), " | ".join(pred.labels)
            loss = sum(-np.log(max(pred.scores[n] if n in gold else 1 - pred.scores[n], 1e-12)) for n in task.labels)
            confidence = max((abs(pred.scores[n] - (n in gold)) for n in wrong), default=None)
        else:
            wrong, predicted = {pred.label} - {example.label}, pred.label
            loss, confidence = -np.log(max(pred.scores[example.label], 1e-12)), pred.scores[pred.label]
        if wrong:
            label, predicted = example.label or "no label", predicted or "no label"
            texts = _example_texts(example)
            mistakes.append(Mistake("label", example.location, label, predicted, confidence, float(loss), texts))
    return mistakes


def _choice_mistakes(evaluation: Evaluation) -> list[Mistake]:
    mistakes = []
    for pred, example in zip(evaluation.predictions, evaluation.examples, strict=True):
        if pred.choice != example.label:
            loss = float(-np.log(max(pred.scores[example.label], 1e-12)))
            texts = [[TextSpan(_truncate(text))] for text in (example.context, example.question) if text]
            gold, predicted = _truncate(example.options[example.label]), _truncate(example.options[pred.choice])
            mistakes.append(Mistake("option", example.location, gold, predicted, pred.scores[pred.choice], loss, texts))
    return mistakes


def _regression_mistakes(evaluation: Evaluation) -> list[Mistake]:
    mistakes = []
    for pred, example in zip(evaluation.predictions, evaluation.examples, strict=True):
        gold, predicted = f"{example.label:.4g}", f"{pred.score:.4g}"
        error = abs(pred.score - example.label)
        mistakes.append(Mistake("number", example.location, gold, predicted, None, error, _example_texts(example)))
    return mistakes


def _similarity_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """By the difference of ranks, in [0, 1], since cosines and gold scores are on different scales."""
    predicted, gold = (np.array([x.score for x in side]) for side in (evaluation.predictions, evaluation.examples))
    rank_errors = np.abs(average_ranks(predicted) - average_ranks(gold)) / max(len(predicted) - 1, 1)
    return [
        Mistake("rank", example.location, f"{g:.4g}", f"{p:.4g}", None, float(error), _example_texts(example))
        for p, g, error, example in zip(predicted, gold, rank_errors, evaluation.examples, strict=True)
    ]


def _tag_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """One per wrong sentence, with its wrong spans highlighted."""
    return [
        Mistake("tags", row.location, row.gold, row.prediction, None, float(row.num_mistakes), [row.spans])
        for row in find_sentence_mistakes(evaluation.predictions, evaluation.examples)
    ]


def _answer_mistakes(evaluation: Evaluation) -> list[Mistake]:
    task, mistakes = evaluation.task, []
    assert isinstance(task, QuestionAnswering)
    f1_scores = task.per_example_scores(evaluation.predictions, evaluation.examples)[1]
    for pred, example, f1 in zip(evaluation.predictions, evaluation.examples, f1_scores, strict=True):
        if f1 < 1:
            kind = "missed" if not pred.answer else "spurious" if not example.answers else "partial match" if f1 else "wrong"
            gold, predicted = " / ".join(dict.fromkeys(example.answers)) or "no answer", pred.answer or "no answer"
            texts = [[TextSpan(example.question)], _highlight_passage(pred, example)]
            loss = float(1 - f1) * pred.score
            mistakes.append(Mistake(kind, example.location, gold, predicted, pred.score, loss, texts))
    return mistakes


def _generation_mistakes(evaluation: Evaluation) -> list[Mistake]:
    """Outputs that are not an exact match, by 1 - ROUGE-L."""
    task, mistakes = evaluation.task, []
    assert isinstance(task, Seq2Seq)
    scores = task.per_example_scores(evaluation.predictions, evaluation.examples)
    for pred, example, rouge_l, exact in zip(
        evaluation.predictions, evaluation.examples, scores["rougeL"], scores["exact"], strict=True
    ):
        if not exact:
            gold, predicted, texts = _truncate(example.target), _truncate(pred.generated_text), _example_texts(example)
            mistakes.append(Mistake("text", example.location, gold, predicted, None, float(1 - rouge_l), texts))
    return mistakes


def _highlight_passage(prediction: Any, example: Any) -> list[TextSpan]:
    """The passage around the gold and the predicted answer; overlapping answers are marked as one."""
    marks = [(*example.span, "gold")] if example.span else []
    if prediction.answer:
        marks.append((prediction.start, prediction.end, "predicted"))
    marks.sort()
    if len(marks) == 2 and marks[0][1] > marks[1][0]:
        marks = [(marks[0][0], max(marks[0][1], marks[1][1]), "both")]
    if not marks:
        return [TextSpan(_truncate(example.context))]
    spans, at = [], max(0, marks[0][0] - PASSAGE_CONTEXT_CHARS)
    spans += [TextSpan("… ")] if at else []
    for start, end, mark in marks:
        gap = example.context[at:start]
        if len(gap) > 2 * PASSAGE_CONTEXT_CHARS:
            gap = f"{gap[:PASSAGE_CONTEXT_CHARS]} … {gap[-PASSAGE_CONTEXT_CHARS:]}"
        spans += [TextSpan(gap), TextSpan(example.context[start:end], mark)]
        at = end
    rest = example.context[at:]
    return [*spans, TextSpan(rest if len(rest) <= PASSAGE_CONTEXT_CHARS else f"{rest[:PASSAGE_CONTEXT_CHARS]} …")]


def _example_texts(example: Any) -> list[list[TextSpan]]:
    return [[TextSpan(_truncate(text))] for text in (example.text, getattr(example, "text_b", None)) if text is not None]


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]} … ({len(text):,} characters)"


def _mistake_kind(gold: Entity, predicted: Entity | None) -> str:
    if predicted is None:
        return "missed"
    if (predicted.start, predicted.end) == (gold.start, gold.end):
        return "wrong type"
    return "wrong boundary" if predicted.type == gold.type else "wrong type and boundary"


def _has_entity_tags(predictions: Sequence[Any], examples: Sequence[Any]) -> bool:
    return are_span_tags(sorted({*chain.from_iterable(sentence.tags for sentence in (*predictions, *examples))}))


def _entity_marks(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(start, end, annotation) of every wrong entity."""
    mistakes = find_entity_mistakes(predicted_tags, gold_tags)
    return [(*mistake.token_range, f"{mistake.kind}: {mistake.types}") for mistake in mistakes]


def _tag_marks(predicted_tags: Sequence[str], gold_tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(start, end, annotation) of every wrong tag."""
    pairs = enumerate(zip(predicted_tags, gold_tags, strict=True))
    return [(i, i + 1, f"{gold} as {predicted}") for i, (predicted, gold) in pairs if predicted != gold]


def _format_entities(tokens: Sequence[str], tags: Sequence[str], has_entities: bool) -> str:
    """`PER Kim Young, LOC Rome`; empty where tags mark no entities, since the highlighted text shows those tags."""
    if not has_entities:
        return ""
    entities = [f"{entity.type} {_join_tokens(tokens[entity.start : entity.end])}".strip() for entity in get_entities(tags)]
    return ", ".join(entities) or "no entity"


def _highlight_sentence(tokens: Sequence[str], marks: list[tuple[int, int, str]]) -> list[TextSpan]:
    """The sentence as spans, cut around its first mark if longer than MAX_TOKENS; a token has at most one mark."""
    first = max(0, marks[0][0] - MAX_TOKENS // 4) if len(tokens) > MAX_TOKENS else 0
    last = min(len(tokens), first + MAX_TOKENS)
    token_marks = [""] * len(tokens)  # numbered, so that adjacent spans with equal marks are not merged
    for number, (start, end, mark) in enumerate(marks):
        token_marks[start:end] = [f"{number} {mark}"] * (end - start)
    spans = [TextSpan("… ")] if first else []
    for mark, group in groupby(range(first, last), key=lambda i: token_marks[i]):
        positions = list(group)
        separator = _token_separator(tokens[positions[0] - 1], tokens[positions[0]]) if positions[0] > first else ""
        text = _join_tokens([tokens[i] for i in positions])
        spans += [TextSpan(separator)] * bool(separator) + [TextSpan(text, mark.partition(" ")[2])]
    return spans + [TextSpan(" …")] * (last < len(tokens))


def _join_tokens(tokens: Sequence[str]) -> str:
    """Joined by spaces, but not between Chinese characters."""
    parts = ((_token_separator(tokens[i - 1], token) if i else "", token) for i, token in enumerate(tokens))
    return "".join(chain.from_iterable(parts))


def _token_separator(before: str, after: str) -> str:
    return "" if _is_cjk(before[-1:]) and _is_cjk(after[:1]) else " "


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"
