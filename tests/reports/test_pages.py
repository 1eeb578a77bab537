"""Every page with hostile names and texts: well-formed, escaped, no script, nothing loaded from the network."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.evaluation.report import render_report
from bertsmith.evaluation.suite import SuiteFailure, SuiteRun, SuiteTable
from bertsmith.evaluation.suite import render_page as render_suite
from bertsmith.evaluation.summary import summarize
from bertsmith.evaluation.word_senses.charts import (
    ContextSnippet,
    LayerVectors,
    render_accuracies,
    render_by_layer,
    render_scatter,
    render_word_table,
)
from bertsmith.objectives import MaskedLM
from bertsmith.racing.page import draw_score_plot
from bertsmith.racing.page import render_page as render_race
from bertsmith.racing.table import RaceResults, ResultRow
from bertsmith.reports.charts import LabeledPoint, Marker, Series, bar_chart, loglog_chart, scatter_chart, scatter_panel
from bertsmith.reports.corpus import render_corpus
from bertsmith.reports.finetuning import (
    ExampleAnswer,
    FinetuningComparison,
    ScoreInterval,
    render_comparison,
    render_filled_masks,
)
from bertsmith.reports.html import TEMPLATES, render_document
from bertsmith.reports.masking import render_masks
from bertsmith.reports.mixer_stats import BucketLayer, SpanLayer, render_buckets, render_spans
from bertsmith.reports.training_curves import render_curves, render_results
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.evaluation import evaluation_from_logits, make_classification

HOSTILE = """<script>alert("1")</script>'"&</td><img src=x onerror=alert(1)>"""
VOID_TAGS = ("meta", "br", "path", "line", "rect", "circle", "polyline")


class PageChecker(HTMLParser):
    """Asserts that elements are closed in order; collects text, tags, ids and links."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags, self.ids, self.links = [], "", set(), [], []

    def handle_starttag(self, tag, attrs):
        self.handle_attributes(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID_TAGS
        self.handle_attributes(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_attributes(self, tag, attrs):
        self.tags.add(tag)
        assert len({name for name, _ in attrs}) == len(attrs)
        assert not any(name.startswith("on") for name, _ in attrs)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def check_page(page: bytes) -> PageChecker:
    checker = PageChecker()
    checker.feed(page.decode())
    assert not checker.open and not checker.tags & {"script", "img", "link", "iframe", "object"}
    assert len(set(checker.ids)) == len(checker.ids) and all(
        link[0] == "#" and link[1:] in checker.ids for link in checker.links
    )
    assert not re.search(r"https?://|@import|url\(|<script", page.decode())
    return checker


def evaluation_page(tmp_path):
    evaluation = make_classification(120, labels=(HOSTILE, "b", "c"))
    examples = [
        ClassificationExample(f"{HOSTILE} {example.text}", label=example.label, source=HOSTILE, line=example.line)
        for example in evaluation.examples
    ]
    evaluation = evaluation_from_logits(evaluation.task, examples, evaluation.logits)
    other = evaluation_from_logits(evaluation.task, examples, evaluation.logits[::-1])
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    predictor = SimpleNamespace(tokenizer=Tokenizer.load(tmp_path / "vocab.txt"), max_length=64)
    return render_report(summarize(predictor, evaluation, f"out/{HOSTILE}", HOSTILE, "out/other<b>", other), 5)


def suite_table():
    scores = ((name, task, seed, 0.5 + 0.1 * seed) for name in (HOSTILE, "b") for task in (HOSTILE, "t") for seed in (0, 1))
    runs = [SuiteRun(name, task, seed, {HOSTILE: value}, (HOSTILE,)) for name, task, seed, value in scores]
    return SuiteTable((HOSTILE, "b"), (HOSTILE, "t"), runs, [SuiteFailure("b", "t", 3, HOSTILE)])


def suite_page(tmp_path):
    return render_suite(suite_table(), 3)


def race_results():
    table, facts = suite_table(), {"parameters": 12_000, "flops": 1e15, "seconds": 3.0, "bits_per_byte": 1.5}
    rows = [ResultRow(HOSTILE, facts), ResultRow("b", {"parameters": 900}, (HOSTILE,), checkpoint_of=HOSTILE)]
    return RaceResults(rows, {"frozen": table, "tuned": table}, table.tasks, {HOSTILE: (HOSTILE,)}, 2e15, pending_jobs=2)


def race_page(tmp_path):
    return render_race(race_results())


@pytest.fixture(scope="module")
def hostile_corpus(tmp_path_factory):
    """Tokens, subwords and the name of a source file are markup."""
    folder = tmp_path_factory.mktemp("corpus")
    words = ["<", ">", "script", "/", '"', "'", "&", "img", "##<", "##script", "a"]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    source = folder / "<img src=x>.txt"
    source.write_text("\n\n".join(["<script> a & ' \" </script> <img>\na a a <script>"] * 30))
    api.prepare(texts=[str(source)], tokenizer=str(folder / "vocab.txt"), out=str(folder / "corpus"), workers=1, quiet=True)
    return Corpus.open(folder / "corpus")


def curves_sections(tmp_path):
    rows = [
        {"step": 1, "loss": 9.0, "mlm_loss": 8.0, "mlm_accuracy": 0.1, "learning_rate": 1e-3, "grad_norm": 1.0, "tokens": 10},
        {"step": 2, "loss": 8.0, "mlm_loss": 7.0, "split": "valid", "mlm_accuracy": 0.2},
        {"step": 2, "loss": 8.0, "mlm_loss": 7.5, "split": "pseudo_perplexity"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = {"unigram_entropy": 6.0, "pseudo_perplexity": 90.0, "valid_mlm_loss": 4.5, "tokens": 10, "step": 2,
              "seconds": 60.0, "parameters": 1234, "valid_mlm_accuracy": 0.25}  # fmt: skip
    (tmp_path / "card.json").write_text(json.dumps({"result": result}))
    return [render_results(tmp_path), render_curves(tmp_path)]


def finetuning_sections():
    fill = [(f"{HOSTILE} [MASK]", [{"token_str": HOSTILE, "score": 0.7}, {"token_str": "a", "score": 0.1}])]
    scores = [ScoreInterval(HOSTILE, 0.7, 0.8, 0.9), ScoreInterval("from scratch", 0.4, 0.5, 0.6)]
    answers = [ExampleAnswer(HOSTILE, 0.9, HOSTILE, HOSTILE), ExampleAnswer("a", 0.6, "b", "text")]
    comparison = FinetuningComparison(scores, ScoreInterval("difference", 0.2, 0.3, 0.4), 0.5, 100, 50, answers)
    return [render_filled_masks(fill), render_comparison(HOSTILE, comparison)]


def senses_sections():
    snippets = [ContextSnippet.from_text(f"a {HOSTILE} b", 2, 10, sense) for sense in (HOSTILE, "b", None, "b")]
    neighbors, scores = np.array([[1], [0], [3], [2]]), {"nearest_neighbor": 0.75, "nearest_centroid": 0.5}
    layers = [LayerVectors(HOSTILE, i, 1, np.random.default_rng(i).normal(size=(4, 8)), neighbors, scores) for i in (0, 1)]
    return [
        render_accuracies({layer.name: scores for layer in layers}, 0.5, HOSTILE),
        render_by_layer({HOSTILE: [0.5, 0.75]}, 0.5),
        render_word_table([HOSTILE], {HOSTILE: {HOSTILE: 0.75}}, {HOSTILE: 0.5}),
        render_scatter(HOSTILE, snippets, layers),
    ]


@pytest.mark.parametrize("build", [evaluation_page, suite_page, race_page])
def test_reports_of_hostile_names_are_well_formed_and_escaped(build, tmp_path):
    page = check_page(build(tmp_path))
    assert page.text.count(HOSTILE) >= 5 and {"h1", "h2", "table", "svg"} <= page.tags


def test_sections_of_hostile_texts_are_well_formed_and_escaped(tmp_path, hostile_corpus):
    batches = MaskedLM().build_batches(hostile_corpus, np.arange(30), 32, 512, 0)
    sections = [
        *curves_sections(tmp_path),
        *finetuning_sections(),
        *senses_sections(),
        render_corpus(hostile_corpus),
        render_masks(hostile_corpus, batches, 4, 0),
        render_spans([SpanLayer([0.0, 10.0], 16)], 1000, 32, True),
        render_buckets([BucketLayer([1.0], [0.0], [0.2])], 10),
    ]
    page = check_page(render_document(HOSTILE, HOSTILE, sections))
    assert page.text.count(HOSTILE) >= 15 and "<img src=x>.txt" in page.text
    for number in ("75.0%", "pseudo-perplexity", "90", "25.0%", "1,234", "+30.0 points", "80.0%"):
        assert number in page.text


def test_charts_of_hostile_names_are_well_formed_and_escaped():
    figures = [
        bar_chart(HOSTILE, {HOSTILE: 3}, HOSTILE),
        scatter_chart(HOSTILE, [LabeledPoint(HOSTILE, 10.0, 1.0, y_error=0.5)], HOSTILE, (HOSTILE, 2.0)),
        scatter_panel(HOSTILE, HOSTILE, np.zeros((2, 2)), [Marker("one", HOSTILE, (1,)), Marker("two", "b")]),
        loglog_chart(HOSTILE, [Series(HOSTILE, [(2.0, 1.0), (4.0, 3.0)])], HOSTILE, HOSTILE).decode(),
        draw_score_plot(race_results()).decode(),
    ]
    for figure in figures:
        root = ElementTree.fromstring(figure)
        assert any(text == HOSTILE for text in root.itertext())
        assert not {node.tag.rpartition("}")[2] for node in root.iter()} & {"script", "img"}


def test_templates_have_no_script_and_turn_no_escaping_off():
    for path in TEMPLATES.iterdir():
        assert not re.search(r"https?://|<script|\| *safe|autoescape|url\(", path.read_text(encoding="utf-8")), path.name
