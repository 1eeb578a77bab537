"""`Predictor.attentions` and `Predictor.alignments`: per text, whatever else is in the call."""

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.config import to_dict
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model import attention_weights, checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.decoders import RNNDecoderConfig, TransformerDecoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention, Lstm, Reformer
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tasks import Seq2Seq, TextClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
TEXTS = ["she was here", "Then she, and many others, was here.", "", "the way"]
DECODERS = {
    "additive": RNNDecoderConfig(score="additive"),
    "general": RNNDecoderConfig(cell="lstm", score="general"),
    "transformer": TransformerDecoderConfig(num_hidden_layers=3),
    "shared": TransformerDecoderConfig(shared=True),
}
SHAPES = {"additive": (1, 1), "general": (1, 1), "transformer": (3, 2), "shared": (2, 2)}  # layers, heads


def build_predictor(task=None, decoder=None, **settings):
    defaults = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": Attention(num_attention_heads=2)}
    defaults |= {"feedforward": FeedForwardConfig(intermediate_size=64), "max_position_embeddings": 48}
    encoder = EncoderConfig(**{**defaults, "initializer_range": 0.3, **settings})
    config = ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads={"lm": LMHeadConfig()}, decoder=decoder)
    return Predictor(TorchEngine(build_model(config, 3)), TOKENIZER, {}, task)


def test_attentions_have_tokens_offsets_and_weights_of_each_text():
    predictor = build_predictor()
    several = predictor.attentions(TEXTS)
    for text, attentions in zip(TEXTS, several, strict=True):
        states = predictor.hidden_states(text)
        assert attentions.tokens == states.tokens and np.array_equal(attentions.offsets, states.offsets)
        single = predictor.attentions(text)
        np.testing.assert_allclose(attentions.weights, single.weights, atol=1e-6)
        length = len(states.tokens)
        assert single.weights.shape == (2, 2, length, length) and single.weights.dtype == np.float32
        np.testing.assert_allclose(single.weights.sum(-1), 1, atol=1e-5)
    assert np.abs(several[0].weights[0] - several[0].weights[1]).max() > 1e-3  # layers in their order
    assert several[1].tokens[1:3] == ["then", "she"] and several[1].offsets[2].tolist() == [5, 8]


def test_attentions_of_shared_and_reversible_layers_are_one_for_each_layer():
    shared = build_predictor(num_hidden_groups=1).attentions(TEXTS[0]).weights
    assert shared.shape[0] == 2 and np.abs(shared[0] - shared[1]).max() > 1e-3
    reformer = {"mixer": Reformer(num_attention_heads=2, num_buckets=4, num_hashes=2, bucket_window=4)}
    predictor = build_predictor(**reformer, norm="pre", reversible=True)
    assert predictor.attentions(TEXTS[1]).weights.shape[:2] == (2, 2)


def test_attentions_leave_no_hooks_behind_and_refuse_models_without_attention():
    predictor = build_predictor(mixer=Lstm())
    with pytest.raises(UserError, match="no attention weights"):
        predictor.attentions("she was here")
    assert not any(module._forward_pre_hooks for module in predictor.model.modules())
    with pytest.raises(UserError, match="no layers"):
        build_predictor(num_hidden_layers=0).attentions("she")


def test_attentions_larger_than_the_limit_are_refused_and_many_texts_are_not(monkeypatch):
    predictor = build_predictor()
    monkeypatch.setattr(attention_weights, "MAX_VALUES", 2 * 2 * 12**2)
    assert len(predictor.attentions([TEXTS[0]] * 30)) == 30
    with pytest.raises(UserError, match="give a shorter text"):
        predictor.attentions(" ".join(TEXTS))


@pytest.mark.parametrize("kind", DECODERS)
def test_alignments_of_generated_and_given_targets(tmp_path, kind):
    task = Seq2Seq(num_beams=1, max_target_length=6)
    source = build_predictor(task, DECODERS[kind])
    checkpoint.save(tmp_path / kind, source.model, TOKENIZER, {}, {"task": to_dict(task) | {"kind": "generate"}})
    predictor = bertsmith.load(tmp_path / kind)
    several = predictor.alignments(TEXTS)
    for text, alignment in zip(TEXTS, several, strict=True):
        single = predictor.alignments(text)
        assert single.source_tokens == alignment.source_tokens == predictor.hidden_states(text).tokens
        assert single.target_tokens == alignment.target_tokens and single.target_tokens[-1] == "[SEP]"
        assert single.weights.shape == (*SHAPES[kind], len(single.target_tokens), len(single.source_tokens))
        np.testing.assert_allclose(single.weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(alignment.weights, single.weights, atol=1e-5)
    forced = predictor.alignments(TEXTS[0], "the way was")
    assert forced.target_tokens == ["the", "way", "was", "[SEP]"]
    with pytest.raises(UserError, match="one target for each text"):
        predictor.alignments(TEXTS, ["the way"])


@pytest.mark.parametrize("kind", DECODERS)
def test_alignments_of_a_token_do_not_depend_on_later_ones(kind):
    predictor = build_predictor(Seq2Seq(), DECODERS[kind])
    model, ids = predictor.model, TOKENIZER.encode("she was here").ids
    source = Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)]))
    target = Inputs(torch.tensor([2, 9, 14, 11]), Layout.from_lengths([4]))
    layers = attention_weights.source_attention_weights(model, source, target)
    with torch.no_grad():
        for length in range(1, 5):  # the attention of the last token of each beginning
            beginning = Inputs(target.input_ids[:length], Layout.from_lengths([length]))
            for layer, weights in zip(
                layers, attention_weights.source_attention_weights(model, source, beginning), strict=True
            ):
                torch.testing.assert_close(weights[:, :, -1], layer[:, :, length - 1], atol=1e-5, rtol=1e-5)


def test_alignments_need_a_decoder_that_attends_to_a_source():
    with pytest.raises(UserError, match="task=classify has no target text"):
        build_predictor(TextClassification(labels=("a", "b"))).alignments("she")
    with pytest.raises(UserError, match="without a decoder"):
        build_predictor(Seq2Seq()).alignments("she")
    with pytest.raises(UserError, match=r"decoder\.score=none"):
        build_predictor(Seq2Seq(max_target_length=4), RNNDecoderConfig(score="none")).alignments("she")


def test_attention_rollout_is_the_matrix_product_with_residuals():
    """As compute_joint_attention of Abnar and Zuidema's code: add the identity, divide by the row sums, multiply."""
    attentions = build_predictor(num_hidden_layers=3).attentions(TEXTS[1])
    joint = None
    for layer, rollout in zip(attentions.weights.astype(np.float64), attentions.rollout, strict=True):
        augmented = sum(layer) / len(layer) + np.eye(len(attentions.tokens))
        augmented = augmented / augmented.sum(-1)[:, None]
        joint = augmented if joint is None else np.array([[sum(a * b for a, b in zip(row, column, strict=True))
                                                           for column in joint.T] for row in augmented])  # fmt: skip
        np.testing.assert_allclose(rollout, joint, atol=1e-5)
        np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-5)


def test_attentions_and_alignments_show_in_notebooks():
    predictor = build_predictor()
    assert "Attention rollout to the last layer" in predictor.attentions(TEXTS[0])._repr_html_()
    seq2seq = build_predictor(Seq2Seq(max_target_length=6), DECODERS["additive"])
    html = seq2seq.alignments(TEXTS[0], TEXTS[3])._repr_html_()
    assert html.startswith("<iframe srcdoc=") and "Layer 1, mean over heads" in html and "<script" not in html
