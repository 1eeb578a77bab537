"""What stands around a sentence in its document, as far as a sequence has room for it."""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from ..config import Whole
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer
from .base import Answer, Encoded, Head, Scores, ids_of, most_context, windows
from .conll_files import Sentence, sentences
from .scorers.conlleval import Entity, accuracy, entities, marks_spans, parted, scores
from .special_tokens import NONE, Guided
from .table_rows import Kept
from .tag_schemes import Scheme, allowed, best_path, scheme_of

Pieces = list[list[int]]  # the ids of each token of a sentence


def neighbours(
    sentences: Sequence[Pieces], documents: Sequence[Hashable], room: int, most: int
) -> Iterator[tuple[list[int], list[int]]]:
    """For each sentence the ids before it and after it: whole tokens of its own document, `most` ids a side.

    Sentences that follow one another with the same document are its sentences. The room a sentence leaves is halved, and
    what one side cannot fill the other takes; a sentence that fills the room has nothing around it.
    """
    numbered = groupby(range(len(sentences)), documents.__getitem__)
    for _, numbers in numbered:
        yield from _within([sentences[number] for number in numbers], room, most)


def _within(sentences: Sequence[Pieces], room: int, most: int) -> Iterator[tuple[list[int], list[int]]]:
    flat = list(chain.from_iterable(chain.from_iterable(sentences)))
    borders = np.cumsum([0, *(len(ids) for tokens in sentences for ids in tokens)])
    end = 0
    for tokens in sentences:
        start, end = end, end + sum(map(len, tokens))
        left, right = _shared(min(start, most), min(len(flat) - end, most), max(0, room - (end - start)))
        first = int(borders[np.searchsorted(borders, start - left)])
        last = int(borders[np.searchsorted(borders, end + right, "right") - 1])
        yield flat[first:start], flat[end:last]


def _shared(before: int, after: int, spare: int) -> tuple[int, int]:
    left = min(before, max(spare // 2, spare - after))
    return left, min(after, spare - left)


IGNORED = -100  # the target of a piece that carries no label; no label and no token id
OUTSIDE = "O"

Ints = NDArray[np.int64]

_SURROGATES = re.compile("[\ud800-\udfff]")
_HAN = Regex(r"\p{Han}")
_SPLITTING = pre_tokenizers.Sequence([pre_tokenizers.Split(_HAN, "isolated"), pre_tokenizers.BertPreTokenizer()])


@dataclass(frozen=True)
class Tagged(Answer):
    """A tag for every token, and the entities they mark (none where tags are parts of speech)."""

    tags: tuple[str, ...]
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True)
class Window:
    """Which tokens a sequence gives the scores of, and where in it their first pieces stand."""

    tokens: Ints
    places: Ints
    whole: tuple[bool, bool] = (True, True)  # it has the first token of its sentence, and the last


class Tag(Guided, frozen=True):
    labels: Annotated[
        tuple[str, ...], "the tags, in the order of the scores; those of the training file if none are given"
    ] = ()
    scheme: Annotated[Scheme, "what may follow what; found in the training file"] = "any"
    legal: Annotated[bool, "answer with the best legal tags, not with the best tag of each token"] = True
    long: Annotated[Literal["window", "truncate"], "a sentence longer than the model: windows stitched together, or cut"] = (
        "window"
    )
    crf: Annotated[bool, "learn which tag follows which, and answer with the best sequence of tags"] = False
    moves: Annotated[
        tuple[tuple[float, ...], ...],
        "crf: what a tag (row) adds to the next (column), learnt; the last row begins a sentence, the last column ends it",
    ] = ()
    context: Annotated[
        bool | Whole, "pieces of the document shown on each side of a sentence, or true: as many as the length has room for"
    ] = False
    overlap: Annotated[Whole, "pieces that neighbouring windows share, at most half of them"] = 64
    columns: Annotated[dict[str, str], "the file's own names of tokens, tags, document, or numbers from 0"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out and count sentences that cannot be read"] = False

    head: ClassVar[Head] = "token"
    slots: ClassVar[tuple[str, ...]] = ("tokens",)

    def __post_init__(self) -> None:
        wide = len(self.labels) + 1
        if self.moves and [len(row) for row in self.moves] != [wide] * wide:
            raise BadInput(
                f"moves: {len(self.labels)} labels take {wide} rows of {wide} numbers; they are learnt, leave them out"
            )

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def read(self, path: Path) -> Kept[Sentence]:
        return Kept(path, sentences(path, self.columns, self.named), self.skip_bad)

    def fitted(self, examples: Sequence[Sentence]) -> "Tag":
        """Knows its labels, sorted (or those it was given, which must be all), its scheme and its guide tokens."""
        tagged = [example.tags for example in examples if example.tags is not None]
        if not tagged:
            raise BadInput("no sentence of the training file has tags; give each token a tag in the last column")
        found = sorted(set(chain.from_iterable(tagged)))
        if self.labels and (new := sorted(set(found) - set(self.labels))):
            where = next(example for example in examples if new[0] in (example.tags or ()))
            near = get_close_matches(new[0], self.labels, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.labels)}"
            raise BadInput(f"{where.place}: the tag {new[0]!r} is none of task.labels; {meant}")
        known = {"labels": self.labels or tuple(found), "scheme": scheme_of(tagged), "guides": self.met(examples)}
        return msgspec.structs.replace(self, **known)

    def encode(self, examples: Sequence[Sentence], tokenizer: Tokenizer, length: int) -> Encoded:
        """Targets: `label`, one for each token of all sequences, one after another; IGNORED but for first pieces.

        Where windows overlap, a token has its label in the one its answer comes from, so it counts once. A tag that
        training did not know cannot be learnt: it is ignored here, and a miss to `judge`. With crf also `whole`: whether
        each sequence has the first token of its sentence, and the last. Context has no labels.
        """
        if length < 4:
            raise BadInput(f"sequences of {length} tokens leave no room for a sentence; take a length of 4 or more")
        guides = self.beside(examples, tokenizer)
        encoded, owners, room = Encoded([], [], np.zeros(0, np.int64)), list[int](), (guides or [NONE])[0].room(length, False)
        pieces = pieces_of(examples, tokenizer)
        around = neighbours(pieces, _documents(examples), room, room if self.context is True else self.context)
        for number, (sentence, (left, right), guide) in enumerate(zip(pieces, around, guides, strict=True)):
            before, after = [tokenizer.cls, *guide.first, *left], [*right, *guide.last, tokenizer.sep]
            for ids, window in self._windowed(sentence, room):
                encoded.ids.append(np.array([*before, *ids, *after], np.int64))
                encoded.segments.append(np.zeros(len(encoded.ids[-1]), np.int64))
                encoded.facts.append(replace(window, places=window.places + len(before) - 1))
                owners.append(number)
        example = np.array(owners, np.int64)
        return Encoded(encoded.ids, encoded.segments, example, self._targets(encoded, example, examples), encoded.facts)

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Sentence]) -> list[Tagged]:
        """Tokens without a piece of their own (control characters) and tokens that were cut off are tagged O."""
        rows = [np.full((len(example.tokens), self.outputs), np.nan) for example in examples]
        for owner, window, given in zip(encoded.example, encoded.facts, scores, strict=True):
            rows[owner][window.tokens] = np.asarray(given)[window.places]
        return [self._tagged(one) for one in rows]

    def judge(self, answers: Sequence[Tagged], examples: Sequence[Sentence]) -> dict[str, float]:
        """f1, precision, recall of entities and f1 of each type as conlleval gives them, and accuracy over tokens.

        Parts of speech have accuracy alone. Sentences without tags are not judged.
        """
        judged = [
            (said.tags, example.tags) for said, example in zip(answers, examples, strict=True) if example.tags is not None
        ]
        if not judged:
            raise BadInput("no sentence has tags to be judged by")
        said, gold = zip(*judged, strict=True)
        spans = marks_spans(sorted(set(chain.from_iterable(gold)) | set(self.labels)))
        if not spans:
            return {"accuracy": accuracy(said, gold)}
        found = scores(said, gold)
        for name in self.types:
            found.setdefault(f"f1.{name}", 0.0)  # neither there nor found: every file has the same scores
        return {**found, "accuracy": accuracy(said, gold)}

    def reach(self, length: int) -> int:
        """How many pieces of its document a sentence may be shown on one side, at most."""
        return length if self.context is True else min(self.context, length)

    @property
    def types(self) -> list[str]:
        """What entities its labels name, sorted."""
        return sorted({parted(label)[1] for label in self.labels} - {""})

    def allowed(self) -> NDArray[np.bool_] | None:
        """(labels + 1, labels + 1), in the order of `moves`: what may follow what; None where anything may."""
        return None if self.scheme == "any" or not self.legal else allowed(self.labels, self.scheme)

    def _windowed(self, pieces: Pieces, room: int) -> list[tuple[list[int], Window]]:
        flat, counts = list(chain.from_iterable(pieces)), np.array([len(ids) for ids in pieces], np.int64)
        tokens = np.flatnonzero(counts)
        firsts = (np.cumsum(counts) - counts)[tokens]
        spans = windows(len(flat), room, room - min(self.overlap, room // 2)) if self.long == "window" else [(0, room)]
        owner = most_context(spans, len(flat)) if len(spans) > 1 else np.zeros(len(flat), np.int64)
        parts = []
        for number, (start, end) in enumerate(spans):
            mine = (owner[firsts] == number) & (firsts < end)
            whole = bool(mine[:1].any()), bool(mine[-1:].any())
            parts.append((flat[start:end], Window(tokens[mine], firsts[mine] - start + 1, whole)))
        return parts

    def _targets(self, encoded: Encoded, owners: Ints, examples: Sequence[Sentence]) -> dict[str, Ints]:
        if not self.labels or any(example.tags is None for example in examples):
            return {}
        numbers = {label: number for number, label in enumerate(self.labels)}
        known = [np.array([numbers.get(tag, IGNORED) for tag in example.tags or ()], np.int64) for example in examples]
        targets = [np.full(len(ids), IGNORED, np.int64) for ids in encoded.ids]
        for target, owner, window in zip(targets, owners, encoded.facts, strict=True):
            target[window.places] = known[owner][window.tokens]
        label = {"label": np.concatenate(targets) if targets else np.zeros(0, np.int64)}
        return label | {"whole": np.array([window.whole for window in encoded.facts], bool)} if self.crf else label

    def _tagged(self, rows: NDArray[np.float64]) -> Tagged:
        blind: NDArray[np.bool_] = np.isnan(rows[:, :1]).ravel()
        rows[blind] = [0.0 if label == OUTSIDE else -np.inf for label in self.labels] if OUTSIDE in self.labels else 0.0
        moves = np.array(self.moves) if self.moves else None
        path = best_path(rows, self.labels, self.scheme if self.legal else "any", moves)
        tags = tuple(OUTSIDE if unseen else self.labels[label] for label, unseen in zip(path, blind, strict=True))
        return Tagged(tags, tuple(entities(tags)) if marks_spans(self.labels) else ())


def sentence_of(text: str) -> tuple[Sentence, list[tuple[int, int]]]:
    """A raw text as a sentence that stands alone, and the characters [start, end) of each of its tokens.

    Tokens are those of BERT's own splitting: words, each mark of punctuation, each Chinese character.
    """
    legible = _SURROGATES.sub("\ufffd", text)  # one for one: no offset moves
    found = [span for _, span in _SPLITTING.pre_tokenize_str(legible)]
    return Sentence(tokens=tuple(text[start:end] for start, end in found)), found


def pieces_of(examples: Sequence[Sentence], tokenizer: Tokenizer) -> list[Pieces]:
    """The ids of every token; a word is tokenised once, however often it comes."""
    texts = [_spaced(example.tokens) if tokenizer.joins_spaces else list(example.tokens) for example in examples]
    words = list(dict.fromkeys(chain.from_iterable(texts)))
    known = dict(zip(words, ids_of(words, tokenizer), strict=True))
    return [[known[text] for text in one] for one in texts]


def _documents(examples: Sequence[Sentence]) -> list[Hashable]:
    """What tells the documents of sentences apart: one without a document is its own."""
    return [n if one.within is None else one.within for n, one in enumerate(examples)]


def _spaced(tokens: Sequence[str]) -> list[str]:
    """Tokens with the space before them that such a tokenizer expects; Chinese has none."""
    pairs = pairwise(["", *tokens])
    return [f" {here}" if before and not (_east(before[-1]) or _east(here[:1])) else here for before, here in pairs]


def _east(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef" or character >= "\U00020000"
