"""A model where it answers: on its device, in its numbers, in batches of texts of like length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.loader import batch_boundaries
from ..errors import UserError
from ..model.batch import Inputs
from ..model.model import Model
from ..model.packing import Layout

Ints = NDArray[np.int64]
Precision = Literal["auto", "fp32", "bf16"]


class Runtime:
    """`auto` is bf16 on a GPU, where it is several times quicker, and fp32 on a CPU, where it is exact."""

    def __init__(self, model: Model, precision: Precision = "auto") -> None:
        if precision not in get_args(Precision):
            raise UserError(f"precision={precision} is not known; write {', '.join(get_args(Precision))}")
        self.model, self.precision = model, precision

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def batch_tokens(self) -> int:
        """What a batch holds if nobody says: a GPU wants much at once, a CPU what stays in its caches."""
        return 16384 if self.device.type == "cuda" else 2048

    @contextmanager
    def inference_context(self) -> Iterator[None]:
        half = self.precision == "bf16" or (self.precision == "auto" and self.device.type == "cuda")
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            yield

    def compute_hidden_states(self, input_ids: Sequence[Ints]) -> tuple[Tensor, Layout]:
        """(tokens, width) of single texts, one after another, and where each lies."""
        layout = Layout.from_lengths([len(one) for one in input_ids])
        inputs = Inputs(torch.from_numpy(np.concatenate(input_ids)), layout).to(self.device)
        return self.model(inputs), inputs.layout

    def batch_by_length(self, lengths: Ints, batch_tokens: int | None = None) -> list[Ints]:
        """Which sequences share a batch, the shortest first; one that is larger than the budget has its own."""
        order = np.argsort(lengths, kind="stable")
        budget = max(batch_tokens or self.batch_tokens, int(lengths.max(initial=1)))
        return np.split(order, batch_boundaries(lengths[order], budget)) if len(order) else []
