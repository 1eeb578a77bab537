"""The subcommands of `bertsmith`: one module per stage, with its `Recipe` (config class) and its `run(recipe, quiet)`.

A module is imported only when its stage is used, so that `bertsmith --help` does not import torch.
"""

from importlib import import_module
from types import ModuleType

STAGES = {
    "tokenizer": "train a tokenizer on text files",
    "prepare": "turn text files into a corpus of ids",
    "pretrain": "train a model, or word vectors, on a corpus",
    "plan": "tell what a pre-training will take: parameters, memory, time, disk",
    "import": "read somebody else's checkpoint or word vectors: Hugging Face, TensorFlow, ELMo, word2vec",
    "convert-long": "give a trained model windows instead of full attention, and longer texts (Longformer)",
    "export": "write a checkpoint for other libraries",
    "finetune": "teach a model a task: classify, regress, tag, answer, choose, similar, generate",
    "evaluate": "score a fine-tuned model on a file, and report what it gets wrong",
    "suite": "fine-tune models on many tasks with several seeds, into one table",
    "race": "train family members on one corpus with one budget, and compare them on tasks",
    "predict": "answer texts or a file, one JSON a line",
    "embed": "turn texts into vectors, or find the nearest of others",
    "doctor": "say what is wrong with a corpus or a run, and what to try",
    "show": "draw a corpus, its masks or a run as an offline page",
}


def load_stage(name: str) -> ModuleType:
    """Import the module of a stage, which has `Recipe` and `run(recipe, quiet)`."""
    module = "import_model" if name == "import" else name.replace("-", "_")  # `import` is a Python keyword
    return import_module(f".{module}", __name__)
