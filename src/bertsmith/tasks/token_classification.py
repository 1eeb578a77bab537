"""Token classification (NER, part-of-speech tagging): a tag for each token of a sentence.

The first subword of a token carries its label (Devlin et al. 2019, section 5.3). Long sentences are split into windows;
`document_context` adds the surrounding sentences of the document; decoding can be constrained by the tag scheme and a CRF.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, pairwise
from math import fsum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import NonNegInt
from ..errors import UserError
from ..metrics.results import MetricResult, f1_result, ratio_result
from ..tokenization.tables import UTF8
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, LossKind, ModelOutputs, Prediction, RequestFields, TaskHeadType
from .classification import log_frequencies
from .conll_files import Sentence, hide_tag_column, is_conll, is_json_lines, read_sentences
from .entity_mistakes import count_entity_mistakes, find_sentence_mistakes
from .mistakes import Mistake
from .scorers.conlleval import (
    Entity,
    MatchCounts,
    are_span_tags,
    count_matches,
    get_entities,
    split_tag,
)
from .sequences import max_context_window, sliding_windows
from .slicing import SliceMasks, count_masks
from .special_tokens import NO_SPECIAL_TOKENS, TemplateTask
from .table_rows import BadRow, ExampleReader, ExampleRow, is_plain_text, read_examples
from .tag_schemes import TagScheme, detect_scheme, tag_marginals, transition_mask, viterbi_decode
from .words import TokenSubwords, document_context, document_keys, encode_words, join_tokens, sentence_from_text

IGNORE_INDEX = -100  # target of a subword without a label, ignored by the loss
OUTSIDE = "O"
MAX_CHARACTERS, MAX_WORDS = 2_000_000, 500_000  # of a text: a word and its answer take more than a kilobyte of memory

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class TokenClassificationPrediction(Prediction):
    """A tag for each token, its probability, and the spans of tokens that the tags mark.

    `scores` are P(tag | sentence) of each token: the softmax of the logits at its first subword or, with a CRF, the marginal
    probability of the tag over all valid tag sequences (`tag_schemes.tag_marginals`).
    """

    tags: tuple[str, ...]
    entities: tuple[Entity, ...] = ()  # for tags that mark no spans (part-of-speech tags) one per token, except O
    scores: tuple[float, ...] = ()

    def to_entities(self, text: str, offsets: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """`[{"entity_group": "PER", "score": 0.99, "word": "Ada Lovelace", "start": 0, "end": 12}, ...]`.

        `offsets` are the characters [start, end) of each token in `text`; `word` is the text of the span. `score` is the
        mean of the tokens' probabilities, as in transformers' aggregation_strategy. Word segmentation has no entity_group.
        """
        return [self._to_entity(entity, text, offsets) for entity in self.entities]

    def _to_entity(self, entity: Entity, text: str, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
        start, end = offsets[entity.start][0], offsets[entity.end - 1][1]
        score = fsum(self.scores[entity.start : entity.end]) / (entity.end - entity.start)
        group = {"entity_group": entity.type} if entity.type else {}
        return {**group, "score": score, "word": text[start:end], "start": start, "end": end}


@dataclass(frozen=True)
class TokenWindow:
    """The tokens whose logits are taken from a sequence, and the positions of their first subwords in it."""

    tokens: IntArray
    positions: IntArray
    has_ends: tuple[bool, bool] = (True, True)  # contains the first and the last token of its sentence


class TokenClassification(TemplateTask, frozen=True, tag="tag"):
    labels: Annotated[
        tuple[str, ...], "tags in the order of the logits, or a file with one a line; by default sorted, of data.train"
    ] = ()
    scheme: Annotated[TagScheme, "tag scheme; detected in data.train"] = "any"
    constrained_decoding: Annotated[bool, "Viterbi decoding over sequences valid in the tag scheme, instead of argmax"] = True
    long_text: Annotated[Literal["window", "truncate"], "sentences over max_length: overlapping windows, or truncate"] = (
        "window"
    )
    crf: Annotated[bool, "linear-chain CRF on top of the encoder"] = False
    transitions: Annotated[
        tuple[tuple[float, ...], ...],
        "crf: transition scores, row to column; last row: start, last column: end (set by training)",
    ] = ()
    context: Annotated[bool | NonNegInt, "subwords of document context on each side of a sentence; true: fill max_length"] = (
        False
    )
    overlap: Annotated[NonNegInt, "subwords shared by consecutive windows, at most half a window"] = 64
    columns: Annotated[dict[str, str], "column names of tokens, tags and document in the files, or numbers from 0 (CoNLL)"] = (
        msgspec.field(default_factory=dict)
    )
    skip_bad: Annotated[bool, "skip invalid sentences and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "token"
    mistake_order: ClassVar[str] = "the sentences with most errors"
    text_slots: ClassVar[tuple[str, ...]] = ("tokens",)

    def __post_init__(self) -> None:
        size = len(self.labels) + 1
        if self.transitions and [len(row) for row in self.transitions] != [size] * size:
            raise UserError(
                f"transitions: {len(self.labels)} labels need a {size} x {size} matrix; leave it out: it is learned in training"
            )

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    @property
    def loss(self) -> LossKind:
        return "crf" if self.crf else "cross_entropy"

    @property
    def metric_names(self) -> list[str]:
        """Of entities, if the tags mark any; part-of-speech tags have only accuracy."""
        entity_metrics = ["f1", "precision", "recall", *(f"f1.{entity_type}" for entity_type in self.entity_types)]
        return [*(entity_metrics if are_span_tags(self.labels) else ()), "accuracy"]

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[Sentence]:
        return ExampleReader(path, read_sentences(path, self.columns, self.fill_template, encoding), self.skip_bad)

    def fit(self, examples: Sequence[Sentence]) -> "TokenClassification":
        """With sorted labels (or the given ones, which must include all), tag scheme and special tokens."""
        tagged = [example.tags for example in examples if example.tags is not None]
        if not tagged:
            raise UserError("no sentence of data.train has tags; give each token a tag, in the last column or the field `tags`")
        tags = sorted(set(chain.from_iterable(tagged)))
        if self.labels and (unknown := sorted(set(tags) - set(self.labels))):
            first_unknown = next(example for example in examples if unknown[0] in (example.tags or ()))
            matches = get_close_matches(unknown[0], self.labels, n=1)
            hint = f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(self.labels)}"
            raise UserError(f"{first_unknown.location}: the tag {unknown[0]!r} is not in task.labels; {hint}")
        changes = {
            "labels": self.labels or tuple(tags),
            "scheme": detect_scheme(tagged),
            "special_tokens": self.collect_special_tokens(examples),
        }
        return msgspec.structs.replace(self, **changes)

    def encode(self, examples: Sequence[Sentence], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """[CLS] context sentence context [SEP]. Targets: `label`, one per subword of the concatenated sequences.

        All but the first subword of a token, and context, have IGNORE_INDEX. Where windows overlap, a token has its label
        only in the window its prediction is taken from. A tag unknown to the task is ignored here and counts as an error in
        `compute_metrics`. With crf also `whole`, (sequences, 2): contains the first and the last token of the sentence.
        """
        if max_length < 4:
            raise UserError(f"max_length={max_length} leaves no room for a sentence; set 4 or more")
        special_tokens = self.encode_special_tokens(examples, tokenizer)
        encoded, sentence_index, max_tokens = (
            EncodedExamples([], [], np.zeros(0, np.int64)),
            list[int](),
            (special_tokens or [NO_SPECIAL_TOKENS])[0].max_text_tokens(max_length, False),
        )
        subwords = encode_words(examples, tokenizer)
        contexts = document_context(
            subwords, document_keys(examples), max_tokens, max_tokens if self.context is True else self.context
        )
        for index, (sentence, (left, right), special) in enumerate(zip(subwords, contexts, special_tokens, strict=True)):
            before, after = (
                [tokenizer.cls_token_id, *special.before_first, *left],
                [*right, *special.after_last, tokenizer.sep_token_id],
            )
            for ids, window in self._split_windows(sentence, max_tokens):
                encoded.input_ids.append(np.array([*before, *ids, *after], np.int64))
                encoded.token_type_ids.append(np.zeros(len(encoded.input_ids[-1]), np.int64))
                encoded.metadata.append(replace(window, positions=window.positions + len(before) - 1))
                sentence_index.append(index)
        example_index = np.array(sentence_index, np.int64)
        return EncodedExamples(
            encoded.input_ids,
            encoded.token_type_ids,
            example_index,
            self._targets(encoded, example_index, examples),
            encoded.metadata,
        )

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Sentence]
    ) -> list[TokenClassificationPrediction]:
        """Tokens without subwords (control characters) and truncated tokens are tagged O."""
        emissions = [np.full((len(example.tokens), self.num_outputs), np.nan) for example in examples]
        for index, window, logits in zip(encoded.example_index, encoded.metadata, outputs, strict=True):
            emissions[index][window.tokens] = np.asarray(logits)[window.positions]
        return [self._to_prediction(sentence_emissions) for sentence_emissions in emissions]

    def compute_metric_results(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> dict[str, MetricResult]:
        """Entity f1, precision and recall, f1 of each type (as in conlleval), and token accuracy, all of counts per sentence.

        Part-of-speech tags have only accuracy.
        """
        if not examples:
            raise UserError("no sentence has gold tags to evaluate against; give a file with tags")
        self.check_scorable(examples, "")
        pairs = list(zip(*_tag_sequences(predictions, examples), strict=True))
        num_correct = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairs])
        accuracy = ratio_result(num_correct, np.array([len(example.tokens) for example in examples]))
        if not are_span_tags(sorted({*chain.from_iterable(gold for _, gold in pairs), *self.labels})):
            return {"accuracy": accuracy}
        spans = [(set(get_entities(predicted)), set(get_entities(gold))) for predicted, gold in pairs]
        types = sorted({entity.type for pair in spans for entity in chain(*pair)} | set(self.entity_types))
        total, *by_type = (_count_entities(spans, entity_type) for entity_type in (None, *types))
        correct, predicted_count, gold_count = total
        results = {
            "f1": f1_result(*total),
            "precision": ratio_result(correct, predicted_count),
            "recall": ratio_result(correct, gold_count),
        }
        results |= {f"f1.{name}": f1_result(*counts) for name, counts in zip(types, by_type, strict=True) if name}
        return {**results, "accuracy": accuracy}

    def is_labeled(self, example: Sentence) -> bool:
        return example.tags is not None

    def find_unknown_labels(self, examples: Sequence[Sentence]) -> dict[str, list[Sentence]]:
        """In sorted order; an example for each token with the tag."""
        unknown: dict[str, list[Sentence]] = {}
        for example in examples:
            for tag in example.tags or ():
                if tag not in self.labels:
                    unknown.setdefault(tag, []).append(example)
        return dict(sorted(unknown.items()))

    def check_scorable(self, examples: Sequence[Sentence], path: str) -> None:
        """Refuse dev tags that break the training file's span scheme (BIO), with which entities could not be counted.

        A tag that is merely absent from the training file is allowed: it counts as an error of the model.
        """
        new_tags = set(chain.from_iterable(example.tags or () for example in examples)) - set(self.labels)
        invalid_tags = {tag for tag in new_tags if are_span_tags(self.labels) and not are_span_tags([*self.labels, tag])}
        for example in examples if invalid_tags else []:
            if invalid := [tag for tag in example.tags or () if tag in invalid_tags]:
                raise UserError(f"{example.location}: tag {invalid[0]!r} does not follow the tagging scheme of the training "
                               f"file, which has {self.labels[0]!r}; correct it, or use one scheme in both files")  # fmt: skip

    def find_correct(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> NDArray[np.bool_]:
        return np.array(
            [predicted == gold for predicted, gold in zip(*_tag_sequences(predictions, examples), strict=True)], bool
        )

    def find_mistakes(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> list[Mistake]:
        """One per wrong sentence, with its wrong spans highlighted."""
        return [
            Mistake("tags", row.location, row.gold, row.prediction, None, float(row.num_mistakes), [row.spans])
            for row in find_sentence_mistakes(predictions, examples)
        ]

    def count_entity_mistakes(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> list[tuple[str, str, int]]:
        return count_entity_mistakes(predictions, examples)

    def label_pairs(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> tuple[list[str], list[str], list[str]]:
        """Of all tokens."""
        predicted, gold = (list(chain.from_iterable(tags)) for tags in _tag_sequences(predictions, examples))
        return predicted, gold, sorted({*predicted, *gold})

    def label_counts(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> dict[str, MatchCounts]:
        """Of entity types, where tags mark entities."""
        predicted, gold = _tag_sequences(predictions, examples)
        if not are_span_tags(sorted({*chain.from_iterable(gold), *self.labels})):
            return super().label_counts(predictions, examples)
        return {name: counts for name, counts in count_matches(predicted, gold).items() if name}

    def majority_outputs(self, examples: Sequence[Sentence]) -> NDArray[np.float64]:
        return log_frequencies(self.labels, [tag for example in examples for tag in example.tags or ()])

    def target_slices(self, examples: Sequence[Sentence], tokenizer: Tokenizer) -> tuple[str, SliceMasks]:
        counts = [len(get_entities(example.tags or ())) for example in examples]
        slices = {"none": 0, "one": 1, "two or three": 3, "four or more": np.inf}
        return "number of entities", count_masks(counts, list(slices.items()))

    def sequence_length(self, text_lengths: Sequence[int]) -> int:
        """The texts of an example are its tokens."""
        return sum(text_lengths) + 2

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        """A raw text, or its tokens."""
        usage = 'model("Ada was here") or model(tokens=["Ada", "was", "here"])'
        return RequestFields(("tokens",) if "tokens" in names else ("text",), ("tokens",), usage, text_lists=("tokens",))

    def parse_row(self, row: ExampleRow) -> Sentence:
        """A row with `tokens`, or with a raw `text` to be split into tokens; a line of a .txt is a raw text."""
        special_tokens = self.fill_template(row.get_cell)
        if row.get("tokens") is None and isinstance(text := row.get("text"), str):
            _check_length(row, text, "characters", MAX_CHARACTERS)
            sentence = sentence_from_text(text)[0]
            _check_length(row, sentence.tokens, "words", MAX_WORDS)
            return replace(sentence, text=text, id=row.id, special_tokens=special_tokens)
        if not isinstance(tokens := row.require("tokens"), list) or not all(isinstance(token, str) for token in tokens):
            raise row.error("tokens is not a list of texts")
        _check_length(row, tokens, "words", MAX_WORDS)
        location: dict[str, Any] = {"source": str(row.path), "line": row.line, "id": row.id}
        return Sentence(tokens=tuple(tokens), special_tokens=special_tokens, **location)

    def read_requests(self, path: Path, encoding: str = UTF8) -> ExampleReader[Sentence]:
        """Rows of .jsonl with `tokens` or `text`, raw texts, or CoNLL columns with or without tags."""
        if is_json_lines(path) or (is_plain_text(path) and not is_conll(path, self.labels, encoding)):
            return ExampleReader(path, read_examples(path, self._parse_file_row, self.columns, encoding=encoding))
        sentences = read_sentences(path, hide_tag_column(self.columns), self.fill_template, encoding)
        return ExampleReader(path, (row if isinstance(row, BadRow) else replace(row, tags=None) for row in sentences))

    def to_answer(self, prediction: TokenClassificationPrediction, example: Sentence, top_k: int | None = None) -> Any:
        """Entities with character offsets in the raw text, or in the joined tokens."""
        if top_k is not None:
            return prediction.to_answer(top_k)
        return prediction.to_entities(*_text_with_offsets(example))

    def input_texts(self, example: Sentence) -> dict[str, str]:
        return {"text": _text_with_offsets(example)[0]}

    def max_context(self, max_length: int) -> int:
        """Maximum number of context subwords on each side of a sentence."""
        return max_length if self.context is True else min(self.context, max_length)

    @property
    def entity_types(self) -> list[str]:
        """Sorted entity types of the labels."""
        return sorted({split_tag(label)[1] for label in self.labels} - {""})

    def transition_mask(self) -> NDArray[np.bool_] | None:
        """bool (labels + 1, labels + 1), in the layout of `transitions`: valid transitions; None if unconstrained."""
        return None if self.scheme == "any" or not self.constrained_decoding else transition_mask(self.labels, self.scheme)

    def _parse_file_row(self, row: ExampleRow) -> Sentence:
        """Consecutive rows with tokens and the same `document` form a document; a raw text has none."""
        sentence = self.parse_row(row)
        return sentence if sentence.text is not None else replace(sentence, document=str(row.get("document")))

    def _split_windows(self, subwords: TokenSubwords, max_tokens: int) -> list[tuple[list[int], TokenWindow]]:
        flat, counts = list(chain.from_iterable(subwords)), np.array([len(ids) for ids in subwords], np.int64)
        tokens = np.flatnonzero(counts)
        first_subwords = (np.cumsum(counts) - counts)[tokens]
        spans = (
            sliding_windows(len(flat), max_tokens, max_tokens - min(self.overlap, max_tokens // 2))
            if self.long_text == "window"
            else [(0, max_tokens)]
        )
        best_window = max_context_window(spans, len(flat)) if len(spans) > 1 else np.zeros(len(flat), np.int64)
        order = np.argsort(best_window[first_subwords], kind="stable")  # tokens by the window that they are taken from
        bounds = np.searchsorted(best_window[first_subwords][order], np.arange(len(spans) + 1))
        windows = []
        for (start, end), (first, last) in zip(spans, pairwise(bounds), strict=True):
            mine = order[first:last]
            mine = mine[first_subwords[mine] < end]
            has_ends = bool((mine == 0).any()), bool((mine == len(tokens) - 1).any())
            windows.append((flat[start:end], TokenWindow(tokens[mine], first_subwords[mine] - start + 1, has_ends)))
        return windows

    def _targets(self, encoded: EncodedExamples, example_index: IntArray, examples: Sequence[Sentence]) -> dict[str, IntArray]:
        if not self.labels or any(example.tags is None for example in examples):
            return {}
        label_to_id = {label: index for index, label in enumerate(self.labels)}
        label_ids = [
            np.array([label_to_id.get(tag, IGNORE_INDEX) for tag in example.tags or ()], np.int64) for example in examples
        ]
        targets = [np.full(len(ids), IGNORE_INDEX, np.int64) for ids in encoded.input_ids]
        for target, sentence_index, window in zip(targets, example_index, encoded.metadata, strict=True):
            target[window.positions] = label_ids[sentence_index][window.tokens]
        result = {"label": np.concatenate(targets) if targets else np.zeros(0, np.int64)}
        return result | {"has_ends": np.array([window.has_ends for window in encoded.metadata], bool)} if self.crf else result

    def _to_prediction(self, emissions: NDArray[np.float64]) -> TokenClassificationPrediction:
        has_no_logits: NDArray[np.bool_] = np.isnan(emissions[:, :1]).ravel()
        emissions[has_no_logits] = (
            [0.0 if label == OUTSIDE else -np.inf for label in self.labels] if OUTSIDE in self.labels else 0.0
        )
        transitions = np.array(self.transitions) if self.transitions else None
        scheme: TagScheme = self.scheme if self.constrained_decoding else "any"
        path = viterbi_decode(emissions, self.labels, scheme, transitions)
        tags = tuple(
            OUTSIDE if is_outside else self.labels[label] for label, is_outside in zip(path, has_no_logits, strict=True)
        )
        probs = _softmax(emissions) if transitions is None else tag_marginals(emissions, self.labels, scheme, transitions)
        scores = [
            1.0 if is_outside else float(row[label]) for row, label, is_outside in zip(probs, path, has_no_logits, strict=True)
        ]
        return TokenClassificationPrediction(tags, tuple(self._find_entities(tags)), tuple(scores))

    def _find_entities(self, tags: Sequence[str]) -> list[Entity]:
        if are_span_tags(self.labels):
            return get_entities(tags)
        return [Entity(index, index + 1, tag) for index, tag in enumerate(tags) if tag != OUTSIDE]


def _check_length(row: ExampleRow, text: Sequence[str], unit: str, limit: int) -> None:
    if len(text) > limit:
        raise row.error(f"a text of {len(text):,} {unit}; at most {limit:,} are tagged at once: split it")


def _text_with_offsets(sentence: Sentence) -> tuple[str, list[tuple[int, int]]]:
    """The text of a sentence, and the characters [start, end) of each of its tokens."""
    if sentence.text is None:
        return join_tokens(sentence.tokens)
    return sentence.text, sentence_from_text(sentence.text)[1]


def _tag_sequences(
    predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """(predicted, gold) tags of every sentence."""
    return [prediction.tags for prediction in predictions], [example.tags or () for example in examples]


def _count_entities(
    spans: Sequence[tuple[set[Entity], set[Entity]]], entity_type: str | None
) -> tuple[IntArray, IntArray, IntArray]:
    """(correct, predicted, gold) counts, each (sentences,), of one entity type or of all (None)."""
    of_type = [tuple({e for e in side if entity_type in (None, e.type)} for side in pair) for pair in spans]
    counts = [(len(predicted & gold), len(predicted), len(gold)) for predicted, gold in of_type]
    table = np.array(counts, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
