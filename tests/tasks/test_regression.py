"""Text regression: reading values, window averaging, correlation metrics."""

import numpy as np
import pytest

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks import TaskConfig, TextRegression
from bertsmith.tasks.regression import RegressionExample, RegressionPrediction
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)


def test_regression_reads_labels_from_tables(tmp_path):
    (tmp_path / "a.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t3.80\nc\td\t-1e1\n")
    task = TextRegression(columns={"text": "sentence1", "text_b": "sentence2", "label": "score"})
    assert [(example.text, example.text_b, example.label) for example in task.read(tmp_path / "a.tsv")] == [
        ("a", "b", 3.8),
        ("c", "d", -10),
    ]
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 4}\n{"text": "b"}\n')
    assert [(example.text_b, example.label) for example in TextRegression().read(tmp_path / "a.jsonl")] == [
        (None, 4.0),
        (None, None),
    ]


@pytest.mark.parametrize("label", ['"good"', "NaN", '"inf"', "1e999", "true", "[1]", '""', "1" + "0" * 400])
def test_regression_rejects_labels_that_are_not_finite(tmp_path, label):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: label is .*, not a number"):
        list(TextRegression().read(tmp_path / "a.jsonl"))
    reader = TextRegression(skip_bad=True).read(tmp_path / "a.jsonl")
    assert len(list(reader)) == 1 and reader.num_skipped == 1


@pytest.mark.parametrize("label", ["1e39", "-1e30", "1" + "0" * 40])
def test_regression_rejects_labels_whose_loss_is_not_finite_in_float32(tmp_path, label):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "label": 1e6}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: label is .*, too large to train on"):
        list(TextRegression().read(tmp_path / "a.jsonl"))


def test_regression_averages_outputs_of_windows():
    task = TextRegression(long_text="window", doc_stride=10)
    examples = [RegressionExample("of and " * 20, label=2.5), RegressionExample("the", "people", 1.0)]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert encoded.targets["label"].tolist() == [2.5, 2.5, 2.5, 1.0] and encoded.targets["label"].dtype == np.float32
    predictions = task.decode(np.array([[1.0], [2.0], [6.0], [0.5]]), encoded, examples)
    assert predictions == [RegressionPrediction(3.0), RegressionPrediction(0.5)]
    assert not task.encode([RegressionExample("the")], TOKENIZER, 22).targets


def test_regression_metrics_are_correlations():
    examples = [RegressionExample("t", label=label) for label in (1.0, 2.0, 3.0, 4.0)]
    metrics = TextRegression().compute_metrics([RegressionPrediction(value) for value in (1.0, 4.0, 9.0, 16.0)], examples)
    assert metrics == pytest.approx({"pearson": 0.9843740386976972, "spearman": 1.0})
    assert np.isnan(TextRegression().compute_metrics([RegressionPrediction(1.0)] * 4, examples)["pearson"])


def test_regression_fit_requires_labels(tmp_path):
    assert TextRegression().fit([RegressionExample("a", label=1.0)]) == TextRegression()
    with pytest.raises(UserError, match="has no label"):
        TextRegression().fit([RegressionExample("a", label=1.0), RegressionExample("b")])
    assert from_dict(TaskConfig, to_dict(TextRegression(long_text="window"))) == TextRegression(long_text="window")
