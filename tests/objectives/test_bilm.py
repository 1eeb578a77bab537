"""Bidirectional language modelling: loss of both directions, no leakage of targets, tied softmax."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import BiLM
from tests.support.models import CHAR_CNN_ENCODER

WORD_CONFIG = {name: value for name, value in CHAR_CNN_ENCODER.items() if name != "embeddings"}


@pytest.fixture(scope="module")
def bilm_corpus(corpus):
    return Corpus.open(corpus)


def build_bilm(bilm_corpus, **options):
    objective = BiLM(**options.pop("objective", {}))
    encoder = from_dict(EncoderConfig, CHAR_CNN_ENCODER | options if "embeddings" not in options else options)
    objective.check(encoder)
    tokenizer = bilm_corpus.tokenizer
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(tokenizer), heads=objective.heads()), 0, tokenizer).eval()
    batches = objective.build_batches(bilm_corpus, np.arange(6), 24, 96, seed=0)
    return objective, model, objective.to_batch(batches(0))


def test_bilm_loss_matches_loop_over_both_directions(bilm_corpus):
    objective, model, batch = build_bilm(bilm_corpus)
    input_ids, layout = batch.inputs.input_ids, batch.inputs.layout
    is_special = torch.isin(input_ids, torch.tensor([bilm_corpus.tokenizer.cls_token_id, bilm_corpus.tokenizer.sep_token_id]))
    assert torch.equal(batch.targets["output_indices"], (~is_special).nonzero().squeeze(1))
    assert batch.target_counts == {"lm": 2 * int((~is_special).sum())}
    hidden_states = model(batch.inputs)
    table, bias, half = model.heads["lm"].output_embeddings.weight, model.heads["lm"].bias, hidden_states.shape[1] // 2
    expected = torch.zeros(())
    for position in range(len(input_ids)):
        if not is_special[position]:
            assert layout.seq_id[position - 1] == layout.seq_id[position] == layout.seq_id[position + 1]
            for state in (hidden_states[position - 1, :half], hidden_states[position + 1, half:]):
                expected = expected + F.cross_entropy((table @ state + bias)[None], input_ids[position : position + 1])
    loss = objective.compute_loss(model, batch)
    assert_close(loss.parts["lm"], expected, atol=1e-2, rtol=1e-5)
    forward, backward = loss.metrics["forward_nll"], loss.metrics["backward_nll"]
    assert_close(forward[0] + backward[0], loss.parts["lm"])
    assert forward[1] == backward[1] == int((~is_special).sum())


def test_bilm_directions_do_not_see_their_target(bilm_corpus):
    _, model, batch = build_bilm(bilm_corpus)
    model = model.double()
    position = int(batch.targets["output_indices"][3])
    changed = batch.inputs.input_ids.clone()
    changed[position] = (changed[position] + 1) % len(bilm_corpus.tokenizer)
    before, after = model(batch.inputs), model(type(batch.inputs)(changed, batch.inputs.layout))
    half, differs = before.shape[1] // 2, before != after
    assert not differs[position - 1, :half].any() and not differs[position + 1, half:].any()
    assert differs[position - 1, half:].any() and differs[position + 1, :half].any()


def test_bilm_tied_softmax_uses_token_embeddings(bilm_corpus):
    options = {"objective": {"head": from_dict(type(BiLM().head), {"kind": "half-lm", "tied": True})}, "embeddings": None}
    objective, model, batch = build_bilm(bilm_corpus, **WORD_CONFIG, **options, embedding_size=4)
    assert model.heads["lm"].output_embeddings is None
    objective.compute_loss(model, batch).parts["lm"].backward()
    assert model.encoder.word_embeddings.weight.grad[
        bilm_corpus.tokenizer.mask_token_id
    ].any()  # [MASK] is in no text: its gradient comes from the softmax
    with pytest.raises(UserError, match=r"model\.embedding_size=4"):
        build_bilm(bilm_corpus, **WORD_CONFIG, **options)


@pytest.mark.parametrize(
    "leak",
    [
        {"mixer": {"kind": "lstm"}},
        {"norm": "post", "residual": "all"},
        {"feedforward": {"intermediate_size": 8}},
        {"num_hidden_layers": 0},
    ],
)
def test_bilm_refuses_model_that_mixes_directions(leak):
    with pytest.raises(UserError, match="two directions share no layer"):
        BiLM().check(from_dict(EncoderConfig, CHAR_CNN_ENCODER | leak))
