"""`output_indices`: the last block computes the selected rows only, with the same hidden states and gradients."""

from dataclasses import replace

import pytest
import torch

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("recompute", [False, True])
def test_output_indices_match_full_forward_and_grads(norm, recompute):
    config = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=16,
        mixer=Attention(num_attention_heads=2),
        feedforward=FeedForwardConfig(intermediate_size=32),
        norm=norm,
        hidden_dropout_prob=0,
    )
    model = build_model(ModelConfig(encoder=config, vocab_size=50), 0).train()
    model.encoder.stack.gradient_checkpointing = recompute
    layout = Layout.from_lengths([5, 3, 9])
    inputs = Inputs(torch.randint(50, (17,), generator=torch.Generator().manual_seed(0)), layout)
    results = []
    for rows in (model(inputs)[layout.first_token], model(replace(inputs, output_indices=layout.first_token))):
        model.zero_grad()
        (rows * torch.arange(16.0)).sum().backward()
        results.append((rows, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]))
    (expected, expected_grads), (selected, selected_grads) = results
    assert selected.shape == (3, 16) and len(expected_grads) == len(selected_grads)
    torch.testing.assert_close(selected, expected)
    for grad, selected_grad in zip(expected_grads, selected_grads, strict=True):
        torch.testing.assert_close(grad, selected_grad, rtol=1e-4, atol=1e-5)
