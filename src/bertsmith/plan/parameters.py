"""How many numbers a model learns, by its parts."""

from torch import nn


def counted(model: nn.Module) -> dict[str, int]:
    """`encoder.tokens`, `encoder.stack`, `heads.words` and so on, in the model's order."""
    found: dict[str, int] = {}
    for name, weight in model.named_parameters():
        part = ".".join(name.split(".")[:2])
        found[part] = found.get(part, 0) + weight.numel()
    return found


def below(parts: dict[str, int], prefix: str) -> int:
    """Of all parts of the encoder, say."""
    return sum(count for part, count in parts.items() if part.split(".")[0] == prefix)
