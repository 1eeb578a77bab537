"""A small model with channels as uneven as those of trained ones, which is what quantization finds hard."""

import torch

from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.onnx_graphs import build_encoder

VOCAB_SIZE = 80


def build_model(seed=0, outlier_weight=1 / 30, **options):
    """A model with channels far larger than the others, as trained ones have; outlier_weight: of the layers that read them."""
    torch.manual_seed(seed)
    encoder = build_encoder(hidden_size=64, feedforward=FeedForwardConfig(intermediate_size=128), **options)
    model = Model(ModelConfig(encoder, VOCAB_SIZE, {"lm": LMHeadConfig()})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, std=0.12)
            if name.endswith("norm.weight"):
                parameter[3::31] *= 30
            if name.endswith(("qkv.weight", "intermediate.weight")):
                parameter[:, 3::31] *= outlier_weight
    return model
