"""Sources and targets: read, encoded, spelled and judged; BLEU and ROUGE against the originals."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from bertsmith.errors import UserError
from bertsmith.metrics import scores
from bertsmith.tasks import Seq2Seq
from bertsmith.tasks.scorers.rouge import lcs_length, rouge_scores
from bertsmith.tasks.seq2seq import Seq2SeqExample, Seq2SeqPrediction, TextDecoder
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TASK = Seq2Seq()
SENTENCES = st.lists(st.sampled_from("the cat sat on a mat , and then it ran away .".split()), max_size=12).map(" ".join)  # noqa: SIM905


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_vocab(PIECES)


def test_tables_and_json_are_read_by_the_names_of_their_columns(tmp_path):
    (tmp_path / "a.tsv").write_text('source\ttarget\nshe said "no"\tsie\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"en": "a", "de": "b"}\n', encoding="utf-8")
    (tmp_path / "c.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert [(one.text, one.target) for one in TASK.read(tmp_path / "a.tsv")] == [('she said "no"', "sie")]
    mapped = Seq2Seq(columns={"source": "en", "target": "de"})
    assert [(one.text, one.target) for one in mapped.read(tmp_path / "b.jsonl")] == [("a", "b")]
    assert [(one.text, one.target) for one in TASK.read(tmp_path / "c.txt")] == [("one", None), ("two", None)]


@pytest.mark.parametrize(
    ("line", "words"),
    [('{"source": 3, "target": "b"}', "line 2: source is 3, not a text"), ('{"source": null, "target": "b"}', "source is null"),
     ('{"source": "a", "target": ["b"]}', "line 2: target is "), ("{", "line 2")],
)  # fmt: skip
def test_a_bad_row_is_named_by_file_and_line_or_left_out(tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"source": "a", "target": "b"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=words):
        list(TASK.read(path))
    kept = Seq2Seq(skip_bad=True).read(path)
    assert len(list(kept)) == 1 and kept.num_skipped == 1


def test_a_file_without_sources_says_which_columns_there_are(tmp_path):
    (tmp_path / "a.tsv").write_text("en\tde\na\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"source.*en.*de"):
        list(TASK.read(tmp_path / "a.tsv"))


def test_training_needs_every_target():
    with pytest.raises(UserError, match="target"):
        TASK.fit([Seq2SeqExample("a", "b"), Seq2SeqExample("c")])


def test_sources_and_targets_are_framed_and_cut(tokenizer):
    task = Seq2Seq(longest=4)
    encoded = task.encode(
        [Seq2SeqExample("the of and to in", "we can see more people"), Seq2SeqExample("is", "")], tokenizer, 6
    )
    assert [tokenizer.decode(one) for one in encoded.input_ids] == ["[CLS] the of and to [SEP]", "[CLS] is [SEP]"]
    replies = np.split(encoded.targets["reply"], np.cumsum(encoded.targets["size"])[:-1])
    assert [tokenizer.decode(one) for one in replies] == ["[CLS] we can see [SEP]", "[CLS] [SEP]"]
    assert "reply" not in task.encode([Seq2SeqExample("the", None)], tokenizer, 8).targets


def test_what_is_written_is_spelled_without_special_tokens_and_spaces_nobody_wrote(tokenizer):
    spell = TextDecoder(tokenizer)
    assert spell([tokenizer.cls, *tokenizer.encode("see the catz.").ids, tokenizer.sep]) == "see the catz."
    assert spell(tokenizer.encode("天地玄黄，宇宙").ids) == "天地玄黄，宇宙"
    assert spell([]) == ""


def test_answers_are_judged_by_all_scores():
    pairs = [("the cat sat on the mat .", "the cat sat on the mat ."), ("a dog ran away", "a cat ran away"), ("", "some words")]
    answers, examples = [Seq2SeqPrediction(said) for said, _ in pairs], [Seq2SeqExample("x", true) for _, true in pairs]
    found = TASK.compute_metrics(answers, examples)
    assert list(found) == ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "length"]
    assert found["exact"] == pytest.approx(1 / 3) and found["length"] == pytest.approx(2 / 3)
    said, true = map(list, zip(*pairs, strict=True))
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, [true]).score / 100)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(said, [true]).score / 100)


def test_capitals_are_judged_only_where_there_are_some():
    pair = [Seq2SeqPrediction("the cat sat on a mat")], [Seq2SeqExample("x", "The cat sat on a Mat")]
    assert TASK.compute_metrics(*pair)["exact"] == 0 and TASK.compute_metrics(*pair)["bleu"] < 1
    assert {"exact": 1.0, "bleu": pytest.approx(1.0)}.items() <= Seq2Seq(lowercase=True).compute_metrics(*pair).items()


@given(st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6))
def test_bleu_from_counts_is_that_of_sacrebleu(pairs):
    said, true = map(list, zip(*pairs, strict=True))
    found = scores.bleu_from_counts(scores.bleu_counts(said, true), np.zeros(len(said)))
    assert float(found) == pytest.approx(sacrebleu.corpus_bleu(said, [true]).score / 100, abs=1e-9)


def test_bleu_of_chinese_is_cut_by_characters():
    task, pair = Seq2Seq(words="zh"), ([Seq2SeqPrediction("天地玄黄")], [Seq2SeqExample("x", "天地玄黄")])
    assert task.compute_metrics(*pair)["bleu"] == pytest.approx(1.0) and TASK.compute_metrics(*pair)["bleu"] < 1
    assert task.compute_metrics(*pair)["rouge2"] == 1.0


@given(SENTENCES, SENTENCES)
def test_rouge_is_that_of_rouge_score(said, true):
    theirs = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(true, said)
    assert rouge_scores(said, true) == pytest.approx([theirs[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")])


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_the_longest_common_subsequence_is_the_longest(left, right):
    def slow(a, b):
        if not a or not b:
            return 0
        return slow(a[1:], b[1:]) + 1 if a[0] == b[0] else max(slow(a[1:], b), slow(a, b[1:]))

    assert lcs_length(left, right) == slow(left, right) == lcs_length(right, left)


def test_without_sacrebleu_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"bertsmith\[eval\]"):
        TASK.compute_metrics([Seq2SeqPrediction("a")], [Seq2SeqExample("a", "a")])
