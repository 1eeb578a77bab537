"""What a part of a block says joins the stream: dropped out, added and normed."""

import torch.nn.functional as F
from torch import Tensor, nn

from . import kernels


class Join(nn.LayerNorm):
    """Norms the sum. Where norms come first the sum itself is what goes on; else, as in BERT, the normed sum is."""

    def __init__(self, width: int, eps: float, bias: bool, dropout: float, first: bool) -> None:
        super().__init__(width, eps=eps, bias=bias)
        self.dropout, self.first = dropout, first

    def forward(self, stream: Tensor, said: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """What the next part reads, and the stream it will join."""
        dropout = self.dropout if self.training else 0.0
        if kernels.serves(stream):
            from .kernels.norms import joined

            return joined(stream, said, self.weight, self.bias, self.eps, dropout, self.first)
        total = stream if said is None else stream + (F.dropout(said, dropout) if dropout else said)
        normed = super().forward(total)
        return (normed, total) if self.first else (normed, normed)


class Sum(nn.Module):
    """No norm: what was said is added to the stream, or takes its place."""

    def __init__(self, dropout: float, added: bool) -> None:
        super().__init__()
        self.dropout, self.added = dropout, added

    def forward(self, stream: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        said = F.dropout(said, self.dropout, self.training)
        total = stream + said if self.added else said
        return total, total
