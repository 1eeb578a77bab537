"""Import of Google's BERT checkpoints (TensorFlow 1 format) without TensorFlow.

`bundle` reads tensors, `sstable` the index file, `crc32c` verifies checksums.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...artifacts import read_json
from ...errors import UserError
from ..huggingface.config import detect_family
from ..huggingface.family import Family
from ..huggingface.mapping import ConvertedModel, convert_from_hf
from ..huggingface.weights import tf_to_hf_name
from .bundle import Bundle

CONFIG_FILES = ("bert_config.json", "config.json")


def find_prefix(source: Path) -> Path | None:
    """Checkpoint prefix (`bert_model.ckpt`) for a folder, a prefix or an .index file; None if there is no such checkpoint."""
    if source.suffix == ".index" and source.is_file():
        return source.with_suffix("")
    if Path(f"{source}.index").is_file():
        return source
    index_files = sorted(source.glob("*.index")) if source.is_dir() else []
    if len(index_files) > 1:
        raise UserError(
            f"{source} contains several checkpoints: {', '.join(path.stem for path in index_files)}; give one: "
            f"{index_files[-1]}"
        )
    return index_files[0].with_suffix("") if index_files else None


def read(prefix: Path, attention_dropout: float = 0.0) -> tuple[Family, ConvertedModel, list[Path]]:
    """The converted model, with the given attention dropout, and the files it was read from."""
    config = next((prefix.with_name(name) for name in CONFIG_FILES if prefix.with_name(name).exists()), None)
    if config is None:
        raise UserError(f"there is no {CONFIG_FILES[0]} next to {prefix}.index; copy it there")
    bundle, settings = Bundle(prefix), read_json(config)
    family = detect_family(settings, str(config))
    settings[family.config_keys["mixer.attention_dropout"]] = attention_dropout
    return (
        family,
        convert_from_hf(family, settings, read_weights(bundle), str(bundle.index_path)),
        [config, *bundle.list_files()],
    )


def read_weights(bundle: Bundle) -> dict[str, Tensor]:
    """All tensors except the optimizer's, under Hugging Face's names; dense kernels are transposed."""
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in bundle.entries:
        raise UserError(
            f"{bundle.index_path} is an object-based (Keras) checkpoint, not a name-based one as Google's BERT; convert it "
            "to a "
            "Hugging Face folder first"
        )
    bundle.check_sizes()
    weights: dict[str, Tensor] = {}
    for tf_name in bundle.entries:
        if (name := tf_to_hf_name(tf_name)) is None:
            continue
        array = bundle.read_tensor(tf_name)
        if not np.issubdtype(array.dtype, np.floating):
            raise UserError(f"{tf_name} in {bundle.index_path} has dtype {array.dtype}; weights must be floating-point")
        array = array.astype(np.float32, order="C")
        weights[name] = torch.from_numpy(np.ascontiguousarray(array.T) if tf_name.endswith("/kernel") else array)
    return weights
