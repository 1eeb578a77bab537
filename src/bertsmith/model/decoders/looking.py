"""How a recurrent decoder looks at its source: additive (Bahdanau et al. 2015), dot or general (Luong et al. 2015)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..layout import Layout

Score = Literal["additive", "dot", "general", "none"]


class Source(NamedTuple):
    """What there is to look at, padded: a row a text."""

    states: Tensor  # (rows, longest, width)
    keys: Tensor  # the same, as the scores want them
    real: Tensor  # (rows, longest) bool
    whole: Tensor  # (rows, width): the mean of the states, all that a decoder without attention knows

    def of(self, rows: Tensor) -> "Source":
        return Source(*(part.index_select(0, rows) for part in self))


class Looking(nn.Module):
    def __init__(self, score: Score, width: int) -> None:
        super().__init__()
        self.score = score
        self.key = nn.Linear(width, width, bias=False) if score == "additive" else None
        self.query = nn.Linear(width, width, bias=False) if score in ("additive", "general") else None
        self.value = nn.Linear(width, 1, bias=False) if score == "additive" else None

    def source(self, states: Tensor, layout: Layout) -> Source:
        """(tokens, width) as `layout` has them."""
        grid = layout.grid(states)
        return Source(grid, grid if self.key is None else self.key(grid), layout.real(), layout.mean(states))

    def forward(self, queries: Tensor, source: Source) -> Tensor:
        """(rows, queries, width) -> the same: the mean of the states, each weighed by its score."""
        if self.score == "none":
            return source.whole[:, None].expand_as(queries)
        scores = self.scores(queries, source.keys).masked_fill(~source.real[:, None], float("-inf"))
        return scores.float().softmax(-1).to(source.states.dtype) @ source.states

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(rows, queries, keys): v . tanh(W q + U h), or q . h, or (W q) . h."""
        asked = queries if self.query is None else self.query(queries)
        if self.value is None:
            return asked @ keys.transpose(1, 2)
        return self.value(torch.tanh(asked[:, :, None] + keys[:, None])).squeeze(-1)
