"""Our model beside transformers' own, on the same random ids: how far their answers lie apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.batch import Inputs
from ..model.model import Model
from ..model.packing import Layout
from .huggingface.names import Architecture, Family

LENGTHS = (40, 3, 17)
TOLERANCE = 1e-3  # beyond it the models are not the same; rounding stays a hundred times below
LOGITS_FIELDS = {"words": "prediction_logits", "next": "seq_relationship_logits"}  # where a class has two heads; else `logits`


def check_parity(model: Model, folder: Path, family: Family, architecture: Architecture) -> dict[str, float]:
    """The differences; refused where they are more than rounding."""
    found = compute_differences(model, folder, family, architecture)
    if bad := {name: value for name, value in found.items() if not value < TOLERANCE}:
        raise UserError(f"{folder}: transformers' {architecture.name} gives other answers, apart by {bad}; nothing is written")
    return found


@torch.inference_mode()
def compute_differences(model: Model, folder: Path, family: Family, architecture: Architecture) -> dict[str, float]:
    """The largest difference of the hidden states (of numbers near 1) and of each head's scores."""
    peer = load_hf_model(folder, architecture.name)
    inputs = _random_inputs(model, getattr(peer.config, "pad_token_id", 0) or 0)
    layout = inputs.layout
    grid = {"input_ids": layout.pad(inputs.input_ids), "attention_mask": layout.padding_mask().long()}
    if "segments" in family.embeddings and inputs.token_type_ids is not None:
        grid["token_type_ids"] = layout.pad(inputs.token_type_ids)
    if family.windowed_attention:  # as in ours, the first token of each meets all others
        anchors = torch.zeros_like(inputs.input_ids).index_fill(0, layout.global_tokens, 1)
        grid["global_attention_mask"] = layout.pad(anchors)
    if architecture.head_type == "choice":  # the sequences are options of one question
        grid = {name: rows[None] for name, rows in grid.items()}
    theirs, hidden = peer(**grid, output_hidden_states=True), model(inputs)
    real = layout.padding_mask()
    out = {"hidden": _max_abs_diff(hidden, theirs.hidden_states[-1][real])}
    for head in architecture.heads:
        of_text = head == "next" or architecture.head_type in ("text", "choice")
        ours, wanted = (
            model.compute_logits(head, hidden[layout.first_token] if of_text else hidden),
            _get_logits(theirs, head, architecture),
        )
        wanted = wanted if of_text else wanted[real]
        out[head] = _max_abs_diff(ours, wanted.reshape(ours.shape))
    return out


def _get_logits(outputs: Any, head: str, architecture: Architecture) -> Tensor:
    if architecture.head_type == "span":
        return torch.stack([outputs.start_logits, outputs.end_logits], -1)
    for name in (LOGITS_FIELDS.get(head, "logits"), "sop_logits" if head == "next" else "logits"):
        if hasattr(outputs, name):
            return getattr(outputs, name)
    return outputs.logits


def load_hf_model(folder: Path, class_name: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise UserError("check=true compares with transformers, which is not installed; `pip install transformers`") from None
    with _silence_logging(transformers.utils.logging):
        return getattr(transformers, class_name).from_pretrained(folder).eval()


@contextmanager
def _silence_logging(logging: Any) -> Iterator[None]:
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


def _random_inputs(model: Model, pad_id: int) -> Inputs:
    """Three sequences without padding's id, which transformers would take for their end."""
    stream, encoder = torch.Generator().manual_seed(0), model.config.encoder
    layout = Layout.from_lengths([min(length, encoder.positions) for length in LENGTHS])
    size = (len(layout.seq_id),)
    tokens = torch.randint(0, model.config.vocabulary, size, generator=stream)
    tokens[tokens == pad_id] = (pad_id + 1) % model.config.vocabulary
    segments = torch.randint(0, encoder.segments, size, generator=stream) if encoder.segments else None
    return Inputs(tokens, layout, segments)


def _max_abs_diff(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())
