"""Which models have a graph, and what to use for the others."""

from typing import NamedTuple

from ...errors import UserError
from ...model.heads.features import FeatureClassifier
from ...model.mixers import Reformer, ReformerChunked
from ...model.model import Model
from ...tasks import Task
from .outputs import TASK_HEAD, averages_sequences


class Refusal(NamedTuple):
    """Why a model has no graph, and what to use instead."""

    reason: str
    instead: str


def find_refusal(model: Model, task: Task | None) -> Refusal | None:
    """None for a model that has a graph."""
    encoder = model.config.encoder
    if model.decoder is not None or (task is not None and task.head_type == "lm"):
        return Refusal(
            "this model generates text token by token, with a cache that a single graph does not have",
            "use the checkpoint with torch (`bertsmith predict`), or format=int8 for a smaller one",
        )
    if encoder.has_open_vocabulary and encoder.embeddings is not None:
        kind = type(encoder.embeddings).__struct_config__.tag
        return Refusal(
            f"model.embeddings={kind} computes words outside the vocabulary from their characters, and a graph gets ids only",
            "use the checkpoint with torch, or format=vectors for the vectors of the vocabulary",
        )
    if any(_hashes_tokens(mixer) for mixer in (encoder.mixer, encoder.layer_types and encoder.layer_types.mixer)):
        return Refusal(
            "mixer=reformer sorts tokens by hashes, which differ where rounding does: engines give other hidden states",
            "use the checkpoint with torch, or set num_buckets=1 (full attention) and fine-tune",
        )
    has_features = TASK_HEAD in model.heads and isinstance(model.heads[TASK_HEAD], FeatureClassifier)
    if has_features and task is not None and averages_sequences(task):
        return Refusal(
            "the features of several sequences are averaged inside this model's head",
            "use the checkpoint with torch, or fine-tune with long_text=window",
        )
    return None


def check_exportable(model: Model, task: Task | None) -> None:
    """Raise a UserError for a model that has no graph."""
    if refusal := find_refusal(model, task):
        raise UserError(f"{refusal.reason}; {refusal.instead}")


def _hashes_tokens(mixer: object) -> bool:
    is_lsh = isinstance(mixer, ReformerChunked) and "lsh" in mixer.attn_layers
    return is_lsh or (isinstance(mixer, Reformer) and mixer.num_buckets not in (1, (1,)))
