"""Token classification (NER, part-of-speech tagging): a tag for each token of a sentence.

The first subword of a token carries its label (Devlin et al. 2019, section 5.3). Long sentences are split into windows;
`document_context` adds the surrounding sentences of the document; decoding can be constrained by the tag scheme and a CRF.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from ..config import NonNegInt
from ..errors import UserError
from ..tokenization.tables import UTF8
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, ModelOutputs, Prediction, TaskHeadType, encode_texts, max_context_window, sliding_windows
from .conll_files import Sentence, read_sentences
from .scorers.conlleval import Entity, are_span_tags, entity_scores, get_entities, split_tag, tag_accuracy
from .special_tokens import NO_SPECIAL_TOKENS, TemplateTask
from .table_rows import ExampleReader
from .tag_schemes import TagScheme, detect_scheme, tag_marginals, transition_mask, viterbi_decode

TokenSubwords = list[list[int]]  # subword ids of each token of a sentence
IGNORE_INDEX = -100  # target of a subword without a label, ignored by the loss
OUTSIDE = "O"

IntArray = NDArray[np.int64]

_SURROGATES = re.compile("[\ud800-\udfff]")
_HAN = Regex(r"\p{Han}")
_PRE_TOKENIZER = pre_tokenizers.Sequence([pre_tokenizers.Split(_HAN, "isolated"), pre_tokenizers.BertPreTokenizer()])


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
        score = float(np.mean(self.scores[entity.start : entity.end]))
        group = {"entity_group": entity.type} if entity.type else {}
        return {**group, "score": score, "word": text[start:end], "start": start, "end": end}


@dataclass(frozen=True)
class TokenWindow:
    """The tokens whose logits are taken from a sequence, and the positions of their first subwords in it."""

    tokens: IntArray
    positions: IntArray
    has_ends: tuple[bool, bool] = (True, True)  # contains the first and the last token of its sentence


class TokenClassification(TemplateTask, frozen=True, tag="tag"):
    labels: Annotated[tuple[str, ...], "tags, in the order of the logits; by default the sorted tags of data.train"] = ()
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
            subwords, _document_keys(examples), max_tokens, max_tokens if self.context is True else self.context
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

    def compute_metrics(
        self, predictions: Sequence[TokenClassificationPrediction], examples: Sequence[Sentence]
    ) -> dict[str, float]:
        """Entity f1, precision and recall, f1 of each type (as in conlleval), and token accuracy.

        Part-of-speech tags have only accuracy. Sentences without tags are left out.
        """
        pairs = [
            (predicted.tags, example.tags)
            for predicted, example in zip(predictions, examples, strict=True)
            if example.tags is not None
        ]
        if not pairs:
            raise UserError("no sentence has gold tags to evaluate against; give a file with tags")
        predicted, gold = zip(*pairs, strict=True)
        is_span_task = are_span_tags(sorted(set(chain.from_iterable(gold)) | set(self.labels)))
        if not is_span_task:
            return {"accuracy": tag_accuracy(predicted, gold)}
        metrics = entity_scores(predicted, gold)
        for name in self.entity_types:
            metrics.setdefault(f"f1.{name}", 0.0)  # so that every file has the same metrics
        return {**metrics, "accuracy": tag_accuracy(predicted, gold)}

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
        windows = []
        for index, (start, end) in enumerate(spans):
            is_mine = (best_window[first_subwords] == index) & (first_subwords < end)
            has_ends = bool(is_mine[:1].any()), bool(is_mine[-1:].any())
            windows.append((flat[start:end], TokenWindow(tokens[is_mine], first_subwords[is_mine] - start + 1, has_ends)))
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


def sentence_from_text(text: str) -> tuple[Sentence, list[tuple[int, int]]]:
    """A raw text as a sentence without document, and the characters [start, end) of each token.

    Tokens are those of BERT's basic tokenizer: words, punctuation characters, Chinese characters.
    """
    clean = _SURROGATES.sub("\ufffd", text)  # same length, so that offsets stay valid
    spans = [span for _, span in _PRE_TOKENIZER.pre_tokenize_str(clean)]
    return Sentence(tokens=tuple(text[start:end] for start, end in spans)), spans


def join_tokens(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Tokens as one text, and the characters [start, end) of each: separated by spaces, but not between CJK characters."""
    parts, offsets = list[str](), list[tuple[int, int]]()
    position, previous = 0, ""
    for token in tokens:
        separator = "" if not parts or (_is_cjk(previous[-1:]) and _is_cjk(token[:1])) else " "
        start = position + len(separator)
        position = start + len(token)
        parts += [separator, token]
        offsets.append((start, position))
        previous = token
    return "".join(parts), offsets


def encode_words(examples: Sequence[Sentence], tokenizer: Tokenizer) -> list[TokenSubwords]:
    """Subword ids of the tokens of each sentence; each distinct token is tokenized once."""
    texts = [
        _add_space_prefix(example.tokens) if tokenizer.has_space_prefixed_tokens else list(example.tokens)
        for example in examples
    ]
    words = list(dict.fromkeys(chain.from_iterable(texts)))
    word_to_ids = dict(zip(words, encode_texts(words, tokenizer), strict=True))
    return [[word_to_ids[text] for text in sentence] for sentence in texts]


def document_context(
    sentences: Sequence[TokenSubwords], documents: Sequence[Hashable], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Context ids before and after each sentence: whole tokens of the same document, at most `max_context` ids per side.

    Consecutive sentences with equal `documents` keys form a document. The tokens a sentence leaves of `max_tokens` are split
    evenly between both sides, and what one side cannot use goes to the other.
    """
    groups = groupby(range(len(sentences)), documents.__getitem__)
    for _, indices in groups:
        yield from _context_in_document([sentences[index] for index in indices], max_tokens, max_context)


def _context_in_document(
    sentences: Sequence[TokenSubwords], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    flat = list(chain.from_iterable(chain.from_iterable(sentences)))
    token_starts = np.cumsum([0, *(len(ids) for tokens in sentences for ids in tokens)])
    end = 0
    for tokens in sentences:
        start, end = end, end + sum(map(len, tokens))
        left, right = _split_budget(
            min(start, max_context), min(len(flat) - end, max_context), max(0, max_tokens - (end - start))
        )
        first = int(token_starts[np.searchsorted(token_starts, start - left)])
        last = int(token_starts[np.searchsorted(token_starts, end + right, "right") - 1])
        yield flat[first:start], flat[end:last]


def _split_budget(available_before: int, available_after: int, budget: int) -> tuple[int, int]:
    left = min(available_before, max(budget // 2, budget - available_after))
    return left, min(available_after, budget - left)


def _document_keys(examples: Sequence[Sentence]) -> list[Hashable]:
    """Document key of each sentence; a sentence without a document gets its own."""
    return [index if example.document_id is None else example.document_id for index, example in enumerate(examples)]


def _add_space_prefix(tokens: Sequence[str]) -> list[str]:
    """Tokens with the leading space that byte-level BPE expects, except next to CJK characters."""
    pairs = pairwise(["", *tokens])
    return [
        f" {current}" if previous and not (_is_cjk(previous[-1]) or _is_cjk(current[:1])) else current
        for previous, current in pairs
    ]


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef" or character >= "\U00020000"
