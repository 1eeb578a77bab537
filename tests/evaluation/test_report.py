"""The report: one page that stands alone, is well formed, and says what was found."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest

from bertsmith.evaluation.metric_names import display_name, format_interval, format_p_value, format_score
from bertsmith.evaluation.report import describe_findings, render_report
from bertsmith.evaluation.summary import build_details, build_scores, summarize
from bertsmith.metrics.intervals import ConfidenceInterval
from bertsmith.reports.charts import compute_axis_range, whisker
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.evaluation.builders import EVERY, classified, of, tagged, worse

VOID = ("meta", "br")
OTHERS = {"classify": worse}


class Checked(HTMLParser):
    """Refuses a tag that is closed out of turn, or never."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.links, self.ids = [], "", [], set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids |= {given["id"]} if "id" in given else set()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def checked(page):
    reader = Checked()
    reader.feed(page.decode())
    assert not reader.open and "://" not in page.decode() and "<script" not in page.decode()
    assert all(link.startswith("#") and link[1:] in reader.ids for link in reader.links)
    return reader


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def study(judged, tokenizer, other=None):
    predictor = SimpleNamespace(tokenizer=tokenizer, length=64)
    return summarize(predictor, judged, "out/model", "dev.tsv", "out/other" if other else None, other)


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_task_has_a_whole_report(tokenizer, kind):
    judged = EVERY[kind]()
    found = study(judged, tokenizer, OTHERS.get(kind, lambda one: one)(judged))
    page = checked(render_report(found, 5))
    assert format_score(found.primary_metric, judged.scores[found.primary_metric]) in page.text
    assert format_interval(found.primary_metric, judged.intervals[found.primary_metric]) in page.text
    assert {"scores", "against-other", "where-it-goes-wrong", "worst-mistakes"} <= page.ids
    assert page.text.count(found.mistakes[0].place) >= 1
    told = msgspec.json.decode(msgspec.json.encode(build_details(found, 5)))
    assert told["scores"] == pytest.approx(judged.scores) and len(told["worst"]) == 5 and told["slices"]
    assert told["intervals"].keys() == judged.metrics.keys() and told["against"]["differences"]
    assert build_scores(found).keys() <= told.keys()


def test_chinese_is_read_as_it_is(tokenizer):
    page = checked(render_report(study(tagged(chinese=True), tokenizer))).text
    assert re.search("[一-龥]{4}", page)  # no spaces are put between characters


def test_hostile_texts_and_labels_stay_text(tokenizer):
    hostile = '<script>alert("1")</script>'
    judged = classified(labels=(hostile, "&amp;"))
    examples = [ClassificationExample(hostile, label=one.label, source="dev.tsv", line=one.line) for one in judged.examples]
    assert hostile in checked(render_report(study(of(judged.task, examples, judged.logits), tokenizer))).text


def test_a_faultless_model_has_a_report_too(tokenizer):
    judged = classified(margin=99.0)
    page = checked(render_report(study(judged, tokenizer, judged))).text
    assert "There are none: every answer is right." in page and "100.0%" in page and "cannot be told apart" in page


def test_what_stands_out_is_said_first(tokenizer):
    judged = classified(600, margin=4.0, sharp=5.0)
    raw = judged.logits.copy()
    for number, one in enumerate(judged.examples):
        raw[number] = raw[number][[1, 0, 2]] if one.label == "fair" else raw[number]
    told = " ".join(describe_findings(study(of(judged.task, judged.examples, raw), tokenizer)))
    assert "Always answering" in told and "Weakest by label, “fair”" in told and "“fair” taken for “bad”" in told
    assert "surer than it should be" in told


def test_a_worse_model_is_called_worse(tokenizer):
    judged = classified(400, margin=3.0)
    other = worse(judged, share=0.5)
    assert "By accuracy model is better" in checked(render_report(study(judged, tokenizer, other))).text
    assert "By accuracy other is better" in checked(render_report(study(other, tokenizer, judged))).text


def test_scores_are_written_as_people_read_them():
    assert [format_score("accuracy", 0.8715), format_score("pearson", 0.8715), format_score("f1", float("nan"))] == [
        "87.2%",
        "0.872",
        "–",
    ]
    assert (
        format_interval("f1", ConfidenceInterval(0.8, 0.75, 0.85)) == "75.0 – 85.0%"
        and format_interval("f1", ConfidenceInterval(0.8, float("nan"), 1)) == "–"
    )
    assert [format_p_value(p) for p in (0.0004, 0.04, float("nan"))] == ["below 0.001", "0.040", "–"]
    assert display_name("f1.PER") == "F1 of PER" and display_name("strange_score") == "strange score"


def test_whiskers_stay_on_their_scale():
    limits = compute_axis_range([0.62, 0.871, float("nan")], bounds=(0.0, 1.0))
    assert limits == pytest.approx((0.6, 0.9))
    places = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([\d.]+)"', whisker(0.1, 0.7, 0.99, limits, 0.8))]
    assert len(places) == 5 and min(places) >= 8 and max(places) <= 232
    assert (
        whisker(float("nan"), float("nan"), float("nan"), limits) == ""
        and compute_axis_range([1.0, 1.0])[0] < compute_axis_range([1.0, 1.0])[1]
    )
