"""An account of the work done under it: bytes alive, the most there were at once, products, and calls of kernels."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

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
