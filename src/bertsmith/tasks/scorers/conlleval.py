"""Entities in tag sequences, and precision, recall and F1 over them as `conlleval` counts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# BMES, BMEWO and BILOU say in other letters what BIOES says.
_PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}


@dataclass(frozen=True, order=True)
class Entity:
    """Tokens from `start` up to, not including, `end`."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """The letter of a tag (B, I, E, S or O) and its type: `M-PER` is ("I", "PER"), `O` and a part of speech ("O", "")."""
    letter, hyphen, name = tag.partition("-")
    known = _PREFIXES.get(letter, "O")
    return (known, name) if known != "O" and bool(hyphen) == bool(name) else ("O", "")


def are_span_tags(tags: Sequence[str]) -> bool:
    """These tags mark stretches of tokens, such as B-PER, I-PER, O (or B, M, E, S of words): they are not parts of speech."""
    if any("-" in tag for tag in tags):
        return all(tag == "O" or ("-" in tag and split_tag(tag)[0] != "O") for tag in tags)
    return set(tags) <= {"O", *_PREFIXES} and bool({"O", "B"} & set(tags))


def get_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, whatever its scheme, whether or not the tags are legal in it.

    As in conlleval, an I after O, or after another type, begins an entity: nothing that is tagged is lost.
    """
    found, start, before = [], 0, ("O", "")
    for place, tag in enumerate([*tags, "O"]):
        here = split_tag(tag)
        if _is_boundary(before, here):
            if before[0] != "O":
                found.append(Entity(start, place, before[1]))
            start = place
        before = here
    return found


def _is_boundary(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """An entity ends or begins between these two neighbours."""
    if previous[1] != current[1] or "O" in (previous[0], current[0]):
        return True
    return current[0] in "BS" or previous[0] in "ES"


@dataclass(frozen=True)
class MatchCounts:
    """What was right, of what was found and what there was."""

    right: int
    found: int
    there: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.there if self.there else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.there) if self.right else 0.0


def count_matches(predictions: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> dict[str, MatchCounts]:
    """Counts for each type of entity, sorted, over sentences of tags; an entity is right if type, start and end are."""
    right, said, there = Counter[str](), Counter[str](), Counter[str]()
    for guess, truth in zip(predictions, gold, strict=True):
        guessed, true = set(get_entities(guess)), set(get_entities(truth))
        right.update(entity.type for entity in guessed & true)
        said.update(entity.type for entity in guessed)
        there.update(entity.type for entity in true)
    return {name: MatchCounts(right[name], said[name], there[name]) for name in sorted(said | there)}


def entity_scores(predictions: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> dict[str, float]:
    """precision, recall, f1 over all entities, and f1 of each type as `f1.PER`; all between 0 and 1."""
    types = count_matches(predictions, gold)
    total = MatchCounts(*(sum(getattr(c, name) for c in types.values()) for name in ("right", "found", "there")))
    each = {f"f1.{name}": counts.f1 for name, counts in types.items() if name}
    return {"f1": total.f1, "precision": total.precision, "recall": total.recall, **each}


def tag_accuracy(predictions: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """Share of the tokens whose whole tag is right; 0 where there are no tokens."""
    right = [a == b for guess, truth in zip(predictions, gold, strict=True) for a, b in zip(guess, truth, strict=True)]
    return sum(right) / len(right) if right else 0.0
