"""The scaling benchmark measures every mixer."""

import pytest

from benchmarks.scaling import INT_OPTIONS, MIXER_KINDS, build_our_step, measure

SMALL = INT_OPTIONS | {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "rounds": 1,
    "device": "cpu",
    "hidden_dropout_prob": 0.0,
    "length": 40,
}


@pytest.mark.parametrize("kind", MIXER_KINDS)
@pytest.mark.parametrize("layers", [0, 1])
def test_scaling_measures_every_mixer_alone_and_in_a_model(kind, layers):
    result = measure(SMALL | {"kind": kind, "num_hidden_layers": layers, "batch_tokens": 80}, build_our_step)
    assert result["seconds"] > 0 and result["bytes"] > 0
