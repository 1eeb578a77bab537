"""Two language models in one: neither sees its answer, each pays for every word, and both are counted."""

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
from tests.model.test_char_cnn import TINY

WORDS = {name: value for name, value in TINY.items() if name != "front"}


@pytest.fixture(scope="module")
def read(corpus):
    return Corpus.open(corpus)


def begun(read, **more):
    objective = BiLM(**more.pop("objective", {}))
    encoder = from_dict(EncoderConfig, TINY | more if "front" not in more else more)
    objective.check(encoder)
    model = build_model(ModelConfig(encoder=encoder, vocabulary=len(read.tokenizer), heads=objective.heads()), 0).eval()
    model.attach_tokenizer(read.tokenizer)
    batches = objective.build_batches(read, np.arange(6), 24, 96, seed=0)
    return objective, model, objective.to_batch(batches(0))


def test_every_word_is_asked_for_from_both_sides_and_the_ends_from_none(read):
    objective, model, batch = begun(read)
    tokens, layout = batch.inputs.input_ids, batch.inputs.layout
    ends = torch.isin(tokens, torch.tensor([read.tokenizer.cls, read.tokenizer.sep]))
    assert torch.equal(batch.targets["where"], (~ends).nonzero().squeeze(1))
    assert batch.target_counts == {"words": 2 * int((~ends).sum())}
    hidden = model(batch.inputs)
    table, bias, half = model.heads["words"].table.weight, model.heads["words"].bias, hidden.shape[1] // 2
    wanted = torch.zeros(())
    for at in range(len(tokens)):
        if not ends[at]:
            assert layout.seq_id[at - 1] == layout.seq_id[at] == layout.seq_id[at + 1]
            for side in (hidden[at - 1, :half], hidden[at + 1, half:]):
                wanted = wanted + F.cross_entropy((table @ side + bias)[None], tokens[at : at + 1])
    loss = objective.compute_loss(model, batch)
    assert_close(loss.parts["words"], wanted, atol=1e-2, rtol=1e-5)
    forward, backward = loss.metrics["forward"], loss.metrics["backward"]
    assert_close(forward[0] + backward[0], loss.parts["words"])
    assert forward[1] == backward[1] == int((~ends).sum())


def test_no_half_sees_the_word_it_is_asked_for(read):
    _, model, batch = begun(read)
    model = model.double()
    at = int(batch.targets["where"][3])
    changed = batch.inputs.input_ids.clone()
    changed[at] = (changed[at] + 1) % len(read.tokenizer)
    before, after = model(batch.inputs), model(type(batch.inputs)(changed, batch.inputs.layout))
    half, moved = before.shape[1] // 2, before != after
    assert not moved[at - 1, :half].any() and not moved[at + 1, half:].any()
    assert moved[at - 1, half:].any() and moved[at + 1, :half].any()


def test_a_tied_softmax_scores_by_the_table_of_words(read):
    tied = {"objective": {"head": from_dict(type(BiLM().head), {"kind": "half", "tied": True})}, "front": None}
    objective, model, batch = begun(read, **WORDS, **tied, embedding=4)
    assert model.heads["words"].table is None
    objective.compute_loss(model, batch).parts["words"].backward()
    assert model.encoder.tokens.weight.grad[read.tokenizer.mask].any()  # no text has it: only the softmax reaches it
    with pytest.raises(UserError, match=r"model\.embedding=4"):
        begun(read, **WORDS, **tied)


@pytest.mark.parametrize(
    "leak", [{"mixer": {"kind": "lstm"}}, {"norm": "after", "residual": "all"}, {"feedforward": {"inner": 8}}, {"layers": 0}]
)
def test_a_model_whose_halves_meet_is_refused(leak):
    with pytest.raises(UserError, match="never meet"):
        BiLM().check(from_dict(EncoderConfig, TINY | leak))
