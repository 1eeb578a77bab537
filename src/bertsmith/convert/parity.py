"""Parity check: a converted model against transformers' model on the same random ids."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..model.batch import Inputs
from ..model.heads import LM_HEAD
from ..model.model import Model
from ..model.packing import Layout
from .huggingface.family import PAIR_HEADS, Architecture, Family

LENGTHS = (40, 3, 17)
TOLERANCE = 1e-3  # maximum absolute difference; rounding errors are a hundred times smaller
# Output fields of classes with two heads; others have `logits`.
LOGITS_FIELDS = {LM_HEAD: "prediction_logits", "nsp": "seq_relationship_logits"}


def check_parity(model: Model, folder: Path, family: Family, architecture: Architecture) -> dict[str, float]:
    """`compute_differences`, with an error if one exceeds TOLERANCE."""
    differences = compute_differences(model, folder, family, architecture)
    if too_large := {name: value for name, value in differences.items() if not value < TOLERANCE}:
        raise UserError(
            f"{folder}: transformers' {architecture.name} gives different outputs ({too_large}); nothing was written"
        )
    return differences


@torch.inference_mode()
def compute_differences(model: Model, folder: Path, family: Family, architecture: Architecture) -> dict[str, float]:
    """Maximum absolute difference of the final hidden states (values are about 1) and of the logits of each head."""
    hf_model = load_hf_model(folder, architecture.name)
    inputs = _random_inputs(model, getattr(hf_model.config, "pad_token_id", 0) or 0)
    layout = inputs.layout
    hf_inputs = {"input_ids": layout.pad(inputs.input_ids), "attention_mask": layout.padding_mask().long()}
    if "token_type_embeddings" in family.embeddings and inputs.token_type_ids is not None:
        hf_inputs["token_type_ids"] = layout.pad(inputs.token_type_ids)
    if family.windowed_attention:  # as in our model, the first token of each sequence is global
        is_global = torch.zeros_like(inputs.input_ids).index_fill(0, layout.global_tokens, 1)
        hf_inputs["global_attention_mask"] = layout.pad(is_global)
    if architecture.head_type == "choice":  # the sequences are the choices of one question
        hf_inputs = {name: values[None] for name, values in hf_inputs.items()}
    hf_outputs, hidden = hf_model(**hf_inputs, output_hidden_states=True), model(inputs)
    mask = layout.padding_mask()
    differences = {"hidden": _max_abs_diff(hidden, hf_outputs.hidden_states[-1][mask])}
    for head in architecture.heads:
        is_sequence_level = head in PAIR_HEADS or architecture.head_type in ("text", "choice")
        logits, hf_logits = (
            model.compute_logits(head, model.encoder.pool_tokens(inputs, hidden) if is_sequence_level else hidden),
            _get_logits(hf_outputs, head, architecture),
        )
        hf_logits = hf_logits if is_sequence_level else hf_logits[mask]
        differences[head] = _max_abs_diff(logits, hf_logits.reshape(logits.shape))
    return differences


def load_hf_model(folder: Path, class_name: str) -> Any:
    """transformers' model of that class, in evaluation mode and float32 as ours, whatever the file has."""
    try:
        import transformers
    except ImportError:
        raise UserError("check=true needs transformers, which is not installed: pip install transformers") from None
    source: Any = transformers
    if class_name.startswith("Bertsmith"):
        from .huggingface import modeling_bertsmith as source  # what is beside the weights, without a copy in the user's cache
    with _silence_logging(transformers.utils.logging):
        return getattr(source, class_name).from_pretrained(folder).float().eval()


def _random_inputs(model: Model, pad_id: int) -> Inputs:
    """Three packed sequences of random ids without the padding id, which transformers would mask."""
    generator, encoder = torch.Generator().manual_seed(0), model.config.encoder
    layout = Layout.from_lengths([min(length, encoder.max_position_embeddings) for length in LENGTHS])
    size = (len(layout.seq_id),)
    tokens = torch.randint(0, model.config.vocab_size, size, generator=generator)
    tokens[tokens == pad_id] = (pad_id + 1) % model.config.vocab_size
    segments = torch.randint(0, encoder.type_vocab_size, size, generator=generator) if encoder.type_vocab_size else None
    return Inputs(tokens, layout, segments)


def _get_logits(outputs: Any, head: str, architecture: Architecture) -> Tensor:
    if architecture.head_type == "span":
        return torch.stack([outputs.start_logits, outputs.end_logits], -1)
    for name in (LOGITS_FIELDS.get(head, "logits"), "sop_logits" if head == "sop" else "logits"):
        if hasattr(outputs, name):
            return getattr(outputs, name)
    return outputs.logits


def _max_abs_diff(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


@contextmanager
def _silence_logging(logging: Any) -> Iterator[None]:
    """Suppress transformers' progress bars and warnings."""
    level, had_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_progress_bar:
            logging.enable_progress_bar()
