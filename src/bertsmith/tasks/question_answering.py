"""The best spans of a passage, from scores for where an answer starts and ends in each of its windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer, replace_surrogates
from .base import EncodedExamples, ModelOutputs, Prediction, TaskHeadType, encode_texts, max_context_window, sliding_windows
from .scorers import cmrc, squad
from .special_tokens import TemplateTask
from .squad_files import QuestionAnsweringExample, read_questions
from .table_rows import ExampleReader


@dataclass(frozen=True)
class QaWindow:
    """A sequence's stretch of the passage: pieces from `first` on, the characters of each, which of them may start one."""

    context_start: int
    offsets: NDArray[np.int64]  # (pieces, 2), into the whole passage
    is_max_context: NDArray[np.bool_]  # (pieces,) no other window sees more around it


@dataclass(frozen=True)
class ScoredSpan:
    """Characters of the passage; `score` is the logarithm of its probability in its window."""

    score: float
    start: int
    end: int


def best_spans(
    windows: Sequence[QaWindow], logits: Sequence[NDArray[Any]], max_answer_length: int, n_best_size: int
) -> tuple[list[ScoredSpan], float]:
    """At most `count` different spans, the best first, and the score of there being none: what the most doubting window says.

    Scores are (length, 2) a window, and become probabilities by a softmax over starts and one over ends, of the
    passage and [CLS], which stands for no answer here. A span starts where its window sees most around it.
    """
    found, nulls = list[ScoredSpan](), list[float]()
    for window, given in zip(windows, logits, strict=True):
        logs = _log_softmax(
            np.asarray(given, np.float64)[np.r_[0, window.context_start : window.context_start + len(window.offsets)]]
        )
        nulls.append(float(logs[0].sum()))
        found += _window_spans(window, logs[1:], max_answer_length, n_best_size)
    best: dict[tuple[int, int], ScoredSpan] = {}
    for span in sorted(found, key=lambda span: -span.score):
        best.setdefault((span.start, span.end), span)
    return list(best.values())[:n_best_size], min(nulls, default=0.0)


def find_token_span(offsets: NDArray[np.int64], start: int, end: int) -> tuple[int, int] | None:
    """The first and the last piece that hold any of these characters; None if none does."""
    places = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(places[0]), int(places[-1])) if len(places) else None


def _window_spans(
    window: QaWindow, log_probs: NDArray[np.float64], max_answer_length: int, n_best_size: int
) -> list[ScoredSpan]:
    """Every start with every end that is no more than `longest` pieces away: not only the best of each."""
    starts, ends = (
        np.where(window.is_max_context, log_probs[:, 0], -np.inf),
        np.append(log_probs[:, 1], np.full(max_answer_length - 1, -np.inf)),
    )
    if not len(starts):
        return []
    table = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_answer_length)  # (start, pieces more)
    flat = table.ravel()
    top = np.argpartition(-flat, n_best_size - 1)[:n_best_size] if len(flat) > n_best_size else np.arange(len(flat))
    top = top[np.isfinite(flat[top])]
    return [
        ScoredSpan(
            float(flat[at]),
            int(window.offsets[at // max_answer_length, 0]),
            int(window.offsets[at // max_answer_length + at % max_answer_length, 1]),
        )
        for at in top[np.argsort(-flat[top], kind="stable")]
    ]


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))


@dataclass(frozen=True)
class SpanCandidate:
    text: str
    start: int  # characters of the passage
    end: int
    score: float  # its probability in the window it was found in


@dataclass(frozen=True)
class QuestionAnsweringPrediction(Prediction):
    """The answer as the passage writes it; empty, without start and end, where there is none."""

    text: str
    start: int | None
    end: int | None
    score: float
    no_answer: float  # by how much the score of no answer is above that of the best candidate
    candidates: tuple[SpanCandidate, ...]


class QuestionAnswering(TemplateTask, frozen=True, tag="answer"):
    no_answer: Annotated[bool, "some questions have no answer in their passage, as in SQuAD 2.0"] = False
    threshold: Annotated[float, "no answer: how far its score must be above the best answer's; tuned on data.dev"] = 0.0
    scorer: Annotated[Literal["squad", "cmrc"], "exact match and F1 of words (English), or as CMRC does (Chinese)"] = "squad"
    long: Annotated[Literal["window", "truncate"], "a passage over the length: windows, of which the best answers, or cut"] = (
        "window"
    )
    stride: Annotated[PosInt, "pieces of the passage from the start of one window to the next, at most half a window"] = 128
    question: Annotated[PosInt, "pieces of a question that are kept, at most half of the model's length"] = 64
    longest: Annotated[PosInt, "pieces an answer may have"] = 30
    candidates: Annotated[PosInt, "how many of the best answers are told"] = 20
    skip_bad: Annotated[bool, "leave out and count questions that cannot be used"] = False

    head_type: ClassVar[TaskHeadType] = "span"
    num_outputs: ClassVar[int] = 2
    text_slots: ClassVar[tuple[str, ...]] = ("question", "context")
    global_segment: ClassVar[int | None] = 0  # the question

    def read(self, path: Path) -> ExampleReader[QuestionAnsweringExample]:
        return ExampleReader(path, read_questions(path, self.no_answer, self.fill_template), self.skip_bad)

    def fit(self, examples: Sequence[QuestionAnsweringExample]) -> "QuestionAnswering":
        """With its guide tokens: there are no labels to learn."""
        return msgspec.structs.replace(self, guides=self.collect_special_tokens(examples))

    def encode(self, examples: Sequence[QuestionAnsweringExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """[CLS] question [SEP] window [SEP]. Targets: `start` and `end`, places in each sequence.

        A window that does not hold the whole answer points at [CLS], as does a question without one.
        """
        if max_length < 8:
            raise UserError(f"sequences of {max_length} tokens leave no room for a passage; take a length of 8 or more")
        contexts = list(dict.fromkeys(tokenizer.validate_text(one.context) for one in examples))
        passages = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
        encoded, owners, places = EncodedExamples([], [], np.zeros(0, np.int64)), list[int](), list[tuple[int, int]]()
        asking = zip(
            encode_texts([one.question for one in examples], tokenizer),
            self.encode_special_tokens(examples, tokenizer),
            strict=True,
        )
        for number, (asked, guides) in enumerate(asking):
            passage = passages[replace_surrogates(examples[number].context)]
            offsets, span = np.array(passage.offsets, np.int64).reshape(-1, 2), examples[number].span
            pieces = find_token_span(offsets, *span) if span else None
            asked = asked[: min(self.question, guides.max_text_tokens(max_length, True) // 2)]
            first = [tokenizer.cls_token_id, *guides.before_first, *asked, tokenizer.sep_token_id]
            before, after = [*first, *guides.before_second], [*guides.after_last, tokenizer.sep_token_id]
            for (start, end), window in self._split_windows(offsets, len(before), max_length - len(before) - len(after)):
                ids = [*before, *passage.ids[start:end], *after]
                encoded.input_ids.append(np.array(ids, np.int64))
                encoded.token_type_ids.append((np.arange(len(ids)) >= len(first)).astype(np.int64))
                encoded.metadata.append(window)
                owners.append(number)
                places.append(_target_positions(pieces, start, end, len(before)))
        known = all(one.answers is not None for one in examples)
        table = np.array(places, np.int64).reshape(-1, 2)
        targets = {"start": table[:, 0], "end": table[:, 1]} if known else {}
        return EncodedExamples(encoded.input_ids, encoded.token_type_ids, np.array(owners, np.int64), targets, encoded.metadata)

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[QuestionAnsweringExample]
    ) -> list[QuestionAnsweringPrediction]:
        windows: list[list[QaWindow]] = [[] for _ in examples]
        given: list[list[NDArray[np.floating]]] = [[] for _ in examples]
        for owner, window, row in zip(encoded.example_index, encoded.metadata, outputs, strict=True):
            windows[owner].append(window)
            given[owner].append(row)
        found = [best_spans(mine, rows, self.longest, self.candidates) for mine, rows in zip(windows, given, strict=True)]
        return [self._to_prediction(one.context, *best) for one, best in zip(examples, found, strict=True)]

    def compute_metrics(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> dict[str, float]:
        """exact and f1, between 0 and 1, as the published scripts give them; questions whose answer is not known are left out.

        With no_answer also of the questions that have one and of those that have none, and the best that any threshold
        could give, with that threshold.
        """
        said, asked = _with_references(predictions, examples)
        exact, f1 = self._score_texts([one.text for one in said], asked)
        judged = {"exact": float(exact.mean()), "f1": float(f1.mean())}
        if not self.no_answer:
            return judged
        there = np.array([bool(one.answers) for one in asked])
        for name, chosen in {"has_answer": there, "no_answer": ~there}.items():
            if chosen.any():
                judged |= {f"{name}_exact": float(exact[chosen].mean()), f"{name}_f1": float(f1[chosen].mean())}
        (best_exact, exact_at), (best_f1, f1_at) = self._best_thresholds(said, asked, default_threshold=0.0)
        return judged | {
            "best_exact": best_exact,
            "best_exact_threshold": exact_at,
            "best_f1": best_f1,
            "best_f1_threshold": f1_at,
        }

    def per_example_scores(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """exact and f1 of every answer; the truths must be known."""
        return self._score_texts([one.text for one in predictions], examples)

    def tune_threshold(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> "QuestionAnswering":
        """With the threshold that gives these answers, of a dev file, the best F1; unchanged without no_answer."""
        if not self.no_answer:
            return self
        said, asked = _with_references(predictions, examples)
        lowest = min(one.no_answer for one in said) - 1
        return msgspec.structs.replace(self, threshold=self._best_thresholds(said, asked, default_threshold=lowest)[1][1])

    def _split_windows(
        self, offsets: NDArray[np.int64], context_start: int, max_tokens: int
    ) -> list[tuple[tuple[int, int], QaWindow]]:
        parts = sliding_windows(len(offsets), max_tokens, min(self.stride, max_tokens // 2))  # none is torn where windows meet
        parts = parts if self.long == "window" else parts[:1]
        owner = max_context_window(parts, len(offsets))
        return [
            (part, QaWindow(context_start, offsets[slice(*part)], owner[slice(*part)] == n)) for n, part in enumerate(parts)
        ]

    def _to_prediction(self, context: str, spans: list[ScoredSpan], null_score: float) -> QuestionAnsweringPrediction:
        found = [_to_candidate(context, span) for span in spans]
        doubt = null_score - spans[0].score if spans else 0.0
        if not found or (self.no_answer and doubt > self.threshold):
            return QuestionAnsweringPrediction("", None, None, float(np.exp(null_score)), doubt, tuple(found))
        best = found[0]
        return QuestionAnsweringPrediction(best.text, best.start, best.end, best.score, doubt, tuple(found))

    def _score_texts(
        self, predictions: Sequence[str], examples: Sequence[QuestionAnsweringExample]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact: Callable[[str, Sequence[str]], float] = cmrc.exact_match if self.scorer == "cmrc" else squad.exact_match
        f1: Callable[[str, Sequence[str]], float] = cmrc.f1 if self.scorer == "cmrc" else squad.f1
        if self.no_answer and self.scorer == "squad":
            exact, f1 = squad.exact_match_v2, squad.f1_v2
        pairs = [(text, one.answers) for text, one in zip(predictions, examples, strict=True)]
        return tuple(np.array([how(text, gold) if gold else float(not text) for text, gold in pairs]) for how in (exact, f1))  # type: ignore[return-value]

    def _best_thresholds(
        self,
        predictions: Sequence[QuestionAnsweringPrediction],
        examples: Sequence[QuestionAnsweringExample],
        default_threshold: float,
    ) -> list[tuple[float, float]]:
        """The best mean of exact and of f1, each with its threshold."""
        texts, nulls = (
            [one.candidates[0].text if one.candidates else "" for one in predictions],
            [one.no_answer for one in predictions],
        )
        there = [bool(one.answers) for one in examples]
        return [
            squad.best_threshold(list(kind), nulls, there, texts, default_threshold)
            for kind in self._score_texts(texts, examples)
        ]


def _target_positions(token_span: tuple[int, int] | None, start: int, end: int, context_start: int) -> tuple[int, int]:
    """Where an answer's first and last piece stand in the sequence of the window from `start` to `end`."""
    if token_span is None or token_span[0] < start or token_span[1] >= end:
        return 0, 0
    return context_start + token_span[0] - start, context_start + token_span[1] - start


def _to_candidate(context: str, span: ScoredSpan) -> SpanCandidate:
    """Some tokenizers count the space before a word as part of it."""
    text = context[span.start : span.end]
    start = span.start + len(text) - len(text.lstrip())
    return SpanCandidate(text.strip(), start, start + len(text.strip()), float(np.exp(span.score)))


def _with_references(
    predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
) -> tuple[list[QuestionAnsweringPrediction], list[QuestionAnsweringExample]]:
    pairs = [(said, one) for said, one in zip(predictions, examples, strict=True) if one.answers is not None]
    if not pairs:
        raise UserError("no question has an answer to be judged by")
    return [said for said, _ in pairs], [one for _, one in pairs]
