"""Two texts, each read by itself, joined by blocks in which every token of one attends to the other."""

from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from ...config import Chance, Count, Variant
from ...errors import BadInput
from ..mixers.base import Heads
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class CrossHead(Variant, frozen=True, tag="cross"):
    """Scores for pairs of texts, from both sides after they have seen each other."""

    outputs: Annotated[Count, "scores a pair"]
    blocks: Annotated[Count, "blocks in which each side attends to the other"]
    dropout: Annotated[Chance, "on what is scored"] = 0.1

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "CrossScores":
        return CrossScores(self, encoder)


class CrossScores(nn.Module):
    def __init__(self, config: CrossHead, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CrossBlock(encoder) for _ in range(config.blocks))
        self.norm = encoder.layer_norm() if encoder.norm == "before" else nn.Identity()
        self.drop, self.score = nn.Dropout(config.dropout), nn.Linear(4 * encoder.width, config.outputs)

    def read(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, width) of sequences that are pairs, one after the other, to (sequences, width): the mean of each."""
        partner, index = swapped(layout)
        for block in self.blocks:
            x = block(x, layout, partner, index)
        return layout.mean(self.norm(x))

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        """(pairs, outputs), of both sides u and v, of |u - v| and u * v."""
        u, v = encoder.pool(rows).unflatten(0, (-1, 2)).unbind(1)
        return self.score(self.drop(torch.cat([u, v, (u - v).abs(), u * v], -1)))


class CrossBlock(nn.Module):
    """A block as the encoder's own, but for what it attends to; both sides use the same weights."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        if config.feedforward is None:
            raise BadInput("pairs that attend to each other want a model with feed-forwards; set task.pair=joint, or both")
        attention = config.attention()
        self.project = Heads(config.width, attention.heads)
        self.feedforward = config.feedforward.build(config.width)
        self.mixer_norm, self.feedforward_norm = config.layer_norm(), config.layer_norm()
        self.drop, self.dropout = nn.Dropout(config.dropout), attention.dropout
        self.norm_first = config.norm == "before"

    def forward(self, x: Tensor, layout: Layout, partner: Layout, index: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.drop(self.seen(self.mixer_norm(x), layout, partner, index))
            return x + self.drop(self.feedforward(self.feedforward_norm(x)))
        x = self.mixer_norm(x + self.drop(self.seen(x, layout, partner, index)))
        return self.feedforward_norm(x + self.drop(self.feedforward(x)))

    def seen(self, x: Tensor, layout: Layout, partner: Layout, index: Tensor) -> Tensor:
        """What each token finds in the other text of its pair."""
        q, k, v = self.project(x)
        dropout = self.dropout if self.training else 0.0
        return self.project.join(layout.attend(q, k[index], v[index], dropout=dropout, keys=partner))


def swapped(layout: Layout) -> tuple[Layout, Tensor]:
    """The same sequences with the two of each pair in the other order, and where each of their tokens stands in `layout`."""
    other = Layout.of(layout.lengths.unflatten(0, (-1, 2)).flip(1).flatten()).to(layout.owner.device)
    return other, layout.firsts[other.owner ^ 1] + other.place
