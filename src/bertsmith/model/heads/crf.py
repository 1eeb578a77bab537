"""A chain of tags: how well one follows another, learnt with the scores of each token (a linear-chain CRF)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Variant
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig


LOG_ZERO = -1e4  # as good as minus infinity among exponentials, without its nan


class CRFHeadConfig(Variant, frozen=True, tag="chain"):
    """What a step from one tag to the next is worth, beside any head that scores tokens."""

    tags: Annotated[PosInt, "how many there are"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "CRF":
        return CRF(self.tags)


class CRF(nn.Module):
    """`moves` (tags + 1, tags + 1), from a tag (row) to the next (column); the last row begins a chain, the last column
    ends it.

    It starts at nothing: a new chain is a softmax a token. It has no forward: no hidden state goes in, and an exported
    graph has no loop.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.moves = nn.Parameter(torch.zeros(num_tags + 1, num_tags + 1))


@dataclass(frozen=True)
class CRFBatch:
    """The tagged tokens of each sequence, as rectangles; a sequence without any is no chain."""

    emissions: Tensor  # (chains, longest, tags)
    tags: Tensor  # (chains, longest)
    mask: Tensor  # (chains, longest) bool
    has_start_end: Tensor  # (chains, 2) bool: it has the beginning of its sentence, and the end; else it is open there

    @classmethod
    def from_tokens(cls, emissions: Tensor, tags: Tensor, seq_id: Tensor, has_start_end: Tensor) -> "CRFBatch":
        """From the tagged tokens alone, (tokens, tags) and (tokens,), and the sequence each is of."""
        sequence, sizes = seq_id.unique_consecutive(return_counts=True)
        layout = Layout.from_lengths(sizes.cpu()).to(emissions.device)
        return CRFBatch(layout.pad(emissions), layout.pad(tags), layout.padding_mask(), has_start_end[sequence])

    def nll(self, transitions: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(chains,): log of the sum over all allowed paths, less the true path. Never negative, never infinite.

        A chain whose own tags break the rule (a slip in a file) is held against all paths there are.
        """
        before, here, counted = self._gold_transitions(transitions.shape[0] - 1)
        true = (transitions[before, here] * counted).sum(1)
        if allowed is None:
            return self._log_partition(transitions[None]) - true
        broken = (counted & ~allowed[before, here]).any(1)
        return self._log_partition(transitions.where(allowed | broken[:, None, None], LOG_ZERO)) - true

    def _log_partition(self, transitions: Tensor) -> Tensor:
        """The log of the summed exponentials of all paths, the true tags scored 0; `moves` is one table, or one a chain."""
        begins, ends = self.has_start_end[:, :1], self.has_start_end[:, 1:]
        scores = self.emissions - self.emissions.gather(2, self.tags[..., None])
        reached, level = scores[:, 0] + transitions[:, -1, :-1] * begins, scores.new_zeros(len(scores))
        for place in range(1, scores.shape[1]):
            ahead = (reached[:, :, None] + transitions[:, :-1, :-1]).logsumexp(1) + scores[:, place]
            peak = ahead.detach().amax(1) * self.mask[:, place]  # kept apart: on long chains sums grow, and lose digits
            reached, level = torch.where(self.mask[:, place, None], ahead - peak[:, None], reached), level + peak
        return (reached + transitions[:, :-1, -1] * ends).logsumexp(1) + level

    def _gold_transitions(self, boundary_tag: int) -> tuple[Tensor, Tensor, Tensor]:
        """Each (chains, longest + 1): the tag before and after every step of the true paths, and whether the step counts."""
        path = F.pad(self.tags.masked_fill(~self.mask, boundary_tag), (1, 1), value=boundary_tag)
        place, size = torch.arange(path.shape[1] - 1, device=path.device), self.mask.sum(1, keepdim=True)
        counted = ((place > 0) | self.has_start_end[:, :1]) & ((place < size) | ((place == size) & self.has_start_end[:, 1:]))
        return path[:, :-1], path[:, 1:], counted
