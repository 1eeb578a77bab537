"""Pseudo-perplexity: each word of a sentence is hidden once, alone, however copies share batches."""

import numpy as np
import pytest
from torch.testing import assert_close

from bertsmith.config import parse
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, built
from bertsmith.objectives import Masked
from bertsmith.objectives.pseudo_perplexity import alone

SMALL = {"layers": 1, "width": 16, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 16}, "dropout": 0.0}


def copies(opened, tokens, limit=10**9):
    return list(alone(opened, np.arange(3), 32, tokens, 0, limit))


def test_every_word_is_hidden_once_and_alone(corpus):
    opened = Corpus.open(corpus)
    batches, mask = copies(opened, 100), opened.tokenizer.mask
    for batch in batches:
        texts = np.split(batch.inputs.tokens.numpy(), batch.inputs.layout.lengths.numpy().cumsum()[:-1])
        assert all((text == mask).sum() == 1 for text in texts) and batch.tokens <= 100
    words = opened.tokens[: opened.sentences[opened.documents[3]]]
    hidden = np.concatenate([batch.targets["words"].numpy() for batch in batches])
    assert sorted(hidden) == sorted(words[~opened.tokenizer.special[words]])
    assert sum(batch.tokens for batch in copies(opened, 100, 300)) < 300 + 32 * 32


@pytest.mark.parametrize("tokens", [1, 60, 10**6])
def test_the_loss_is_the_same_for_batches_of_any_size(corpus, tokens):
    opened = Corpus.open(corpus)
    model = built(ModelConfig(encoder=parse(EncoderConfig, SMALL), vocabulary=len(opened.tokenizer), heads=Masked().heads()), 0)
    losses = [sum(_loss(model.eval(), batch) for batch in copies(opened, size, 500)) for size in (tokens, 200)]
    assert_close(*losses)


def _loss(model, batch):
    return Masked().loss(model, batch).parts["words"].detach()
