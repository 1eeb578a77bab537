"""Regression: a number in, a number out, held against the truth by correlation."""

import numpy as np
import pytest

from bertsmith.config import parse, plain
from bertsmith.errors import BadInput
from bertsmith.tasks import Regress, TaskConfig
from bertsmith.tasks.regression import Rated, Value
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.google(PIECES)


def test_numbers_are_read_from_any_table(tmp_path):
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t3.80\nc\td\t-1e1\n")
    task = Regress(columns={"text": "sentence1", "text_b": "sentence2", "label": "score"})
    assert [(one.text, one.text_b, one.label) for one in task.read(tmp_path / "a.tsv")] == [("a", "b", 3.8), ("c", "d", -10)]
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 4}\n{"text": "b"}\n')
    assert [(one.text_b, one.label) for one in Regress().read(tmp_path / "a.jsonl")] == [(None, 4.0), (None, None)]


@pytest.mark.parametrize("label", ['"good"', "NaN", '"inf"', "1e999", "true", "[1]", '""', "1" + "0" * 400])
def test_what_is_no_number_is_a_bad_row(tmp_path, label):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(BadInput, match=r"a\.jsonl, line 2: label is .*, not a number"):
        list(Regress().read(tmp_path / "a.jsonl"))
    found = Regress(skip_bad=True).read(tmp_path / "a.jsonl")
    assert len(list(found)) == 1 and found.skipped == 1


def test_targets_and_answers_are_numbers_and_windows_are_averaged():
    task = Regress(long="window", stride=10)
    examples = [Rated("of and " * 20, label=2.5), Rated("the", "people", 1.0)]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert encoded.targets["label"].tolist() == [2.5, 2.5, 2.5, 1.0] and encoded.targets["label"].dtype == np.float32
    answers = task.decode(np.array([[1.0], [2.0], [6.0], [0.5]]), encoded, examples)
    assert answers == [Value(3.0), Value(0.5)]
    assert not task.encode([Rated("the")], TOKENIZER, 22).targets


def test_scores_are_correlations():
    examples = [Rated("t", label=label) for label in (1.0, 2.0, 3.0, 4.0)]
    found = Regress().judge([Value(value) for value in (1.0, 4.0, 9.0, 16.0)], examples)
    assert found == pytest.approx({"pearson": 0.9843740386976972, "spearman": 1.0})
    assert np.isnan(Regress().judge([Value(1.0)] * 4, examples)["pearson"])


def test_training_needs_a_number_for_every_text(tmp_path):
    assert Regress().fitted([Rated("a", label=1.0)]) == Regress()
    with pytest.raises(BadInput, match="has no label"):
        Regress().fitted([Rated("a", label=1.0), Rated("b")])
    assert parse(TaskConfig, plain(Regress(long="window"))) == Regress(long="window")
