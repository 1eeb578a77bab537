"""Answers of `Predictor` equal those of transformers' pipelines on the same weights: fields, values and offsets."""

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.model import checkpoint
from tests.support.huggingface_models import import_folder, save_random_model, transformers

SENTENCES = ["The people made a way, and then they saw it.", "She said water now", "Is it one word?"]


def load_both(name, folder, **settings):
    """transformers' model and fast tokenizer, and the predictor of the imported folder."""
    original = save_random_model(name, folder / "hf", **settings)
    import_folder(folder / "hf", folder / "ours")
    backend = checkpoint.load(folder / "ours")[1].backend_tokenizer
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    tokenizer = transformers.BertTokenizerFast(str(folder / "hf/vocab.txt"), **special)
    assert tokenizer.convert_ids_to_tokens([5, 60]) == [backend.id_to_token(5), backend.id_to_token(60)]
    return original, tokenizer, bertsmith.load(folder / "ours", device="cpu", precision="fp32")


def approx_rows(rows):
    return [{name: pytest.approx(value, rel=1e-4) if name == "score" else value for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("text", ["The people [MASK] a way, and then they saw it.", "[MASK] said water", "is it one [MASK] ?"])
def test_fill_mask_of_one_mask_equals_the_pipeline(text, tmp_path):
    original, tokenizer, predictor = load_both("BertForMaskedLM", tmp_path)
    pipeline = transformers.FillMaskPipeline(model=original, tokenizer=tokenizer, device="cpu")
    expected = pipeline(text, top_k=7)
    rows = predictor.fill(text, top_k=7)
    assert rows == approx_rows(expected) == predictor(text, top_k=7)
    assert [list(row) for row in rows] == [list(row) for row in expected]


def test_fill_mask_of_several_masks_equals_the_pipeline(tmp_path):
    original, tokenizer, predictor = load_both("BertForMaskedLM", tmp_path)
    pipeline = transformers.FillMaskPipeline(model=original, tokenizer=tokenizer, device="cpu")
    text = "the [MASK] saw the [MASK] ."
    expected, rows = pipeline(text, top_k=3), predictor.fill(text, top_k=3)
    assert len(rows) == len(expected) == 2
    for mask, expected_mask in zip(rows, expected, strict=True):
        assert mask == approx_rows(expected_mask)


@pytest.mark.parametrize("strategy", ["simple", "first"])
def test_entities_equal_the_pipeline(strategy, tmp_path):
    """A word has the tag of its first subword: strategy `first`, and `simple` where each word is one token."""
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    settings = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    original, tokenizer, predictor = load_both("BertForTokenClassification", tmp_path, **settings)
    pipeline = transformers.TokenClassificationPipeline(
        model=original, tokenizer=tokenizer, device="cpu", aggregation_strategy=strategy
    )
    texts = ["the people said it now", "the one way and the people", "she said the way"] if strategy == "simple" else SENTENCES
    num_entities = 0
    for text in texts:
        if strategy == "simple":
            assert len(tokenizer.tokenize(text)) == len(text.split())
        rows, expected = predictor(text), pipeline(text)
        for row, expected_row in zip(rows, expected, strict=True):
            assert list(row) == list(expected_row)
            assert row["entity_group"] == expected_row["entity_group"]
            assert row["score"] == pytest.approx(float(expected_row["score"]), rel=1e-4)
            assert (row["start"], row["end"]) == (expected_row["start"], expected_row["end"])
            assert row["word"] == text[expected_row["start"] : expected_row["end"]]
        num_entities += len(rows)
    assert num_entities >= 3


def reference_answer(original, tokenizer, question, context, top_k):
    """What transformers' question-answering pipeline (removed in version 5) computes for a context of one window.

    Softmax of the start and the end logits over the context tokens and [CLS]; the score of a span is the product.
    """
    encoding = tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt")
    offsets = encoding.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = original(**encoding)
    in_context = np.array([part == 1 for part in encoding.sequence_ids(0)])
    allowed = in_context.copy()
    allowed[0] = True
    start, end = (
        torch.where(torch.from_numpy(allowed), logits[0], -10000.0).softmax(-1).double().numpy()
        for logits in (output.start_logits, output.end_logits)
    )
    scores = np.tril(np.triu(np.outer(start, end)), 14) * in_context[:, None] * in_context
    best = np.argsort(-scores, axis=None)[:top_k]
    spans = [(offsets[i][0], offsets[j][1], scores[i, j]) for i, j in zip(*np.unravel_index(best, scores.shape), strict=True)]
    return [{"score": score, "start": a, "end": b, "answer": context[a:b]} for a, b, score in spans], start[0] * end[0]


@pytest.mark.parametrize("context", SENTENCES)
def test_answers_have_the_fields_and_scores_of_the_pipeline(context, tmp_path):
    original, tokenizer, predictor = load_both("BertForQuestionAnswering", tmp_path)
    predictor.task = type(predictor.task)(max_answer_length=15)
    expected, null_score = reference_answer(original, tokenizer, "Who was it?", context, 4)
    answer = predictor(question="Who was it?", context=context, top_k=4)
    assert answer.pop("candidates") == approx_rows(expected) and answer == approx_rows(expected)[0]
    predictor.task = type(predictor.task)(no_answer=True, threshold=-100.0)
    none = predictor(question="Who was it?", context=context)
    assert none == {"answer": "", "score": pytest.approx(null_score, rel=1e-4), "start": 0, "end": 0}
    predictor.task = type(predictor.task)(no_answer=True, threshold=100.0, max_answer_length=15)
    candidates = predictor(question="Who was it?", context=context, top_k=50)["candidates"]
    assert none in candidates and len(candidates) == min(21, len(candidates))
