"""Encoder: sum of token, position and segment embeddings (LayerNorm, dropout), then a stack of blocks."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..tokenization.characters import Lexicon
from .batch import Inputs
from .config import EncoderConfig
from .embeddings import CharCNNConfig
from .linear import Linear
from .mixers.reformer.reversible import Duplicate
from .positions import AxialPositionsConfig, sinusoidal_positions
from .sublayers import ACTIVATIONS, AddNorm, to_compute_dtype
from .transformer import Stack


class Encoder(nn.Module):
    """Token ids to hidden states; see `EncoderConfig`."""

    sinusoids: Tensor | None  # (positions, embedding_dim): sinusoidal position embeddings

    def __init__(self, config: EncoderConfig, vocab_size: int, lexicon: Lexicon | None = None) -> None:
        """`lexicon`: the words of the ids, for embeddings that read characters."""
        super().__init__()
        self.config = config
        self.word_embeddings: nn.Embedding = (
            nn.Embedding(vocab_size, config.token_table_dim) if config.token_table_dim else None  # type: ignore[assignment]
        )
        if config.separates_directions and not isinstance(config.embeddings, CharCNNConfig | None):
            raise UserError(
                "model.mixer.directions=apart reads a token table or the words' characters; leave out model.embeddings, or set "
                "model.embeddings=char-cnn"
            )
        self.input_embeddings = config.embeddings.build(config.hidden_size, vocab_size, lexicon) if config.embeddings else None
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, config.embedding_dim)
            if config.position_embedding_type == "absolute"
            else None
        )
        axial_config = (
            config.position_embedding_type if isinstance(config.position_embedding_type, AxialPositionsConfig) else None
        )
        self.axial_position_embeddings = (
            axial_config.build(config.max_position_embeddings, config.embedding_dim) if axial_config else None
        )
        sinusoids = (
            sinusoidal_positions(config.max_position_embeddings, config.embedding_dim)
            if config.position_embedding_type == "sinusoidal"
            else None
        )
        self.register_buffer("sinusoids", sinusoids, persistent=False)
        self.token_type_embeddings = (
            nn.Embedding(config.type_vocab_size, config.embedding_dim) if config.type_vocab_size else None
        )
        self.embedding_norm = config.build_add_norm(config.embedding_dim) if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.embedding_projection = _build_embedding_projection(config)
        self.stack = Stack(config)
        self.pooler = Linear(config.pooled_size, config.hidden_size) if config.pooler_act != "none" else nn.Identity()

    def forward(self, inputs: Inputs, all_hidden_states: list[Tensor] | None = None) -> Tensor:
        """Hidden states (tokens, hidden_size), or (rows, hidden_size) of `inputs.output_indices`.

        The embeddings and the output of each block are appended to `all_hidden_states` if it is given.
        """
        x = self.embed(inputs)
        if all_hidden_states is not None:
            all_hidden_states.append(x)
        return self.stack(x, inputs.layout, all_hidden_states, inputs.output_indices, inputs.state)

    def pool_tokens(self, inputs: Inputs, hidden_states: Tensor | None = None) -> Tensor:
        """(sequences, pooled_size): first (causal: last) token, mean or max of each sequence, before `apply_pooler`.

        pooling=concat: [first or last token; max; mean], as ULMFiT (Howard and Ruder 2018, section 3.3).
        `hidden_states` (tokens, hidden_size) of all tokens, if they have been computed already.
        """
        layout = inputs.layout
        token_indices = layout.last_token if self.config.is_causal else layout.first_token
        if self.config.pooling == "cls":
            return (
                self(replace(inputs, output_indices=token_indices))
                if hidden_states is None
                else hidden_states.index_select(0, token_indices)
            )
        hidden_states = self(inputs) if hidden_states is None else hidden_states
        if self.config.pooling == "concat":
            tokens = hidden_states.index_select(0, token_indices)
            return torch.cat([tokens, layout.max_pool(hidden_states), layout.mean_pool(hidden_states)], -1)
        return layout.mean_pool(hidden_states) if self.config.pooling == "mean" else layout.max_pool(hidden_states)

    def apply_pooler(self, hidden_states: Tensor) -> Tensor:
        """(rows, text_size): activation(W h + b) of the pooled rows, BERT's pooler; unchanged if pooler_act=none."""
        return (
            hidden_states
            if self.config.pooler_act == "none"
            else ACTIVATIONS[self.config.pooler_act](self.pooler(hidden_states))
        )

    def embed(self, inputs: Inputs) -> Tensor:
        """(tokens, hidden_size): input of the first block, of this encoder or of a decoder that shares its embeddings."""
        return self.embedding_projection(self.sum_embeddings(inputs))

    def sum_embeddings(self, inputs: Inputs) -> Tensor:
        """(tokens, embedding_dim): sum of token, segment and position embeddings after LayerNorm and dropout."""
        max_positions = self.config.max_position_embeddings
        if inputs.layout.num_positions > max_positions:
            raise UserError(
                f"a text of {inputs.layout.num_positions} tokens is longer than the model's {max_positions} positions; "
                f"truncate it, or train a model with model.max_position_embeddings={inputs.layout.num_positions}"
            )
        x = self.embed_tokens(inputs)
        x = (
            x
            if self.token_type_embeddings is None
            else x + F.embedding(self._token_type_ids(inputs), to_compute_dtype(self.token_type_embeddings.weight))
        )
        x = (
            x
            if self.position_embeddings is None
            else x + F.embedding(inputs.layout.position, to_compute_dtype(self.position_embeddings.weight))
        )
        x = x if self.axial_position_embeddings is None else x + self.axial_position_embeddings(inputs.layout.position)
        x = x if self.sinusoids is None else x + self.sinusoids.to(x.dtype)[inputs.layout.position]
        x = x if inputs.embedding_delta is None else x + inputs.embedding_delta
        return self.drop(self.embedding_norm(x, None)[0] if isinstance(self.embedding_norm, AddNorm) else x)

    def embed_tokens(self, inputs: Inputs) -> Tensor:
        """(tokens, embedding_dim): embeddings of the tokens alone, without segments and positions."""
        if self.input_embeddings is None:
            x = F.embedding(inputs.input_ids, to_compute_dtype(self.word_embeddings.weight))
        else:
            embeddings = self.input_embeddings(inputs.input_ids, inputs.layout, self.word_embeddings)
            # A character CNN gives the same vector for both directions; where they get their copies, one is left out here.
            x = to_compute_dtype(embeddings[:, : self.config.embedding_dim])
        return x * x.shape[-1] ** 0.5 if self.config.scale_embeddings else x

    def _token_type_ids(self, inputs: Inputs) -> Tensor:
        """(tokens,): segment id of each token."""
        if inputs.token_type_ids is None or self.config.type_vocab_size == 1:  # a model with one segment type ignores segment B
            return torch.zeros_like(inputs.input_ids)
        return inputs.token_type_ids


def _build_embedding_projection(config: EncoderConfig) -> nn.Module:
    """Projection from `embedding_size` to `hidden_size`, where they differ (ALBERT); a copy for each of two directions."""
    if config.separates_directions:
        is_projected = config.embedding_dim != config.stack_size
        return nn.Sequential(Linear(config.embedding_dim, config.stack_size), Duplicate()) if is_projected else Duplicate()
    if config.embedding_size is None or config.embeddings:
        return nn.Identity()
    if config.reversible == "halves" and 2 * config.embedding_size == config.hidden_size:
        return Duplicate()
    return Linear(config.embedding_size, config.hidden_size)
