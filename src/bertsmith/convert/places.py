"""Which of their tensors each of ours is made of, and what older files call them."""

import re
from collections.abc import Iterable

from .names import Family, Form

Places = dict[str, tuple[str, ...]]


def places(family: Family, form: Form, blocks: int, pooler: str | None, widened: bool) -> Places:
    """Each tensor of ours to those of theirs it is made of, one below another."""
    found: Places
    found = {f"encoder.{ours}.weight": (f"{family.prefix}{theirs}.weight",) for ours, theirs in family.tables.items()}
    modules: Places = {}
    for ours, theirs in family.layers.items():
        if ours != "widen" or widened:
            modules[f"encoder.{ours}"] = (family.prefix + theirs,)
    for number in range(blocks):
        start = family.prefix + family.block.format(number)
        for ours, names in family.blocks.items():
            modules[f"encoder.stack.blocks.{number}.{ours}"] = tuple(start + name for name in names)
    if pooler:
        modules["encoder.pooler"] = (pooler,)
    for head in form.heads:
        for ours, theirs in ({"score": form.score} if head == "task" else family.heads[head]).items():
            (found if ours == "bias" else modules)[f"heads.{head}.{ours}"] = (theirs,)
    for ours, names in modules.items():
        found |= {f"{ours}.{part}": tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias")}
    return found


def present(family: Family, head: str, tensors: Iterable[str]) -> bool:
    """Something of a head of pre-training is there."""
    own = tuple(f"{name}." for ours, name in family.heads[head].items() if ours != "bias")
    return any(name.startswith(own) for name in tensors)


def normal(family: Family, name: str) -> str | None:
    """A name as today's files have it: old names of norms, encoders saved alone; None for what is no weight."""
    if re.search(family.buffers, name):
        return None
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return family.prefix + name if name.startswith(family.roots) else name


GOOGLE = {"output_weights": "weight", "output_bias": "bias", "kernel": "weight", "gamma": "weight", "beta": "bias"}
SLOTS = r"/(adam_[mv]|Adam(_1)?|lamb_[mv])$|^(global_step|beta[12]_power)$"


def from_google(name: str) -> str | None:
    """A variable of Google's BERT by the name Hugging Face gives it; None for what only its optimizer needs."""
    if re.search(SLOTS, name):
        return None
    name = re.sub(r"\blayer_(\d+)\b", r"layer.\1", name).replace("/", ".")
    name = re.sub(r"(_embeddings)$", r"\1.weight", name)
    return re.sub(r"\.(output_weights|output_bias|kernel|gamma|beta)$", lambda end: f".{GOOGLE[end[1]]}", name)
