"""The same weights for both libraries: a Hugging Face folder (`model=`, or random), and its import."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith import api
from bertsmith.config import from_dict, to_dict
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives.supervised import Supervised
from bertsmith.tasks import TextClassification
from bertsmith.tokenization.tokenizer import Tokenizer

from . import peer
from .inputs import BenchmarkInputs


class WeightFolders(NamedTuple):
    """Checkpoint folders of the same weights, in our format and in Hugging Face's."""

    ours: Path
    theirs: Path


def import_pretrained(bench: BenchmarkInputs) -> WeightFolders:
    """The pre-trained encoder without a head; neither side has attention dropout."""
    ours, theirs = bench.folder / "pretrained", Path(bench.options.get("model", bench.folder / "huggingface"))
    if "model" not in bench.options and not theirs.exists():
        _export_random_model(bench, theirs)
    api.import_model(source=str(theirs), out=str(ours), quiet=True)
    return WeightFolders(ours, theirs)


def build_classifiers(bench: BenchmarkInputs, length: int) -> WeightFolders:
    """Classifiers with the same encoder and the same head of two labels."""
    base, out = import_pretrained(bench), WeightFolders(bench.folder / "classifier", bench.folder / "classifier-huggingface")
    if out.ours.exists():
        return out
    theirs = peer.load_model("classify", base.theirs, 2)
    theirs.save_pretrained(out.theirs)
    peer.load_tokenizer(base.theirs).save_pretrained(out.theirs)
    pretrained, tokenizer, _ = checkpoint.load(base.ours)
    task = TextClassification(labels=("LABEL_0", "LABEL_1"))
    config = ModelConfig(pretrained.config.encoder, pretrained.config.vocab_size, Supervised(task).heads())
    model = build_model(config, 0)
    model.encoder.load_state_dict(pretrained.encoder.state_dict())
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(model.heads["task"].classifier, name).copy_(getattr(theirs.classifier, name))
    record: dict[str, Any] = {"stage": "finetune", "task": to_dict(task), "max_length": length}
    checkpoint.save(out.ours, model, tokenizer, {}, record)
    return out


def _export_random_model(bench: BenchmarkInputs, folder: Path) -> None:
    tokenizer = Tokenizer.load(bench.tokenizer)
    layers, hidden_size = map(int, bench.options.get("size", "6x384").split("x"))
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "mixer": {"num_attention_heads": 12},
        "feedforward": {"intermediate_size": 4 * hidden_size},
    }
    config = from_dict(ModelConfig, {"encoder": sizes, "vocab_size": len(tokenizer)}, "the random model")
    checkpoint.save(bench.folder / "random", build_model(config, 0), tokenizer, {}, {})
    api.export(model=str(bench.folder / "random"), out=str(folder), quiet=True)
