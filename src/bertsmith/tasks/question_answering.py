"""Extractive question answering (SQuAD): the answer is a span of the context, or none (SQuAD 2.0).

A long context is split into overlapping windows; `best_spans` picks the best spans of all windows from start and end logits
(Devlin et al. 2019, sections 4.2 and 4.3).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..metrics.results import MetricResult, mean_result, ratio_result
from ..tokenization.tables import UTF8
from ..tokenization.tokenizer import Tokenizer, replace_surrogates
from .answer_spans import QaWindow, ScoredSpan, best_spans, find_token_span
from .base import Confidences, EncodedExamples, LossKind, ModelOutputs, Prediction, RequestFields, TaskHeadType
from .mistakes import Mistake, TextSpan, highlight_passage
from .scorers import cmrc, squad
from .sequences import encode_texts, max_context_window, sliding_windows
from .slicing import SliceMasks, count_masks
from .special_tokens import TemplateTask
from .squad_files import QuestionAnsweringExample, read_questions
from .table_rows import ExampleReader, ExampleRow


@dataclass(frozen=True)
class SpanCandidate:
    """A span of the context that may be the answer; an empty answer with start = end = 0 stands for no answer.

    `score` is the probability of its start token times that of its end token, each a softmax over the context tokens and
    [CLS] of one window, as in transformers.
    """

    answer: str
    start: int  # character offsets in the context
    end: int
    score: float


@dataclass(frozen=True)
class QuestionAnsweringPrediction(Prediction):
    """The answer as it appears in the context, or "" with start = end = 0 for no answer; `score` as in `SpanCandidate`.

    The score of no answer is the probability of [CLS] as start and end, the lowest of all windows.
    """

    answer: str
    start: int
    end: int
    score: float
    null_score_diff: float = 0.0  # log score of no answer minus that of the best candidate; compared with task.threshold
    candidates: tuple[SpanCandidate, ...] = ()  # best first, without no answer
    no_answer: SpanCandidate | None = None  # only with task.no_answer

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """`{"answer": "Denver", "score": 0.9, "start": 17, "end": 23}`, with `top_k` also a list "candidates" of the same form.

        The candidates include no answer if the task has it.
        """
        answer = _answer_fields(self)
        if top_k is None:
            return answer
        candidates = [*self.candidates, *([self.no_answer] if self.no_answer else [])]
        candidates.sort(key=lambda candidate: -candidate.score)
        return answer | {"candidates": [_answer_fields(candidate) for candidate in candidates[:top_k]]}


def _answer_fields(span: SpanCandidate | QuestionAnsweringPrediction) -> dict[str, Any]:
    return {"answer": span.answer, "score": span.score, "start": span.start, "end": span.end}


class QuestionAnswering(TemplateTask, frozen=True, tag="answer"):
    no_answer: Annotated[bool, "questions may be unanswerable, as in SQuAD 2.0"] = False
    threshold: Annotated[
        float, "no_answer: margin over the log score of the best span from which it is predicted (set by training)"
    ] = 0.0
    scorer: Annotated[Literal["squad", "cmrc"], "exact match and F1 as in SQuAD (English) or CMRC 2018 (Chinese)"] = "squad"
    long_text: Annotated[
        Literal["window", "truncate"], "passages over max_length: sliding windows (best span of all), or truncate"
    ] = "window"
    doc_stride: Annotated[PosInt, "tokens between the starts of consecutive windows, at most half a window (128 in BERT)"] = 128
    max_query_length: Annotated[
        PosInt, "questions are truncated to this many tokens, at most half of max_length (64 in BERT)"
    ] = 64
    max_answer_length: Annotated[PosInt, "maximum answer length in tokens (30 in BERT)"] = 30
    n_best_size: Annotated[PosInt, "number of candidate answers returned per question (20 in BERT)"] = 20
    skip_bad: Annotated[bool, "skip invalid questions and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "span"
    num_outputs: ClassVar[int] = 2
    loss: ClassVar[LossKind] = "span"
    primary_metric: ClassVar[str] = "f1"
    mistake_order: ClassVar[str] = "wrong answers with the highest confidence"
    text_slots: ClassVar[tuple[str, ...]] = ("question", "context")
    global_segment: ClassVar[int | None] = 0  # the question

    def export_notes(self) -> list[str]:
        if not self.no_answer:
            return []
        return [f"threshold = {self.threshold:.4g}: predict no answer if the sum of the start and end logits of [CLS] exceeds "
                "that of the best span by more than this; config.json cannot express it"]  # fmt: skip

    @property
    def metric_names(self) -> list[str]:
        subsets = [f"{side}_{name}" for side in ("has_answer", "no_answer") for name in ("exact", "f1")]
        return ["exact", "f1", *(subsets if self.no_answer else ())]

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[QuestionAnsweringExample]:
        return ExampleReader(path, read_questions(path, self.no_answer, self.fill_template, encoding), self.skip_bad)

    def fit(self, examples: Sequence[QuestionAnsweringExample]) -> "QuestionAnswering":
        """With its special tokens; there are no labels."""
        return msgspec.structs.replace(self, special_tokens=self.collect_special_tokens(examples))

    def encode(self, examples: Sequence[QuestionAnsweringExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """[CLS] question [SEP] context window [SEP]. Targets: `start` and `end`, (sequences,) token positions.

        They are 0 ([CLS]) in a window that does not contain the whole answer, and for a question without an answer.
        """
        if max_length < 8:
            raise UserError(f"max_length={max_length} leaves no room for a passage; set 8 or more")
        contexts = list(dict.fromkeys(tokenizer.validate_text(example.context) for example in examples))
        # `ids` and `offsets` of an encoding are copied whole on every access: once per context, not once per window.
        contents = {
            context: (encoding.ids, np.array(encoding.offsets, np.int64).reshape(-1, 2))
            for context, encoding in zip(contexts, tokenizer.encode_batch(contexts), strict=True)
        }
        encoded, example_index, positions = EncodedExamples([], [], np.zeros(0, np.int64)), list[int](), list[tuple[int, int]]()
        questions = zip(
            encode_texts([example.question for example in examples], tokenizer),
            self.encode_special_tokens(examples, tokenizer),
            strict=True,
        )
        for index, (question_ids, special) in enumerate(questions):
            context_ids, offsets = contents[replace_surrogates(examples[index].context)]
            span = examples[index].span
            token_span = find_token_span(offsets, *span) if span else None
            question_ids = question_ids[: min(self.max_query_length, special.max_text_tokens(max_length, True) // 2)]
            first = [tokenizer.cls_token_id, *special.before_first, *question_ids, tokenizer.sep_token_id]
            before, after = [*first, *special.before_second], [*special.after_last, tokenizer.sep_token_id]
            for (start, end), window in self._split_windows(offsets, len(before), max_length - len(before) - len(after)):
                ids = [*before, *context_ids[start:end], *after]
                encoded.input_ids.append(np.array(ids, np.int64))
                encoded.token_type_ids.append((np.arange(len(ids)) >= len(first)).astype(np.int64))
                encoded.metadata.append(window)
                example_index.append(index)
                positions.append(_target_positions(token_span, start, end, len(before)))
        has_labels = all(example.answers is not None for example in examples)
        position_table = np.array(positions, np.int64).reshape(-1, 2)
        targets = {"start": position_table[:, 0], "end": position_table[:, 1]} if has_labels else {}
        return EncodedExamples(
            encoded.input_ids, encoded.token_type_ids, np.array(example_index, np.int64), targets, encoded.metadata
        )

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[QuestionAnsweringExample]
    ) -> list[QuestionAnsweringPrediction]:
        windows: list[list[QaWindow]] = [[] for _ in examples]
        logits: list[list[NDArray[np.floating]]] = [[] for _ in examples]
        for index, window, window_logits in zip(encoded.example_index, encoded.metadata, outputs, strict=True):
            windows[index].append(window)
            logits[index].append(window_logits)
        best_per_example = [
            best_spans(example_windows, example_logits, self.max_answer_length, self.n_best_size)
            for example_windows, example_logits in zip(windows, logits, strict=True)
        ]
        return [
            self._to_prediction(example.context, *spans_and_null)
            for example, spans_and_null in zip(examples, best_per_example, strict=True)
        ]

    def compute_metric_results(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> dict[str, MetricResult]:
        """exact and f1 (0 to 1), as in the official scripts; with `no_answer` also for questions with and without an answer."""
        _require_references(examples)
        exact, f1 = self.per_example_scores(predictions, examples)
        results = {"exact": mean_result(exact), "f1": mean_result(f1)}
        has_answer = np.array([bool(example.answers) for example in examples])
        for kind, mask in (("has_answer", has_answer), ("no_answer", ~has_answer)) if self.no_answer else ():
            if mask.any():
                results[f"{kind}_exact"] = ratio_result(exact * mask, mask)
                results[f"{kind}_f1"] = ratio_result(f1 * mask, mask)
        return results

    def compute_corpus_metrics(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> dict[str, float]:
        """With `no_answer` the best score over all thresholds, with that threshold."""
        if not self.no_answer:
            return {}
        (best_exact, exact_threshold), (best_f1, f1_threshold) = self._best_thresholds(predictions, examples)
        return {
            "best_exact": best_exact,
            "best_exact_threshold": exact_threshold,
            "best_f1": best_f1,
            "best_f1_threshold": f1_threshold,
        }

    def is_labeled(self, example: QuestionAnsweringExample) -> bool:
        return example.answers is not None

    def check_scorable(self, examples: Sequence[QuestionAnsweringExample], path: str) -> None:
        """Any answered questions can be evaluated."""

    def tune(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[QuestionAnsweringExample]
    ) -> "QuestionAnswering":
        return self.tune_threshold(self.decode(outputs, encoded, examples), examples)

    def find_correct(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> NDArray[np.bool_]:
        return self.per_example_scores(predictions, examples)[0] == 1

    def find_mistakes(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> list[Mistake]:
        mistakes = []
        f1_scores = self.per_example_scores(predictions, examples)[1]
        for prediction, example, f1 in zip(predictions, examples, f1_scores, strict=True):
            if f1 < 1:
                answer, answers = prediction.answer, example.answers or ()
                kind = "missed" if not answer else "spurious" if not answers else "partial match" if f1 else "wrong"
                passage = highlight_passage(
                    example.context, example.span, (prediction.start, prediction.end) if answer else None
                )
                gold = " / ".join(dict.fromkeys(answers)) or "no answer"
                loss, texts = float(1 - f1) * prediction.score, [[TextSpan(example.question)], passage]
                mistakes.append(Mistake(kind, example.location, gold, answer or "no answer", prediction.score, loss, texts))
        return mistakes

    def confidences(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> Confidences:
        scores = np.clip([prediction.score for prediction in predictions], 0, 1)
        return Confidences(scores, self.per_example_scores(predictions, examples)[0])

    def target_slices(self, examples: Sequence[QuestionAnsweringExample], tokenizer: Tokenizer) -> tuple[str, SliceMasks]:
        """By the length of the first gold answer in tokens."""
        lengths = [len(ids) for ids in encode_texts([(example.answers or ("",))[0] for example in examples], tokenizer)]
        slices = {"no answer": 0, "1–2 tokens": 2, "3–5 tokens": 5, "6–10 tokens": 10, "more than 10 tokens": np.inf}
        return "length of the answer", count_masks(lengths, list(slices.items()))

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        usage = 'model(question="Who sings?", context="She sings.")'
        return RequestFields(("question", "context"), (), usage)

    def parse_row(self, row: ExampleRow) -> QuestionAnsweringExample:
        question, context = (replace_surrogates(row.require(name)) for name in ("question", "context"))
        return QuestionAnsweringExample(question=question, context=context, special_tokens=self.fill_template(row.get_cell))

    def read_requests(self, path: Path, encoding: str = UTF8) -> ExampleReader[QuestionAnsweringExample]:
        return ExampleReader(path, read_questions(path, None, self.fill_template, encoding))

    def per_example_scores(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """exact and f1 of every prediction, (examples,) each; every example must have references."""
        return self._score_texts([prediction.answer for prediction in predictions], examples)

    def tune_threshold(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> "QuestionAnswering":
        """With the no-answer threshold of the best F1 on these predictions of a dev file; unchanged without `no_answer`."""
        if not self.no_answer:
            return self
        scored, references = _with_references(predictions, examples)
        return msgspec.structs.replace(self, threshold=self._best_thresholds(scored, references)[1][1])

    def _split_windows(
        self, offsets: NDArray[np.int64], context_start: int, max_tokens: int
    ) -> list[tuple[tuple[int, int], QaWindow]]:
        # Windows overlap by half at least, so that no short answer is split between two of them.
        windows = sliding_windows(len(offsets), max_tokens, min(self.doc_stride, max_tokens // 2))
        windows = windows if self.long_text == "window" else windows[:1]
        best_window = max_context_window(windows, len(offsets))
        return [
            (window, QaWindow(context_start, offsets[slice(*window)], best_window[slice(*window)] == index))
            for index, window in enumerate(windows)
        ]

    def _to_prediction(self, context: str, spans: list[ScoredSpan], null_score: float) -> QuestionAnsweringPrediction:
        candidates = [_to_candidate(context, span) for span in spans]
        null_score_diff = null_score - spans[0].score if spans else 0.0
        null = SpanCandidate("", 0, 0, float(np.exp(null_score)))
        has_no_answer = not candidates or (self.no_answer and null_score_diff > self.threshold)
        best = null if has_no_answer else candidates[0]
        return QuestionAnsweringPrediction(
            best.answer, best.start, best.end, best.score, null_score_diff, tuple(candidates), null if self.no_answer else None
        )

    def _score_texts(
        self, predictions: Sequence[str], examples: Sequence[QuestionAnsweringExample]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact: Callable[[str, Sequence[str]], float] = cmrc.exact_match if self.scorer == "cmrc" else squad.exact_match
        f1: Callable[[str, Sequence[str]], float] = cmrc.f1 if self.scorer == "cmrc" else squad.f1
        if self.no_answer and self.scorer == "squad":
            exact, f1 = squad.exact_match_v2, squad.f1_v2
        pairs = [(text, example.answers) for text, example in zip(predictions, examples, strict=True)]
        return tuple(
            np.array([score(text, gold) if gold else float(not text) for text, gold in pairs]) for score in (exact, f1)
        )  # type: ignore[return-value]

    def _best_thresholds(
        self, predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
    ) -> list[tuple[float, float]]:
        """(best mean, threshold) of exact and of f1; where never answering is best, a threshold that does so."""
        texts = [prediction.candidates[0].answer if prediction.candidates else "" for prediction in predictions]
        null_score_diffs = [prediction.null_score_diff for prediction in predictions]
        has_answer, never_answer = [bool(example.answers) for example in examples], min(null_score_diffs) - 1
        return [
            squad.best_threshold(list(scores), null_score_diffs, has_answer, texts, never_answer)
            for scores in self._score_texts(texts, examples)
        ]


def _target_positions(token_span: tuple[int, int] | None, start: int, end: int, context_start: int) -> tuple[int, int]:
    """Positions of the first and last answer token in the sequence of the window [start, end); 0, 0 if it is not inside."""
    if token_span is None or token_span[0] < start or token_span[1] >= end:
        return 0, 0
    return context_start + token_span[0] - start, context_start + token_span[1] - start


def _to_candidate(context: str, span: ScoredSpan) -> SpanCandidate:
    """The span without surrounding spaces: some tokenizers include the space before a word in its offsets."""
    text = context[span.start : span.end]
    start = span.start + len(text) - len(text.lstrip())
    return SpanCandidate(text.strip(), start, start + len(text.strip()), float(np.exp(span.score)))


def _with_references(
    predictions: Sequence[QuestionAnsweringPrediction], examples: Sequence[QuestionAnsweringExample]
) -> tuple[list[QuestionAnsweringPrediction], list[QuestionAnsweringExample]]:
    pairs = [
        (prediction, example) for prediction, example in zip(predictions, examples, strict=True) if example.answers is not None
    ]
    _require_references([example for _, example in pairs])
    return [prediction for prediction, _ in pairs], [example for _, example in pairs]


def _require_references(examples: Sequence[QuestionAnsweringExample]) -> None:
    if not examples:
        raise UserError("no question has a gold answer to evaluate against; give a file with `answers`")
