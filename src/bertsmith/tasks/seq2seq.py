"""Written ids as a text: special tokens left out, and no space between ideographs that no space parted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import NonNegFloat, PosInt, Probability, Variant
from ..metrics import scores as scores_
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, Example, ModelOutputs, Prediction, TaskHeadType, encode_texts
from .scorers.rouge import rouge_scores
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples

# Ideographs, kana and full-width signs: WordPiece puts spaces around each, which no Chinese text has.
_CJK = "\u2e80-\u30ff\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_CJK_SPACES = re.compile(f"(?<=[{_CJK}]) +| +(?=[{_CJK}])")


class TextDecoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        kept = np.asarray(ids, np.int64)
        text = self.tokenizer.decode(kept[~self.tokenizer.is_special[kept]].tolist())
        return (text if self.tokenizer.word_start_prefix == "Ġ" else _CJK_SPACES.sub("", text)).strip()


BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]


@dataclass(frozen=True)
class Seq2SeqExample(Example):
    """A text, and the one that answers it if it is known; in a file they are `source` and `target`."""

    text: str
    target: str | None = None


@dataclass(frozen=True)
class Seq2SeqPrediction(Prediction):
    text: str


class Seq2Seq(Variant, frozen=True, tag="generate"):
    beam: Annotated[PosInt, "texts kept at every length while it writes; 1: always the likeliest token"] = 4
    alpha: Annotated[NonNegFloat, "log-probabilities are divided by ((5 + tokens) / 6)^alpha; more favours longer answers"] = (
        0.6
    )
    longest: Annotated[PosInt, "tokens of an answer at most, to learn and to write"] = 128
    smoothing: Annotated[
        Probability, "share of each target that is spread over all words while it learns (label smoothing)"
    ] = 0.1
    words: Annotated[BleuTokenizer, "how sacreBLEU cuts words: 13a for most languages, zh or char for Chinese"] = "13a"
    lowercase: Annotated[bool, "judge capitals and small letters alike, as of a model that knows no capitals"] = False
    columns: Annotated[dict[str, str], "what source and target are called in the files"] = msgspec.field(default_factory=dict)
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head_type: ClassVar[TaskHeadType] = "text"
    num_outputs: ClassVar[int] = 0  # a word at a time, by the head for words

    def read(self, path: Path) -> ExampleReader[Seq2SeqExample]:
        """Rows of .tsv, .csv or .jsonl, with `target` or without; or a .txt with a source a line."""
        return ExampleReader(path, read_examples(path, self._parse_row, self.columns), self.skip_bad)

    def fit(self, examples: Sequence[Seq2SeqExample]) -> "Seq2Seq":
        """As it is: there is nothing to learn but that every example has its target."""
        self._target_texts(examples)
        return self

    def encode(self, examples: Sequence[Seq2SeqExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """[CLS] source [SEP], cut at `length`. Targets, where all are known: `reply`, the ids of all answers one after
        another, [CLS] answer [SEP] each, and `size`, how many each has."""
        ids = [
            np.array([tokenizer.cls_token_id, *one[: max_length - 2], tokenizer.sep_token_id], np.int64)
            for one in encode_texts([e.text for e in examples], tokenizer)
        ]
        targets: dict[str, NDArray[np.int64]] = {}
        if examples and all(one.target is not None for one in examples):
            known = encode_texts(self._target_texts(examples), tokenizer)
            replies = [[tokenizer.cls_token_id, *one[: self.longest - 1], tokenizer.sep_token_id] for one in known]
            targets["reply"] = np.concatenate([np.array(one, np.int64) for one in replies])
            targets["size"] = np.array([len(one) for one in replies], np.int64)
        facts = [TextDecoder(tokenizer)] * len(ids)
        return EncodedExamples(ids, [np.zeros(len(one), np.int64) for one in ids], np.arange(len(ids)), targets, facts)

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Seq2SeqExample]
    ) -> list[Seq2SeqPrediction]:
        """From the ids that were written for each example."""
        return [Seq2SeqPrediction(spelling(ids)) for spelling, ids in zip(encoded.metadata, outputs, strict=True)]

    def compute_metrics(self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]) -> dict[str, float]:
        """sacreBLEU and chrF of all together, the means of ROUGE, and the shares that are equal, or equally long."""
        said, true = self.comparison_texts(predictions, examples)
        scores = {"bleu": float(scores_.bleu_from_counts(scores_.bleu_counts(said, true, self.words), np.zeros(len(true))))}
        scores["chrf"] = scores_.chrf(said, true)
        return scores | {name: float(values.mean()) for name, values in self.per_example_scores(predictions, examples).items()}

    def per_example_scores(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> dict[str, NDArray[np.float64]]:
        """What each answer is worth, for the scores that are means."""
        pairs = list(zip(*self.comparison_texts(predictions, examples), strict=True))
        table = np.array([rouge_scores(*pair) for pair in pairs], np.float64).reshape(-1, 3)
        found = {name: table[:, column] for column, name in enumerate(("rouge1", "rouge2", "rougeL"))}
        found["exact"] = np.array([said.split() == true.split() for said, true in pairs], np.float64)
        found["length"] = np.array([_num_characters(said) == _num_characters(true) for said, true in pairs], np.float64)
        return found

    def comparison_texts(
        self, predictions: Sequence[Seq2SeqPrediction], examples: Sequence[Seq2SeqExample]
    ) -> tuple[list[str], list[str]]:
        """What was said and what is true, as they are compared."""
        said, true = [one.text for one in predictions], self._target_texts(examples)
        return ([one.lower() for one in said], [one.lower() for one in true]) if self.lowercase else (said, true)

    def _parse_row(self, row: ExampleRow) -> Seq2SeqExample:
        plain = "source" not in self.columns and row.get("source") is None and row.get("text") is not None
        target = row.get_text("target") if row.get("target") is not None else None
        return Seq2SeqExample(row.get_text("text" if plain else "source"), target, source=str(row.path), line=row.line)

    def _target_texts(self, examples: Sequence[Seq2SeqExample]) -> list[str]:
        for example in examples:
            if example.target is None:
                raise missing_label_error(example.source, example.line, "target", self.columns)
        return [str(example.target) for example in examples]


def _num_characters(text: str) -> int:
    """Characters, spaces not counted."""
    return len("".join(text.split()))
