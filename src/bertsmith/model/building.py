"""Building the model of a config whose weights exist: first without memory, to compare it with them, then uninitialized."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..config import to_dict
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .model import Model, ModelConfig

REPEATED_KEYS = ("num_hidden_layers", "num_hidden_groups", "blocks", "lstm", "num_highway")  # modules that are built one by one
MAX_BUFFER_BYTES = 1 << 30  # of what a config implies besides the weights: sinusoids, LSH rotations

Shape = tuple[int, ...]


def build_for_weights(
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    shapes: Mapping[str, Shape],
    source: Path,
    source_names: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    """A model whose weights are to be loaded from the folder `source`, with tensors of these names and shapes.

    They are not initialized. A config of another or a larger model is an error before memory is allocated, whatever its
    numbers are. source_names: what the tensors are called in the folder, for errors.
    """
    _check_depth(config, len(shapes), source)
    model = _build(config, tokenizer, "meta", source)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            label = " + ".join((source_names or {}).get(name, [name]))
            raise UserError(
                f"{source} does not match its config.json: {label} has shape {list(shapes[name])}, not {list(shape)}"
            )
    missing, unexpected = sorted(expected.keys() - shapes.keys()), sorted(shapes.keys() - expected.keys())
    if missing or unexpected:
        raise UserError(
            f"{source} does not match its config.json: missing keys {_format_names(missing)}, unexpected keys "
            f"{_format_names(unexpected)}"
        )
    if (num_bytes := sum(buffer.nbytes for buffer in model.buffers())) > MAX_BUFFER_BYTES + sum(map(_nbytes, shapes.values())):
        raise UserError(f"{source}: the model of its config.json needs {num_bytes:,} bytes besides its weights")
    return _build(config, tokenizer, "cpu", source)


class SkipInit(TorchFunctionMode):
    """Inside, the functions of torch.nn.init return their tensor unchanged: layers are built without drawing weights."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _build(config: ModelConfig, tokenizer: Tokenizer | None, device: str, source: Path) -> Model:
    try:
        with torch.device(device), torch.random.fork_rng(devices=[]), SkipInit():
            return Model(config, tokenizer, init_weights=False)
    except UserError as error:
        raise UserError(f"{source / 'config.json'}: {error}") from None
    except (RuntimeError, ArithmeticError, AssertionError, TypeError, ValueError) as error:  # impossible sizes
        raise UserError(f"{source / 'config.json'}: this model cannot be built: {_first_line(error)}") from None


def _check_depth(config: ModelConfig, num_tensors: int, source: Path) -> None:
    """Each layer has a tensor, unless layers share their weights."""
    for key, count in _find_counts(to_dict(config)):
        if count > num_tensors:
            raise UserError(
                f"{source} does not match its config.json: {key} = {count:,}, but its weights have only {num_tensors:,} tensors"
            )


def _find_counts(values: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for key, value in values.items() if isinstance(values, dict) else ():
        is_shared = key == "num_hidden_layers" and (values.get("num_hidden_groups") or values.get("shared"))
        if key in REPEATED_KEYS and isinstance(value, int) and not is_shared:
            yield f"{prefix}{key}", value
        yield from _find_counts(value, f"{prefix}{key}.")


def _nbytes(shape: Shape) -> int:
    return 4 * prod(shape)


def _format_names(names: list[str], limit: int = 8) -> str:
    return f"{names[:limit]}" + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
