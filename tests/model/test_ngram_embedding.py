"""The neural n-gram model is Bengio's formula, sees no more words than it says, and learns."""

import math

import pytest
import torch

from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.embeddings import CharCNNConfig, NgramConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.presets import nnlm
from tests.conftest import prepared, prose

HEAD = LMHeadConfig(transform=False, tied=False, bias=True)
IDS, LENGTHS = torch.tensor([2, 9, 7, 5, 8, 6, 3, 2, 6, 5]), [7, 3]


def made(direct=True, order=4):
    front = NgramConfig(order=order, numbers=6, inner=10, direct=direct)
    encoder = EncoderConfig(
        layers=0, width=front.hidden_size, front=front, feedforward=None, norm="none", table=False, segments=0,
        embedding_norm=False, dropout=0.0, deviation=0.5, pooler="none",
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocabulary=12, heads={"words": HEAD}), 0).eval()


def scores(model, ids=IDS, lengths=LENGTHS):
    return model.scores("words", model(Inputs(ids, Layout.from_lengths(lengths)))).detach()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("order", [2, 4])
def test_scores_are_those_of_the_paper_s_formula(direct, order):
    model = made(direct, order)
    C, front, head = model.encoder.tokens.weight, model.encoder.front.hidden, model.heads["words"]
    torch.nn.init.normal_(front.bias)
    torch.nn.init.normal_(head.bias)
    H, d, b, wide = front.weight, front.bias, head.bias, (order - 1) * 6
    W, U = (head.table.weight[:, :wide], head.table.weight[:, wide:]) if direct else (0, head.table.weight)
    want = []
    for text in IDS.split(LENGTHS):
        padded = [int(text[0])] * (order - 2) + text.tolist()
        for at in range(len(text)):
            x = torch.cat([C[padded[at + order - 2 - back]] for back in range(order - 1)])
            direct_part = W @ x if direct else 0
            want.append(b + direct_part + U @ torch.tanh(d + H @ x))
    torch.testing.assert_close(scores(model), torch.stack(want).detach(), rtol=1e-5, atol=1e-5)


def test_only_the_last_words_of_the_own_text_are_read():
    model, before = made(order=4), scores(made(order=4))
    for place in range(len(IDS)):
        changed = IDS.clone()
        changed[place] = 11
        moved = (scores(model, changed) != before).any(1).nonzero().ravel().tolist()
        end = 7 if place < 7 else 10
        first = {0: {0, 1, 2}, 7: {7, 8, 9}}.get(place)  # what stands before the text, too
        assert set(moved) == (first or set(range(place, min(place + 3, end))))


def test_a_width_that_does_not_fit_is_told():
    with pytest.raises(UserError, match=r"set model\.width=28"):
        build_model(
            ModelConfig(encoder=EncoderConfig(layers=0, front=NgramConfig(order=4, numbers=6, inner=10)), vocabulary=12), 0
        )
    with pytest.raises(UserError, match="reads no word"):
        build_model(ModelConfig(encoder=nnlm(1, 6, 10), vocabulary=12), 0)


def test_it_learns_a_language_that_repeats_itself(vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(prose(10) + "\n" + "\n\n".join(["the people said that it was so\n" * 6] * 60))
    corpus = prepared(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    model = {"layers": 0, "width": 56, "front": {"kind": "grams", "order": 4, "numbers": 8, "inner": 32}}
    model |= {"feedforward": None, "norm": "none", "table": False, "segments": 0, "embedding_norm": False, "dropout": 0.0}
    objective = {"kind": "causal", "head": {"transform": False, "tied": False, "bias": True}}
    train = {"steps": 150, "rate": 0.01, "batch_tokens": 512, "device": "cpu"}
    told = api.pretrain(
        corpus=str(corpus), out=str(tmp_path / "m"), model=model | {"deviation": 0.05}, objective=objective, train=train,
        valid=str(corpus), length=64, quiet=True,
    )  # fmt: skip
    assert told["perplexity"] == pytest.approx(math.exp(told["valid_loss"])) and told["perplexity"] < 6
    assert told["valid_loss"] < 0.5 * told["unigram_entropy"]


def test_a_head_with_a_matrix_before_it_scores_by_the_table_of_the_front():
    """Rows of 6 numbers, which states of 28 do not have; without the matrix that is said."""
    encoder = nnlm(4, 6, 10)
    made = build_model(ModelConfig(encoder=encoder, vocabulary=12, heads={"words": LMHeadConfig()}), 0)
    assert made.compute_logits("words", made(Inputs(IDS, Layout.from_lengths(LENGTHS)))).shape == (10, 12)
    with pytest.raises(UserError, match="tables of 6 score no states of 28 without a matrix"):
        build_model(ModelConfig(encoder=encoder, vocabulary=12, heads={"words": LMHeadConfig(transform=False)}), 0)
    spelt = EncoderConfig(layers=0, width=8, front=CharCNNConfig())
    with pytest.raises(UserError, match="no table of tokens"):
        build_model(ModelConfig(encoder=spelt, vocabulary=12, heads={"words": LMHeadConfig()}), 0)
