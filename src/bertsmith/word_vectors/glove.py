"""GloVe's tables and how they are fitted: weighted least squares on the logarithm of counts, by AdaGrad over batches of pairs.

The sum over pairs of f(x) (w_i . v_j + b_i + c_j - log x)^2, f(x) = min(1, (x / most) ** power) (Pennington et al. 2014).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 4096  # pairs multiplied at a time: what a processor's own memory holds


class Tables:
    """Words as centres and as contexts: rows (w, b, 1) and (v, 1, c), whose product has the two biases in it.

    The ones never move. What is squared and summed, from 1 on, is the gradient times the rate, as in the original: a row
    goes `rate` times its gradient until it has come some way, then ever shorter ways. (In the textbook's terms: AdaGrad of
    rate 1 whose sums begin at 1 / rate ** 2. With a rate of 0.05 and sums from 1 on, little is learnt in a dozen epochs.)
    """

    names = ("centres", "contexts", "centre_squares", "context_squares")

    def __init__(self, words: int, width: int, seed: int = 0, device: str | torch.device = "cpu") -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.centres, self.contexts = ((torch.rand(words, width + 2, generator=drawn) - 0.5) / (width + 1) for _ in range(2))
        self.centres[:, -1], self.contexts[:, -2] = 1, 1
        self.centres, self.contexts = self.centres.to(device), self.contexts.to(device)
        self.centre_squares, self.context_squares = torch.ones_like(self.centres), torch.ones_like(self.contexts)

    @property
    def vectors(self) -> Tensor:
        """(words, width): the sum of both, which is what GloVe gives away."""
        return (self.centres + self.contexts)[:, :-2]

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.names}

    def load(self, state: dict[str, Tensor]) -> None:
        for name in self.names:
            getattr(self, name).copy_(state[name])

    def step(self, i: Tensor, j: Tensor, x: Tensor, rate: float, most: float = 100.0, power: float = 0.75) -> Tensor:
        """One step of AdaGrad on the sum over these pairs; returns that sum, as it was before."""
        apart = self.products(i, j) - x.log()
        weights = (x / most).clamp(max=1) ** power
        slopes = 2 * weights * apart
        to_centres = _spread(slopes, i, j, self.contexts, -1)
        to_contexts = _spread(slopes, j, i, self.centres, -2)
        _moved(self.centres, self.centre_squares, *to_centres, rate)
        _moved(self.contexts, self.context_squares, *to_contexts, rate)
        return (weights * apart * apart).sum()

    def products(self, i: Tensor, j: Tensor) -> Tensor:
        """(pairs,): w_i . v_j + b_i + c_j."""
        if i.device.type != "cpu":
            return torch.einsum("pw,pw->p", self.centres[i], self.contexts[j])
        found = torch.empty(len(i))
        left, right = torch.empty(2, PIECE, self.centres.shape[1])
        for at in range(0, len(i), PIECE):
            size = min(PIECE, len(i) - at)
            torch.index_select(self.centres, 0, i[at : at + size], out=left[:size])
            torch.index_select(self.contexts, 0, j[at : at + size], out=right[:size])
            found[at : at + size] = torch.einsum("pw,pw->p", left[:size], right[:size])
        return found


def _spread(slopes: Tensor, rows: Tensor, others: Tensor, table: Tensor, still: int) -> tuple[Tensor, Tensor]:
    """The gradient of each row that occurs: the sum of its pairs' slopes times the other's row; none for the ones."""
    order = torch.argsort(rows)
    found, sizes = torch.unique_consecutive(rows[order], return_counts=True)
    begins = sizes.cumsum(0) - sizes
    gradient = F.embedding_bag(others[order], table, begins, mode="sum", per_sample_weights=slopes[order])
    gradient[:, still] = 0
    return found, gradient


def _moved(table: Tensor, squares: Tensor, rows: Tensor, gradient: Tensor, rate: float) -> None:
    way = gradient.mul_(rate)
    sums = squares.index_select(0, rows).addcmul_(way, way)
    squares.index_copy_(0, rows, sums)
    table.index_add_(0, rows, way.div_(sums.sqrt_()), alpha=-1)


def batches(pairs: int, most: int) -> list[slice]:
    """Even batches of at most so many."""
    count = math.ceil(pairs / most)
    return [slice(pairs * k // count, pairs * (k + 1) // count) for k in range(count)]
