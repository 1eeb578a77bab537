"""The evaluation report: a self-contained, well-formed page with the scores and findings."""

import re
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from bertsmith.evaluation.metric_names import display_name, format_interval, format_p_value, format_score
from bertsmith.evaluation.report import describe_findings, render_report
from bertsmith.evaluation.summary import build_details, build_scores, summarize
from bertsmith.metrics.intervals import ConfidenceInterval
from bertsmith.reports.charts import compute_axis_range, whisker
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.regression import TextRegression
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.evaluation import (
    MAKE_EVALUATION,
    degrade,
    evaluation_from_logits,
    make_classification,
    make_regression,
    make_tagging,
)
from tests.support.html import parse_page

MAKE_OTHER = {"classify": degrade}


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def summarize_evaluation(evaluation, tokenizer, other=None):
    predictor = SimpleNamespace(tokenizer=tokenizer, max_length=64)
    return summarize(predictor, evaluation, "out/model", "dev.tsv", "out/other" if other else None, other)


@pytest.mark.parametrize("kind", MAKE_EVALUATION)
def test_report_of_every_task_is_complete(tokenizer, kind):
    evaluation = MAKE_EVALUATION[kind]()
    summary = summarize_evaluation(evaluation, tokenizer, MAKE_OTHER.get(kind, lambda evaluation: evaluation)(evaluation))
    page = parse_page(render_report(summary, 5))
    assert format_score(summary.primary_metric, evaluation.scores[summary.primary_metric]) in page.text
    assert format_interval(summary.primary_metric, evaluation.intervals[summary.primary_metric]) in page.text
    assert {"scores", "comparison-with-other", "scores-by-slice", "worst-errors"} <= page.ids
    assert page.text.count(summary.mistakes[0].location) >= 1
    details = msgspec.json.decode(msgspec.json.encode(build_details(summary, 5)))
    assert details["scores"] == pytest.approx(evaluation.scores) and len(details["worst_errors"]) == 5 and details["slices"]
    assert details["confidence_intervals"].keys() == evaluation.metrics.keys() and details["comparison"]["differences"]
    assert build_scores(summary).keys() <= details.keys()


def test_report_shows_chinese_without_spaces(tokenizer):
    page = parse_page(render_report(summarize_evaluation(make_tagging(chinese=True), tokenizer))).text
    assert re.search("[一-龥]{4}", page)  # no spaces are put between characters


def test_report_escapes_texts_and_labels(tokenizer):
    hostile = '<script>alert("1")</script>'
    evaluation = make_classification(labels=(hostile, "&amp;"))
    examples = [
        ClassificationExample(hostile, label=example.label, source="dev.tsv", line=example.line)
        for example in evaluation.examples
    ]
    assert (
        hostile
        in parse_page(
            render_report(summarize_evaluation(evaluation_from_logits(evaluation.task, examples, evaluation.logits), tokenizer))
        ).text
    )


def test_report_of_model_without_mistakes(tokenizer):
    evaluation = make_classification(margin=99.0)
    page = parse_page(render_report(summarize_evaluation(evaluation, tokenizer, evaluation))).text
    assert "No errors: every prediction is correct." in page and "100.0%" in page and "is not statistically significant" in page


def test_report_findings_name_weak_slice_confusion_and_overconfidence(tokenizer):
    evaluation = make_classification(600, margin=4.0, scale=5.0)
    logits = evaluation.logits.copy()
    for i, example in enumerate(evaluation.examples):
        logits[i] = logits[i][[1, 0, 2]] if example.label == "fair" else logits[i]
    findings = " ".join(
        describe_findings(summarize_evaluation(evaluation_from_logits(evaluation.task, evaluation.examples, logits), tokenizer))
    )
    assert "Majority baseline: always predicting" in findings and "Weak slice, label “fair”" in findings
    assert "“fair” predicted as “bad”" in findings
    assert "Overconfident: the mean confidence is" in findings


def test_report_names_the_better_model(tokenizer):
    evaluation = make_classification(400, margin=3.0)
    other = degrade(evaluation, fraction=0.5)
    assert "model has the better accuracy" in parse_page(render_report(summarize_evaluation(evaluation, tokenizer, other))).text
    assert "other has the better accuracy" in parse_page(render_report(summarize_evaluation(other, tokenizer, evaluation))).text


def test_metric_formats():
    assert [format_score("accuracy", 0.8715), format_score("pearson", 0.8715), format_score("f1", float("nan"))] == [
        "87.2%",
        "0.872",
        "–",
    ]
    assert (
        format_interval("f1", ConfidenceInterval(0.8, 0.75, 0.85)) == "75.0 – 85.0%"
        and format_interval("f1", ConfidenceInterval(0.8, float("nan"), 1)) == "–"
    )
    assert [format_p_value(p) for p in (0.0004, 0.04, float("nan"))] == ["< 0.001", "0.040", "–"]
    assert display_name("f1.PER") == "F1 of PER" and display_name("strange_score") == "strange score"


def test_whisker_is_clipped_to_axis_range():
    limits = compute_axis_range([0.62, 0.871, float("nan")], bounds=(0.0, 1.0))
    assert limits == pytest.approx((0.6, 0.9))
    x_values = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([\d.]+)"', whisker(0.1, 0.7, 0.99, limits, 0.8))]
    assert len(x_values) == 5 and min(x_values) >= 8 and max(x_values) <= 232
    assert (
        whisker(float("nan"), float("nan"), float("nan"), limits) == ""
        and compute_axis_range([1.0, 1.0])[0] < compute_axis_range([1.0, 1.0])[1]
    )


def test_report_names_the_model_with_the_lower_error_as_better(tokenizer, monkeypatch):
    compute_results = TextRegression.compute_metric_results

    def compute_errors(*args):
        return {name: replace(result, lower_is_better=True) for name, result in compute_results(*args).items()}

    monkeypatch.setattr(TextRegression, "compute_metric_results", compute_errors)
    lower, higher = make_regression(noise=2.0), make_regression(noise=0.1)
    page = parse_page(render_report(summarize_evaluation(lower, tokenizer, higher))).text
    assert "model has the better Pearson correlation" in page
