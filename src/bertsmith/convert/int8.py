"""A checkpoint folder of ours to one of a quarter its size, with a card: as models are shipped."""

import shutil
from pathlib import Path
from typing import Any

import torch

from ..artifacts import claimed, new_folder, vacant, write_whole
from ..console import Screen
from ..errors import BadInput
from ..inference.predictor import Predictor
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.int8 import furthest
from ..model.model import Model
from ..model.packing import Layout
from ..pretrained.card import Facts, Filled, written
from ..pretrained.shipped import CARD
from ..tokenization.tokenizer import Tokenizer
from .huggingface.folder import REST

BESIDE = ("metrics.jsonl", REST)  # taken along where the source has them
HALF = 0.5 + 1e-3  # of a step: what rounding may cost a weight, and what float32 adds to that


def packed(source: Path, out: Path, facts: Facts | None, screen: Screen) -> dict[str, Any]:
    """Writes the folder and reads it back: no weight may lie further from its old value than half a step of its row."""
    model, tokenizer, card = checkpoint.load(source)
    with claimed(out):
        vacant(out)
        with new_folder(out) as part:
            result = _written(part, source, model, tokenizer, card)
            if facts:
                write_whole(part / CARD, _card(out.absolute().name, facts, part).encode())
    size = sum(path.stat().st_size for path in out.iterdir())
    screen.say(f"{out}: {size / 1e6:.1f} MB; hidden states of random ids lie {result['hidden']:.2%} from those of {source}")
    return {"out": str(out), "format": "packed", "bytes": size, **result}


def _written(part: Path, source: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any]) -> dict[str, float]:
    own = ("model", "weights")
    record = {name: value for name, value in checkpoint.recorded(source).items() if name not in own}
    told = {name: value for name, value in card.items() if name != "identity"}  # these are not the weights that it made
    checkpoint.write(part, model, tokenizer, told, record, small=True)
    for name in BESIDE:
        if (source / name).exists():
            shutil.copy(source / name, part / name)
    if (steps := furthest(model.state_dict(), checkpoint.stored(part))) > HALF:
        raise BadInput(f"{part}: a weight came back {steps:.2f} steps from where it was; nothing is written")
    return {"steps": steps, "hidden": _apart(model, checkpoint.load(part)[0])}


@torch.inference_mode()
def _apart(model: Model, other: Model, length: int = 64) -> float:
    """How far the hidden states of random ids lie apart, as a share of their size."""
    encoder, stream = model.config.encoder, torch.Generator().manual_seed(0)
    layout = Layout.of([min(length, encoder.positions)])
    tokens = torch.randint(0, model.config.vocabulary, (len(layout.owner),), generator=stream)
    inputs = Inputs(tokens, layout, torch.zeros_like(tokens))
    ours = model(inputs)
    return float((other(inputs) - ours).norm() / ours.norm())


def _card(name: str, facts: Facts, part: Path) -> str:
    model, tokenizer, card = checkpoint.load(part)
    return written(name, facts, _about(model, part), _filled(Predictor(model, tokenizer, card), facts.examples))


def _about(model: Model, part: Path) -> dict[str, str]:
    encoder, size = model.config.encoder, sum(path.stat().st_size for path in part.glob("model*.safetensors"))
    return {
        "parameters": f"{sum(weight.numel() for weight in model.parameters()):,}",
        "shape": f"{encoder.layers} layers, width {encoder.width}, {encoder.positions} positions",
        "vocabulary": f"{model.config.vocabulary:,} pieces",
        "heads": ", ".join(model.config.heads) or "none",
        "weights": f"{size / 1e6:.1f} MB: int8 with a float32 scale for each row",
    }


def _filled(predictor: Predictor, texts: tuple[str, ...]) -> Filled:
    """What stands in the card is what the packed weights say; a text of several masks shows the words of each."""
    masks = [(text, predictor.fill(text)) for text in texts]
    return [(text, [one["word"] for found in filled for one in found]) for text, filled in masks]
