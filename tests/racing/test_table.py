"""Parts of a race: bits per byte, majority baseline, result table, scatter plot, merged settings."""

import math
import re
from itertools import combinations

import pytest

from bertsmith.corpus.card import bits_per_byte
from bertsmith.evaluation.suite import SuiteRun, SuiteTable
from bertsmith.finetuning.suite import merge_settings
from bertsmith.racing.table import RaceResults, ResultRow, format_scientific, score_majority_baseline
from bertsmith.reports.charts import LabeledPoint, scatter_chart
from bertsmith.tasks import QuestionAnswering, TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB


def test_bits_per_byte_counts_unknown_words_as_raw_bytes():
    card = {"tokens": 10, "bytes": 60, "unknown_rate": 0.1, "unknown_bytes": 0}
    assert bits_per_byte(3 * math.log(2), card) == pytest.approx(0.5)
    assert bits_per_byte(0.0, card | {"unknown_bytes": 15}) == pytest.approx(2.0)


def test_bits_per_byte_is_none_without_byte_counts():
    card = {"tokens": 10, "bytes": 60, "unknown_rate": 0.1}
    assert bits_per_byte(1.0, card) is None and bits_per_byte(1.0, {"tokens": 10, "unknown_rate": 0.0}) is None
    assert bits_per_byte(3 * math.log(2), card | {"unknown_rate": 0.0}) == pytest.approx(0.5)


def test_majority_baseline_of_token_classification():
    tokenizer, task = Tokenizer.from_vocab(VOCAB), TokenClassification(labels=("NN", "VB"))
    train, dev = [sentence("NN NN VB")], [sentence("NN VB VB NN NN")]
    assert score_majority_baseline(task, train, dev, tokenizer, 16)["accuracy"] == pytest.approx(0.6)
    assert score_majority_baseline(QuestionAnswering(), [], [], tokenizer, 16) == {}


def sentence(tags):
    return Sentence(tokens=["the"] * len(tags.split()), tags=tags.split())


def test_race_table_columns_are_tasks_by_mode():
    runs = [SuiteRun("a", "t", seed, {"accuracy": value}, ("accuracy",)) for seed, value in ((0, 0.5), (1, 0.7))]
    modes = {"frozen": SuiteTable(("a", "b"), ("t",), runs), "tuned": SuiteTable(("a", "b"), ("t",), [])}
    facts = {"parameters": 12_000, "flops": 1.5e15, "steps": 3}
    results = RaceResults([ResultRow("a", facts), ResultRow("b", errors=("no",))], modes, ("t",), {"t": ("accuracy",)}, 2e15)
    assert results.text_rows() == [
        ("", "params", "FLOPs", "t frozen", "t tuned", "average frozen", "average tuned"),
        ("a", "12k", "1.5e15", "60.0 ± 14.1", "–", "60.0 ± 14.1", "–"),
        ("b", "–", "–", "–", "–", "–", "–"),
    ]
    assert results.to_dict()["members"][1]["errors"] == ["no"]
    assert [format_scientific(value) for value in (0, 1, 999, 1.234e18)] == ["0", "1e0", "9.99e2", "1.23e18"]


def test_scatter_chart_labels_do_not_overlap():
    points = [
        LabeledPoint("one", 1e5, 50.0),
        LabeledPoint("two", 1e5, 50.0),
        LabeledPoint("three", 1e5, 50.0),
        LabeledPoint("<four>", 1e7, 50.1, y_error=2.0),
    ]
    figure = scatter_chart("<t>", points, "parameters", ("majority baseline", 40.0))
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="value">([^<]+)<', figure)
    boxes = [(float(x), float(y), len(name)) for x, y, name in labels]
    assert len(boxes) == 4 and "&lt;four&gt;" in figure and "majority baseline" in figure
    for (x, y, size), (other_x, other_y, other_size) in combinations(boxes, 2):
        assert abs(y - other_y) >= 12 or x + 6 * size <= other_x or other_x + 6 * other_size <= x


def test_merge_settings_replaces_tables_of_another_kind():
    base = {"model": {"hidden_size": 8, "mixer": {"kind": "attention", "num_attention_heads": 4}}}
    assert merge_settings(base, {"model": {"mixer": {"num_attention_heads": 2}}})["model"] == {
        "hidden_size": 8,
        "mixer": {"kind": "attention", "num_attention_heads": 2},
    }
    assert merge_settings(base, {"model": {"mixer": {"kind": "lstm"}}})["model"] == {
        "hidden_size": 8,
        "mixer": {"kind": "lstm"},
    }
    assert merge_settings(base, {"model": "bert-tiny"}) == {"model": "bert-tiny"}
