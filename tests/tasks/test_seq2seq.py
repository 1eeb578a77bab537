"""Sequence to sequence: reading, encoding, decoding and metrics; BLEU and ROUGE against the original packages."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from bertsmith.errors import UserError
from bertsmith.tasks import Seq2Seq
from bertsmith.tasks.scorers.rouge import lcs_length, rouge_scores
from bertsmith.tasks.seq2seq import Seq2SeqExample, Seq2SeqPrediction, TextDecoder
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TASK = Seq2Seq()
SENTENCES = st.lists(st.sampled_from("the cat sat on a mat , and then it ran away .".split()), max_size=12).map(" ".join)  # noqa: SIM905


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_vocab(VOCAB)


def test_seq2seq_reads_columns_by_name(tmp_path):
    (tmp_path / "a.tsv").write_text('source\ttarget\nshe said "no"\tsie\n', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"en": "a", "de": "b"}\n', encoding="utf-8")
    (tmp_path / "c.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert [(example.text, example.target) for example in TASK.read(tmp_path / "a.tsv")] == [('she said "no"', "sie")]
    mapped = Seq2Seq(columns={"source": "en", "target": "de"})
    assert [(example.text, example.target) for example in mapped.read(tmp_path / "b.jsonl")] == [("a", "b")]
    assert [(example.text, example.target) for example in TASK.read(tmp_path / "c.txt")] == [("one", None), ("two", None)]


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"source": 3, "target": "b"}', "line 2: source is 3, not a text"), ('{"source": null, "target": "b"}', "source is null"),
     ('{"source": "a", "target": ["b"]}', "line 2: target is "), ("{", "line 2")],
)  # fmt: skip
def test_seq2seq_bad_row_raises_or_is_skipped(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"source": "a", "target": "b"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(TASK.read(path))
    reader = Seq2Seq(skip_bad=True).read(path)
    assert len(list(reader)) == 1 and reader.num_skipped == 1


def test_seq2seq_missing_source_error_lists_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("en\tde\na\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"source.*en.*de"):
        list(TASK.read(tmp_path / "a.tsv"))


def test_seq2seq_fit_requires_targets():
    with pytest.raises(UserError, match="target"):
        TASK.fit([Seq2SeqExample("a", "b"), Seq2SeqExample("c")])


def test_seq2seq_encodes_and_truncates_sources_and_targets(tokenizer):
    task = Seq2Seq(max_target_length=4)
    encoded = task.encode(
        [Seq2SeqExample("the of and to in", "we can see more people"), Seq2SeqExample("is", "")], tokenizer, 6
    )
    assert [tokenizer.decode(sequence) for sequence in encoded.input_ids] == ["[CLS] the of and to [SEP]", "[CLS] is [SEP]"]
    targets = np.split(encoded.targets["target_ids"], np.cumsum(encoded.targets["target_lengths"])[:-1])
    assert [tokenizer.decode(sequence) for sequence in targets] == ["[CLS] we can see [SEP]", "[CLS] [SEP]"]
    assert "target_ids" not in task.encode([Seq2SeqExample("the", None)], tokenizer, 8).targets


def test_text_decoder_drops_special_tokens_and_cjk_spaces(tokenizer):
    decode = TextDecoder(tokenizer)
    assert decode([tokenizer.cls_token_id, *tokenizer.encode("see the catz.").ids, tokenizer.sep_token_id]) == "see the catz."
    assert decode(tokenizer.encode("天地玄黄，宇宙").ids) == "天地玄黄，宇宙"
    assert decode([]) == ""


def test_seq2seq_metrics():
    pairs = [("the cat sat on the mat .", "the cat sat on the mat ."), ("a dog ran away", "a cat ran away"), ("", "some words")]
    predictions, examples = (
        [Seq2SeqPrediction(predicted) for predicted, _ in pairs],
        [Seq2SeqExample("x", gold) for _, gold in pairs],
    )
    metrics = TASK.compute_metrics(predictions, examples)
    assert list(metrics) == ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "same_length"]
    assert metrics["exact"] == pytest.approx(1 / 3) and metrics["same_length"] == pytest.approx(2 / 3)
    predicted, gold = map(list, zip(*pairs, strict=True))
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(predicted, [gold]).score / 100)
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(predicted, [gold]).score / 100)


def test_seq2seq_lowercase_ignores_case_in_metrics():
    pair = [Seq2SeqPrediction("the cat sat on a mat")], [Seq2SeqExample("x", "The cat sat on a Mat")]
    assert TASK.compute_metrics(*pair)["exact"] == 0 and TASK.compute_metrics(*pair)["bleu"] < 1
    assert {"exact": 1.0, "bleu": pytest.approx(1.0)}.items() <= Seq2Seq(lowercase=True).compute_metrics(*pair).items()


def test_bleu_of_chinese_splits_characters():
    task, pair = Seq2Seq(bleu_tokenizer="zh"), ([Seq2SeqPrediction("天地玄黄")], [Seq2SeqExample("x", "天地玄黄")])
    assert task.compute_metrics(*pair)["bleu"] == pytest.approx(1.0) and TASK.compute_metrics(*pair)["bleu"] < 1
    assert task.compute_metrics(*pair)["rouge2"] == 1.0


@given(SENTENCES, SENTENCES)
def test_rouge_matches_rouge_score(predicted, gold):
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(gold, predicted)
    assert rouge_scores(predicted, gold) == pytest.approx([expected[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")])


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_lcs_length_matches_recursion(left, right):
    def slow(a, b):
        if not a or not b:
            return 0
        return slow(a[1:], b[1:]) + 1 if a[0] == b[0] else max(slow(a[1:], b), slow(a, b[1:]))

    assert lcs_length(left, right) == slow(left, right) == lcs_length(right, left)
