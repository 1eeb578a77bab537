"""What a model knows of positions, as arrays to look at: vectors of positions, and attention biases by distance."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .mixers.transformer_xl import TransformerXLAttention
from .model import Model
from .position_bias import PositionBias, ShawEmbeddings
from .positions import RotaryEmbedding

Floats = NDArray[np.float32]

MAX_DISTANCE = 128  # of the biases


class PositionVectors(NamedTuple):
    """A vector for each position (absolute, sinusoidal, axial; RoPE's cosines and sines), or for each distance (Shaw)."""

    name: str
    positions: NDArray[np.int64]  # (n,)
    vectors: Floats  # (n, dimensions)


class DistanceBias(NamedTuple):
    """What each head adds to the score of a key at a distance (key position - query position), whatever the tokens are."""

    name: str
    distances: NDArray[np.int64]  # (n,), ascending
    values: Floats  # (heads, n)


@torch.no_grad()
def find_position_encodings(model: Model) -> list[PositionVectors | DistanceBias]:
    """Those of the embeddings, then those of the layers; layers that share one have it once."""
    encoder, found = model.encoder, list[PositionVectors | DistanceBias]()
    positions = torch.arange(encoder.config.max_position_embeddings, device=next(model.parameters()).device)
    if encoder.position_embeddings is not None:
        found.append(_vectors("learned position embeddings", positions, encoder.position_embeddings(positions)))
    if encoder.axial_position_embeddings is not None:
        found.append(_vectors("axial position embeddings", positions, encoder.axial_position_embeddings(positions)))
    if encoder.sinusoids is not None:
        found.append(_vectors("sinusoidal positions", positions, encoder.sinusoids))
    thetas = set[float]()
    for layer, mixer in enumerate(encoder.stack.mixers, 1):
        rotary, bias = getattr(mixer, "rotary", None), getattr(mixer, "position_bias", None)
        if isinstance(rotary, RotaryEmbedding) and rotary.theta not in thetas:
            thetas.add(rotary.theta)
            table = rotary.cos_sin(len(positions), positions.device)[: len(positions)]
            found.append(_vectors(f"RoPE, theta {rotary.theta:g}", positions, table))
        if isinstance(bias, PositionBias):
            reach = min(MAX_DISTANCE, len(positions) - 1)
            distances = torch.arange(-reach, reach + 1, device=positions.device)
            found.append(_bias(f"layer {layer}: {type(bias).__name__.removesuffix('Bias')} bias", distances, bias(distances)))
        if isinstance(shaw := getattr(mixer, "shaw", None), ShawEmbeddings):
            distances = torch.arange(-shaw.clip, shaw.clip + 1)
            found.append(_vectors(f"layer {layer}: keys by distance (Shaw et al.)", distances, shaw.keys.weight))
        if isinstance(mixer, TransformerXLAttention):
            found.append(_transformer_xl_bias(layer, mixer))
    return found


def cosine_similarity(vectors: Floats) -> Floats:
    """(n, n) of (n, dimensions); 0 for vectors of zeros."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def _transformer_xl_bias(layer: int, mixer: TransformerXLAttention) -> DistanceBias:
    """v R(distance) / sqrt(head_dim), term (d) of Dai et al. 2019, section 3.3."""
    device = mixer.relative_key.weight.device
    like = torch.zeros(
        1, mixer.projections.num_heads, MAX_DISTANCE, mixer.hidden_size // mixer.projections.num_heads, device=device
    )
    _, v_bias = mixer.content_and_position_bias(like)
    keys = mixer.relative_keys(like, MAX_DISTANCE)  # from the largest distance back to the smallest
    scores = (v_bias @ keys.mT)[:, 0] * like.shape[-1] ** -0.5
    first = 0 if mixer.config.causal else 1 - MAX_DISTANCE
    back = torch.arange(first, MAX_DISTANCE + 1).flip(0)  # query position - key position
    return _bias(f"layer {layer}: Transformer-XL bias", -back, scores)


def _vectors(name: str, positions: torch.Tensor, vectors: torch.Tensor) -> PositionVectors:
    return PositionVectors(name, positions.cpu().numpy(), vectors.float().cpu().numpy())


def _bias(name: str, distances: torch.Tensor, values: torch.Tensor) -> DistanceBias:
    return DistanceBias(name, distances.cpu().numpy(), values.float().cpu().numpy())
