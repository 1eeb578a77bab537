"""The subcommands of `bertsmith`: one module per stage, with its `Recipe` (config class) and its `run(recipe, quiet)`.

A module is imported only when its stage runs: help and usage errors come from `schema.json`, without importing torch.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ..config import Config, struct_types
from ..console import Console

STAGES = {
    "tokenizer": "train a tokenizer on text files",
    "prepare": "tokenize text files into a corpus folder",
    "pretrain": "pre-train a model, or word vectors, on a corpus",
    "plan": "estimate parameters, memory, time and disk of a pre-training run",
    "import": "import a checkpoint or word vectors: Hugging Face, TensorFlow, ELMo, word2vec",
    "convert-long": "convert a full-attention model to sliding windows and longer inputs (Longformer)",
    "export": "write a checkpoint for other libraries, or in int8",
    "finetune": "fine-tune a model: classify, regress, tag, answer, choose, similar, generate",
    "prune": "remove heads, neurons, layers or tokens from a model while it is trained",
    "share": "share the weights of layers and factorize embeddings, as in ALBERT",
    "quantize": "compute in int8: dynamic, static or quantization-aware training",
    "evaluate": "evaluate a fine-tuned model on a labelled file and report its errors",
    "distill": "train a smaller model on the outputs and inner states of a larger one",
    "compress": "distill, prune, quantize and export: measure every combination, keep the smallest that passes",
    "suite": "fine-tune models on many tasks with several seeds, into one table",
    "race": "pre-train model families with one compute budget and compare them on tasks",
    "predict": "predict for a text or a file, one JSON object per line",
    "embed": "compute text embeddings, or search documents by them",
    "serve": "answer over HTTP: our API, and those of OpenAI, text-embeddings-inference and Cohere",
    "doctor": "diagnose a corpus or a run and suggest fixes",
    "verify": "compare a folder with its checksums: tokenizer, corpus, model, checkpoint or export",
    "show": "draw a corpus, masks, attention, attributions, positions and more: HTML, SVG or PNG",
}


# Keys that arguments may set by position: `bertsmith predict out/mood "a fine film"`, `bertsmith doctor out/bert`.
POSITIONAL = {
    "predict": ("model", "text"),
    "embed": ("model", "text"),
    "doctor": ("folder",),
    "verify": ("folder",),
    "show": ("kind",),
}


def load_stage(name: str) -> ModuleType:
    """Import the module of a stage, which has `Recipe` and `run(recipe, quiet)`."""
    module = "import_model" if name == "import" else name.replace("-", "_")  # `import` is a Python keyword
    return import_module(f".{module}", __name__)


def recipe_type(stage: Any, checked: Any) -> Any:
    """The struct to read a recipe into that has been checked against the schema.

    It is the `Recipe` of the stage's module. A module with a function `recipe_type` decides by the values: some kinds of
    `show` need no torch, and take the struct of the schema, which has the same fields.
    """
    return stage.recipe_type(checked) if hasattr(stage, "recipe_type") else stage.Recipe


def report_same_names(recipe: Any, quiet: bool) -> None:
    """A line for a key that takes a model and names a folder here that is called like a preset or a shipped model."""
    from ..artifacts import MODEL_KEYS  # not for help and usage errors
    from ..pretrained.shipped import list_names

    for field in msgspec.structs.fields(recipe):
        name = getattr(recipe, field.name)
        if field.name not in MODEL_KEYS or not isinstance(name, str) or not Path(name).exists():
            continue
        presets = [preset for member in struct_types(field.type) if issubclass(member, Config) for preset in member.presets()]
        if name in (*presets, *list_names()):
            other = "preset" if name in presets else "shipped model"
            Console(quiet).info(f"{field.name}={name} is the folder {name}, not the {other} of that name; rename the folder to "
                                f"use the {other}")  # fmt: skip
