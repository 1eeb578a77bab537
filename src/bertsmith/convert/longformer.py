"""What a Longformer's config.json says of its windows, as our mixer has it, and back."""

from typing import Any

from ..errors import BadInput

WINDOW, DILATION, CAUSAL = "attention_window", "attention_dilation", "autoregressive"  # the last two: its authors' alone


def windowed(config: dict[str, Any], layers: Any, heads: Any, source: str) -> dict[str, Any]:
    """Our keys: half of each window is what a token sees on each side; a layer's dilation is of all its heads."""
    windows = _numbers(config.get(WINDOW, 512), layers, WINDOW, source)
    if odd := next((window for window in windows if window % 2 or window < 2), None):
        raise BadInput(f"{source} has {WINDOW} = {odd}, which has no two halves")
    steps = _numbers(config.get(DILATION, 1), layers, DILATION, source)
    top = [step for step in steps if step > 1]
    if len(set(top)) > 1 or steps[len(steps) - len(top) :] != top:
        raise BadInput(f"{source} has {DILATION} = {steps}; this model dilates its top layers, all by the same steps")
    dilated = {"mixer.dilation": top[:1] * heads, "mixer.dilated": len(top)} if top else {}
    return {"mixer.reach": shortest([window // 2 for window in windows]), "mixer.causal": bool(config.get(CAUSAL)), **dilated}


def shortest(reaches: list[int]) -> list[int]:
    """One number for all layers, where all are alike."""
    return reaches[:1] if len(set(reaches)) == 1 else reaches


def windows(reaches: list[int], layers: int) -> list[int]:
    """What config.json says of ours: a window for each layer."""
    return [2 * reach for reach in (reaches * layers if len(reaches) == 1 else reaches)]


def _numbers(value: Any, layers: Any, name: str, source: str) -> list[int]:
    numbers = [value] * layers if isinstance(value, int) and isinstance(layers, int) else value
    if not isinstance(numbers, list) or len(numbers) != layers or not all(isinstance(one, int) for one in numbers):
        raise BadInput(f"{source} has {name} = {value!r}, not a number or one for each of its {layers} layers")
    return numbers
