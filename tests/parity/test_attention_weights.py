"""Attention weights equal transformers' `output_attentions` with the same weights."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.attention_weights import self_attention_weights
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.huggingface_models import VOCAB_SIZE, import_folder, save_random_model, transformers
from tests.support.texts import VOCAB

LENGTHS = (17, 5, 30)
# DistilBERT has other names, ALBERT shares its layers, RoBERTa counts positions from 2.
MODELS = ("BertModel", "DistilBertModel", "AlbertModel", "ElectraModel", "RobertaModel")


def assert_same_attentions(model, reference, **inputs):
    ids = torch.randint(5, VOCAB_SIZE, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    ours = self_attention_weights(model, Inputs(ids, Layout.from_lengths(LENGTHS)))
    for row, text in enumerate(ids.split(LENGTHS)):
        with torch.no_grad():
            theirs = reference(text[None], output_attentions=True).attentions
        assert len(ours) == len(theirs)
        for layer, expected in zip(ours, theirs, strict=True):
            assert_close(layer[row, :, : len(text), : len(text)], expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_attention_weights_match_transformers(tmp_path, name):
    reference = save_random_model(name, tmp_path / "hf")
    reference.set_attn_implementation("eager")  # the others return no weights
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert_same_attentions(model, reference)


def test_causal_attention_weights_match_gpt2(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_implementation="eager"
    )
    reference = transformers.GPT2Model(config).eval()
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    reference.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf/vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert_same_attentions(model, reference)
