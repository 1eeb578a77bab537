"""Google's BERT checkpoints, as TensorFlow saved them, read without it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...artifacts import read_json
from ...errors import BadInput
from ..huggingface.config import family_of
from ..huggingface.mapping import Fitted, fitted
from ..huggingface.names import Family
from ..huggingface.weights import from_google
from .bundle import Bundle

CONFIGS = ("bert_config.json", "config.json")


def prefix_of(source: Path) -> Path | None:
    """The prefix of the checkpoint that a folder, a prefix or an .index names; None, if that is no such checkpoint."""
    if source.suffix == ".index" and source.is_file():
        return source.with_suffix("")
    if source.with_name(source.name + ".index").is_file():
        return source
    found = sorted(source.glob("*.index")) if source.is_dir() else []
    if len(found) > 1:
        raise BadInput(f"{source} holds several checkpoints: {', '.join(path.stem for path in found)}; give one: {found[-1]}")
    return found[0].with_suffix("") if found else None


def read(prefix: Path, dropout: float = 0.0) -> tuple[Family, Fitted, list[Path]]:
    """The model of a checkpoint, with that much dropout on attention, and the files it was read from."""
    config = next((prefix.with_name(name) for name in CONFIGS if prefix.with_name(name).exists()), None)
    if config is None:
        raise BadInput(f"there is no {CONFIGS[0]} beside {prefix}.index, to say what model it is of")
    bundle, settings = Bundle(prefix), read_json(config)
    family = family_of(settings, str(config))
    settings[family.sizes["mixer.dropout"]] = dropout
    return family, fitted(family, settings, weights(bundle), str(bundle.index)), [config, *bundle.files()]


def weights(bundle: Bundle) -> dict[str, Tensor]:
    """Every tensor that is no optimizer's, under Hugging Face's names; a dense kernel is stored the other way round."""
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in bundle.entries:
        raise BadInput(
            f"{bundle.index} is of Keras objects, not of Google's BERT by its names; save it with transformers first"
        )
    out: dict[str, Tensor] = {}
    for old in bundle.entries:
        if (name := from_google(old)) is None:
            continue
        array = bundle.read(old)
        if not np.issubdtype(array.dtype, np.floating):
            raise BadInput(f"{old} in {bundle.index} holds {array.dtype}, not real numbers; a model's weights are")
        array = array.astype(np.float32, order="C")
        out[name] = torch.from_numpy(np.ascontiguousarray(array.T) if old.endswith("/kernel") else array)
    return out
