"""Linear-chain CRF (Lafferty et al. 2001): learned transition scores beside the emission scores of a token classifier."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Variant
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig


LOG_ZERO = -1e4  # log of 0 for practical purposes; -inf would give nan gradients


class CRFHeadConfig(Variant, frozen=True, tag="crf"):
    """Transition scores between tags, used with any token classification head."""

    tags: Annotated[PosInt, "number of tags"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "CRF":
        return CRF(self.tags)


class CRF(nn.Module):
    """Transition scores `transitions` (tags + 1, tags + 1).

    Row: previous tag, column: next tag; last row: start, last column: end. Initialized with zeros, at which the CRF is a
    softmax for each token. It has no forward: it reads no hidden states (see `CRFBatch.nll`), and exported graphs leave it out.
    """

    def __init__(self, num_tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_tags + 1, num_tags + 1))


@dataclass(frozen=True)
class CRFBatch:
    """Tagged tokens of each sequence, padded; sequences without a tagged token are left out."""

    emissions: Tensor  # (sequences, max_length, tags): logits
    tags: Tensor  # (sequences, max_length): gold tags
    mask: Tensor  # (sequences, max_length) bool: False on padding
    has_start_end: Tensor  # (sequences, 2) bool: whether start and end transitions count (a window may cut a sentence)

    @classmethod
    def from_tokens(cls, emissions: Tensor, tags: Tensor, seq_id: Tensor, has_start_end: Tensor) -> "CRFBatch":
        """From the tagged tokens: emissions (tokens, tags), tags (tokens,), seq_id (tokens,) ascending."""
        sequence_ids, lengths = seq_id.unique_consecutive(return_counts=True)
        layout = Layout.from_lengths(lengths.cpu()).to(emissions.device)
        return CRFBatch(layout.pad(emissions), layout.pad(tags), layout.padding_mask(), has_start_end[sequence_ids])

    def nll(self, transitions: Tensor, allowed: Tensor | None = None) -> Tensor:
        """(sequences,): negative log-likelihood, log Z - score(gold path), Z over all allowed paths; finite and >= 0.

        A sequence whose gold tags contain a disallowed transition (an annotation error) is normalized over all paths.
        `transitions` and `allowed` (bool): (tags + 1, tags + 1).
        """
        previous_tags, next_tags, is_counted = self._gold_transitions(transitions.shape[0] - 1)
        gold_scores = (transitions[previous_tags, next_tags] * is_counted).sum(1)
        if allowed is None:
            return self._log_partition(transitions[None]) - gold_scores
        is_invalid = (is_counted & ~allowed[previous_tags, next_tags]).any(1)
        return self._log_partition(transitions.where(allowed | is_invalid[:, None, None], LOG_ZERO)) - gold_scores

    def _log_partition(self, transitions: Tensor) -> Tensor:
        """(sequences,): log Z by the forward algorithm, with emissions relative to those of the gold tags.

        `transitions`: (1 or sequences, tags + 1, tags + 1).
        """
        has_start, has_end = self.has_start_end[:, :1], self.has_start_end[:, 1:]
        scores = self.emissions - self.emissions.gather(2, self.tags[..., None])
        alpha, offset = scores[:, 0] + transitions[:, -1, :-1] * has_start, scores.new_zeros(len(scores))
        for step in range(1, scores.shape[1]):
            next_alpha = (alpha[:, :, None] + transitions[:, :-1, :-1]).logsumexp(1) + scores[:, step]
            peak = (
                next_alpha.detach().amax(1) * self.mask[:, step]
            )  # subtracted and summed in `offset`: long sequences lose no precision
            alpha, offset = torch.where(self.mask[:, step, None], next_alpha - peak[:, None], alpha), offset + peak
        return (alpha + transitions[:, :-1, -1] * has_end).logsumexp(1) + offset

    def _gold_transitions(self, boundary_tag: int) -> tuple[Tensor, Tensor, Tensor]:
        """Each (sequences, max_length + 1): previous tag, next tag, and whether the transition counts, along the gold paths."""
        path = F.pad(self.tags.masked_fill(~self.mask, boundary_tag), (1, 1), value=boundary_tag)
        step, lengths = torch.arange(path.shape[1] - 1, device=path.device), self.mask.sum(1, keepdim=True)
        is_counted = ((step > 0) | self.has_start_end[:, :1]) & (
            (step < lengths) | ((step == lengths) & self.has_start_end[:, 1:])
        )
        return path[:, :-1], path[:, 1:], is_counted
