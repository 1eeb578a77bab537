"""A chain of tags: how well one follows another, learnt with the scores of each token (a linear-chain CRF)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Count, Variant
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig


NEVER = -1e4  # as good as minus infinity among exponentials, without its nan


class ChainHead(Variant, frozen=True, tag="chain"):
    """What a step from one tag to the next is worth, beside any head that scores tokens."""

    tags: Annotated[Count, "how many there are"]

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "Chain":
        return Chain(self.tags)


class Chain(nn.Module):
    """`moves` (tags + 1, tags + 1), from a tag (row) to the next (column); the last row begins a chain, the last column
    ends it.

    It starts at nothing: a new chain is a softmax a token. It has no forward: no hidden state goes in, and an exported
    graph has no loop.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.moves = nn.Parameter(torch.zeros(tags + 1, tags + 1))


@dataclass(frozen=True)
class Chains:
    """The tagged tokens of each sequence, as rectangles; a sequence without any is no chain."""

    scores: Tensor  # (chains, longest, tags)
    tags: Tensor  # (chains, longest)
    real: Tensor  # (chains, longest) bool
    whole: Tensor  # (chains, 2) bool: it has the beginning of its sentence, and the end; else it is open there

    @classmethod
    def of(cls, scores: Tensor, tags: Tensor, owner: Tensor, whole: Tensor) -> "Chains":
        """From the tagged tokens alone, (tokens, tags) and (tokens,), and the sequence each is of."""
        sequence, sizes = owner.unique_consecutive(return_counts=True)
        layout = Layout.of(sizes.cpu()).to(scores.device)
        return Chains(layout.grid(scores), layout.grid(tags), layout.real(), whole[sequence])

    def surprise(self, moves: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(chains,): log of the sum over all allowed paths, less the true path. Never negative, never infinite.

        A chain whose own tags break the rule (a slip in a file) is held against all paths there are.
        """
        before, here, counted = self._steps(moves.shape[0] - 1)
        true = (moves[before, here] * counted).sum(1)
        if allowed is None:
            return self._total(moves[None]) - true
        broken = (counted & ~allowed[before, here]).any(1)
        return self._total(moves.where(allowed | broken[:, None, None], NEVER)) - true

    def _total(self, moves: Tensor) -> Tensor:
        """The log of the summed exponentials of all paths, the true tags scored 0; `moves` is one table, or one a chain."""
        begins, ends = self.whole[:, :1], self.whole[:, 1:]
        scores = self.scores - self.scores.gather(2, self.tags[..., None])
        reached, level = scores[:, 0] + moves[:, -1, :-1] * begins, scores.new_zeros(len(scores))
        for place in range(1, scores.shape[1]):
            ahead = (reached[:, :, None] + moves[:, :-1, :-1]).logsumexp(1) + scores[:, place]
            peak = ahead.detach().amax(1) * self.real[:, place]  # kept apart: on long chains sums grow, and lose digits
            reached, level = torch.where(self.real[:, place, None], ahead - peak[:, None], reached), level + peak
        return (reached + moves[:, :-1, -1] * ends).logsumexp(1) + level

    def _steps(self, edge: int) -> tuple[Tensor, Tensor, Tensor]:
        """Each (chains, longest + 1): the tag before and after every step of the true paths, and whether the step counts."""
        path = F.pad(self.tags.masked_fill(~self.real, edge), (1, 1), value=edge)
        place, size = torch.arange(path.shape[1] - 1, device=path.device), self.real.sum(1, keepdim=True)
        counted = ((place > 0) | self.whole[:, :1]) & ((place < size) | ((place == size) & self.whole[:, 1:]))
        return path[:, :-1], path[:, 1:], counted
