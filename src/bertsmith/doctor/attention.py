"""What every head attends to, seen as it happens: a layout that watches, whatever is done to queries and keys before."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..model.layout import Layout

SHORT = 4  # tokens: in texts that are no longer, every pattern looks like every other


@dataclass(frozen=True)
class Attended:
    """One call of attention, by head."""

    uneven: Tensor  # (heads,): distance from looking at all tokens alike, 0 to 1
    single: Tensor  # (heads,): share that goes to one and the same token of a text, or to its [SEP]s
    given: Tensor  # (tokens, heads, width of a head): what each token got


@dataclass(frozen=True, kw_only=True)
class Watched(Layout):
    """Attends as ever, and notes how in `seen`; attention with other borders than a text's own is not looked at."""

    seen: list[Attended]
    marks: NDArray[np.bool_]  # (tokens,): [CLS] and [SEP]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *more: Any, **others: Any) -> Tensor:
        if q.shape[0] == k.shape[0] and not more and not others.get("causal") and others.get("keys") is None:
            self.seen.append(self._looked(q.float(), k.float(), v.float()))
        return super().attend(q, k, v, *more, **others)

    def _looked(self, q: Tensor, k: Tensor, v: Tensor) -> Attended:
        uneven, single, given = [], [], []
        for a, b in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            weights = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]).mul(q.shape[-1] ** -0.5).softmax(-1)
            given.append(torch.einsum("hqk,khd->qhd", weights, v[a:b]))
            if b - a <= SHORT:
                continue
            by_all = weights.mean(1)  # (heads, keys): what each token gets of everybody's attention
            ends = torch.from_numpy(np.flatnonzero(self.marks[a:b])[1:])
            uneven.append((weights - 1 / (b - a)).abs().sum(-1).mean(-1) / 2)
            single.append(torch.maximum(by_all.max(-1).values, by_all[:, ends].sum(-1)))
        if not uneven:  # too short to tell: neither even nor single
            uneven, single = [torch.ones(q.shape[1])], [torch.zeros(q.shape[1])]
        return Attended(torch.stack(uneven).mean(0), torch.stack(single).mean(0), torch.cat(given))
