"""Attention weights of texts: self-attention of every layer and head, and alignments of a sequence-to-sequence model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from ..model.attention_weights import max_batch_tokens, self_attention_weights, source_attention_weights
from ..model.batch import Inputs
from ..model.packing import Layout
from ..objectives.seq2seq import build_encoder_decoder_batch
from ..tasks import Seq2Seq
from ..tasks.seq2seq import Seq2SeqExample
from ..tokenization.tokenizer import Tokenizer
from .engines.base import Ints
from .engines.torch import TorchEngine
from .framed_texts import EncodedText
from .text_generation import generate_targets

Weights = NDArray[np.float32]


class TokenAttentions(NamedTuple):
    """Attention weights within one text, [CLS] and [SEP] included."""

    tokens: list[str]
    offsets: NDArray[np.int64]  # (tokens, 2): characters [start, end) of each token in the text; 0, 0 for [CLS] and [SEP]
    weights: Weights  # (layers, heads, tokens, tokens): from each token (row) to each token (column); rows sum to 1

    @property
    def rollout(self) -> Weights:
        """(layers, tokens, tokens): attention rollout (Abnar and Zuidema 2020), from each token of a layer to the input.

        The product of the means over heads of this layer and all layers below it, each mixed with the residual connection:
        A = (mean of the heads + I) / 2. Rows sum to 1.
        """
        mixed = (self.weights.mean(1) + np.eye(len(self.tokens), dtype=np.float32)) / 2
        layers = [mixed[0]]
        for layer in mixed[1:]:
            layers.append(layer @ layers[-1])
        return np.stack(layers)

    def _repr_html_(self) -> str:
        """All heads, rollout and means of layers, for notebooks."""
        from ..reports.attention import render_attention
        from ..reports.html import render_frame

        section = render_attention(" ".join(self.tokens), self.tokens, self.weights, self.rollout)
        return render_frame("Attention weights", "", [section])


class Alignment(NamedTuple):
    """Attention of the tokens of a target to those of its source."""

    source_tokens: list[str]
    target_tokens: list[str]  # with the [SEP] that ends it
    weights: Weights  # (layers, heads, target tokens, source tokens), while each target token is predicted; rows sum to 1

    def _repr_html_(self) -> str:
        """The mean over heads of every layer, for notebooks."""
        from ..reports.attention import render_alignment
        from ..reports.html import render_frame

        return render_frame("Alignment", "", [render_alignment(self.source_tokens, self.target_tokens, self.weights)])


def compute_attentions(
    engine: TorchEngine, texts: Sequence[EncodedText], batch_tokens: int | None = None
) -> list[TokenAttentions]:
    """Attention weights of each text, in order."""
    results: dict[int, TokenAttentions] = {}
    lengths = np.array([len(text.ids) for text in texts], np.int64)
    limit = max(1, max_batch_tokens(engine.model, int(lengths.max(initial=1))))
    for batch in engine.batch_by_length(lengths, min(batch_tokens or engine.batch_tokens, limit)):
        inputs = Inputs(
            torch.from_numpy(np.concatenate([texts[i].ids for i in batch])),
            Layout.from_lengths(lengths[batch]),
        ).to(engine.device)
        with engine.inference_context():
            layers = self_attention_weights(engine.model, inputs)
        for row, i in enumerate(batch.tolist()):
            length = int(lengths[i])
            weights = _stack_layers([layer[row, :, :length, :length] for layer in layers])
            results[i] = TokenAttentions(texts[i].tokens, texts[i].offsets, weights)
    return [results[i] for i in range(len(texts))]


def compute_alignments(
    engine: TorchEngine, tokenizer: Tokenizer, task: Seq2Seq, texts: Sequence[str], targets: Sequence[str] | None,
    max_length: int, batch_tokens: int | None = None,
) -> list[Alignment]:  # fmt: skip
    """Attention of each target, or of what the model generates, to its source, in order."""
    if engine.model.decoder is None:
        raise UserError("this model generates without a decoder: source and target are one text; use .attentions")
    if targets is not None and len(targets) != len(texts):
        raise UserError(
            f"{len(texts)} texts and {len(targets)} targets; give one target for each text, or none to generate them"
        )
    known = targets if targets is not None else [None] * len(texts)
    encoded = task.encode([Seq2SeqExample(*pair) for pair in zip(texts, known, strict=True)], tokenizer, max_length)
    if targets is None:
        generated = generate_targets(engine, tokenizer, task, encoded.input_ids, batch_tokens=batch_tokens)
        cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        target_ids = [np.array([cls_id, *ids, sep_id], np.int64) for ids in generated]
    else:
        target_ids = np.split(encoded.targets["target_ids"], np.cumsum(encoded.targets["target_lengths"])[:-1])
    lengths = np.array([len(pair[0]) + len(pair[1]) for pair in zip(encoded.input_ids, target_ids, strict=True)], np.int64)
    results: dict[int, Alignment] = {}
    for rows in engine.batch_by_length(lengths, batch_tokens):
        batch = build_encoder_decoder_batch([encoded.input_ids[i] for i in rows], [target_ids[i] for i in rows])
        batch = batch.to(engine.device)
        assert batch.decoder_inputs is not None
        with engine.inference_context():
            layers = source_attention_weights(engine.model, batch.inputs, batch.decoder_inputs)
        for row, i in enumerate(rows.tolist()):
            source, target = (_to_tokens(tokenizer, ids) for ids in (encoded.input_ids[i], target_ids[i][1:]))
            weights = _stack_layers([layer[row, :, : len(target), : len(source)] for layer in layers])
            results[i] = Alignment(source, target, weights)
    return [results[i] for i in range(len(texts))]


def _stack_layers(layers: Sequence[Tensor]) -> Weights:
    """(layers, heads, queries, keys) of layers with as many heads each."""
    num_heads = sorted({len(layer) for layer in layers})
    if len(num_heads) > 1:
        raise UserError(f"the layers of this model have different numbers of heads, {' and '.join(map(str, num_heads))}")
    return np.stack([layer.cpu().numpy() for layer in layers])


def _to_tokens(tokenizer: Tokenizer, ids: Ints) -> list[str]:
    return [tokenizer.id_to_token[token_id] for token_id in ids.tolist()]
