"""An account of the work done under it: bytes alive, the most there were at once, products, and calls of kernels."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..corpus.collate import Arrays
from ..corpus.loader import Ahead, Batches
from ..model.batch import Batch
from ..model.model import Model, ModelConfig
from ..objectives import ObjectiveConfig

aten = torch.ops.aten


class Ledger(TorchDispatchMode):
    """Bytes are of whole storages, by when they come and go, so views cost nothing; what it did not see come is free."""

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        """`own` is there already and not counted."""
        super().__init__()
        self.now = self.most = self.flops = self.calls = 0
        self._known: dict[int, Any] = {tensor.untyped_storage()._cdata: tensor for tensor in own}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += flops_of(func, args, kwargs or {}, out)
        fresh = [self._enters(leaf.untyped_storage()) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.calls += any(fresh)  # a view is no work
        return out

    def _enters(self, storage: torch.UntypedStorage) -> bool:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return False
        self._known[key] = weakref.ref(storage, lambda _: self._leave(key, size))
        self.now += size
        self.most = max(self.most, self.now)
        return True

    def _leave(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Operations of the products of matrices in one call of a kernel, two for a multiply-add."""
    packet = func._overloadpacket
    if packet is aten.mkldnn_rnn_layer:  # all steps of a layer of an LSTM
        steps, weights = args[0].shape[0] * args[0].shape[1], args[1].numel() + args[2].numel()
        return int(2 * steps * weights)
    if packet is aten._cudnn_rnn:  # the same on a GPU, of packed sequences
        return int(2 * args[0].numel() // args[0].shape[-1] * sum(weight.numel() for weight in args[1] if weight.ndim == 2))
    if packet in _ATTENTION:  # which torch's own table leaves out on a CPU
        q, k = args[_FIRST[packet]], args[_FIRST[packet] + 1]
        return int(_ATTENTION[packet] * q.numel() * k.shape[-2])
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0


# Products of two matrices, each 2 x queries x keys x width: two forward, five on the way back, where scores come again.
_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 10,
}
_FIRST = {aten._scaled_dot_product_flash_attention_for_cpu: 0, aten._scaled_dot_product_flash_attention_for_cpu_backward: 1}


LOOKED_AT = 16  # batches whose sizes stand for all
LOOPED = 64  # sequences that attention is walked through one by one, as a CPU does


def made_up(objective: ObjectiveConfig, tokens: int, length: int, vocabulary: int) -> Batch:
    """As many full sequences as fit, or the one that does not."""
    sizes = np.full(max(1, tokens // length), length)
    rng, count = np.random.default_rng(0), int(sizes.sum())
    where = np.sort(rng.choice(count, max(1, round(objective.rate * count)), replace=False))
    ids = rng.integers(0, vocabulary, count)
    segments = (np.arange(count) % length >= length // 2).astype(np.int64)
    return objective.batch(Arrays(ids, sizes, segments, where, ids[where], rng.integers(0, 2, len(sizes))))


def usual(reading: Batches) -> float:
    """Tokens of a micro-batch in the mean: the last sample that did not fit leaves room."""
    counts = [int(reading.rows(k)[0].lengths.sum()) for k in range(min(LOOKED_AT, reading.an_epoch))]
    return sum(counts) / len(counts)


def largest(reading: Batches, objective: ObjectiveConfig, vocabulary: int, gpu: bool) -> Batch:
    """The one to count memory by. On a GPU, or with very many sequences, the lengths do not matter, only their sum."""
    plans = [reading.rows(k) for k in range(min(LOOKED_AT, reading.an_epoch))]
    plan, epoch = max(plans, key=lambda rows: int(rows[0].lengths.sum()))
    if gpu or len(plan) > LOOPED:
        tokens, longest = int(plan.lengths.sum()), reading.length
        return made_up(objective, -(-tokens // longest) * longest, longest, vocabulary)
    return objective.batch(reading.maker(plan, epoch))


@contextmanager
def made_ahead(reading: Batches, objective: ObjectiveConfig, workers: int) -> Iterator[Callable[[int], Batch]]:
    """Micro-batch k as `pretrain` makes it, its workers at work."""
    with Ahead(reading.maker, workers) as ahead:
        yield lambda k: objective.batch(ahead(k, reading.rows))


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
