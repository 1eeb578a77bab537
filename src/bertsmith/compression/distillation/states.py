"""What distillation reads of a forward pass: the hidden states of every layer, and projected queries, keys and values."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ...errors import UserError
from ...model.batch import Inputs
from ...model.mixers.attention import SelfAttention
from ...model.model import Model
from ...model.packing import Layout


@dataclass
class AttentionState:
    """The projection of one layer: (tokens, 3 * hidden_size), queries, keys and values side by side."""

    mixer: SelfAttention
    qkv: Tensor

    def scores(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Attention scores before the softmax, (sequences, heads, max_seqlen, max_seqlen), and the mask of visible keys."""
        return self.mixer.attention_scores(self.qkv.clone(), layout)  # on a GPU, RoPE is applied in place

    def vectors(self, name: str) -> Tensor:
        """(tokens, hidden_size): the queries (`q`), keys (`k`) or values (`v`) of all heads, before RoPE."""
        return self.qkv.chunk(3, -1)["qkv".index(name)]


@dataclass
class ForwardStates:
    """Hidden states of one forward pass, and the attention states of some of its layers (counted from 1)."""

    hidden_states: Tensor  # (tokens, hidden_size): output of the model, after the final norm
    layer_states: list[Tensor]  # of the embeddings and each layer, (tokens, hidden_size)
    attention: dict[int, AttentionState] = field(default_factory=dict)


def run_model(model: Model, inputs: Inputs, attention_layers: Collection[int] = ()) -> ForwardStates:
    """A forward pass that records the attention states of `attention_layers`."""
    layer_states: list[Tensor] = []
    with _record_projections(model, attention_layers) as attention:
        hidden_states = model(inputs, layer_states)
    return ForwardStates(hidden_states, layer_states, attention)


def check_attention(model: Model, who: str, key: str) -> None:
    """Raises a UserError for a model whose layers have no attention scores that a student can learn."""
    for mixer in model.encoder.stack.mixers:
        if not isinstance(mixer, SelfAttention) or mixer.shaw is not None:
            raise UserError(f"{key} compares attention layers, but the {who} has layers of another kind; set {key}=0, and "
                           "teach by loss.soft_labels or loss.hidden_states")  # fmt: skip


@contextmanager
def _record_projections(model: Model, layers: Collection[int]) -> Iterator[dict[int, AttentionState]]:
    """Within the context, a forward pass fills the dictionary. Layers may share one mixer (ALBERT): they call it in order."""
    states: dict[int, AttentionState] = {}
    mixers = model.encoder.stack.mixers
    calls: dict[nn.Module, list[int]] = {}
    for layer, mixer in enumerate(mixers, start=1):
        calls.setdefault(mixer, []).append(layer)
    handles = []
    for mixer in {mixers[layer - 1]: None for layer in layers}:
        assert isinstance(mixer, SelfAttention)
        handles.append(mixer.projections.qkv.register_forward_hook(_recorder(mixer, iter(calls[mixer]), set(layers), states)))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _recorder(mixer: SelfAttention, order: Iterator[int], wanted: set[int], states: dict[int, AttentionState]) -> Any:
    def record(module: nn.Module, args: Any, output: Tensor) -> None:
        if (layer := next(order)) in wanted:
            states[layer] = AttentionState(mixer, output.clone() if mixer.rotary and output.is_cuda else output)

    return record
