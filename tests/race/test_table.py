"""The parts of a race by themselves: bits of unknown words, what is usual, tables and dots."""

import math
import re
from itertools import combinations

import pytest

from bertsmith.corpus.card import bits_per_byte
from bertsmith.evaluation.suite import SuiteRun, SuiteTable
from bertsmith.finetuning.suite import merge_settings
from bertsmith.race.table import RaceResults, ResultRow, format_scientific, score_majority_baseline
from bertsmith.reports.scatter import LabeledPoint, scatter_chart
from bertsmith.tasks import QuestionAnswering, TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES


def test_bits_of_a_text_count_unknown_words_as_they_would_be_sent():
    card = {"tokens": 10, "bytes": 60, "unknown rate": 0.1, "unknown bytes": 0}
    assert bits_per_byte(3 * math.log(2), card) == pytest.approx(0.5)
    assert bits_per_byte(0.0, card | {"unknown bytes": 15}) == pytest.approx(2.0)


def test_no_bits_are_told_of_a_corpus_that_did_not_count_its_bytes():
    old = {"tokens": 10, "bytes": 60, "unknown rate": 0.1}
    assert bits_per_byte(1.0, old) is None and bits_per_byte(1.0, {"tokens": 10, "unknown rate": 0.0}) is None
    assert bits_per_byte(3 * math.log(2), old | {"unknown rate": 0.0}) == pytest.approx(0.5)


def test_usual_tags_are_judged_like_any_answers():
    tokenizer, tag = Tokenizer.from_vocab(PIECES), TokenClassification(labels=("NN", "VB"))
    learn, dev = [sentence("NN NN VB")], [sentence("NN VB VB NN NN")]
    assert score_majority_baseline(tag, learn, dev, tokenizer, 16)["accuracy"] == pytest.approx(0.6)
    assert score_majority_baseline(QuestionAnswering(), [], [], tokenizer, 16) == {}


def sentence(tags):
    return Sentence(tokens=["the"] * len(tags.split()), tags=tags.split())


def test_a_table_aligns_tasks_and_ways():
    runs = [SuiteRun("a", "t", seed, {"accuracy": value}, ("accuracy",)) for seed, value in ((0, 0.5), (1, 0.7))]
    ways = {"frozen": SuiteTable(("a", "b"), ("t",), runs), "tuned": SuiteTable(("a", "b"), ("t",), [])}
    facts = {"parameters": 12_000, "flops": 1.5e15, "steps": 3}
    race = RaceResults([ResultRow("a", facts), ResultRow("b", errors=("no",))], ways, ("t",), {"t": ("accuracy",)}, 2e15)
    assert race.text_rows() == [
        ("", "params", "FLOPs", "t frozen", "t tuned", "average frozen", "average tuned"),
        ("a", "12k", "1.5e15", "60.0 ± 14.1", "–", "60.0 ± 14.1", "–"),
        ("b", "–", "–", "–", "–", "–", "–"),
    ]
    assert race.to_dict()["members"][1]["faults"] == ["no"]
    assert [format_scientific(value) for value in (0, 1, 999, 1.234e18)] == ["0", "1e0", "9.99e2", "1.23e18"]


def test_named_dots_do_not_write_over_one_another():
    given = [
        LabeledPoint("one", 1e5, 50.0),
        LabeledPoint("two", 1e5, 50.0),
        LabeledPoint("three", 1e5, 50.0),
        LabeledPoint("<four>", 1e7, 50.1, y_error=2.0),
    ]
    figure = scatter_chart("<t>", given, "parameters", ("usual", 40.0))
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="value">([^<]+)<', figure)
    boxes = [(float(x), float(y), len(name)) for x, y, name in found]
    assert len(boxes) == 4 and "&lt;four&gt;" in figure and "usual" in figure
    for (x, y, size), (other, height, length) in combinations(boxes, 2):
        assert abs(y - height) >= 12 or x + 6 * size <= other or other + 6 * length <= x


def test_a_table_of_another_kind_takes_nothing_from_the_one_below():
    below = {"model": {"width": 8, "mixer": {"kind": "dense", "heads": 4}}}
    assert merge_settings(below, {"model": {"mixer": {"heads": 2}}})["model"] == {
        "width": 8,
        "mixer": {"kind": "dense", "heads": 2},
    }
    assert merge_settings(below, {"model": {"mixer": {"kind": "lstm"}}})["model"] == {"width": 8, "mixer": {"kind": "lstm"}}
    assert merge_settings(below, {"model": "bert-tiny"}) == {"model": "bert-tiny"}
