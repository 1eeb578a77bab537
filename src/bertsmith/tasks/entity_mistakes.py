"""Wrong entities and tags of tagged sentences: missed, spurious, or with a wrong type or boundary."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from .mistakes import TextSpan
from .scorers.conlleval import Entity, are_span_tags, get_entities

MAX_TOKENS = 120  # tokens of a sentence that are shown


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
