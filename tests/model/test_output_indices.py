"""The last block works for the tokens that are asked for alone, and says of them what it would among all."""

from dataclasses import replace

import pytest
import torch

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig


@pytest.mark.parametrize("norm", ["after", "before"])
@pytest.mark.parametrize("recompute", [False, True])
def test_rows_and_gradients_are_those_of_the_whole(norm, recompute):
    config = EncoderConfig(
        layers=2, width=16, mixer=Attention(heads=2), feedforward=FeedForwardConfig(inner=32), norm=norm, dropout=0
    )
    model = build_model(ModelConfig(encoder=config, vocabulary=50), 0).train()
    model.encoder.stack.gradient_checkpointing = recompute
    layout = Layout.from_lengths([5, 3, 9])
    inputs = Inputs(torch.randint(50, (17,), generator=torch.Generator().manual_seed(0)), layout)
    found = []
    for rows in (model(inputs)[layout.first_token], model(replace(inputs, output_indices=layout.first_token))):
        model.zero_grad()
        (rows * torch.arange(16.0)).sum().backward()
        found.append((rows, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (whole, slopes), (part, others) = found
    assert part.shape == (3, 16) and len(slopes) == len(others)
    torch.testing.assert_close(part, whole)
    for one, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
