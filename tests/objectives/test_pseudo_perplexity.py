"""Pseudo-perplexity: each word of a sentence is hidden once, alone, however copies share batches."""

import numpy as np
import pytest
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import MaskedLM
from bertsmith.objectives.pseudo_perplexity import pseudo_perplexity_batches

SMALL = {"layers": 1, "width": 16, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 16}, "dropout": 0.0}


def copies(opened, tokens, limit=10**9):
    return list(pseudo_perplexity_batches(opened, np.arange(3), 32, tokens, 0, limit))


def test_every_word_is_hidden_once_and_alone(corpus):
    opened = Corpus.open(corpus)
    batches, mask = copies(opened, 100), opened.tokenizer.mask_token_id
    for batch in batches:
        texts = np.split(batch.inputs.input_ids.numpy(), batch.inputs.layout.lengths.numpy().cumsum()[:-1])
        assert all((text == mask).sum() == 1 for text in texts) and batch.num_tokens <= 100
    words = opened.tokens[: opened.sentence_offsets[opened.document_offsets[3]]]
    hidden = np.concatenate([batch.targets["words"].numpy() for batch in batches])
    assert sorted(hidden) == sorted(words[~opened.tokenizer.is_special[words]])
    assert sum(batch.num_tokens for batch in copies(opened, 100, 300)) < 300 + 32 * 32


@pytest.mark.parametrize("tokens", [1, 60, 10**6])
def test_the_loss_is_the_same_for_batches_of_any_size(corpus, tokens):
    opened = Corpus.open(corpus)
    model = build_model(
        ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocabulary=len(opened.tokenizer), heads=MaskedLM().heads()), 0
    )
    losses = [sum(_loss(model.eval(), batch) for batch in copies(opened, size, 500)) for size in (tokens, 200)]
    assert_close(*losses)


def _loss(model, batch):
    return MaskedLM().compute_loss(model, batch).parts["words"].detach()
