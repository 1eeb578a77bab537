"""Pseudo-perplexity: each token of a sentence is masked once, by itself, for any batch size."""

import numpy as np
import pytest
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import MaskedLM
from bertsmith.objectives.pseudo_perplexity import pseudo_perplexity_batches

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "mixer": {"kind": "attention", "num_attention_heads": 2},
    "feedforward": {"intermediate_size": 16},
    "hidden_dropout_prob": 0.0,
}


def masked_copies(opened, batch_tokens, max_tokens=10**9):
    return list(pseudo_perplexity_batches(opened, np.arange(3), 32, batch_tokens, 0, max_tokens))


def test_pseudo_perplexity_masks_each_token_once(corpus):
    opened = Corpus.open(corpus)
    batches, mask_id = masked_copies(opened, 100), opened.tokenizer.mask_token_id
    for batch in batches:
        texts = np.split(batch.inputs.input_ids.numpy(), batch.inputs.layout.lengths.numpy().cumsum()[:-1])
        assert all((text == mask_id).sum() == 1 for text in texts) and batch.num_tokens <= 100
    tokens = opened.tokens[: opened.sentence_offsets[opened.document_offsets[3]]]
    masked = np.concatenate([batch.targets["target_ids"].numpy() for batch in batches])
    assert sorted(masked) == sorted(tokens[~opened.tokenizer.is_special[tokens]])
    assert sum(batch.num_tokens for batch in masked_copies(opened, 100, 300)) < 300 + 32 * 32


@pytest.mark.parametrize("batch_tokens", [1, 60, 10**6])
def test_pseudo_perplexity_is_independent_of_batch_size(corpus, batch_tokens):
    opened = Corpus.open(corpus)
    model = build_model(
        ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocab_size=len(opened.tokenizer), heads=MaskedLM().heads()), 0
    )
    losses = [sum(mlm_loss(model.eval(), batch) for batch in masked_copies(opened, size, 500)) for size in (batch_tokens, 200)]
    assert_close(*losses)


def mlm_loss(model, batch):
    return MaskedLM().compute_loss(model, batch).parts["mlm"].detach()
