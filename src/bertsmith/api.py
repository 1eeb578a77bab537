"""Public Python API: `load` and `models`, and every stage of the command line as a typed function.

    import bertsmith

    bertsmith.load("mini-en").fill("Paris is the [MASK] of France.")
    run = bertsmith.finetune(task="classify", model="mini-en", data={"train": "train.tsv", "dev": "dev.tsv"}, out="out/mood")
    run.scores, run.model("a fine film")

Functions return their results and print nothing to stdout. Messages go to the logger `bertsmith`: to stderr unless the program
has set up logging, and only warnings with `quiet=True`.
"""

import os
from typing import TYPE_CHECKING

from . import stages
from .calls import Data as Data
from .cores import sleep_between_operations
from .errors import UserError, explain_missing_torch
from .stages import *  # noqa: F403
from .synonyms import explain_load_argument

if TYPE_CHECKING:
    from typing import Never

    from .inference.engines.base import Backend, Precision
    from .inference.predictor import Predictor

__all__ = sorted([*stages.__all__, "Data", "load", "models"])


def load(
    folder: str | os.PathLike[str], backend: "Backend" = "auto", precision: "Precision" = "auto", device: str = "auto",
    **unknown: "Never",
) -> "Predictor":  # fmt: skip
    """Load a checkpoint folder, the folder of an export, or a shipped model by name, for prediction.

    Example:
        >>> model = bertsmith.load("mini-en")
        >>> model.fill("He opened the [MASK] and walked in.", top_k=3)
        >>> model.embed(["one text", "another"]).shape

    Args:
        folder: checkpoint folder, or the name of a shipped model (`models()` lists them); a folder of that name in the
            working directory takes precedence
        backend: torch, onnx (onnxruntime), openvino, or auto: the fastest of those that are installed and can open the
            folder, measured once on this machine; torch where there is no ONNX graph, and on a GPU
        precision: auto (bf16 on a GPU, and on a CPU with instructions for it; else fp32), fp32 or bf16
        device: auto (a GPU if there is one), cpu, cuda or cuda:0; onnx and openvino compute on the CPU
    """
    if unknown:
        raise UserError(explain_load_argument(next(iter(unknown))))
    sleep_between_operations()
    with explain_missing_torch("bertsmith.load"):
        from .inference.predictor import load

        return load(os.fspath(folder), backend, precision, device)


def models() -> dict[str, str]:
    """The models shipped with the package, {name: summary}; a name is accepted by `load` and wherever a stage takes a model."""
    from .pretrained.shipped import list_models

    return list_models()
