"""Integrated gradients equal a plain loop over transformers' models, whose embeddings are scaled between zero and the text."""

import numpy as np
import pytest
import torch

import bertsmith
from tests.support.huggingface_models import import_folder, save_random_model

LABELS = {"id2label": {0: "red", 1: "green", 2: "blue"}, "label2id": {"red": 0, "green": 1, "blue": 2}}
TEXT = "the people made a way, and then they saw it."


def attribute_plainly(reference, ids, is_special, steps, score):
    """(tokens,): the sum over Gauss-Legendre points of the gradient, times the embeddings; one forward pass a point."""
    embeddings = reference.get_input_embeddings()(ids).detach()
    kept = torch.tensor(is_special)[None, :, None]
    gradients = torch.zeros_like(embeddings)
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        point = torch.where(kept, embeddings, embeddings * (node + 1) / 2).requires_grad_()
        score(reference(inputs_embeds=point).logits[0]).backward()
        gradients += point.grad * weight / 2
    return torch.where(kept, 0.0, embeddings * gradients).sum(-1)[0].numpy()


@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Electra", "ModernBert"])
def test_attributions_match_transformers(family, tmp_path):
    reference = save_random_model(f"{family}ForSequenceClassification", tmp_path / "hf", **LABELS)
    import_folder(tmp_path / "hf", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours", backend="torch", precision="fp32")
    tokenizer = model.tokenizer
    ids = torch.tensor([[tokenizer.cls_token_id, *tokenizer.encode(TEXT).ids, tokenizer.sep_token_id]])
    for index, label in LABELS["id2label"].items():
        result = model.attributions(TEXT, target=label)
        is_special = [token in ("[CLS]", "[SEP]") for token in result.tokens]
        expected = attribute_plainly(reference, ids, is_special, result.steps, lambda logits, i=index: logits.softmax(-1)[i])
        np.testing.assert_allclose(result.values, expected, atol=1e-5)
        assert result.output == pytest.approx(model(TEXT)["scores"][label], abs=1e-5)


def test_attributions_of_a_mask_match_transformers(tmp_path):
    reference = save_random_model("BertForMaskedLM", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours", backend="torch", precision="fp32")
    tokenizer, text = model.tokenizer, "the [MASK] made a way"
    result = model.attributions(text)
    best = model.fill(text, top_k=1)[0]
    assert result.target == best["token_str"] and result.output == pytest.approx(best["score"], abs=1e-5)
    ids = [tokenizer.cls_token_id, *tokenizer.encode_with_mask(text), tokenizer.sep_token_id]
    is_special = [token in ("[CLS]", "[SEP]", "[MASK]") for token in result.tokens]
    expected = attribute_plainly(
        reference,
        torch.tensor([ids]),
        is_special,
        result.steps,
        lambda logits: logits[ids.index(tokenizer.mask_token_id)].softmax(-1)[best["token"]],
    )
    np.testing.assert_allclose(result.values, expected, atol=1e-5)
