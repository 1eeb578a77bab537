"""NNLM (Bengio et al. 2003): the formula of the paper, its context window, and training."""

import math

import msgspec
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
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_recipe
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import make_english_text

HEAD = LMHeadConfig(transform=False, tied=False, bias=True)
IDS, LENGTHS = torch.tensor([2, 9, 7, 5, 8, 6, 3, 2, 6, 5]), [7, 3]


def build_small_model(direct=True, order=4):
    embedding = NgramConfig(order=order, embedding_size=6, intermediate_size=10, direct=direct)
    encoder = EncoderConfig(
        num_hidden_layers=0,
        hidden_size=10 + (order - 1) * 6 * direct,
        embeddings=embedding,
        feedforward=None,
        norm="none",
        position_embedding_type="none",
        type_vocab_size=0,
        embedding_norm=False,
        hidden_dropout_prob=0.0,
        initializer_range=0.5,
        pooler_act="none",
    )
    return build_model(ModelConfig(encoder=encoder, vocab_size=12, heads={"lm": HEAD}), 0).eval()


def compute_logits(model, ids=IDS, lengths=LENGTHS):
    return model.compute_logits("lm", model(Inputs(ids, Layout.from_lengths(lengths)))).detach()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("order", [2, 4])
def test_nnlm_logits_match_the_formula(direct, order):
    model = build_small_model(direct, order)
    C, hidden_layer, head = model.encoder.word_embeddings.weight, model.encoder.input_embeddings.hidden, model.heads["lm"]
    torch.nn.init.normal_(hidden_layer.bias)
    torch.nn.init.normal_(head.bias)
    H, d, b, context_dim = hidden_layer.weight, hidden_layer.bias, head.bias, (order - 1) * 6
    output = head.output_embeddings.weight
    W, U = (output[:, :context_dim], output[:, context_dim:]) if direct else (0, output)
    expected = []
    for text in IDS.split(LENGTHS):
        padded = [int(text[0])] * (order - 2) + text.tolist()
        for position in range(len(text)):
            x = torch.cat([C[padded[position + order - 2 - offset]] for offset in range(order - 1)])
            direct_part = W @ x if direct else 0
            expected.append(b + direct_part + U @ torch.tanh(d + H @ x))
    torch.testing.assert_close(compute_logits(model), torch.stack(expected).detach(), rtol=1e-5, atol=1e-5)


def test_nnlm_context_is_the_last_words_of_the_same_text():
    model, before = build_small_model(order=4), compute_logits(build_small_model(order=4))
    for position in range(len(IDS)):
        changed = IDS.clone()
        changed[position] = 11
        changed_rows = (compute_logits(model, changed) != before).any(1).nonzero().ravel().tolist()
        end = 7 if position < 7 else 10
        start_rows = {0: {0, 1, 2}, 7: {7, 8, 9}}.get(position)  # also the padding before the text
        assert set(changed_rows) == (start_rows or set(range(position, min(position + 3, end))))


def test_nnlm_rejects_wrong_width_and_order():
    with pytest.raises(UserError, match=r"10 \+ 3 words x embedding_size=6 = 28; set model\.hidden_size=28, or leave out"):
        build_model(ModelConfig(encoder=nnlm(4, 64, embedding_size=6, intermediate_size=10), vocab_size=12), 0)
    with pytest.raises(UserError, match="has no context words"):
        build_model(ModelConfig(encoder=nnlm(1, 28), vocab_size=12), 0)


@pytest.mark.parametrize(
    ("hidden_size", "config", "sizes"),
    [
        (340, NgramConfig(), (60, 100)),  # the paper's
        (64, NgramConfig(), (11, 20)),
        (5, NgramConfig(), (1, 1)),
        (100, NgramConfig(direct=False), (60, 100)),
        (340, NgramConfig(embedding_size=30), (30, 220)),
        (340, NgramConfig(intermediate_size=60), (70, 60)),
        (50, NgramConfig(direct=False, intermediate_size=50), (30, 50)),
        (28, NgramConfig(order=4, embedding_size=6, intermediate_size=10), (6, 10)),
    ],
)
def test_nnlm_sizes_that_are_not_set_follow_the_hidden_size(hidden_size, config, sizes):
    assert config.fit(hidden_size) == sizes
    if hidden_size < 300:
        encoder = msgspec.structs.replace(nnlm(5, hidden_size), embeddings=config)
        model = build_model(ModelConfig(encoder=encoder, vocab_size=12), 0)
        assert model.encoder.word_embeddings.weight.shape == (12, sizes[0])
        assert model(Inputs(IDS, Layout.from_lengths(LENGTHS))).shape == (10, hidden_size)


def test_nnlm_preset_takes_any_hidden_size():
    config = read_recipe(PretrainRecipe, overrides=["corpus=c", "out=o", "model=nnlm", "model.hidden_size=64"]).model
    assert build_model(ModelConfig(encoder=config, vocab_size=12), 0).encoder.word_embeddings.weight.shape == (12, 11)


def test_nnlm_learns_repetitive_text(vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(
        make_english_text(10) + "\n" + "\n\n".join(["the people said that it was so\n" * 6] * 60)
    )
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    encoder = {
        "num_hidden_layers": 0,
        "hidden_size": 56,
        "embeddings": {"kind": "ngram", "order": 4, "embedding_size": 8, "intermediate_size": 32},
    }
    encoder |= {
        "feedforward": None,
        "norm": "none",
        "position_embedding_type": "none",
        "type_vocab_size": 0,
        "embedding_norm": False,
        "hidden_dropout_prob": 0.0,
    }
    objective = {"kind": "clm", "head": {"transform": False, "tied": False, "bias": True}}
    train = {"steps": 150, "learning_rate": 0.01, "batch_tokens": 512, "device": "cpu"}
    result = api.pretrain(
        corpus=str(corpus),
        out=str(tmp_path / "m"),
        model=encoder | {"initializer_range": 0.05},
        objective=objective,
        train=train,
        valid=str(corpus),
        max_length=64,
        quiet=True,
    )
    assert result["perplexity"] == pytest.approx(math.exp(result["valid_loss"])) and result["perplexity"] < 6
    assert result["valid_loss"] < 0.5 * result["unigram_entropy"]


def test_nnlm_tied_head_needs_the_transform():
    """The tied table has dimension 6, hidden states 28: without the transform that is an error."""
    encoder = nnlm(4, 28, embedding_size=6, intermediate_size=10)
    model = build_model(ModelConfig(encoder=encoder, vocab_size=12, heads={"lm": LMHeadConfig()}), 0)
    assert model.compute_logits("lm", model(Inputs(IDS, Layout.from_lengths(LENGTHS)))).shape == (10, 12)
    with pytest.raises(UserError, match="token embeddings of size 6 cannot be tied to hidden states of 28 without a transform"):
        build_model(ModelConfig(encoder=encoder, vocab_size=12, heads={"lm": LMHeadConfig(transform=False)}), 0)
    char_encoder = EncoderConfig(num_hidden_layers=0, hidden_size=8, embeddings=CharCNNConfig())
    with pytest.raises(UserError, match="no token embeddings"):
        build_model(ModelConfig(encoder=char_encoder, vocab_size=12, heads={"lm": LMHeadConfig()}), 0)
