"""`bertsmith show`: what stands on a page is what the corpus and the run say."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from bertsmith import api
from bertsmith.cli import main
from bertsmith.commands import show
from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.objectives import MaskedLM, SentencePairMLM
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
VOID = ("meta", "br", "circle", "line", "rect", "polyline", "path")


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
    """Three steps of a very small model."""
    tiny = {"layers": 1, "width": 16, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 16}, "positions": 32}
    out = corpus.path.parent / "model"
    train = {"steps": 3, "batch_tokens": 256, "log_every": 1, "eval_every": 2, "device": "cpu"}
    api.pretrain(corpus=str(corpus.path), model=tiny, length=[32], train=train, held_out=0.1, out=str(out), quiet=True)
    return out


def page(tmp_path, kind, **keys) -> str:
    out = tmp_path / "page.html"
    told = api.show(kind=kind, out=str(out), quiet=True, **keys)
    assert told["out"] == str(out)
    return out.read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Every element is closed by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag not in VOID or tag in ("circle", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def assert_stands_alone(html: str) -> None:
    reader = Balance()
    reader.feed(html)
    assert not reader.open
    assert all(link.startswith("#") for link in reader.loads)
    assert not re.search(r"https?://|@import|url\(|<script|<link", html)


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", "\n", html)


def test_every_kind_is_a_page_that_stands_alone(tmp_path, corpus, model):
    where, run = {"corpus": str(corpus.path)}, {"model": str(model)}
    keys = {"masks": {**where, "length": 32}, "corpus": where, "curves": run, "run": {**where, **run, "texts": ["<b> [MASK]"]}}
    for kind, given in keys.items():
        html = page(tmp_path, kind, **given)
        assert_stands_alone(html)
        assert len(html) > 5000
    for name in ("results", "filled-masks", "curves", "masks", "corpus"):
        assert f'id="{name}"' in html


def test_the_corpus_page_shows_the_corpus_own_counts(tmp_path, corpus):
    text = text_of(page(tmp_path, "corpus", corpus=str(corpus.path)))
    for fact in ("documents", "sentences", "tokens", "unigram entropy"):
        shown = text.split(f"\n{fact}\n")[1].split("\n")[1]
        assert float(shown.replace(",", "")) == pytest.approx(corpus.card[fact], rel=1e-3)
    ids, counts = np.unique(corpus.tokens, return_counts=True)
    most = count_frequent_tokens(corpus)
    assert dict(most) == {corpus.tokenizer.pieces[i]: c for i, c in zip(ids, counts, strict=True)}
    assert [count for _, count in most] == sorted((count for _, count in most), reverse=True)
    assert sum(histogram_bins(corpus.card["sentence lengths"]).values()) == corpus.card["sentences"]


def test_empty_classes_between_full_ones_are_kept():
    assert histogram_bins({"2+": 3, "16+": 1}) == {"2": 3, "4": 0, "8": 0, "16": 1}
    assert histogram_bins({}) == {}


def reading_of(corpus, **objective):
    documents, _ = corpus.split(0.01, 0)
    return SentencePairMLM(**objective).build_batches(corpus, documents, 32, 512, 0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_samples_are_those_that_training_reads(corpus, epoch):
    reading = reading_of(corpus)
    first = reading(epoch * reading.batches_per_epoch)
    one_by_one = [reading.collator(plan, at) for plan, at in take_samples(reading, 5, epoch)]
    tokens = np.concatenate([arrays.input_ids for arrays in one_by_one])
    assert (tokens == first.input_ids[: len(tokens)]).all()
    assert [int(arrays.labels[0]) for arrays in one_by_one] == first.labels[:5].tolist()


def test_what_stood_there_is_what_stands_in_the_corpus(corpus):
    reading = reading_of(corpus)
    for plan, epoch in take_samples(reading, 20, 0):
        arrays = reading.collator(plan, epoch)
        parts = [corpus.tokens[a:b] for a, b in zip(plan.span_starts, plan.span_ends, strict=True)]
        special = corpus.tokenizer
        assert restore_tokens(arrays).tolist() == [
            special.cls_token_id,
            *parts[0],
            special.sep_token_id,
            *parts[1],
            special.sep_token_id,
        ]


def test_proportions_are_sums_over_the_batches(corpus):
    reading = reading_of(corpus, rate=0.3)
    counts, batches = count_corruptions(corpus, reading, 0), list(reading)
    assert counts.num_samples == sum(len(b.lengths) for b in batches)
    assert counts.num_selected == sum(len(b.output_indices) for b in batches)
    assert counts.labels == {label: sum(int((b.labels == label).sum()) for b in batches) for label in (0, 1)}
    fates = np.concatenate([classify_corruption(b, corpus.tokenizer.mask) for b in batches])
    assert counts.corruptions == {name: int((fates == number).sum()) for number, name in enumerate(CORRUPTIONS)}
    told = {row[0]: row[1:] for row in corruption_rows(counts, reading)}
    assert told["tokens chosen"] == (counts.num_selected, f"{counts.num_selected / counts.num_maskable:.2%}", "30%")
    assert told["of them masked"][0] / counts.num_selected == pytest.approx(0.8, abs=0.08)
    assert counts.num_selected / counts.num_maskable == pytest.approx(0.3, abs=0.03)


def test_the_masks_page_marks_each_target_in_its_colour(tmp_path, corpus):
    html = page(tmp_path, "masks", corpus=str(corpus.path), length=32, samples=6)
    reading = reading_of(corpus)
    reading = SentencePairMLM().build_batches(corpus, reading.document_ids, 32, 16_384, 0)
    fates = [classify_corruption(reading.collator(plan, at), corpus.tokenizer.mask) for plan, at in take_samples(reading, 6, 0)]
    for number, name in enumerate(CORRUPTIONS):
        marks = html.count(f'<mark class="{name}">') - 1  # one is the legend's
        assert marks == sum(int((f == number).sum()) for f in fates)
    assert html.count('class="sample"') == 6
    assert html.count('class="pill"') == 6 and all(name in html for name in pair_label_names(reading))


def test_pieces_of_a_word_are_joined(tmp_path, corpus):
    html = page(tmp_path, "masks", corpus=str(corpus.path), length=32, samples=30)
    assert '<span class="word">dog<span class="inside">##</span>gy</span>' in html
    assert '<span class="word">small' not in html


def test_other_objectives_are_shown_too(tmp_path, corpus):
    html = page(tmp_path, "masks", corpus=str(corpus.path), length=32, objective={"kind": "masked", "masks": "whole-words"})
    assert 'class="pill"' not in html and ">A<" not in html
    assert "are in order" in page(
        tmp_path, "masks", corpus=str(corpus.path), objective={"kind": "pairs", "pairs": "sentence-order"}
    )


def test_curves_of_a_run_in_progress_leave_out_what_a_rollback_undid(tmp_path):
    lines = [{"step": 1, "loss": 9.0, "loss.words": 8.0, "tokens": 10}, {"step": 2, "loss": None, "tokens": 20},
             {"step": 3, "loss": 50.0}, {"step": 3, "skipped": "norm"}, {"step": 4, "rollback": 2, "rate_factor": 0.5},
             {"step": 3, "loss": 7.0, "loss.words": 6.0}]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo')
    assert [(row["step"], row.get("loss")) for row in read_metrics(tmp_path)] == [(1, 9.0), (2, None), (3, 7.0)]
    html = page(tmp_path, "curves", model=str(tmp_path))
    assert "3 steps, 20 tokens read." in html and "unigram" not in html


def test_curves_show_the_baseline_of_the_run_or_of_the_corpus(tmp_path, corpus, model):
    assert 'class="level"' in page(tmp_path, "curves", model=str(model))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n')
    assert 'class="level"' in page(tmp_path, "curves", model=str(tmp_path), corpus=str(corpus.path))


def test_the_run_page_shows_the_numbers_of_its_card(tmp_path, corpus, model):
    text = text_of(page(tmp_path, "run", corpus=str(corpus.path), model=str(model), texts=["a [MASK] sat"]))
    result = json.loads((model / "card.json").read_text())["result"]
    assert f"{result['valid_loss_words']:.4g}" in text
    assert f"{result['valid_mlm_accuracy']:.1%}" in text
    assert f"{result['parameters']:,}" in text
    best = api.load(model).fill("a [MASK] sat")[0][0]
    assert f"{best['score']:.1%}" in text.split("a [MASK] sat")[1]


def bad(**keys) -> str:
    with pytest.raises(UserError) as error:
        api.show(quiet=True, **keys)
    return str(error.value)


def test_bad_input_is_told_in_a_line(tmp_path, corpus):
    out = str(tmp_path / "page.html")
    assert "needs corpus=" in bad(kind="masks", out=out)
    assert "not a corpus folder" in bad(kind="corpus", corpus=str(tmp_path), out=out)
    assert "there is no folder" in bad(kind="curves", model=str(tmp_path / "none"), out=out)
    assert "holds nothing yet" in bad(kind="curves", model=str(tmp_path), out=out)
    assert "has no use for samples" in bad(kind="corpus", corpus=str(corpus.path), samples=3, out=out)
    assert "samples = 0" in bad(kind="masks", corpus=str(corpus.path), samples=0, out=out)
    assert "epoch = -1" in bad(kind="masks", corpus=str(corpus.path), epoch=-1, out=out)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\nnot json\n')
    assert "line 2" in bad(kind="curves", model=str(tmp_path), out=out)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "skipped": "norm"}\n')
    assert "no loss in any row" in bad(kind="curves", model=str(tmp_path), out=out)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("objective", ["pairs", "masked"])
def test_what_would_leave_nothing_to_show_is_refused(tmp_path, corpus, objective):
    given = {"kind": "masks", "corpus": str(corpus.path), "objective": objective, "out": str(tmp_path / "page.html")}
    for key, values in {"length": (-1, 0, 2, 3, 7), "held_out": (-0.1, 1.0, 1.5)}.items():
        for value in values:
            assert f"{key} = {value}" in bad(**given, **{key: value})
    assert "lower it" in bad(**given, held_out=0.99)
    with pytest.raises(UserError, match="0 documents to learn from make no sample"):
        render_masks(corpus, MaskedLM().build_batches(corpus, np.arange(0), 32, 512, 0), 3, 0)
    assert not (tmp_path / "page.html").exists()
    api.show(**given, length=8, quiet=True)
    assert (tmp_path / "page.html").stat().st_size > 5000


@pytest.mark.parametrize("objective", ["pairs", "masked"])
def test_the_documents_are_those_that_pretraining_learns_from(tmp_path, corpus, objective):
    told = {"corpus": str(corpus.path), "objective": objective, "held_out": 0.3, "seed": 5, "out": str(tmp_path)}
    shown = show._build_loader(from_dict(show.Recipe, {"kind": "masks", **told}), corpus).document_ids
    assert np.array_equal(shown, split_corpus(from_dict(PretrainRecipe, told), corpus)[0])


def test_the_command_line_takes_the_kind_as_a_word(tmp_path, corpus, capsys):
    out = str(tmp_path / "page.html")
    assert main(["show", "masks", f"corpus={corpus.path}", "length=32", "objective.masks=spans", f"out={out}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "masks"
    assert main(["show", "maskz", f"corpus={corpus.path}", f"out={out}"]) == 2
    assert "did you mean 'masks'" in capsys.readouterr().err
