"""FLOPs of LSTM, CNN and character models in plans."""

import pytest
import torch

from bertsmith.config import from_dict
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig
from bertsmith.objectives import BiLM, MaskedLM
from bertsmith.planning import step
from bertsmith.planning.step import count_flops, trace_step
from tests.support.models import CHAR_CNN_ENCODER

WIDTH, LENGTH, TOKENS = 32, 16, 256
BARE = {
    "hidden_size": WIDTH,
    "feedforward": "none",
    "norm": "none",
    "residual": "none",
    "position_embedding_type": "none",
    "hidden_dropout_prob": 0.0,
}


def step_flops(objective, **values):
    config = ModelConfig(encoder=from_dict(EncoderConfig, values), vocab_size=90, heads=objective.heads())
    batch = step.make_synthetic_batch(objective, TOKENS, LENGTH, 90)
    return trace_step(config, objective, batch, half_precision=False, gradient_checkpointing=False).flops


@pytest.mark.parametrize(
    ("mixer", "products"),
    [
        (
            {"kind": "lstm"},
            2 * 4 * (WIDTH // 2) * (WIDTH + WIDTH // 2),
        ),  # two directions, four gates, of input and hidden state
        ({"kind": "lstm", "directions": "apart"}, 2 * 4 * (WIDTH // 2) * WIDTH),
        ({"kind": "lstm", "directions": "forward", "cell_size": 48, "cell_clip": 3.0}, 4 * 48 * 2 * WIDTH + 48 * WIDTH),
        ({"kind": "cnn", "kernel_sizes": [3, 5]}, (3 + 5) * WIDTH * WIDTH // 2),
    ],
)
def test_recurrent_layer_flops_are_three_times_its_matrices(mixer, products):
    one, two = (step_flops(MaskedLM(), num_hidden_layers=layers, mixer=mixer, **BARE) for layers in (1, 2))
    assert two - one == pytest.approx(
        3 * 2 * products * TOKENS, rel=0.05
    )  # less at the first time step, where there is no hidden state


def test_char_cnn_step_is_traced():
    assert (
        step_flops(BiLM(), **CHAR_CNN_ENCODER)
        > step_flops(BiLM(), **{k: v for k, v in CHAR_CNN_ENCODER.items() if k != "embeddings"})
        > 0
    )


def test_cudnn_rnn_flops():
    weight_ih, weight_hh, biases = torch.zeros(4 * 8, 6), torch.zeros(4 * 8, 8), torch.zeros(4 * 8)
    kernel = torch.ops.aten._cudnn_rnn.default
    assert count_flops(kernel, (torch.zeros(11, 6), [weight_ih, weight_hh, biases, biases]), {}, None) == 2 * 11 * 32 * (6 + 8)
