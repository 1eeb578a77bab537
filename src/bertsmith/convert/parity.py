"""Our model beside transformers' own, on the same random ids: how far their answers lie apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput
from ..model.batch import Inputs
from ..model.model import Model
from ..model.packing import Layout
from .huggingface.names import Family, Form

LENGTHS = (40, 3, 17)
CLOSE = 1e-3  # beyond it the models are not the same; rounding stays a hundred times below
LOGITS = {"words": "prediction_logits", "next": "seq_relationship_logits"}  # where a class has two heads; else `logits`


def agreed(model: Model, folder: Path, family: Family, form: Form) -> dict[str, float]:
    """The differences; refused where they are more than rounding."""
    found = differences(model, folder, family, form)
    if bad := {name: value for name, value in found.items() if not value < CLOSE}:
        raise BadInput(f"{folder}: transformers' {form.name} gives other answers, apart by {bad}; nothing is written")
    return found


@torch.inference_mode()
def differences(model: Model, folder: Path, family: Family, form: Form) -> dict[str, float]:
    """The largest difference of the hidden states (of numbers near 1) and of each head's scores."""
    peer = loaded(folder, form.name)
    inputs = _random(model, getattr(peer.config, "pad_token_id", 0) or 0)
    layout = inputs.layout
    grid = {"input_ids": layout.grid(inputs.tokens), "attention_mask": layout.real().long()}
    if "segments" in family.tables and inputs.segments is not None:
        grid["token_type_ids"] = layout.grid(inputs.segments)
    if family.windows:  # as in ours, the first token of each meets all others
        anchors = torch.zeros_like(inputs.tokens).index_fill(0, layout.anchored, 1)
        grid["global_attention_mask"] = layout.grid(anchors)
    if form.shape == "choice":  # the sequences are options of one question
        grid = {name: rows[None] for name, rows in grid.items()}
    theirs, hidden = peer(**grid, output_hidden_states=True), model(inputs)
    real = layout.real()
    out = {"hidden": _apart(hidden, theirs.hidden_states[-1][real])}
    for head in form.heads:
        of_text = head == "next" or form.shape in ("text", "choice")
        ours, wanted = model.scores(head, hidden[layout.firsts] if of_text else hidden), _scores(theirs, head, form)
        wanted = wanted if of_text else wanted[real]
        out[head] = _apart(ours, wanted.reshape(ours.shape))
    return out


def _scores(theirs: Any, head: str, form: Form) -> Tensor:
    if form.shape == "span":
        return torch.stack([theirs.start_logits, theirs.end_logits], -1)
    for name in (LOGITS.get(head, "logits"), "sop_logits" if head == "next" else "logits"):
        if hasattr(theirs, name):
            return getattr(theirs, name)
    return theirs.logits


def loaded(folder: Path, architecture: str) -> Any:
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
    segments = torch.randint(0, encoder.segments, size, generator=stream) if encoder.segments else None
    return Inputs(tokens, layout, segments)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())
