"""Sequence to sequence: generate a target text for a source text (translation, summarization, couplets).

Metrics are BLEU, chrF, ROUGE and exact match; `TextDecoder` turns generated ids into text.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt, Probability
from ..metrics import bleu
from ..metrics.bleu import BleuTokenizer
from ..metrics.results import MetricResult, mean_result
from ..tokenization.tables import UTF8
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, Example, ModelOutputs, Prediction, RequestFields, Task, TaskHeadType
from .mistakes import Mistake, text_spans, truncate_text
from .scorers.rouge import rouge_scores
from .sequences import encode_texts
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples

# Han characters, kana and full-width punctuation: decoding WordPiece puts spaces around each, which Chinese text does not have.
_CJK = "\u2e80-\u30ff\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_CJK_SPACES = re.compile(f"(?<=[{_CJK}]) +| +(?=[{_CJK}])")


LengthPenaltyType = Literal["power", "gnmt"]
LENGTH_PENALTY_HELP = "exponent p of the length penalty: above 0 favours long outputs, 0 none, below 0 short ones"
LENGTH_PENALTY_TYPE_HELP = "a beam's log-probability is divided by length ** p (power) or ((5 + length) / 6) ** p (gnmt)"


@dataclass(frozen=True)
class Seq2SeqExample(Example):
    """A source text and its target text, if known; columns `source` and `target` of a file."""

    text: str
    target: str | None = None


@dataclass(frozen=True)
class Seq2SeqPrediction(Prediction):
    """The generated target text, without special tokens."""

    generated_text: str


class Seq2Seq(Task, frozen=True, tag="generate"):
    num_beams: Annotated[PosInt, "beam size; 1: greedy decoding"] = 4
    length_penalty: Annotated[float, LENGTH_PENALTY_HELP] = 1.0
    length_penalty_type: Annotated[LengthPenaltyType, LENGTH_PENALTY_TYPE_HELP] = "power"
    max_target_length: Annotated[PosInt, "maximum target length in tokens, in training and generation"] = 128
    label_smoothing_factor: Annotated[Probability, "label smoothing of the training targets (0.1 in the Transformer)"] = 0.1
    bleu_tokenizer: Annotated[BleuTokenizer, "sacreBLEU tokenizer: 13a for most languages, zh or char for Chinese"] = "13a"
    lowercase: Annotated[bool, "compute metrics on lowercased text, for uncased models"] = False
    columns: Annotated[dict[str, str], "column names of source and target in the files"] = msgspec.field(default_factory=dict)
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "lm"
    num_outputs: ClassVar[int] = 0  # token by token, by the language modeling head
    metric_names: ClassVar[tuple[str, ...]] = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "same_length")
    mistake_order: ClassVar[str] = "those with the lowest ROUGE-L"
    label_fields: ClassVar[tuple[str, ...]] = ("target",)
    unsupported: ClassVar[Mapping[str, str]] = {
        "features": "which has no task head to read them",
        **dict.fromkeys(("aux_lm_weight", "rdrop"), "which has no task head"),
        "adversary": "where it would perturb the source texts alone",
    }

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[Seq2SeqExample]:
        """Rows of .tsv, .csv or .jsonl, with or without `target`; or a .txt with one source per line."""
        return ExampleReader(path, read_examples(path, self.parse_row, self.columns, encoding=encoding), self.skip_bad)

    def fit(self, examples: Sequence[Seq2SeqExample]) -> "Seq2Seq":
        """Unchanged; checks that every example has a target."""
        self._target_texts(examples)
        return self

    def encode(self, examples: Sequence[Seq2SeqExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """[CLS] source [SEP], truncated to `max_length`.

        Targets, if all are known: `reply`, the concatenated ids of all targets, [CLS] target [SEP] each, truncated to
        `max_target_length` tokens after [CLS]; `size`, (examples,) the length of each.
        """
        input_ids = [
            np.array([tokenizer.cls_token_id, *ids[: max_length - 2], tokenizer.sep_token_id], np.int64)
            for ids in encode_texts([example.text for example in examples], tokenizer)
        ]
        targets: dict[str, NDArray[np.int64]] = {}
        if examples and all(example.target is not None for example in examples):
            target_ids = encode_texts(self._target_texts(examples), tokenizer)
            framed = [
                [tokenizer.cls_token_id, *ids[: self.max_target_length - 1], tokenizer.sep_token_id] for ids in target_ids
            ]
            targets["target_ids"] = np.concatenate([np.array(ids, np.int64) for ids in framed])
            targets["target_lengths"] = np.array([len(ids) for ids in framed], np.int64)
        metadata = [TextDecoder(tokenizer)] * len(input_ids)
        return EncodedExamples(
            input_ids, [np.zeros(len(ids), np.int64) for ids in input_ids], np.arange(len(input_ids)), targets, metadata
        )

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Seq2SeqExample]
    ) -> list[Seq2SeqPrediction]:
        """`outputs` are the generated ids of each example."""
        return [Seq2SeqPrediction(decode_text(ids)) for decode_text, ids in zip(encoded.metadata, outputs, strict=True)]

    def compute_metric_results(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> dict[str, MetricResult]:
        """Corpus BLEU, mean ROUGE, and the fractions of predictions with equal text and with equal length."""
        counts = bleu.bleu_counts(*self.comparison_texts(predictions, examples), self.bleu_tokenizer)
        means = {name: mean_result(values) for name, values in self.per_example_scores(predictions, examples).items()}
        return {"bleu": MetricResult(bleu.bleu_from_counts, counts, np.zeros(len(counts))), **means}

    def compute_corpus_metrics(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> dict[str, float]:
        """Corpus chrF."""
        return {"chrf": bleu.chrf(*self.comparison_texts(predictions, examples))} if "chrf" in self.metric_names else {}

    def find_correct(self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]) -> NDArray[np.bool_]:
        return self.per_example_scores(predictions, examples)["exact"] == 1

    def find_mistakes(self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]) -> list[Mistake]:
        """Outputs that are not an exact match, by 1 - ROUGE-L."""
        scores, mistakes = self.per_example_scores(predictions, examples), []
        rows = zip(predictions, examples, scores["rougeL"], scores["exact"], strict=True)
        for prediction, example, rouge_l, exact in rows:
            if not exact:
                texts = truncate_text(str(example.target)), truncate_text(prediction.generated_text)
                loss = float(1 - rouge_l)
                mistakes.append(Mistake("text", example.location, *texts, None, loss, text_spans(example.texts)))
        return mistakes

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        return RequestFields(("text",), (), 'model("a source text")')

    def per_example_scores(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> dict[str, NDArray[np.float64]]:
        """(examples,) values of the metrics that are means over examples."""
        pairs = list(zip(*self.comparison_texts(predictions, examples), strict=True))
        rouge = np.array([rouge_scores(*pair) for pair in pairs], np.float64).reshape(-1, 3)
        scores = {name: rouge[:, column] for column, name in enumerate(("rouge1", "rouge2", "rougeL"))}
        scores["exact"] = np.array([predicted.split() == gold.split() for predicted, gold in pairs], np.float64)
        scores["same_length"] = np.array(
            [_num_characters(predicted) == _num_characters(gold) for predicted, gold in pairs], np.float64
        )
        return scores

    def comparison_texts(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> tuple[list[str], list[str]]:
        """Predicted and target texts as they are compared: lowercased if the task says so."""
        predicted, gold = [prediction.generated_text for prediction in predictions], self._target_texts(examples)
        return ([text.lower() for text in predicted], [text.lower() for text in gold]) if self.lowercase else (predicted, gold)

    def parse_row(self, row: ExampleRow) -> Seq2SeqExample:
        is_plain_text = "source" not in self.columns and row.get("source") is None and row.get("text") is not None
        target = row.get_text("target") if row.get("target") is not None else None
        text = row.get_text("text" if is_plain_text else "source")
        return Seq2SeqExample(text, target, source=str(row.path), line=row.line, id=row.id)

    def _target_texts(self, examples: Sequence[Seq2SeqExample]) -> list[str]:
        for example in examples:
            if example.target is None:
                raise missing_label_error(example.source, example.line, "target", self.columns)
        return [str(example.target) for example in examples]


class TextDecoder:
    """Decode generated ids: without special tokens, and (if not byte-level BPE) without spaces beside CJK characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        token_ids = np.asarray(ids, np.int64)
        text = self.tokenizer.decode(token_ids[~self.tokenizer.is_special[token_ids]].tolist())
        return (text if self.tokenizer.word_start_prefix == "Ġ" else _CJK_SPACES.sub("", text)).strip()


def _num_characters(text: str) -> int:
    """Number of characters without white space."""
    return len("".join(text.split()))
