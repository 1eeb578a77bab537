"""The position encodings of a model, against the formulas of their papers."""

import math

import numpy as np
import pytest

from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention, Lstm, TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.position_bias import AlibiConfig, ShawConfig, T5BiasConfig
from bertsmith.model.position_encodings import DistanceBias, PositionVectors, cosine_similarity, find_position_encodings
from bertsmith.model.positions import AxialPositionsConfig
from bertsmith.model.sublayers import FeedForwardConfig

ATTENTION = Attention(num_attention_heads=4)


def find(mixer=ATTENTION, **settings):
    defaults = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": mixer, "max_position_embeddings": 64}
    encoder = EncoderConfig(**{**defaults, "feedforward": FeedForwardConfig(intermediate_size=16), **settings})
    model = build_model(ModelConfig(encoder=encoder, vocab_size=20), 0).eval()
    return model, find_position_encodings(model)


def test_learned_positions_are_the_rows_of_the_table():
    model, (found,) = find()
    assert isinstance(found, PositionVectors) and found.positions.tolist() == list(range(64))
    np.testing.assert_array_equal(found.vectors, model.encoder.position_embeddings.weight.detach())


@pytest.mark.parametrize(("kind", "name"), [("sinusoidal", "sinusoidal"), (AxialPositionsConfig(shape=(8, 8)), "axial")])
def test_other_positions_of_the_embeddings_are_found(kind, name):
    _, (found,) = find(position_embedding_type=kind)
    assert found.name.startswith(name) and found.vectors.shape == (64, 32)


def test_rope_similarity_is_the_mean_cosine_of_its_angles():
    _, (found,) = find(Attention(num_attention_heads=4, rope_theta=100.0), position_embedding_type="none")
    similarity = cosine_similarity(found.vectors)
    for p, q in ((0, 0), (3, 10), (40, 7)):
        expected = sum(math.cos((p - q) * 100.0 ** (-2 * i / 8)) for i in range(4)) / 4
        assert similarity[p, q] == pytest.approx(expected, abs=1e-5)


def test_alibi_falls_by_its_slope():
    _, layers = find(Attention(num_attention_heads=4, position_bias=AlibiConfig()), position_embedding_type="none")
    assert len(layers) == 2 and all(isinstance(layer, DistanceBias) for layer in layers)
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    np.testing.assert_allclose(layers[0].values, -slopes[:, None] * abs(layers[0].distances), rtol=1e-6)


def test_t5_bias_is_shared_or_by_layer_and_shaw_has_a_vector_for_each_distance():
    shared, own = (
        find(Attention(num_attention_heads=4, position_bias=T5BiasConfig(shared=is_shared)), position_embedding_type="none")[1]
        for is_shared in (True, False)
    )
    assert len(shared) == 1 and len(own) == 2
    near = own[0].values[:, abs(own[0].distances) <= 1]
    assert (near[:, 0] != near[:, 2]).all()  # both directions
    _, shaw = find(Attention(num_attention_heads=4, position_bias=ShawConfig(clip=5)), position_embedding_type="none")
    assert shaw[0].positions.tolist() == list(range(-5, 6)) and shaw[0].vectors.shape == (11, 8)


def test_transformer_xl_bias_is_v_times_the_projected_sinusoids():
    model, layers = find(TransformerXL(num_attention_heads=4), position_embedding_type="none")
    mixer = model.encoder.stack.mixers[0]
    mixer.position_bias.data.normal_()
    (layer, *_) = find_position_encodings(model)
    assert len(layers) == 2 and layer.distances.tolist() == list(range(-128, 1))
    for distance in (0, 7, 128):
        angles = [distance / 10000 ** (2 * i / 32) for i in range(16)]
        sinusoid = np.array([*map(math.sin, angles), *map(math.cos, angles)])
        keys = mixer.relative_key.weight.detach().numpy() @ sinusoid
        v = mixer.position_bias.detach().numpy()[:, 0]
        expected = [v[head] @ keys[8 * head : 8 * head + 8] / math.sqrt(8) for head in range(4)]
        np.testing.assert_allclose(layer.values[:, layer.distances == -distance][:, 0], expected, atol=1e-5)


def test_recurrent_models_have_none():
    assert find(Lstm(), position_embedding_type="none")[1] == []
