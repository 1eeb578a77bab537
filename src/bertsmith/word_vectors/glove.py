"""GloVe's tables and how they are fitted: weighted least squares on the logarithm of counts, by AdaGrad over batches of pairs.

The sum over pairs of f(x) (w_i . v_j + b_i + c_j - log x)^2, f(x) = min(1, (x / most) ** power) (Pennington et al. 2014).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PAIRS_PER_BLOCK = 4096  # pairs multiplied at a time: what a processor's own memory holds


class GloveTables:
    """Words as centres and as contexts: rows (w, b, 1) and (v, 1, c), whose product has the two biases in it.

    The ones never move. What is squared and summed, from 1 on, is the gradient times the rate, as in the original: a row
    goes `rate` times its gradient until it has come some way, then ever shorter ways. (In the textbook's terms: AdaGrad of
    rate 1 whose sums begin at 1 / rate ** 2. With a rate of 0.05 and sums from 1 on, little is learnt in a dozen epochs.)
    """

    names = ("centres", "contexts", "centre_squares", "context_squares")

    def __init__(self, vocab_size: int, vector_size: int, seed: int = 0, device: str | torch.device = "cpu") -> None:
        drawn = torch.Generator().manual_seed(seed)
        self.centres, self.contexts = (
            (torch.rand(vocab_size, vector_size + 2, generator=drawn) - 0.5) / (vector_size + 1) for _ in range(2)
        )
        self.centres[:, -1], self.contexts[:, -2] = 1, 1
        self.centres, self.contexts = self.centres.to(device), self.contexts.to(device)
        self.centre_squares, self.context_squares = torch.ones_like(self.centres), torch.ones_like(self.contexts)

    @property
    def vectors(self) -> Tensor:
        """(words, width): the sum of both, which is what GloVe gives away."""
        return (self.centres + self.contexts)[:, :-2]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.names:
            getattr(self, name).copy_(state[name])

    def step(self, i: Tensor, j: Tensor, x: Tensor, lr: float, x_max: float = 100.0, alpha: float = 0.75) -> Tensor:
        """One step of AdaGrad on the sum over these pairs; returns that sum, as it was before."""
        apart = self.dot_products(i, j) - x.log()
        weights = (x / x_max).clamp(max=1) ** alpha
        slopes = 2 * weights * apart
        to_centres = _row_grads(slopes, i, j, self.contexts, -1)
        to_contexts = _row_grads(slopes, j, i, self.centres, -2)
        _adagrad_step(self.centres, self.centre_squares, *to_centres, lr)
        _adagrad_step(self.contexts, self.context_squares, *to_contexts, lr)
        return (weights * apart * apart).sum()

    def dot_products(self, i: Tensor, j: Tensor) -> Tensor:
        """(pairs,): w_i . v_j + b_i + c_j."""
        if i.device.type != "cpu":
            return torch.einsum("pw,pw->p", self.centres[i], self.contexts[j])
        found = torch.empty(len(i))
        left, right = torch.empty(2, PAIRS_PER_BLOCK, self.centres.shape[1])
        for at in range(0, len(i), PAIRS_PER_BLOCK):
            size = min(PAIRS_PER_BLOCK, len(i) - at)
            torch.index_select(self.centres, 0, i[at : at + size], out=left[:size])
            torch.index_select(self.contexts, 0, j[at : at + size], out=right[:size])
            found[at : at + size] = torch.einsum("pw,pw->p", left[:size], right[:size])
        return found


def _row_grads(
    pair_grads: Tensor, rows: Tensor, other_rows: Tensor, table: Tensor, frozen_column: int
) -> tuple[Tensor, Tensor]:
    """The gradient of each row that occurs: the sum of its pairs' slopes times the other's row; none for the ones."""
    order = torch.argsort(rows)
    found, sizes = torch.unique_consecutive(rows[order], return_counts=True)
    begins = sizes.cumsum(0) - sizes
    gradient = F.embedding_bag(other_rows[order], table, begins, mode="sum", per_sample_weights=pair_grads[order])
    gradient[:, frozen_column] = 0
    return found, gradient


def _adagrad_step(table: Tensor, squared_sums: Tensor, rows: Tensor, grad: Tensor, lr: float) -> None:
    way = grad.mul_(lr)
    sums = squared_sums.index_select(0, rows).addcmul_(way, way)
    squared_sums.index_copy_(0, rows, sums)
    table.index_add_(0, rows, way.div_(sums.sqrt_()), alpha=-1)


def batch_slices(num_pairs: int, batch_size: int) -> list[slice]:
    """Even batches of at most so many."""
    count = math.ceil(num_pairs / batch_size)
    return [slice(num_pairs * k // count, num_pairs * (k + 1) // count) for k in range(count)]
