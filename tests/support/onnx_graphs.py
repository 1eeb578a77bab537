"""Small models, padded batches, and their outputs by onnxruntime and by torch."""

import numpy as np
import pytest
import torch

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig

MAX_LENGTH, VOCAB_SIZE = 48, 50
SHAPES = ((5, 3, 1), (1,), (MAX_LENGTH, 17), (9, 9, 9, 2))  # lengths of the texts of each batch


def build_encoder(mixer=None, **options):
    mixer = mixer or Attention(num_attention_heads=4)
    has_positions = getattr(mixer, "rope_theta", None) or getattr(mixer, "position_bias", None)
    defaults = {
        "num_hidden_layers": 2, "hidden_size": 32, "mixer": mixer, "feedforward": FeedForwardConfig(intermediate_size=48),
        "max_position_embeddings": MAX_LENGTH, "position_embedding_type": "none" if has_positions else "absolute",
        "initializer_range": 0.3,
    }  # fmt: skip
    return EncoderConfig(**{**defaults, **options})


def build_random_model(encoder=None, heads=None, seed=0):
    """Every weight is random, so that no output is right by chance."""
    torch.manual_seed(seed)
    model = Model(ModelConfig(encoder or build_encoder(), VOCAB_SIZE, heads or {})).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def random_texts(lengths, seed=0):
    """(token ids, segment ids) of each text."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(5, VOCAB_SIZE, n), (np.arange(n) > n // 2).astype(np.int64)) for n in lengths]


def pad_texts(texts):
    """input_ids, attention_mask and token_type_ids, (texts, length) each."""
    arrays = np.zeros((3, len(texts), max(len(ids) for ids, _ in texts)), np.int64)
    for row, (ids, segments) in enumerate(texts):
        arrays[0, row, : len(ids)], arrays[1, row, : len(ids)], arrays[2, row, : len(ids)] = ids, 1, segments
    return dict(zip(("input_ids", "attention_mask", "token_type_ids"), arrays, strict=True))


def pack_texts(texts):
    """The same, packed."""
    ids, segments = (torch.from_numpy(np.concatenate(part)) for part in zip(*texts, strict=True))
    return Inputs(ids, Layout.from_lengths([len(ids) for ids, _ in texts]), segments)


def open_session(proto, options=None):
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")
    return ort.InferenceSession(proto.SerializeToString(), options)


def run_session(session, texts):
    """Outputs by name; those of tokens without padding, (tokens, ..)."""
    feeds = pad_texts(texts)
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {value.name: feeds[value.name] for value in session.get_inputs()})
    mask = feeds["attention_mask"].astype(bool)
    by_token = {value.name for value in session.get_outputs() if value.shape[1:2] == ["sequence"]}
    return {name: value[mask] if name in by_token else value for name, value in zip(names, values, strict=True)}
