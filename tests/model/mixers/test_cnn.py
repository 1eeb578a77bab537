"""Convolutions against torch.nn.functional.conv1d, one sequence at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.model.mixers import Cnn
from bertsmith.model.packing import Layout

LENGTHS, HIDDEN_SIZE = (4, 13, 1, 6), 8


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("stride", [1, 2, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_cnn_matches_torch_conv1d(dilation, stride, causal):
    torch.manual_seed(0)
    config = Cnn(kernel_sizes=(1, 3, 4), dilation=dilation, stride=stride, causal=causal)
    mixer, x = config.build(HIDDEN_SIZE).double(), torch.randn(sum(LENGTHS), HIDDEN_SIZE, dtype=torch.double)
    expected = []
    for sequence in x.split(LENGTHS):
        channels = []
        for kernel_size, conv in zip(config.kernel_sizes, mixer.filters, strict=True):
            left = kernel_size - 1 if causal else (kernel_size - 1) // 2
            padded = F.pad(sequence.T[None], (dilation * left, dilation * (kernel_size - 1 - left)))
            weight = conv.weight.unflatten(1, (kernel_size, HIDDEN_SIZE)).transpose(1, 2)  # (channels, hidden_size, kernel)
            channels.append(F.conv1d(padded, weight, conv.bias, stride=stride, dilation=dilation)[0].T)
        windows = torch.cat(channels, -1).relu()
        expected.append(windows.repeat_interleave(stride, 0)[: len(sequence)])
    assert_close(mixer(x, Layout.from_lengths(LENGTHS)), torch.cat(expected))
