"""Our model beside transformers' own, on the same random ids: how far their answers lie apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from ..model.layout import Layout
from ..model.model import Model
from ..model.types import Inputs
from .names import Family

LENGTHS = (40, 3, 17)
CLOSE = 1e-3  # beyond it the models are not the same; rounding stays a hundred times below


def agreed(model: Model, folder: Path, family: Family, architecture: str) -> dict[str, float]:
    """The differences; refused where they are more than rounding."""
    found = differences(model, folder, family, architecture)
    if bad := {name: value for name, value in found.items() if not value < CLOSE}:
        raise BadInput(f"{folder}: transformers' {architecture} gives other answers, apart by {bad}; nothing is written")
    return found


@torch.inference_mode()
def differences(model: Model, folder: Path, family: Family, architecture: str) -> dict[str, float]:
    """The largest difference of the hidden states (of numbers near 1) and of each head's scores."""
    peer = _loaded(folder, architecture)
    inputs = _random(model, getattr(peer.config, "pad_token_id", 0) or 0)
    layout = inputs.layout
    grid = {"input_ids": layout.grid(inputs.tokens), "attention_mask": layout.real().long()}
    if "segments" in family.tables and inputs.segments is not None:
        grid["token_type_ids"] = layout.grid(inputs.segments)
    theirs, hidden = peer(**grid, output_hidden_states=True), model(inputs)
    real, first = layout.real(), hidden[layout.firsts]
    out = {"hidden": _apart(hidden, theirs.hidden_states[-1][real])}
    for head in model.config.heads:
        known = {"words": "prediction_logits", "next": "seq_relationship_logits"}[head]
        scores = getattr(theirs, known if hasattr(theirs, known) else "logits")
        ours = model.scores(head, hidden if head == "words" else first)
        out[head] = _apart(ours, scores[real] if head == "words" else scores)
    return out


def _loaded(folder: Path, architecture: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise BadInput("check=true compares with transformers, which is not installed; `pip install transformers`") from None
    with _silent(transformers.utils.logging):
        return getattr(transformers, architecture).from_pretrained(folder).eval()


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """transformers' own progress and advice would stand between our lines."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _random(model: Model, pad: int) -> Inputs:
    """Three sequences without padding's id, which transformers would take for their end."""
    stream, encoder = torch.Generator().manual_seed(0), model.config.encoder
    layout = Layout.of([min(length, encoder.positions) for length in LENGTHS])
    size = (len(layout.owner),)
    tokens = torch.randint(0, model.config.vocabulary, size, generator=stream)
    tokens[tokens == pad] = (pad + 1) % model.config.vocabulary
    return Inputs(tokens, layout, torch.randint(0, encoder.segments, size, generator=stream))


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())
