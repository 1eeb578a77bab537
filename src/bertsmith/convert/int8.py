"""Export of a checkpoint with int8 weights (a quarter of the size) and a model card, the form in which models are shipped."""

import math
import re
import shutil
from pathlib import Path, PureWindowsPath
from typing import Any

import torch

from ..artifacts import atomic_folder, read_finished_run
from ..console import Console
from ..errors import UserError
from ..inference.engines.torch import TorchEngine
from ..inference.fill_mask import group_by_mask
from ..inference.predictor import Predictor
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.folder import read_shapes
from ..model.int8 import max_rounding_error
from ..model.model import Model
from ..model.packing import Layout
from ..pretrained.card import CardFacts, FillExamples, render_card
from ..pretrained.shipped import CARD_FILE
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_writable, lock_output, write_atomic
from .huggingface.folder import EXTRA_TENSORS_FILE

COPIED_FILES = ("metrics.jsonl", EXTRA_TENSORS_FILE)  # copied if the source has them
ABSOLUTE_PATH = re.compile(r"(?P<key>(?:[A-Za-z_][\w.]*=)?)(?P<path>(?:~?/|[A-Za-z]:[\\/])[^\n]*)")
MAX_ERROR_STEPS = 0.5 + 1e-3  # in quantisation steps: half a step of rounding error, and float32 arithmetic


def export_int8(source: Path, out: Path, facts: CardFacts | None, console: Console, identity: str) -> dict[str, Any]:
    """Write the folder and read it back: no weight may differ by more than half a quantisation step of its row."""
    model, tokenizer, card = checkpoint.load(source)
    with lock_output(out):
        if finished := read_finished_run(out, identity):
            console.info(f"{out} already exists, exported from the same model")
            return {"out": str(out), "format": "int8", "bytes": sum(path.stat().st_size for path in out.iterdir()), **finished}
        check_writable(out)
        run: dict[str, Any] = {"identity": identity}
        with atomic_folder(out, run) as part:
            record = checkpoint.read_config(source)
            if facts:  # to be published
                card, record = strip_folders(card), strip_folders(record)
            result = run["result"] = _write_int8(part, source, model, tokenizer, card, record)
            if facts:
                write_atomic(part / CARD_FILE, _render_card(out.absolute().name, facts, part).encode())
    size = sum(path.stat().st_size for path in out.iterdir())
    console.info(
        f"{out}: {size / 1e6:.1f} MB; hidden states of random ids differ by {result['hidden_state_error']:.2%} from those "
        f"of {source}"
    )
    return {"out": str(out), "format": "int8", "bytes": size, **result}


def strip_folders(value: Any) -> Any:
    """A card or record in which absolute paths, alone or as `key=PATH`, are only names: others have no use for the folders of
    the machine that a model was trained on."""
    if isinstance(value, dict):
        return {name: strip_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [strip_folders(item) for item in value]
    if isinstance(value, str) and (match := ABSOLUTE_PATH.fullmatch(value)):
        return match["key"] + PureWindowsPath(match["path"]).name  # both separators
    return value


def _write_int8(
    part: Path, source: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any]
) -> dict[str, float]:
    rewritten = ("model", "weights")
    record = {name: value for name, value in record.items() if name not in rewritten}
    # without the id of the run, which wrote other weights
    card_values = {name: value for name, value in card.items() if name != "identity"}
    checkpoint.write_files(part, model, tokenizer, card_values, record, as_int8=True)
    for name in COPIED_FILES:
        if (source / name).exists():
            shutil.copy(source / name, part / name)
    if (steps := max_rounding_error(model.state_dict(), checkpoint.read_tensors(part))) > MAX_ERROR_STEPS:
        raise UserError(
            f"{part}: a weight differs by {steps:.2f} quantization steps after reading it back; nothing was written"
        )
    return {"max_rounding_error": steps, "hidden_state_error": _relative_difference(model, checkpoint.load(part)[0])}


@torch.inference_mode()
def _relative_difference(model: Model, other: Model, length: int = 64) -> float:
    """||h_other - h|| / ||h|| of the final hidden states for random ids."""
    encoder, generator = model.config.encoder, torch.Generator().manual_seed(0)
    layout = Layout.from_lengths([min(length, encoder.max_position_embeddings)])
    tokens = torch.randint(0, model.config.vocab_size, (len(layout.seq_id),), generator=generator)
    inputs = Inputs(tokens, layout, torch.zeros_like(tokens))
    hidden_states = model(inputs)
    return float((other(inputs) - hidden_states).norm() / hidden_states.norm())


def _render_card(name: str, facts: CardFacts, part: Path) -> str:
    model, tokenizer, card = checkpoint.load(part)
    predictor, size = (
        Predictor(TorchEngine(model, "fp32"), tokenizer, card),
        sum(path.stat().st_size for path in part.glob("model*.safetensors")),
    )
    rows = describe_model(part) | {"weights": f"{size / 1e6:.1f} MB: int8 with a float32 scale for each row"}
    return render_card(name, facts, rows, _fill_examples(predictor, facts.examples))


def describe_model(folder: Path) -> dict[str, str]:
    """What the card says of the architecture."""
    config = checkpoint.read_model_config(folder)
    encoder, num_parameters = config.encoder, sum(map(math.prod, read_shapes(folder).values()))
    return {
        "parameters": f"{num_parameters:,}",
        "shape": f"{encoder.num_hidden_layers} layers, hidden size {encoder.hidden_size}, "
        f"{encoder.max_position_embeddings} positions",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "heads": ", ".join(config.heads) or "none",
    }


def _fill_examples(predictor: Predictor, texts: tuple[str, ...]) -> FillExamples:
    """Predictions of the int8 model for the example texts; for a text with several masks, those of all masks in turn."""
    filled_texts = [(text, group_by_mask(predictor.fill(text))) for text in texts]
    return [
        (text, [prediction["token_str"] for predictions in masks for prediction in predictions]) for text, masks in filled_texts
    ]
