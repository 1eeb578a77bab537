"""Cross-attention head: two texts are encoded separately, then blocks let the tokens of each attend to the other."""

from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ...errors import UserError
from ..linear import Linear
from ..mixers.base import QKVProjection
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class CrossAttentionHeadConfig(Variant, frozen=True, tag="cross-attention"):
    """Logits for pairs of texts, from both after cross-attention."""

    outputs: Annotated[PosInt, "number of logits for each text pair"]
    blocks: Annotated[PosInt, "number of cross-attention layers between the two texts"]
    dropout: Annotated[Probability, "dropout before the classifier"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "CrossAttentionHead":
        return CrossAttentionHead(self, encoder)


class CrossAttentionHead(nn.Module):
    """Cross-attention blocks, mean pooling, and a classifier on [u; v; |u - v|; u * v]."""

    def __init__(self, config: CrossAttentionHeadConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        if encoder.pooling == "concat":
            raise UserError("task.pair=cross takes the mean of each text; set pooling=mean, or leave pooling out")
        self.layers = nn.ModuleList(CrossAttentionBlock(encoder) for _ in range(config.blocks))
        self.final_norm = encoder.build_layer_norm() if encoder.norm == "pre" else nn.Identity()
        self.drop, self.classifier = nn.Dropout(config.dropout), Linear(4 * encoder.hidden_size, config.outputs)

    def encode_pairs(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, hidden_size) -> (texts, hidden_size): mean of each text after the blocks; texts 2i and 2i + 1 are a pair."""
        partner_layout, partner_index = swap_pairs(layout)
        for block in self.layers:
            x = block(x, layout, partner_layout, partner_index)
        return layout.mean_pool(self.final_norm(x))

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(sequences, hidden_size) -> (pairs, outputs): logits of [u; v; |u - v|; u * v]."""
        u, v = encoder.apply_pooler(hidden_states).unflatten(0, (-1, 2)).unbind(1)
        return self.classifier(self.drop(torch.cat([u, v, (u - v).abs(), u * v], -1)))


class CrossAttentionBlock(nn.Module):
    """A transformer block like the encoder's whose attention reads the other text of the pair; both texts share its weights."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        if config.feedforward is None:
            raise UserError("task.pair=cross needs a model with feed-forward layers; set task.pair=joint, or both")
        attention = config.attention_config()
        self.projections = QKVProjection(config.hidden_size, attention.num_attention_heads)
        self.feedforward = config.feedforward.build(config.hidden_size)
        self.mixer_norm, self.feedforward_norm = config.build_layer_norm(), config.build_layer_norm()
        self.drop, self.dropout = nn.Dropout(config.hidden_dropout_prob), attention.attention_dropout
        self.norm_first = config.norm == "pre"

    def forward(self, x: Tensor, layout: Layout, partner_layout: Layout, partner_index: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.drop(self.cross_attend(self.mixer_norm(x), layout, partner_layout, partner_index))
            return x + self.drop(self.feedforward(self.feedforward_norm(x)))
        x = self.mixer_norm(x + self.drop(self.cross_attend(x, layout, partner_layout, partner_index)))
        return self.feedforward_norm(x + self.drop(self.feedforward(x)))

    def cross_attend(self, x: Tensor, layout: Layout, partner_layout: Layout, partner_index: Tensor) -> Tensor:
        """(tokens, hidden_size): attention of each token to the other text of its pair."""
        q, k, v = self.projections(x)
        dropout = self.dropout if self.training else 0.0
        return self.projections.project_out(
            layout.attend(q, k[partner_index], v[partner_index], dropout=dropout, keys=partner_layout)
        )


def swap_pairs(layout: Layout) -> tuple[Layout, Tensor]:
    """The layout with the two texts of each pair swapped, and (tokens,): the index of each of its tokens in `layout`."""
    if not layout.is_packed:
        rows = torch.arange(layout.num_sequences, device=layout.seq_id.device).unflatten(0, (-1, 2)).flip(1).flatten()
        partner_index = rows[:, None] * layout.max_seqlen + layout.pad(layout.position)
        return type(layout).from_mask(layout.padding_mask()[rows]), layout.unpad(partner_index)  # type: ignore[attr-defined]
    swapped = Layout.from_lengths(layout.lengths.unflatten(0, (-1, 2)).flip(1).flatten()).to(layout.seq_id.device)
    return swapped, layout.first_token[swapped.seq_id ^ 1] + swapped.position
