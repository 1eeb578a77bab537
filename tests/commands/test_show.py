"""`bertsmith show`: pages are self-contained and have the numbers of the corpus and the run."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from bertsmith import api
from bertsmith.cli import main
from bertsmith.commands import show_pages
from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.objectives import MaskedLM, NextSentenceMLM
from bertsmith.pretraining.setup import PretrainRecipe, split_corpus
from bertsmith.reports.corpus import count_frequent_tokens, histogram_bins
from bertsmith.reports.masking import (
    CORRUPTIONS,
    classify_corruption,
    corruption_rows,
    count_corruptions,
    pair_label_names,
    render_masks,
    restore_tokens,
    take_samples,
)
from bertsmith.reports.training_curves import read_metrics

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "small", "cat", "##s", "sat", "on", "the", "mat", "<script>", "and", "dog", "##gy", '"', ".", "<", ">", "script"]
SENTENCES = [
    "a small cat sat on the mat .",
    "the dogs and the cats sat .",
    'a doggy sat on "a" small mat .',
    "the cat <script> sat .",
]
VOID_TAGS = ("meta", "br", "circle", "line", "rect", "polyline", "path")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sixty documents of one to eight sentences, hostile words among them."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + WORDS))
    texts = ["\n".join(SENTENCES[(d + s * s) % 4] for s in range(1 + d % 8)) for d in range(60)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    out = folder / "corpus"
    api.prepare(texts=[str(folder / "text.txt")], tokenizer=str(folder / "vocab.txt"), out=str(out), workers=1, quiet=True)
    return Corpus.open(out)


@pytest.fixture(scope="module")
def model(corpus):
    """A very small model trained for three steps."""
    tiny = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "mixer": {"kind": "attention", "num_attention_heads": 2},
        "feedforward": {"intermediate_size": 16},
        "max_position_embeddings": 32,
    }
    out = corpus.path.parent / "model"
    train = {"steps": 3, "batch_tokens": 256, "log_every": 1, "eval_every": 2, "device": "cpu"}
    api.pretrain(
        corpus=str(corpus.path), model=tiny, max_length=[32], train=train, validation_split=0.1, out=str(out), quiet=True
    )
    return out


def show_page(tmp_path, kind, **settings) -> str:
    out = tmp_path / "page.html"
    result = api.show(kind=kind, out=str(out), quiet=True, **settings)
    assert result["out"] == str(out)
    return out.read_text(encoding="utf-8")


class NestingChecker(HTMLParser):
    """Asserts that elements are properly nested; collects what they would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag not in VOID_TAGS or tag in ("circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID_TAGS

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def assert_self_contained(html: str) -> None:
    checker = NestingChecker()
    checker.feed(html)
    assert not checker.open
    assert all(link.startswith("#") for link in checker.loads)
    assert not re.search(r"https?://|@import|url\(|<script|<link", html)


def strip_tags(html: str) -> str:
    return re.sub(r"<[^>]+>", "\n", html)


def test_show_page_of_every_kind_is_self_contained(tmp_path, corpus, model):
    corpus_setting, model_setting = {"corpus": str(corpus.path)}, {"model": str(model)}
    settings_by_kind = {
        "masks": {**corpus_setting, "max_length": 32},
        "corpus": corpus_setting,
        "curves": model_setting,
        "run": {**corpus_setting, **model_setting, "texts": ["<b> [MASK]"]},
    }
    for kind, settings in settings_by_kind.items():
        html = show_page(tmp_path, kind, **settings)
        assert_self_contained(html)
        assert len(html) > 5000
    for name in ("results", "filled-masks", "curves", "masks", "corpus"):
        assert f'id="{name}"' in html


def test_show_corpus_page_has_counts_of_corpus(tmp_path, corpus):
    text = strip_tags(show_page(tmp_path, "corpus", corpus=str(corpus.path)))
    for fact in ("documents", "sentences", "tokens", "unigram_entropy"):
        label = fact.replace("_", " ")
        shown = text.split(f"\n{label}\n")[1].split("\n")[1]
        assert float(shown.replace(",", "")) == pytest.approx(corpus.card[fact], rel=1e-3)
    ids, counts = np.unique(corpus.tokens, return_counts=True)
    frequent = count_frequent_tokens(corpus)
    assert dict(frequent) == {corpus.tokenizer.id_to_token[i]: c for i, c in zip(ids, counts, strict=True)}
    assert [count for _, count in frequent] == sorted((count for _, count in frequent), reverse=True)
    assert sum(histogram_bins(corpus.card["sentence_lengths"]).values()) == corpus.card["sentences"]


def test_histogram_keeps_empty_bins_in_between():
    assert histogram_bins({"2+": 3, "16+": 1}) == {"2": 3, "4": 0, "8": 0, "16": 1}
    assert histogram_bins({}) == {}


def build_pair_batches(corpus, **objective):
    documents, _ = corpus.split(0.01, 0)
    return NextSentenceMLM(**objective).build_batches(corpus, documents, 32, 512, 0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_show_masks_samples_are_those_of_training(corpus, epoch):
    batches = build_pair_batches(corpus)
    first = batches(epoch * batches.batches_per_epoch)
    one_by_one = [batches.collator(sample, sample_epoch) for sample, sample_epoch in take_samples(batches, 5, epoch)]
    tokens = np.concatenate([batch.input_ids for batch in one_by_one])
    assert (tokens == first.input_ids[: len(tokens)]).all()
    assert [int(batch.labels[0]) for batch in one_by_one] == first.labels[:5].tolist()


def test_restored_tokens_are_those_of_the_corpus(corpus):
    batches = build_pair_batches(corpus)
    for sample, epoch in take_samples(batches, 20, 0):
        batch = batches.collator(sample, epoch)
        spans = [corpus.tokens[a:b] for a, b in zip(sample.span_starts, sample.span_ends, strict=True)]
        tokenizer = corpus.tokenizer
        assert restore_tokens(batch).tolist() == [
            tokenizer.cls_token_id,
            *spans[0],
            tokenizer.sep_token_id,
            *spans[1],
            tokenizer.sep_token_id,
        ]


def test_corruption_counts_are_sums_over_batches(corpus):
    loader = build_pair_batches(corpus, mlm_probability=0.3)
    counts, batches = count_corruptions(corpus, loader, 0), list(loader)
    assert counts.num_samples == sum(len(b.lengths) for b in batches)
    assert counts.num_selected == sum(len(b.output_indices) for b in batches)
    assert counts.labels == {label: sum(int((b.labels == label).sum()) for b in batches) for label in (0, 1)}
    corruptions = np.concatenate([classify_corruption(b, corpus.tokenizer.mask_token_id) for b in batches])
    assert counts.corruptions == {name: int((corruptions == index).sum()) for index, name in enumerate(CORRUPTIONS)}
    rows = {row[0]: row[1:] for row in corruption_rows(counts, loader)}
    assert rows["tokens selected for prediction"] == (
        counts.num_selected,
        f"{counts.num_selected / counts.num_maskable:.2%}",
        "30%",
    )
    assert rows["of these: masked"][0] / counts.num_selected == pytest.approx(0.8, abs=0.08)
    assert counts.num_selected / counts.num_maskable == pytest.approx(0.3, abs=0.03)


def test_show_masks_page_highlights_every_target(tmp_path, corpus):
    html = show_page(tmp_path, "masks", corpus=str(corpus.path), max_length=32, samples=6)
    batches = build_pair_batches(corpus)
    batches = NextSentenceMLM().build_batches(corpus, batches.document_ids, 32, 16_384, 0)
    corruptions = [
        classify_corruption(batches.collator(sample, sample_epoch), corpus.tokenizer.mask_token_id)
        for sample, sample_epoch in take_samples(batches, 6, 0)
    ]
    for index, name in enumerate(CORRUPTIONS):
        marks = html.count(f'<mark class="{name}">') - 1  # one is in the legend
        assert marks == sum(int((sample_corruptions == index).sum()) for sample_corruptions in corruptions)
    assert html.count('class="sample"') == 6
    assert html.count('class="pill"') == 6 and all(name in html for name in pair_label_names(batches))


def test_show_masks_page_joins_subwords(tmp_path, corpus):
    html = show_page(tmp_path, "masks", corpus=str(corpus.path), max_length=32, samples=30)
    assert '<span class="word">dog<span class="inside">##</span>gy</span>' in html
    assert '<span class="word">small' not in html


def test_show_masks_page_of_other_objectives(tmp_path, corpus):
    html = show_page(
        tmp_path, "masks", corpus=str(corpus.path), max_length=32, objective={"kind": "mlm", "masking": "whole-word"}
    )
    assert 'class="pill"' not in html and ">A<" not in html
    assert "are in order" in show_page(tmp_path, "masks", corpus=str(corpus.path), objective={"kind": "mlm-sop"})


def test_show_curves_skips_rows_undone_by_rollback(tmp_path):
    lines = [{"step": 1, "loss": 9.0, "mlm_loss": 8.0, "tokens": 10}, {"step": 2, "loss": None, "tokens": 20},
             {"step": 3, "loss": 50.0}, {"step": 3, "skip_reason": "norm"}, {"step": 4, "rollback_to": 2, "lr_scale": 0.5},
             {"step": 3, "loss": 7.0, "mlm_loss": 6.0}]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo')
    assert [(row["step"], row.get("loss")) for row in read_metrics(tmp_path)] == [(1, 9.0), (2, None), (3, 7.0)]
    html = show_page(tmp_path, "curves", model=str(tmp_path))
    assert "3 steps, 20 training tokens." in html and "unigram" not in html


def test_show_curves_has_unigram_entropy_of_run_or_corpus(tmp_path, corpus, model):
    assert 'class="level"' in show_page(tmp_path, "curves", model=str(model))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    assert 'class="level"' in show_page(tmp_path, "curves", model=str(tmp_path), corpus=str(corpus.path))


def test_show_run_page_has_results_of_card(tmp_path, corpus, model):
    text = strip_tags(show_page(tmp_path, "run", corpus=str(corpus.path), model=str(model), texts=["a [MASK] sat"]))
    result = json.loads((model / "card.json").read_text())["result"]
    assert f"{result['valid_mlm_loss']:.4g}" in text
    assert f"{result['valid_mlm_accuracy']:.1%}" in text
    assert f"{result['parameters']:,}" in text
    best = api.load(model).fill("a [MASK] sat")[0]
    assert f"{best['score']:.1%}" in text.split("a [MASK] sat")[1]


def show_error(**settings) -> str:
    with pytest.raises(UserError) as error:
        api.show(quiet=True, **settings)
    return str(error.value)


def test_show_reports_invalid_input(tmp_path, corpus):
    out = str(tmp_path / "page.html")
    assert "needs corpus=" in show_error(kind="masks", out=out)
    assert "not a corpus folder" in show_error(kind="corpus", corpus=str(tmp_path), out=out)
    assert "there is no folder" in show_error(kind="curves", model=str(tmp_path / "none"), out=out)
    assert "has no rows yet" in show_error(kind="curves", model=str(tmp_path), out=out)
    assert "does not take samples" in show_error(kind="corpus", corpus=str(corpus.path), samples=3, out=out)
    assert "samples must be at least 1, not 0" in show_error(kind="masks", corpus=str(corpus.path), samples=0, out=out)
    assert "epoch must be at least 0, not -1" in show_error(kind="masks", corpus=str(corpus.path), epoch=-1, out=out)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\nnot json\n')
    assert "line 2" in show_error(kind="curves", model=str(tmp_path), out=out)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "skip_reason": "norm"}\n')
    assert "no row with a loss" in show_error(kind="curves", model=str(tmp_path), out=out)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("objective", ["mlm-nsp", "mlm"])
def test_show_masks_rejects_settings_without_samples(tmp_path, corpus, objective):
    settings = {"kind": "masks", "corpus": str(corpus.path), "objective": objective, "out": str(tmp_path / "page.html")}
    for key, values in {"max_length": (-1, 0, 2, 3, 7), "validation_split": (-0.1, 1.0, 1.5)}.items():
        for value in values:
            assert re.search(rf"{key} must be .*, not {value}$", show_error(**settings, **{key: value}))
    assert "lower it" in show_error(**settings, validation_split=0.99)
    with pytest.raises(UserError, match="0 training documents give no training sample"):
        render_masks(corpus, MaskedLM().build_batches(corpus, np.arange(0), 32, 512, 0), 3, 0)
    assert not (tmp_path / "page.html").exists()
    api.show(**settings, max_length=8, quiet=True)
    assert (tmp_path / "page.html").stat().st_size > 5000


@pytest.mark.parametrize("objective", ["mlm-nsp", "mlm"])
def test_show_masks_uses_documents_of_pretraining(tmp_path, corpus, objective):
    settings = {"corpus": str(corpus.path), "objective": objective, "validation_split": 0.3, "seed": 5, "out": str(tmp_path)}
    document_ids = show_pages._build_loader(from_dict(show_pages.Recipe, {"kind": "masks", **settings}), corpus).document_ids
    assert np.array_equal(document_ids, split_corpus(from_dict(PretrainRecipe, settings), corpus)[0])


def test_show_command_line_takes_kind_as_first_argument(tmp_path, corpus, capsys):
    out = str(tmp_path / "page.html")
    assert (
        main(["show", "masks", f"corpus={corpus.path}", "max_length=32", "objective.masking=span", f"out={out}", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["kind"] == "masks"
    assert main(["show", "maskz", f"corpus={corpus.path}", f"out={out}"]) == 2
    assert "did you mean 'masks'" in capsys.readouterr().err
