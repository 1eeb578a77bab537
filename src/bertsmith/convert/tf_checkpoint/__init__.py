"""Google's BERT checkpoints, as TensorFlow saved them, read without it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...artifacts import read_json
from ...errors import UserError
from ..huggingface.config import detect_family
from ..huggingface.mapping import ConvertedModel, convert_from_hf
from ..huggingface.names import Family
from ..huggingface.weights import tf_to_hf_name
from .bundle import Bundle

CONFIG_FILES = ("bert_config.json", "config.json")


def find_prefix(source: Path) -> Path | None:
    """The prefix of the checkpoint that a folder, a prefix or an .index names; None, if that is no such checkpoint."""
    if source.suffix == ".index" and source.is_file():
        return source.with_suffix("")
    if source.with_name(source.name + ".index").is_file():
        return source
    found = sorted(source.glob("*.index")) if source.is_dir() else []
    if len(found) > 1:
        raise UserError(f"{source} holds several checkpoints: {', '.join(path.stem for path in found)}; give one: {found[-1]}")
    return found[0].with_suffix("") if found else None


def read(prefix: Path, attention_dropout: float = 0.0) -> tuple[Family, ConvertedModel, list[Path]]:
    """The model of a checkpoint, with that much dropout on attention, and the files it was read from."""
    config = next((prefix.with_name(name) for name in CONFIG_FILES if prefix.with_name(name).exists()), None)
    if config is None:
        raise UserError(f"there is no {CONFIG_FILES[0]} beside {prefix}.index, to say what model it is of")
    bundle, settings = Bundle(prefix), read_json(config)
    family = detect_family(settings, str(config))
    settings[family.config_keys["mixer.dropout"]] = attention_dropout
    return (
        family,
        convert_from_hf(family, settings, read_weights(bundle), str(bundle.index_path)),
        [config, *bundle.list_files()],
    )


def read_weights(bundle: Bundle) -> dict[str, Tensor]:
    """Every tensor that is no optimizer's, under Hugging Face's names; a dense kernel is stored the other way round."""
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in bundle.entries:
        raise UserError(
            f"{bundle.index_path} is of Keras objects, not of Google's BERT by its names; save it with transformers first"
        )
    out: dict[str, Tensor] = {}
    for old in bundle.entries:
        if (name := tf_to_hf_name(old)) is None:
            continue
        array = bundle.read_tensor(old)
        if not np.issubdtype(array.dtype, np.floating):
            raise UserError(f"{old} in {bundle.index_path} holds {array.dtype}, not real numbers; a model's weights are")
        array = array.astype(np.float32, order="C")
        out[name] = torch.from_numpy(np.ascontiguousarray(array.T) if old.endswith("/kernel") else array)
    return out
