"""Folders of sentence-transformers: the modules around the encoder (pooling, dense layers, normalization), read and written.

`modules.json` lists the modules in order, each with a folder of its own: the Transformer (at the root, or in `0_Transformer`),
`1_Pooling`, any number of `Dense` with weights, and `Normalize`, which has no settings. `config_sentence_transformers.json` has
the prompts.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json
from ...errors import UserError
from ...model.checkpoint import WEIGHTS_FILE
from ...model.heads.embedding import EMBEDDING_HEAD, DenseActivation, DenseConfig, EmbeddingHeadConfig
from ...model.model import Model
from ...tasks import TextSimilarity
from ...writing import write_json
from .mapping import ConvertedModel
from .weights import read_weights

MODULES_FILE, TRANSFORMER_FILE, PIPELINE_FILE = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
POOLING_FOLDER = "1_Pooling"
MODULE_FILES = ("config.json", WEIGHTS_FILE, "pytorch_model.bin")  # in a module's folder
EMBEDDING_KEY = "sentence_embedding"  # what every module after the pooling reads and writes
MAX_DENSE_SIZE = 1 << 20
POOLING_KEYS = {  # pooling_mode of newer versions, and the keys before it, one per mode
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
ACTIVATION_CLASSES: dict[DenseActivation, str] = {
    "none": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "silu": "torch.nn.modules.activation.SiLU",
}


@dataclass(frozen=True)
class DenseLayer:
    """One module `Dense`: its config, the size of its input, and its weights."""

    config: DenseConfig
    in_features: int
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class SentenceModules:
    """The modules of a sentence-transformers folder that an import keeps."""

    encoder_folder: Path
    pooling_mode: str
    dense: tuple[DenseLayer, ...]
    normalize: bool
    max_length: int | None
    prompts: dict[str, str]
    default_prompt_name: str | None
    lowercases: bool  # texts are lowercased before they are tokenized
    files: tuple[Path, ...]  # what they were read from

    def add_to(self, converted: ConvertedModel) -> ConvertedModel:
        """The converted encoder with the task, and the dense layers, that compute these sentence embeddings."""
        encoder = converted.model.config.encoder
        cls_mode = "lasttoken" if encoder.is_causal else "cls"  # the token that attends to the whole text
        if self.pooling_mode not in ("mean", cls_mode):
            raise UserError(f"{self.encoder_folder}: pooling={self.pooling_mode} is not supported; supported: mean, {cls_mode}")
        if "task" in converted.model.config.heads:
            raise UserError(f"{self.encoder_folder} has both a task head and sentence embeddings; remove {MODULES_FILE} to "
                           "import the head")  # fmt: skip
        is_similar = converted.task is not None and converted.task.head_type == "embedding"
        task: Any = msgspec.structs.replace(
            converted.task if is_similar and converted.task is not None else TextSimilarity(),
            pooling="mean" if self.pooling_mode == "mean" else "cls",
            normalize=self.normalize,
            prompts=self.prompts,
            default_prompt_name=self.default_prompt_name,
        )
        limit = encoder.max_position_embeddings
        model = self._add_dense(converted.model)
        return replace(converted, model=model, task=task, max_length=min(self.max_length or limit, limit))

    def _add_dense(self, model: Model) -> Model:
        if not self.dense:
            return model
        size = model.config.encoder.hidden_size
        for layer in self.dense:
            if layer.in_features != size:
                raise UserError(f"{self.encoder_folder}: a module Dense reads {layer.in_features} features, but gets {size}")
            size = layer.config.out_features
        head = EmbeddingHeadConfig(layers=tuple(layer.config for layer in self.dense))
        heads = {**model.config.heads, EMBEDDING_HEAD: head}
        extended = Model(msgspec.structs.replace(model.config, heads=heads), init_weights=False)
        weights = dict(model.state_dict())
        for number, layer in enumerate(self.dense):
            prefix = f"heads.{EMBEDDING_HEAD}.layers.{number}"
            weights[f"{prefix}.weight"] = layer.weight
            if layer.bias is not None:
                weights[f"{prefix}.bias"] = layer.bias
        extended.load_state_dict(weights)
        return extended.eval()


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder, None if it is not one of sentence-transformers; a module that we do not have is an error."""
    if not (folder / MODULES_FILE).exists():
        return None
    source = folder / MODULES_FILE
    modules = read_json(source)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{source} is not a list of modules")
    names = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    num_dense = names.count("Dense")
    expected = ["Transformer", "Pooling", *["Dense"] * num_dense]
    if names not in (expected, [*expected, "Normalize"]):
        unknown = [name for name in names if name not in (*expected, "Dense", "Normalize")]
        problem = f"the module {unknown[0]}, which bertsmith does not have" if unknown else f"the modules {', '.join(names)}"
        raise UserError(f"{source} has {problem}; supported: Transformer, Pooling, Dense and Normalize, in this order, the "
                       f"last two optional; to import the encoder alone, remove {MODULES_FILE}")  # fmt: skip
    encoder_folder, pooling_folder, *others = (_module_folder(folder, module, source) for module in modules)
    for module_folder in others:
        _check_module_keys(module_folder / "config.json")
    settings = _read_object(encoder_folder / TRANSFORMER_FILE) if (encoder_folder / TRANSFORMER_FILE).exists() else {}
    prompts, default_prompt_name = _read_prompts(folder / PIPELINE_FILE)
    return SentenceModules(
        encoder_folder,
        _read_pooling(pooling_folder / "config.json", bool(prompts)),
        tuple(_read_dense(dense_folder) for dense_folder in others[:num_dense]),
        names[-1] == "Normalize",
        _read_max_length(encoder_folder),
        prompts,
        default_prompt_name,
        settings.get("do_lower_case") is True,
        tuple(_find_dense_weights(dense_folder) for dense_folder in others[:num_dense]),
    )


def write_modules(folder: Path, task: Any, model: Model, max_length: int) -> None:
    """Write the files that make a transformers folder a sentence-transformers folder."""
    encoder, head = model.config.encoder, model.config.heads.get(EMBEDDING_HEAD)
    dense = head.layers if isinstance(head, EmbeddingHeadConfig) else ()
    types = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * task.normalize]
    paths = [f"{i}_{name}" if i else "" for i, name in enumerate(types)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(zip(paths, types, strict=True))
    ]
    write_json(folder / MODULES_FILE, modules)
    write_json(folder / TRANSFORMER_FILE, {"max_seq_length": max_length, "do_lower_case": False})
    prompts = {"prompts": task.prompts, "default_prompt_name": task.default_prompt_name}
    write_json(folder / PIPELINE_FILE, {"similarity_fn_name": "cosine", **prompts})
    for path in paths[1:]:
        (folder / path).mkdir()
    mode = "mean" if task.pooling == "mean" else "lasttoken" if encoder.is_causal else "cls"
    flags = {key: name == mode for name, key in POOLING_KEYS.items()}
    pooling = {"word_embedding_dimension": encoder.hidden_size, **flags, "include_prompt": True, "pooling_mode": mode}
    write_json(folder / POOLING_FOLDER / "config.json", pooling)
    in_features, weights = encoder.hidden_size, model.state_dict()
    for number, layer in enumerate(dense):
        dense_folder, prefix = folder / paths[2 + number], f"heads.{EMBEDDING_HEAD}.layers.{number}."
        config = {"in_features": in_features, "out_features": layer.out_features, "bias": layer.bias}
        write_json(dense_folder / "config.json", {**config, "activation_function": ACTIVATION_CLASSES[layer.activation]})
        parts = {f"linear.{part}": weights[prefix + part] for part in ("weight", *["bias"] * layer.bias)}
        tensors.save_tensors(
            {name: part.detach().cpu().contiguous() for name, part in parts.items()}, dense_folder / WEIGHTS_FILE
        )
        in_features = layer.out_features


def _module_folder(folder: Path, module: dict[str, Any], source: Path) -> Path:
    path = str(module.get("path", ""))
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise UserError(f"{source} has the path {path!r}, which is not a folder in {folder}")
    return folder / path


def _read_object(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} is not a JSON object, but a {type(values).__name__}")
    return values


def _check_module_keys(path: Path) -> None:
    """Raise for a module that reads or writes something else than the sentence embedding."""
    config = _read_object(path) if path.exists() else {}
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, EMBEDDING_KEY):
            raise UserError(f"{path} has {key} = {config[key]!r}; only {EMBEDDING_KEY} is supported")


def _read_dense(folder: Path) -> DenseLayer:
    source = folder / "config.json"
    config = _read_object(source)
    sizes = [config.get(key) for key in ("in_features", "out_features")]
    if not all(isinstance(size, int) and 0 < size <= MAX_DENSE_SIZE for size in sizes):
        raise UserError(f"{source} has in_features = {sizes[0]!r} and out_features = {sizes[1]!r}; they must be sizes")
    if config.get("use_residual"):
        raise UserError(f"{source} has use_residual = true, which is not supported")
    class_name = str(config.get("activation_function") or ACTIVATION_CLASSES["none"]).rpartition(".")[2]
    names = {path.rpartition(".")[2]: name for name, path in ACTIVATION_CLASSES.items()}
    if class_name not in names:
        raise UserError(
            f"{source} has activation_function = {class_name}, which is not supported; supported: {', '.join(names)}"
        )
    layer = DenseConfig(out_features=int(sizes[1] or 0), activation=names[class_name], bias=config.get("bias", True) is True)
    weights = read_weights([_find_dense_weights(folder)])
    shapes = {"linear.weight": [sizes[1], sizes[0]]} | ({"linear.bias": [sizes[1]]} if layer.bias else {})
    if {name: list(tensor.shape) for name, tensor in weights.items()} != shapes:
        found = {name: list(tensor.shape) for name, tensor in weights.items()}
        raise UserError(f"{folder} has the tensors {found}, but its config.json implies {shapes}")
    weight, bias = (weights[name].to(torch.float32) if name in weights else None for name in ("linear.weight", "linear.bias"))
    assert weight is not None
    return DenseLayer(layer, int(sizes[0] or 0), weight, bias)


def _find_dense_weights(folder: Path) -> Path:
    for name in MODULE_FILES[1:]:
        if (folder / name).exists():
            return folder / name
    raise UserError(f"{folder} contains no weights (expected one of {', '.join(MODULE_FILES[1:])})")


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the name of the default one."""
    config = _read_object(path) if path.exists() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise UserError(f"{path} has prompts = {prompts!r}; it must map names to texts")
    if default is not None and default not in prompts:
        raise UserError(f"{path} has default_prompt_name = {default!r}, which is not one of its prompts")
    return prompts, default


def _read_max_length(encoder_folder: Path) -> int | None:
    """max_seq_length, or without it the tokenizer's model_max_length, which newer versions write instead."""
    for name, key in ((TRANSFORMER_FILE, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        settings = read_json(encoder_folder / name) if (encoder_folder / name).exists() else {}
        max_length = settings.get(key) if isinstance(settings, dict) else None
        if isinstance(max_length, int) and max_length >= 3:
            return max_length
        if max_length is not None and name == TRANSFORMER_FILE:
            raise UserError(f"{encoder_folder / name} has {key} = {max_length!r}; it must be a number of tokens from 3")
    return None


def _read_pooling(path: Path, has_prompts: bool) -> str:
    config = _read_object(path)
    if config.get("include_prompt") is False and has_prompts:
        raise UserError(f"{path} has include_prompt = false: the tokens of prompts are left out of the pooling, which is not "
                       "supported")  # fmt: skip
    modes = config.get("pooling_mode") or [name for name, key in POOLING_KEYS.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1:
        raise UserError(f"{path} concatenates several poolings ({', '.join(map(str, modes))}), which is not supported")
    return str(modes[0])
