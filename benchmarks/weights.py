"""The same weights on both sides: a Hugging Face folder (`model=`, or a random one of 6 x 384), and what we import of it."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith import api
from bertsmith.config import parse, plain
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, built
from bertsmith.objectives.supervised import Supervised
from bertsmith.tasks import Classify
from bertsmith.tokenization.tokenizer import Tokenizer

from . import peer
from .material import Material


class Weights(NamedTuple):
    ours: Path
    theirs: Path


def pretrained(stuff: Material) -> Weights:
    """Without a head; no side has dropout on attention."""
    ours, theirs = stuff.folder / "pretrained", Path(stuff.given.get("model", stuff.folder / "huggingface"))
    if "model" not in stuff.given and not theirs.exists():
        _random(stuff, theirs)
    api.import_model(source=str(theirs), out=str(ours), quiet=True)
    return Weights(ours, theirs)


def classifier(stuff: Material, length: int) -> Weights:
    """With one and the same head of two labels."""
    base, out = pretrained(stuff), Weights(stuff.folder / "classifier", stuff.folder / "classifier-huggingface")
    if out.ours.exists():
        return out
    theirs = peer.model("classify", base.theirs, 2)
    theirs.save_pretrained(out.theirs)
    peer.tokenizer(base.theirs).save_pretrained(out.theirs)
    encoder, tokenizer, _ = checkpoint.load(base.ours)
    task = Classify(labels=("LABEL_0", "LABEL_1"))
    config = ModelConfig(encoder.config.encoder, encoder.config.vocabulary, Supervised(task).heads())
    model = built(config, 0)
    model.encoder.load_state_dict(encoder.encoder.state_dict())
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(model.heads["task"].score, name).copy_(getattr(theirs.classifier, name))
    record: dict[str, Any] = {"stage": "finetune", "task": plain(task), "length": length}
    checkpoint.save(out.ours, model, tokenizer, {}, record)
    return out


def _random(stuff: Material, folder: Path) -> None:
    tokenizer = Tokenizer.load(stuff.tokenizer)
    sizes = {"layers": 6, "width": 384, "mixer": {"heads": 12}, "feedforward": {"inner": 1536}}
    config = parse(ModelConfig, {"encoder": sizes, "vocabulary": len(tokenizer)}, "the random model")
    checkpoint.save(stuff.folder / "random", built(config, 0), tokenizer, {}, {})
    api.export(model=str(stuff.folder / "random"), out=str(folder), quiet=True)
