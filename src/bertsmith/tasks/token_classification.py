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

from ..config import NonNegInt
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, ModelOutputs, Prediction, TaskHeadType, encode_texts, max_context_window, sliding_windows
from .conll_files import Sentence, read_sentences
from .scorers.conlleval import Entity, are_span_tags, entity_scores, get_entities, split_tag, tag_accuracy
from .special_tokens import NO_SPECIAL_TOKENS, TemplateTask
from .table_rows import ExampleReader
from .tag_schemes import TagScheme, detect_scheme, transition_mask, viterbi_decode

TokenSubwords = list[list[int]]  # the ids of each token of a sentence


def document_context(
    sentences: Sequence[TokenSubwords], documents: Sequence[Hashable], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    """For each sentence the ids before it and after it: whole tokens of its own document, `most` ids a side.

    Sentences that follow one another with the same document are its sentences. The room a sentence leaves is halved, and
    what one side cannot fill the other takes; a sentence that fills the room has nothing around it.
    """
    numbered = groupby(range(len(sentences)), documents.__getitem__)
    for _, numbers in numbered:
        yield from _context_in_document([sentences[number] for number in numbers], max_tokens, max_context)


def _context_in_document(
    sentences: Sequence[TokenSubwords], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    flat = list(chain.from_iterable(chain.from_iterable(sentences)))
    borders = np.cumsum([0, *(len(ids) for tokens in sentences for ids in tokens)])
    end = 0
    for tokens in sentences:
        start, end = end, end + sum(map(len, tokens))
        left, right = _split_budget(
            min(start, max_context), min(len(flat) - end, max_context), max(0, max_tokens - (end - start))
        )
        first = int(borders[np.searchsorted(borders, start - left)])
        last = int(borders[np.searchsorted(borders, end + right, "right") - 1])
        yield flat[first:start], flat[end:last]


def _split_budget(available_before: int, available_after: int, budget: int) -> tuple[int, int]:
    left = min(available_before, max(budget // 2, budget - available_after))
    return left, min(available_after, budget - left)


IGNORE_INDEX = -100  # the target of a piece that carries no label; no label and no token id
OUTSIDE = "O"

IntArray = NDArray[np.int64]

_SURROGATES = re.compile("[\ud800-\udfff]")
_HAN = Regex(r"\p{Han}")
_PRE_TOKENIZER = pre_tokenizers.Sequence([pre_tokenizers.Split(_HAN, "isolated"), pre_tokenizers.BertPreTokenizer()])


@dataclass(frozen=True)
class TokenClassificationPrediction(Prediction):
    """A tag for every token, and the entities they mark (none where tags are parts of speech)."""

    tags: tuple[str, ...]
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True)
class TokenWindow:
    """Which tokens a sequence gives the scores of, and where in it their first pieces stand."""

    tokens: IntArray
    positions: IntArray
    has_ends: tuple[bool, bool] = (True, True)  # it has the first token of its sentence, and the last


class TokenClassification(TemplateTask, frozen=True, tag="tag"):
    labels: Annotated[
        tuple[str, ...], "the tags, in the order of the scores; those of the training file if none are given"
    ] = ()
    scheme: Annotated[TagScheme, "what may follow what; found in the training file"] = "any"
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
        bool | NonNegInt, "pieces of the document shown on each side of a sentence, or true: as many as the length has room for"
    ] = False
    overlap: Annotated[NonNegInt, "pieces that neighbouring windows share, at most half of them"] = 64
    columns: Annotated[dict[str, str], "the file's own names of tokens, tags, document, or numbers from 0"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out and count sentences that cannot be read"] = False

    head_type: ClassVar[TaskHeadType] = "token"
    text_slots: ClassVar[tuple[str, ...]] = ("tokens",)

    def __post_init__(self) -> None:
        wide = len(self.labels) + 1
        if self.moves and [len(row) for row in self.moves] != [wide] * wide:
            raise UserError(
                f"moves: {len(self.labels)} labels take {wide} rows of {wide} numbers; they are learnt, leave them out"
            )

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def read(self, path: Path) -> ExampleReader[Sentence]:
        return ExampleReader(path, read_sentences(path, self.columns, self.fill_template), self.skip_bad)

    def fit(self, examples: Sequence[Sentence]) -> "TokenClassification":
        """Knows its labels, sorted (or those it was given, which must be all), its scheme and its guide tokens."""
        tagged = [example.tags for example in examples if example.tags is not None]
        if not tagged:
            raise UserError("no sentence of the training file has tags; give each token a tag in the last column")
        found = sorted(set(chain.from_iterable(tagged)))
        if self.labels and (new := sorted(set(found) - set(self.labels))):
            where = next(example for example in examples if new[0] in (example.tags or ()))
            near = get_close_matches(new[0], self.labels, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.labels)}"
            raise UserError(f"{where.location}: the tag {new[0]!r} is none of task.labels; {meant}")
        known = {
            "labels": self.labels or tuple(found),
            "scheme": detect_scheme(tagged),
            "guides": self.collect_special_tokens(examples),
        }
        return msgspec.structs.replace(self, **known)

    def encode(self, examples: Sequence[Sentence], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """Targets: `label`, one for each token of all sequences, one after another; IGNORED but for first pieces.

        Where windows overlap, a token has its label in the one its answer comes from, so it counts once. A tag that
        training did not know cannot be learnt: it is ignored here, and a miss to `judge`. With crf also `whole`: whether
        each sequence has the first token of its sentence, and the last. Context has no labels.
        """
        if max_length < 4:
            raise UserError(f"sequences of {max_length} tokens leave no room for a sentence; take a length of 4 or more")
        guides = self.encode_special_tokens(examples, tokenizer)
        encoded, owners, room = (
            EncodedExamples([], [], np.zeros(0, np.int64)),
            list[int](),
            (guides or [NO_SPECIAL_TOKENS])[0].max_text_tokens(max_length, False),
        )
        pieces = encode_words(examples, tokenizer)
        around = document_context(pieces, _document_keys(examples), room, room if self.context is True else self.context)
        for number, (sentence, (left, right), guide) in enumerate(zip(pieces, around, guides, strict=True)):
            before, after = (
                [tokenizer.cls_token_id, *guide.before_first, *left],
                [*right, *guide.after_last, tokenizer.sep_token_id],
            )
            for ids, window in self._split_windows(sentence, room):
                encoded.input_ids.append(np.array([*before, *ids, *after], np.int64))
                encoded.token_type_ids.append(np.zeros(len(encoded.input_ids[-1]), np.int64))
                encoded.metadata.append(replace(window, positions=window.positions + len(before) - 1))
                owners.append(number)
        example = np.array(owners, np.int64)
        return EncodedExamples(
            encoded.input_ids, encoded.token_type_ids, example, self._targets(encoded, example, examples), encoded.metadata
        )

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Sentence]
    ) -> list[TokenClassificationPrediction]:
        """Tokens without a piece of their own (control characters) and tokens that were cut off are tagged O."""
        rows = [np.full((len(example.tokens), self.num_outputs), np.nan) for example in examples]
        for owner, window, given in zip(encoded.example_index, encoded.metadata, outputs, strict=True):
            rows[owner][window.tokens] = np.asarray(given)[window.positions]
        return [self._to_prediction(one) for one in rows]

    def compute_metrics(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> dict[str, float]:
        """f1, precision, recall of entities and f1 of each type as conlleval gives them, and accuracy over tokens.

        Parts of speech have accuracy alone. Sentences without tags are not judged.
        """
        judged = [
            (said.tags, example.tags) for said, example in zip(predictions, examples, strict=True) if example.tags is not None
        ]
        if not judged:
            raise UserError("no sentence has tags to be judged by")
        said, gold = zip(*judged, strict=True)
        spans = are_span_tags(sorted(set(chain.from_iterable(gold)) | set(self.labels)))
        if not spans:
            return {"accuracy": tag_accuracy(said, gold)}
        found = entity_scores(said, gold)
        for name in self.entity_types:
            found.setdefault(f"f1.{name}", 0.0)  # neither there nor found: every file has the same scores
        return {**found, "accuracy": tag_accuracy(said, gold)}

    def max_context(self, max_length: int) -> int:
        """How many pieces of its document a sentence may be shown on one side, at most."""
        return max_length if self.context is True else min(self.context, max_length)

    @property
    def entity_types(self) -> list[str]:
        """What entities its labels name, sorted."""
        return sorted({split_tag(label)[1] for label in self.labels} - {""})

    def transition_mask(self) -> NDArray[np.bool_] | None:
        """(labels + 1, labels + 1), in the order of `moves`: what may follow what; None where anything may."""
        return None if self.scheme == "any" or not self.legal else transition_mask(self.labels, self.scheme)

    def _split_windows(self, subwords: TokenSubwords, max_tokens: int) -> list[tuple[list[int], TokenWindow]]:
        flat, counts = list(chain.from_iterable(subwords)), np.array([len(ids) for ids in subwords], np.int64)
        tokens = np.flatnonzero(counts)
        firsts = (np.cumsum(counts) - counts)[tokens]
        spans = (
            sliding_windows(len(flat), max_tokens, max_tokens - min(self.overlap, max_tokens // 2))
            if self.long == "window"
            else [(0, max_tokens)]
        )
        owner = max_context_window(spans, len(flat)) if len(spans) > 1 else np.zeros(len(flat), np.int64)
        parts = []
        for number, (start, end) in enumerate(spans):
            mine = (owner[firsts] == number) & (firsts < end)
            whole = bool(mine[:1].any()), bool(mine[-1:].any())
            parts.append((flat[start:end], TokenWindow(tokens[mine], firsts[mine] - start + 1, whole)))
        return parts

    def _targets(self, encoded: EncodedExamples, example_index: IntArray, examples: Sequence[Sentence]) -> dict[str, IntArray]:
        if not self.labels or any(example.tags is None for example in examples):
            return {}
        numbers = {label: number for number, label in enumerate(self.labels)}
        known = [np.array([numbers.get(tag, IGNORE_INDEX) for tag in example.tags or ()], np.int64) for example in examples]
        targets = [np.full(len(ids), IGNORE_INDEX, np.int64) for ids in encoded.input_ids]
        for target, owner, window in zip(targets, example_index, encoded.metadata, strict=True):
            target[window.positions] = known[owner][window.tokens]
        label = {"label": np.concatenate(targets) if targets else np.zeros(0, np.int64)}
        return label | {"whole": np.array([window.has_ends for window in encoded.metadata], bool)} if self.crf else label

    def _to_prediction(self, emissions: NDArray[np.float64]) -> TokenClassificationPrediction:
        blind: NDArray[np.bool_] = np.isnan(emissions[:, :1]).ravel()
        emissions[blind] = [0.0 if label == OUTSIDE else -np.inf for label in self.labels] if OUTSIDE in self.labels else 0.0
        moves = np.array(self.moves) if self.moves else None
        path = viterbi_decode(emissions, self.labels, self.scheme if self.legal else "any", moves)
        tags = tuple(OUTSIDE if unseen else self.labels[label] for label, unseen in zip(path, blind, strict=True))
        return TokenClassificationPrediction(tags, tuple(get_entities(tags)) if are_span_tags(self.labels) else ())


def sentence_from_text(text: str) -> tuple[Sentence, list[tuple[int, int]]]:
    """A raw text as a sentence that stands alone, and the characters [start, end) of each of its tokens.

    Tokens are those of BERT's own splitting: words, each mark of punctuation, each Chinese character.
    """
    legible = _SURROGATES.sub("\ufffd", text)  # one for one: no offset moves
    found = [span for _, span in _PRE_TOKENIZER.pre_tokenize_str(legible)]
    return Sentence(tokens=tuple(text[start:end] for start, end in found)), found


def encode_words(examples: Sequence[Sentence], tokenizer: Tokenizer) -> list[TokenSubwords]:
    """The ids of every token; a word is tokenised once, however often it comes."""
    texts = [
        _add_space_prefix(example.tokens) if tokenizer.has_space_prefixed_tokens else list(example.tokens)
        for example in examples
    ]
    words = list(dict.fromkeys(chain.from_iterable(texts)))
    known = dict(zip(words, encode_texts(words, tokenizer), strict=True))
    return [[known[text] for text in one] for one in texts]


def _document_keys(examples: Sequence[Sentence]) -> list[Hashable]:
    """What tells the documents of sentences apart: one without a document is its own."""
    return [n if one.document_id is None else one.document_id for n, one in enumerate(examples)]


def _add_space_prefix(tokens: Sequence[str]) -> list[str]:
    """Tokens with the space before them that such a tokenizer expects; Chinese has none."""
    pairs = pairwise(["", *tokens])
    return [f" {here}" if before and not (_is_cjk(before[-1]) or _is_cjk(here[:1])) else here for before, here in pairs]


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef" or character >= "\U00020000"
