"""`Predictor.attributions`: complete, with the places of the tokens, and refused where there is no single output."""

import numpy as np
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.inference.attributions import integrated_gradients
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig, SequenceHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tasks import TextClassification, TextRegression, TokenClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
COLORS = TextClassification(labels=("red", "green"), temperature=1.7)


def build_predictor(task=COLORS, outputs=2, **settings):
    defaults = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": Attention(num_attention_heads=2)}
    defaults |= {"feedforward": FeedForwardConfig(intermediate_size=64), "max_position_embeddings": 48}
    encoder = EncoderConfig(**{**defaults, "initializer_range": 0.3, **settings})
    heads = {"lm": LMHeadConfig(), "task": SequenceHeadConfig(outputs=outputs)}
    config = ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads)
    return Predictor(TorchEngine(build_model(config, 3), "fp32"), TOKENIZER, {}, task)


def test_integral_of_a_product_is_shared_by_its_factors():
    """For f(x) = x_0 x_1, each factor gets x_0 x_1 / 2; a fixed token gets nothing, and the others all."""
    x = torch.tensor([[3.0], [5.0]])

    def product(delta):
        points = x + delta.unflatten(0, (-1, 2))
        return points[:, 0, 0] * points[:, 1, 0]

    free = integrated_gradients(x, torch.tensor([False, False]), 4, product, max_copies=3)
    np.testing.assert_allclose(free, [7.5, 7.5], rtol=1e-6)
    fixed = integrated_gradients(x, torch.tensor([True, False]), 4, product, max_copies=3)
    np.testing.assert_allclose(fixed, [0.0, 15.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("task", "outputs"),
    [(COLORS, 2), (TextClassification(labels=("a", "b", "c"), multi_label=True), 3), (TextRegression(), 1)],
)
def test_attributions_sum_to_the_difference_of_the_outputs(task, outputs):
    predictor = build_predictor(task, outputs)
    texts = ["Then she, and many others, was here.", "she"]
    for text, result in zip(texts, predictor.attributions(texts), strict=True):
        assert result.values.sum() == pytest.approx(
            result.output - result.baseline_output, abs=result.completeness_error + 1e-5
        )
        assert result.completeness_error <= 0.01 * np.abs(result.values).sum()
        answer = predictor(text)
        scores = answer["scores"] if "scores" in answer else {"score": answer["score"]}
        assert result.output == pytest.approx(scores[result.target], abs=1e-5)
        assert result.output == pytest.approx(max(scores.values()), abs=1e-5)
        for token, (start, end), value in zip(result.tokens, result.offsets, result.values, strict=True):
            assert text[start:end].lower() == ("" if token in ("[CLS]", "[SEP]") else token.removeprefix("##"))
            assert (value == 0) == (token in ("[CLS]", "[SEP]"))


def test_attributions_of_a_pair_have_the_places_in_both_texts():
    result = build_predictor().attributions("she was", "the way", target="green")
    pieces = [("she was" if i < 4 else "the way")[a:b] for i, (a, b) in enumerate(result.offsets)]
    assert pieces == ["", "she", "was", "", "the", "way", ""] and result.target == "green"


def test_attributions_of_a_masked_word_and_scaled_embeddings():
    predictor = build_predictor(None, scale_embeddings=True)
    result = predictor.attributions("she was [MASK] then", target="way")
    assert result.target == "way" and result.values.sum() == pytest.approx(
        result.output - result.baseline_output, abs=result.completeness_error + 1e-6
    )
    assert [tuple(pair) for pair in result.offsets] == [(0, 0), (0, 3), (4, 7), (0, 0), (15, 19), (0, 0)]
    assert result.values[3] == 0 and np.count_nonzero(result.values) == 3


@pytest.mark.parametrize(
    ("task", "text", "target", "message"),
    [
        (COLORS, "she was here", "blue", "target='blue' is no label of this model; choose one of red, green"),
        (TextRegression(), "she was here", "red", "a regression has none: leave it out"),
        (None, "she was here", None, "has 0 masks; give a text with one"),
        (None, "she [MASK] [MASK]", None, "has 2 masks"),
        (None, "she was [MASK]", "qqqq", "target='qqqq' is no token of the vocabulary"),
        (TokenClassification(labels=("O", "B-X")), "she was here", None, "attributions are for models of task=classify"),
        (TextClassification(labels=("a", "b"), long_text="window", doc_stride=8), "the way " * 40, None, "of one sequence"),
    ],
)  # fmt: skip
def test_attributions_of_what_has_no_single_output_are_refused(task, text, target, message):
    with pytest.raises(UserError, match=message):
        build_predictor(task).attributions({"tokens": text.split()} if isinstance(task, TokenClassification) else text,
                                           target=target)  # fmt: skip
