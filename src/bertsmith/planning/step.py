"""Trace one training step on fake tensors: live and peak bytes, matmul FLOPs and kernel calls; and batches to trace it with."""

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
from ..model.batch import Inputs
from ..model.model import Model, ModelConfig
from ..objectives import PretrainObjective
from ..train.objective import Batch

aten = torch.ops.aten

SAMPLED_BATCHES = 16  # batches that stand for all when sizes are estimated
MAX_LOOPED_SEQUENCES = 64  # above it, attention is not traced sequence by sequence (as a CPU computes it)


class CostTracker(TorchDispatchMode):
    """Dispatch mode that tracks bytes of storages (views are free), matmul FLOPs and kernel calls.

    Storages allocated before it was entered are not counted.
    """

    def __init__(self, preallocated: Iterable[Tensor] = ()) -> None:
        """`preallocated` tensors are not counted."""
        super().__init__()
        self.current_bytes = self.peak_bytes = self.flops = self.kernel_calls = 0
        self._storages: dict[int, Any] = {tensor.untyped_storage()._cdata: tensor for tensor in preallocated}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.flops += count_flops(func, args, kwargs or {}, out)
        allocated = [self._on_alloc(leaf.untyped_storage()) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.kernel_calls += any(allocated)  # a view launches no kernel
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
    """FLOPs of the matrix products in one kernel call, two per multiply-add."""
    packet = func._overloadpacket
    if packet is aten.mkldnn_rnn_layer:  # all time steps of an LSTM layer
        steps, weights = args[0].shape[0] * args[0].shape[1], args[1].numel() + args[2].numel()
        return int(2 * steps * weights)
    if packet is aten._cudnn_rnn:  # the same on a GPU, of packed sequences
        return int(2 * args[0].numel() // args[0].shape[-1] * sum(weight.numel() for weight in args[1] if weight.ndim == 2))
    if packet in _ATTENTION_MATMUL_FLOPS:  # not in torch's flop_registry on a CPU
        q, k = args[_QUERY_ARG[packet]], args[_QUERY_ARG[packet] + 1]
        return int(_ATTENTION_MATMUL_FLOPS[packet] * q.numel() * k.shape[-2])
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0


# Matrix products of 2 * queries * keys * head_dim FLOPs each: two forward, five backward (scores are recomputed).
_ATTENTION_MATMUL_FLOPS = {
    aten._scaled_dot_product_flash_attention_for_cpu: 4,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: 10,
}
_QUERY_ARG = {aten._scaled_dot_product_flash_attention_for_cpu: 0, aten._scaled_dot_product_flash_attention_for_cpu_backward: 1}


def make_synthetic_batch(objective: PretrainObjective, tokens: int, length: int, vocab_size: int) -> Batch[Inputs]:
    """A batch of random ids: as many sequences of `length` as fit into `tokens`, at least one."""
    sizes = np.full(max(1, tokens // length), length)
    rng, num_tokens = np.random.default_rng(0), int(sizes.sum())
    num_targets = max(1, round(objective.targets.target_fraction * num_tokens))
    label_positions = np.sort(rng.choice(num_tokens, num_targets, replace=False))
    ids = rng.integers(0, vocab_size, num_tokens)
    segments = (np.arange(num_tokens) % length >= length // 2).astype(np.int64)
    return objective.to_batch(
        NumpyBatch(ids, sizes, segments, label_positions, ids[label_positions], rng.integers(0, 2, len(sizes)))
    )


def mean_batch_tokens(loader: BatchLoader) -> float:
    """Mean tokens of a micro-batch; below batch_tokens, since samples are not split."""
    counts = [int(loader.select_samples(k)[0].lengths.sum()) for k in range(min(SAMPLED_BATCHES, loader.batches_per_epoch))]
    return sum(counts) / len(counts)


def find_largest_batch(
    loader: BatchLoader, objective: PretrainObjective, vocab_size: int, lengths_ignored: bool
) -> Batch[Inputs]:
    """The largest of some batches, for the memory estimate.

    With `lengths_ignored` (a GPU, whose memory depends on the sum alone) or with very many sequences, it is synthetic.
    """
    indices = [loader.select_samples(k) for k in range(min(SAMPLED_BATCHES, loader.batches_per_epoch))]
    index, epoch = max(indices, key=lambda rows: int(rows[0].lengths.sum()))
    if lengths_ignored or len(index) > MAX_LOOPED_SEQUENCES:
        tokens, max_length = int(index.lengths.sum()), loader.max_length
        return make_synthetic_batch(objective, -(-tokens // max_length) * max_length, max_length, vocab_size)
    return objective.to_batch(loader.collator(index, epoch))


@contextmanager
def prefetch_batches(
    loader: BatchLoader, objective: PretrainObjective, workers: int
) -> Iterator[Callable[[int], Batch[Inputs]]]:
    """Function from index to micro-batch, collated by worker processes as in `pretrain`."""
    with Prefetcher(loader.collator, workers) as prefetcher:
        yield lambda k: objective.to_batch(prefetcher(k, loader.select_samples))


class StepCost(NamedTuple):
    """Cost of forward and backward of one micro-batch."""

    tokens: int
    activation_bytes: int  # kept after the encoder's forward
    head_bytes: int  # peak above that, in forward and backward of the heads
    backward_bytes: int  # peak above that, in backward of the encoder, gradients included
    flops: int
    kernel_calls: int


def trace_step(
    config: ModelConfig,
    objective: PretrainObjective,
    batch: Batch[Inputs],
    *,
    half_precision: bool,
    gradient_checkpointing: bool,
    gradient_accumulation_steps: int = 1,
) -> StepCost:
    """Trace forward and backward of one micro-batch on fake tensors, with CPU kernels: half a second, no memory.

    With gradient accumulation, the second micro-batch is traced, where gradients exist already and are not counted.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Model(config, init_weights=False)
        model.set_gradient_checkpointing(gradient_checkpointing)
        tracker = CostTracker([*model.parameters(), *model.buffers()])
        step_tracker = _StepTracker(tracker)
        model.encoder.register_forward_hook(step_tracker.on_encoder_forward)
        with tracker:
            for _ in range(min(gradient_accumulation_steps, 2)):
                step_tracker.start()
                _forward_backward(model, objective, batch, half_precision)
    return step_tracker.compute_cost(batch.num_tokens)


class _StepTracker:
    """Reads the tracker between encoder forward, heads forward and backward, and encoder backward."""

    def __init__(self, tracker: CostTracker) -> None:
        self.tracker = tracker

    def start(self) -> None:
        tracker = self.tracker
        tracker.peak_bytes, self.start_bytes, self.start_flops, self.start_calls = (
            tracker.current_bytes,
            tracker.current_bytes,
            tracker.flops,
            tracker.kernel_calls,
        )

    def on_encoder_forward(self, encoder: nn.Module, inputs: Any, hidden_states: Tensor) -> None:
        self.encoder_bytes, self.forward_peak = self.tracker.current_bytes, self.tracker.peak_bytes
        self.tracker.peak_bytes = self.tracker.current_bytes
        hidden_states.register_hook(self.on_encoder_grad)

    def on_encoder_grad(self, grad: Tensor) -> None:
        self.head_peak = self.tracker.peak_bytes
        self.tracker.peak_bytes = self.tracker.current_bytes

    def compute_cost(self, tokens: int) -> StepCost:
        tracker, encoder_bytes = self.tracker, self.encoder_bytes
        backward_bytes = max(0, max(self.forward_peak, tracker.peak_bytes) - encoder_bytes)
        return StepCost(
            tokens,
            encoder_bytes - self.start_bytes,
            self.head_peak - encoder_bytes,
            backward_bytes,
            tracker.flops - self.start_flops,
            tracker.kernel_calls - self.start_calls,
        )


def build_meta_model(config: ModelConfig) -> Model:
    """The model on the meta device: shapes without data."""
    with torch.device("meta"):
        return Model(config, init_weights=False)


def model_bytes(model: nn.Module) -> int:
    """Bytes of its state dict."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _forward_backward(model: Model, objective: PretrainObjective, batch: Batch[Inputs], half_precision: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=half_precision):
        losses: dict[str, Any] = objective.compute_loss(model, batch).parts
        loss = torch.stack([value.float() for value in losses.values()]).sum()
    loss.backward()
