"""Forward passes for inference: device, precision, and batches of sequences of similar length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cores import limit_threads
from ..corpus.loader import batch_boundaries
from ..errors import UserError
from ..model.batch import Inputs
from ..model.model import Model
from ..model.packing import Layout

Ints = NDArray[np.int64]
Precision = Literal["auto", "fp32", "bf16"]


class Runtime:
    """A model with its inference precision: `auto` is bf16 autocast on a GPU (several times faster) and fp32 on a CPU."""

    def __init__(self, model: Model, precision: Precision = "auto") -> None:
        if precision not in get_args(Precision):
            raise UserError(f"precision={precision} is not known; choose from {', '.join(get_args(Precision))}")
        self.model, self.precision = model, precision

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def batch_tokens(self) -> int:
        """Default batch size in tokens: large on a GPU, small enough for the caches of a CPU."""
        return 16384 if self.device.type == "cuda" else 2048

    @property
    def compute_precision(self) -> Literal["fp32", "bf16"]:
        """The precision in use: `auto` resolved for the device."""
        if self.precision == "auto":
            return "bf16" if self.device.type == "cuda" else "fp32"
        return self.precision

    @contextmanager
    def inference_context(self) -> Iterator[None]:
        """Inference mode with autocast to the precision in use; on a CPU, with a thread for each free core."""
        use_bf16, threads = self.compute_precision == "bf16", limit_threads() if self.device.type == "cpu" else nullcontext()
        with threads, torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=use_bf16):
            yield

    def compute_hidden_states(self, input_ids: Sequence[Ints]) -> tuple[Tensor, Layout]:
        """Final hidden states (tokens, hidden_size) of packed sequences, and their layout."""
        layout = Layout.from_lengths([len(ids) for ids in input_ids])
        inputs = Inputs(torch.from_numpy(np.concatenate(input_ids)), layout).to(self.device)
        return self.model(inputs), inputs.layout

    def batch_by_length(self, lengths: Ints, batch_tokens: int | None = None) -> list[Ints]:
        """Indices of the sequences in each batch, shortest first; the budget is at least the longest sequence."""
        order = np.argsort(lengths, kind="stable")
        budget = max(batch_tokens or self.batch_tokens, int(lengths.max(initial=1)))
        return np.split(order, batch_boundaries(lengths[order], budget)) if len(order) else []
