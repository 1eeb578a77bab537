"""Entities of tag sequences and their precision, recall and F1, as counted by `conlleval` (CoNLL-2000/2003)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# BMES, BMEWO and BILOU are BIOES with other letters.
_PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}


@dataclass(frozen=True, order=True)
class Entity:
    """Entity of tokens [start, end)."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix (B, I, E, S or O) and type of a tag: `M-PER` gives ("I", "PER"), `O` and part-of-speech tags ("O", "")."""
    prefix, hyphen, name = tag.partition("-")
    canonical = _PREFIXES.get(prefix, "O")
    return (canonical, name) if canonical != "O" and bool(hyphen) == bool(name) else ("O", "")


def are_span_tags(tags: Sequence[str]) -> bool:
    """Whether tags mark spans of tokens, such as B-PER, I-PER, O (or B, M, E, S for word segmentation), not parts of speech."""
    if any("-" in tag for tag in tags):
        return all(tag == "O" or ("-" in tag and split_tag(tag)[0] != "O") for tag in tags)
    return set(tags) <= {"O", *_PREFIXES} and bool({"O", "B"} & set(tags))


def get_entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of one sentence in any scheme, for valid and invalid tag sequences.

    As in conlleval, an I after O or after another type starts a new entity.
    """
    entities, start, previous = [], 0, ("O", "")
    for position, tag in enumerate([*tags, "O"]):
        current = split_tag(tag)
        if _is_boundary(previous, current):
            if previous[0] != "O":
                entities.append(Entity(start, position, previous[1]))
            start = position
        previous = current
    return entities


def _is_boundary(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether an entity ends or starts between two adjacent tags."""
    if previous[1] != current[1] or "O" in (previous[0], current[0]):
        return True
    return current[0] in "BS" or previous[0] in "ES"


@dataclass(frozen=True)
class MatchCounts:
    """Numbers of correct, predicted and gold entities, and precision, recall and F1."""

    num_correct: int
    num_predicted: int
    num_gold: int

    @property
    def precision(self) -> float:
        return self.num_correct / self.num_predicted if self.num_predicted else 0.0

    @property
    def recall(self) -> float:
        return self.num_correct / self.num_gold if self.num_gold else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.num_correct / (self.num_predicted + self.num_gold) if self.num_correct else 0.0


def count_matches(predictions: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> dict[str, MatchCounts]:
    """Match counts by entity type, sorted; a predicted entity is correct if type, start and end match."""
    num_correct, num_predicted, num_gold = Counter[str](), Counter[str](), Counter[str]()
    for predicted_tags, gold_tags in zip(predictions, gold, strict=True):
        predicted_entities, gold_entities = set(get_entities(predicted_tags)), set(get_entities(gold_tags))
        num_correct.update(entity.type for entity in predicted_entities & gold_entities)
        num_predicted.update(entity.type for entity in predicted_entities)
        num_gold.update(entity.type for entity in gold_entities)
    return {
        name: MatchCounts(num_correct[name], num_predicted[name], num_gold[name]) for name in sorted(num_predicted | num_gold)
    }
