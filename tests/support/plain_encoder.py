"""The encoder that tests of transformer layers vary, its inputs, and LayerNorm with its epsilon."""

import torch
import torch.nn.functional as F

from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout

LENGTHS, WIDTH, INNER, LAYERS = (5, 3, 40, 9), 16, 24, 3
PLAIN_ENCODER = {
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "mixer": {"num_attention_heads": 2},
    "feedforward": {"intermediate_size": INNER},
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "layer_norm_eps": 1e-6,
    "initializer_range": 0.3,
}


def build_packed_inputs(**overrides):
    tokens = torch.randint(50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    return Inputs(tokens, Layout.from_lengths(LENGTHS), **overrides)


def layer_norm(norm, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6)
