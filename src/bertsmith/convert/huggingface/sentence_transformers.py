"""Folders of sentence-transformers: the modules around the encoder (pooling, normalization), read and written.

`modules.json` lists the modules in order, each with a folder of its own: the Transformer (at the root, or in `0_Transformer`),
`1_Pooling`, and `2_Normalize`, which has no settings.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...artifacts import read_json
from ...errors import UserError
from ...tasks import TextSimilarity
from ...writing import write_json
from .mapping import ConvertedModel

MODULES_FILE, TRANSFORMER_FILE, PIPELINE_FILE = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
POOLING_FOLDER, NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
MODULE_TYPES = {"": "Transformer", POOLING_FOLDER: "Pooling", NORMALIZE_FOLDER: "Normalize"}
POOLING_KEYS = {  # pooling_mode of newer versions, and the keys before it, one per mode
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class SentenceModules:
    """The modules of a sentence-transformers folder that an import keeps."""

    encoder_folder: Path
    pooling_mode: str
    normalize: bool
    max_length: int | None

    def add_to(self, converted: ConvertedModel) -> ConvertedModel:
        """The converted encoder with the task that computes these sentence embeddings."""
        encoder = converted.model.config.encoder
        cls_mode = "lasttoken" if encoder.is_causal else "cls"  # the token that attends to the whole text
        if self.pooling_mode not in ("mean", cls_mode):
            raise UserError(f"{self.encoder_folder}: pooling={self.pooling_mode} is not supported; supported: mean, {cls_mode}")
        if "task" in converted.model.config.heads:
            raise UserError(f"{self.encoder_folder} has both a task head and sentence embeddings; remove {MODULES_FILE} to "
                           "import the head")  # fmt: skip
        task = TextSimilarity(pooling="mean" if self.pooling_mode == "mean" else "cls", normalize=self.normalize)
        limit = encoder.max_position_embeddings
        return replace(converted, task=task, max_length=min(self.max_length or limit, limit))


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder, None if it is not one of sentence-transformers; a module that we do not have is an error."""
    if not (folder / MODULES_FILE).exists():
        return None
    source = folder / MODULES_FILE
    modules = read_json(source)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{source} is not a list of modules")
    names = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        unknown = [name for name in names if name not in MODULE_TYPES.values()]
        problem = f"the module {unknown[0]}, which bertsmith does not have" if unknown else f"the modules {', '.join(names)}"
        raise UserError(f"{source} has {problem}; supported: Transformer, Pooling, and optionally Normalize; to import the "
                       f"encoder alone, remove {MODULES_FILE}")  # fmt: skip
    encoder_folder, pooling_folder = (_module_folder(folder, module, source) for module in modules[:2])
    max_length = _read_max_length(encoder_folder)
    return SentenceModules(encoder_folder, _read_pooling(pooling_folder / "config.json"), len(names) == 3, max_length)


def write_modules(folder: Path, task: Any, hidden_size: int, max_length: int, is_causal: bool) -> None:
    """Write the files that make a transformers folder a sentence-transformers folder."""
    paths = ["", POOLING_FOLDER, *[NORMALIZE_FOLDER] * task.normalize]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{MODULE_TYPES[path]}"}
        for i, path in enumerate(paths)
    ]
    write_json(folder / MODULES_FILE, modules)
    write_json(folder / TRANSFORMER_FILE, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / PIPELINE_FILE, {"similarity_fn_name": "cosine", "prompts": {}, "default_prompt_name": None})
    for path in paths[1:]:
        (folder / path).mkdir()
    mode = "mean" if task.pooling == "mean" else "lasttoken" if is_causal else "cls"
    flags = {key: name == mode for name, key in POOLING_KEYS.items()}
    pooling = {"word_embedding_dimension": hidden_size, **flags, "include_prompt": True, "pooling_mode": mode}
    write_json(folder / POOLING_FOLDER / "config.json", pooling)


def _module_folder(folder: Path, module: dict[str, Any], source: Path) -> Path:
    path = str(module.get("path", ""))
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise UserError(f"{source} has the path {path!r}, which is not a folder in {folder}")
    return folder / path


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


def _read_pooling(path: Path) -> str:
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object, but a {type(config).__name__}")
    modes = config.get("pooling_mode") or [name for name, key in POOLING_KEYS.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1:
        raise UserError(f"{path} concatenates several poolings ({', '.join(map(str, modes))}), which is not supported")
    return str(modes[0])
