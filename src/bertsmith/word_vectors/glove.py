"""GloVe's parameters and update: weighted least squares on log co-occurrence counts, by AdaGrad over batches of pairs.

Loss: sum over pairs of f(x) (w_i . v_j + b_i + c_j - log x)^2, f(x) = min(1, (x / x_max) ** alpha) (Pennington et al. 2014).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

PAIRS_PER_BLOCK = 4096  # pairs multiplied at a time on a CPU: they fit into its cache


class GloveTables:
    """Center and context vectors with biases: rows (w, b, 1) and (v, 1, c), whose dot product is w . v + b + c.

    The ones are frozen. As in the original code, AdaGrad accumulates squares of lr * gradient, from 1 on. (In textbook terms:
    AdaGrad with learning rate 1 whose sums start at 1 / lr ** 2. With learning rate 0.05 and sums from 1 on, little is
    learned in a dozen epochs.)
    """

    names = ("centres", "contexts", "centre_squares", "context_squares")

    def __init__(self, vocab_size: int, vector_size: int, seed: int = 0, device: str | torch.device = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.centres, self.contexts = (
            (torch.rand(vocab_size, vector_size + 2, generator=generator) - 0.5) / (vector_size + 1) for _ in range(2)
        )
        self.centres[:, -1], self.contexts[:, -2] = 1, 1
        self.centres, self.contexts = self.centres.to(device), self.contexts.to(device)
        self.centre_squares, self.context_squares = torch.ones_like(self.centres), torch.ones_like(self.contexts)

    @property
    def vectors(self) -> Tensor:
        """(words, vector_size): center plus context vectors, which is what GloVe publishes."""
        return (self.centres + self.contexts)[:, :-2]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.names:
            getattr(self, name).copy_(state[name])

    def step(self, i: Tensor, j: Tensor, x: Tensor, lr: float, x_max: float = 100.0, alpha: float = 0.75) -> Tensor:
        """One AdaGrad step on pairs i, j (pairs,) with counts x (pairs,); returns their summed loss before the step."""
        errors = self.dot_products(i, j) - x.log()
        weights = (x / x_max).clamp(max=1) ** alpha
        pair_grads = 2 * weights * errors
        center_grads = _row_grads(pair_grads, i, j, self.contexts, -1)
        context_grads = _row_grads(pair_grads, j, i, self.centres, -2)
        _adagrad_step(self.centres, self.centre_squares, *center_grads, lr)
        _adagrad_step(self.contexts, self.context_squares, *context_grads, lr)
        return (weights * errors * errors).sum()

    def dot_products(self, i: Tensor, j: Tensor) -> Tensor:
        """(pairs,): w_i . v_j + b_i + c_j."""
        if i.device.type != "cpu":
            return torch.einsum("pw,pw->p", self.centres[i], self.contexts[j])
        products = torch.empty(len(i))
        left, right = torch.empty(2, PAIRS_PER_BLOCK, self.centres.shape[1])
        for start in range(0, len(i), PAIRS_PER_BLOCK):
            size = min(PAIRS_PER_BLOCK, len(i) - start)
            torch.index_select(self.centres, 0, i[start : start + size], out=left[:size])
            torch.index_select(self.contexts, 0, j[start : start + size], out=right[:size])
            products[start : start + size] = torch.einsum("pw,pw->p", left[:size], right[:size])
        return products


def _row_grads(
    pair_grads: Tensor, rows: Tensor, other_rows: Tensor, table: Tensor, frozen_column: int
) -> tuple[Tensor, Tensor]:
    """Distinct rows and their gradients: sum over the pairs of a row of pair_grad * other row; 0 in `frozen_column`.

    pair_grads: (pairs,), the derivative of the loss by the dot product.
    """
    order = torch.argsort(rows)
    distinct, counts = torch.unique_consecutive(rows[order], return_counts=True)
    offsets = counts.cumsum(0) - counts
    grad = F.embedding_bag(other_rows[order], table, offsets, mode="sum", per_sample_weights=pair_grads[order])
    grad[:, frozen_column] = 0
    return distinct, grad


def _adagrad_step(table: Tensor, squared_sums: Tensor, rows: Tensor, grad: Tensor, lr: float) -> None:
    """In place; `grad` is overwritten."""
    update = grad.mul_(lr)
    sums = squared_sums.index_select(0, rows).addcmul_(update, update)
    squared_sums.index_copy_(0, rows, sums)
    table.index_add_(0, rows, update.div_(sums.sqrt_()), alpha=-1)


def batch_slices(num_pairs: int, batch_size: int) -> list[slice]:
    """Slices of nearly equal length, at most `batch_size`."""
    num_batches = math.ceil(num_pairs / batch_size)
    return [slice(num_pairs * k // num_batches, num_pairs * (k + 1) // num_batches) for k in range(num_batches)]
