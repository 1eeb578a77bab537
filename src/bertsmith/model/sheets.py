"""Sequences laid out so that their anchors are held against their own tokens, and against few others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .layout import Layout

EMPTY = 2  # a rectangle around all sequences may be so many times as large as they are


@dataclass(frozen=True)
class Sheet:
    """The sequences of a run, one after another; or all of them in a rectangle, each with its first token as anchor."""

    hidden: Tensor  # (anchors, tokens), or (sequences, 1, longest) bool: of another sequence, or yet to come
    here: slice | None = None  # the tokens of a run; None: the rectangle
    some: slice | None = None  # its anchors, among all anchors

    def tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, ..) -> (tokens of the run, ..) or (sequences, longest, ..)"""
        return layout.grid(x) if self.here is None else x[self.here]

    def anchors(self, rows: Tensor) -> Tensor:
        """(anchors, ..) -> (anchors of the run, ..) or (sequences, 1, ..)"""
        return rows[:, None] if self.some is None else rows[self.some]

    def groups(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, width) -> (groups, tokens, width): a run is one group, in a rectangle each sequence is."""
        found = self.tokens(x, layout)
        return found if self.here is None else found[None]

    def grouped(self, rows: Tensor) -> Tensor:
        """(heads, anchors, width) -> (groups, heads x anchors of each, width)"""
        return rows.transpose(0, 1) if self.some is None else rows[:, self.some].reshape(1, -1, rows.shape[-1])

    def apart(self, rows: Tensor, heads: int) -> Tensor:
        """The way back: (heads, anchors of this sheet, width)."""
        return rows.transpose(0, 1) if self.some is None else rows[0].unflatten(0, (heads, -1))

    def add(self, x: Tensor, left: Tensor, right: Tensor, layout: Layout) -> None:
        """Adds the product of (groups, tokens, n) and (groups, n, width) to the tokens, in place where they lie as groups."""
        if self.here is None and not layout.views:
            x += layout.flat(left @ right)
        else:
            self.groups(x, layout).baddbmm_(left, right)


def sheets(layout: Layout, most: int, causal: bool = False) -> list[Sheet]:
    """Runs of at most `most` anchors, or of one sequence; or one rectangle, where that is all anchors need.

    A compiled graph cannot depend on where sequences end: there, anchors that somebody chose are one run over all tokens.
    """
    compiling, tokens = torch.compiler.is_compiling(), layout.owner.shape[0]
    many = layout.sequences > most and layout.sequences * layout.longest <= EMPTY * tokens  # few need no copy of the tokens
    if layout.anchors is None and (compiling or many):
        return [Sheet(_hidden_in_rows(layout, causal))]
    if compiling:
        return [_sheet(layout, slice(0, tokens), slice(0, layout.anchored.shape[0]), causal)]
    starts, borders = _borders(layout)
    among = [one for one in range(layout.sequences) if borders[one] < borders[one + 1]]
    found = ((slice(starts[a], starts[b]), slice(borders[a], borders[b])) for a, b in runs(among, borders, most))
    return [_sheet(layout, *both, causal) for both in found]


def runs(sequences: Sequence[int], borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The first of each run, and the one behind its last: neighbours that have no more than `most` anchors together.

    Those of sequence n lie between `borders` n and n + 1; one that has more than so many is a run by itself.
    """
    begin = end = -1
    for one in sequences:
        if begin >= 0 and (one != end or borders[one + 1] - borders[begin] > most):
            yield begin, end
            begin = -1
        begin, end = one if begin < 0 else begin, one + 1
    if begin >= 0:
        yield begin, end


def _borders(layout: Layout) -> tuple[list[int], list[int]]:
    """Where each sequence begins among the tokens, and its anchors among the anchors; found on the host."""
    if layout.gapless:
        starts = np.concatenate([[0], np.array(layout.lengths.tolist(), np.int64).cumsum()])
    else:
        starts = np.array(layout.starts.tolist())
    chosen = starts[:-1] if layout.anchors is None else np.array(layout.anchors.tolist(), np.int64)
    return starts.tolist(), np.searchsorted(chosen, starts).tolist()


def _sheet(layout: Layout, here: slice, some: slice, causal: bool) -> Sheet:
    owner, place, anchors = layout.owner, layout.place, layout.anchored[some]
    hidden = owner[anchors][:, None] != owner[here]
    return Sheet(hidden | (place[here] > place[anchors][:, None]) if causal else hidden, here, some)


def _hidden_in_rows(layout: Layout, causal: bool) -> Tensor:
    """(sequences, 1, longest): what is no token of a row has no owner there, and so none has the row's."""
    owner, place, firsts = layout.owner + 1, layout.place, layout.firsts
    hidden = layout.grid(owner) != owner[firsts][:, None]
    return (hidden | (layout.grid(place) > place[firsts][:, None]) if causal else hidden)[:, None]
