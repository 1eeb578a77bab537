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

from ..corpus.collate import NumpyBatch
from ..corpus.loader import BatchLoader, Prefetcher
from ..model.batch import Batch
from ..model.model import Model, ModelConfig
from ..objectives import ObjectiveConfig

aten = torch.ops.aten


class CostTracker(TorchDispatchMode):
    """Bytes are of whole storages, by when they come and go, so views cost nothing; what it did not see come is free."""

    def __init__(self, preallocated: Iterable[Tensor] = ()) -> None:
        """`own` is there already and not counted."""
        super().__init__()
        self.current_bytes = self.peak_bytes = self.flops = self.kernel_calls = 0
        self._storages: dict[int, Any] = {tensor.untyped_storage()._cdata: tensor for tensor in preallocated}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += count_flops(func, args, kwargs or {}, out)
        fresh = [self._on_alloc(leaf.untyped_storage()) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.kernel_calls += any(fresh)  # a view is no work
        return out

    def _on_alloc(self, storage: torch.UntypedStorage) -> bool:
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return False
        self._storages[key] = weakref.ref(storage, lambda _: self._on_free(key, size))
        self.current_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        return True

    def _on_free(self, key: int, size: int) -> None:
        del self._storages[key]
        self.current_bytes -= size


def count_flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Operations of the products of matrices in one call of a kernel, two for a multiply-add."""
    packet = func._overloadpacket
    if packet is aten.mkldnn_rnn_layer:  # all steps of a layer of an LSTM
        steps, weights = args[0].shape[0] * args[0].shape[1], args[1].numel() + args[2].numel()
        return int(2 * steps * weights)
    if packet is aten._cudnn_rnn:  # the same on a GPU, of packed sequences
        return int(2 * args[0].numel() // args[0].shape[-1] * sum(weight.numel() for weight in args[1] if weight.ndim == 2))
    if packet in _ATTENTION_MATMUL_FLOPS:  # which torch's own table leaves out on a CPU
        q, k = args[_QUERY_ARG[packet]], args[_QUERY_ARG[packet] + 1]
        return int(_ATTENTION_MATMUL_FLOPS[packet] * q.numel() * k.shape[-2])
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0


# Products of two matrices, each 2 x queries x keys x width: two forward, five on the way back, where scores come again.
_ATTENTION_MATMUL_FLOPS = {
    aten._scaled_dot_product_flash_attention_for_cpu: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 10,
}
_QUERY_ARG = {aten._scaled_dot_product_flash_attention_for_cpu: 0, aten._scaled_dot_product_flash_attention_for_cpu_backward: 1}


SAMPLED_BATCHES = 16  # batches whose sizes stand for all
MAX_LOOPED_SEQUENCES = 64  # sequences that attention is walked through one by one, as a CPU does


def make_synthetic_batch(objective: ObjectiveConfig, tokens: int, length: int, vocab_size: int) -> Batch:
    """As many full sequences as fit, or the one that does not."""
    sizes = np.full(max(1, tokens // length), length)
    rng, count = np.random.default_rng(0), int(sizes.sum())
    where = np.sort(rng.choice(count, max(1, round(objective.rate * count)), replace=False))
    ids = rng.integers(0, vocab_size, count)
    segments = (np.arange(count) % length >= length // 2).astype(np.int64)
    return objective.to_batch(NumpyBatch(ids, sizes, segments, where, ids[where], rng.integers(0, 2, len(sizes))))


def mean_batch_tokens(loader: BatchLoader) -> float:
    """Tokens of a micro-batch in the mean: the last sample that did not fit leaves room."""
    counts = [int(loader.select_samples(k)[0].lengths.sum()) for k in range(min(SAMPLED_BATCHES, loader.batches_per_epoch))]
    return sum(counts) / len(counts)


def find_largest_batch(loader: BatchLoader, objective: ObjectiveConfig, vocab_size: int, lengths_ignored: bool) -> Batch:
    """The one to count memory by. On a GPU, or with very many sequences, the lengths do not matter, only their sum."""
    plans = [loader.select_samples(k) for k in range(min(SAMPLED_BATCHES, loader.batches_per_epoch))]
    plan, epoch = max(plans, key=lambda rows: int(rows[0].lengths.sum()))
    if lengths_ignored or len(plan) > MAX_LOOPED_SEQUENCES:
        tokens, longest = int(plan.lengths.sum()), loader.max_length
        return make_synthetic_batch(objective, -(-tokens // longest) * longest, longest, vocab_size)
    return objective.to_batch(loader.collator(plan, epoch))


@contextmanager
def prefetch_batches(loader: BatchLoader, objective: ObjectiveConfig, workers: int) -> Iterator[Callable[[int], Batch]]:
    """Micro-batch k as `pretrain` makes it, its workers at work."""
    with Prefetcher(loader.collator, workers) as ahead:
        yield lambda k: objective.to_batch(ahead(k, loader.select_samples))


class StepCost(NamedTuple):
    tokens: int  # of one micro-batch
    activation_bytes: int  # bytes kept when the encoder is done
    head_bytes: int  # bytes more than that, at most, in the heads, there and back
    backward_bytes: int  # bytes more than that, at most, on the way back through the encoder, gradients counted
    flops: int  # of one micro-batch, there and back
    kernel_calls: int  # of kernels


def trace_step(
    config: ModelConfig,
    objective: ObjectiveConfig,
    batch: Batch,
    *,
    half_precision: bool,
    gradient_checkpointing: bool,
    gradient_accumulation_steps: int = 1,
) -> StepCost:
    """What a CPU would do with this batch, kernel by kernel, in half a second and no memory.

    From the second of several micro-batches on, gradients are there from the beginning, and are not counted.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(config, init_weights=False)
        model.set_gradient_checkpointing(gradient_checkpointing)
        ledger = CostTracker([*model.parameters(), *model.buffers()])
        turn = _StepTracker(ledger)
        model.encoder.register_forward_hook(turn.on_encoder_forward)
        with ledger:
            for _ in range(min(gradient_accumulation_steps, 2)):
                turn.start()
                _forward_backward(model, objective, batch, half_precision)
    return turn.compute_cost(batch.num_tokens)


class _StepTracker:
    """Readings of the ledger at the turns of a micro-batch: encoder, heads, heads back, encoder back."""

    def __init__(self, tracker: CostTracker) -> None:
        self.tracker = tracker

    def start(self) -> None:
        at = self.tracker
        at.peak_bytes, self.start_bytes, self.start_flops, self.start_calls = (
            at.current_bytes,
            at.current_bytes,
            at.flops,
            at.kernel_calls,
        )

    def on_encoder_forward(self, encoder: nn.Module, inputs: Any, hidden_states: Tensor) -> None:
        self.encoder_bytes, self.forward_peak = self.tracker.current_bytes, self.tracker.peak_bytes
        self.tracker.peak_bytes = self.tracker.current_bytes
        hidden_states.register_hook(self.on_encoder_grad)

    def on_encoder_grad(self, grad: Tensor) -> None:
        self.head_peak = self.tracker.peak_bytes
        self.tracker.peak_bytes = self.tracker.current_bytes

    def compute_cost(self, tokens: int) -> StepCost:
        at, kept = self.tracker, self.encoder_bytes
        back = max(0, max(self.forward_peak, at.peak_bytes) - kept)
        return StepCost(
            tokens,
            kept - self.start_bytes,
            self.head_peak - kept,
            back,
            at.flops - self.start_flops,
            at.kernel_calls - self.start_calls,
        )


def build_meta_model(config: ModelConfig) -> Model:
    """The model as shapes alone."""
    with torch.device("meta"):
        return Model(config, init_weights=False)


def model_bytes(model: nn.Module) -> int:
    """Bytes of its weights."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _forward_backward(model: Model, objective: ObjectiveConfig, batch: Batch, half_precision: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=half_precision):
        parts: dict[str, Any] = objective.compute_loss(model, batch).parts
        whole = torch.stack([part.float() for part in parts.values()]).sum()
    whole.backward()
