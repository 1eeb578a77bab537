"""Vectors of words as a model: the table is the encoder's, what they were learnt against a head's, n-grams a front's."""

import msgspec
import torch
from torch import Tensor

from ..bag import bag
from ..fronts.subwords import CharacterGrams, Subwords
from ..heads import HeadConfig, WordHead
from ..model import Model
from ..tree import TreeHead
from .huffman import Paths


def published(
    vectors: Tensor, outputs: Tensor, paths: Paths | None, grams: CharacterGrams | None = None, buckets: Tensor | None = None
) -> Model:
    """`vectors` are of words, their n-grams in them; `buckets`, where there are some, of the n-grams."""
    words, width = vectors.shape
    heads: dict[str, HeadConfig] = {"words": WordHead(transform=False, tied=False, bias=False)}
    if paths is not None:
        heads = {"words": TreeHead(longest=paths.nodes.shape[1])}
    config = bag(words, width, heads)
    if grams is not None:
        front = Subwords(numbers=width, grams=grams)
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, front=front))
    model = Model(config, drawn=False)
    weights = {"encoder.tokens.weight": vectors, "heads.words.table.weight": outputs}
    if paths is not None:
        weights |= {"heads.words.nodes": torch.from_numpy(paths.nodes), "heads.words.turns": torch.from_numpy(paths.turns)}
    if buckets is not None:
        weights["encoder.front.buckets.weight"] = buckets
    model.load_state_dict(weights)
    return model.eval()
