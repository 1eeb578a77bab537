"""One update of a model, walked through with tensors that have shapes and no contents: what it keeps and computes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..model.model import Model, ModelConfig
from ..model.types import Batch
from ..objectives import ObjectiveConfig
from .ledger import Ledger


class Step(NamedTuple):
    tokens: int  # of one micro-batch
    activations: int  # bytes kept when the encoder is done
    logits: int  # bytes more than that, at most, in the heads, there and back
    back: int  # bytes more than that, at most, on the way back through the encoder, gradients counted
    flops: int  # of one micro-batch, there and back
    calls: int  # of kernels


def walked(
    config: ModelConfig, objective: ObjectiveConfig, batch: Batch, *, half: bool, recompute: bool, accumulate: int = 1
) -> Step:
    """What a CPU would do with this batch, kernel by kernel, in half a second and no memory.

    From the second of several micro-batches on, gradients are there from the beginning, and are not counted.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(config, drawn=False)
        model.recompute(recompute)
        ledger = Ledger([*model.parameters(), *model.buffers()])
        turn = _Turn(ledger)
        model.encoder.register_forward_hook(turn.encoded)
        with ledger:
            for _ in range(min(accumulate, 2)):
                turn.begin()
                _there_and_back(model, objective, batch, half)
    return turn.step(batch.tokens)


class _Turn:
    """Readings of the ledger at the turns of a micro-batch: encoder, heads, heads back, encoder back."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def begin(self) -> None:
        at = self.ledger
        at.most, self.begun, self.flops, self.calls = at.now, at.now, at.flops, at.calls

    def encoded(self, encoder: nn.Module, inputs: Any, hidden: Tensor) -> None:
        self.kept, self.forward = self.ledger.now, self.ledger.most
        self.ledger.most = self.ledger.now
        hidden.register_hook(self.returned)

    def returned(self, slope: Tensor) -> None:
        self.head = self.ledger.most
        self.ledger.most = self.ledger.now

    def step(self, tokens: int) -> Step:
        at, kept = self.ledger, self.kept
        back = max(0, max(self.forward, at.most) - kept)
        return Step(tokens, kept - self.begun, self.head - kept, back, at.flops - self.flops, at.calls - self.calls)


def blank(config: ModelConfig) -> Model:
    """The model as shapes alone."""
    with torch.device("meta"):
        return Model(config, drawn=False)


def size(model: nn.Module) -> int:
    """Bytes of its weights."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _there_and_back(model: Model, objective: ObjectiveConfig, batch: Batch, half: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        parts: dict[str, Any] = objective.loss(model, batch).parts
        whole = torch.stack([part.float() for part in parts.values()]).sum()
    whole.backward()
