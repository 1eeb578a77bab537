"""A model of short texts to one of long ones: windows instead of full attention, positions tiled, anchors with copies."""

from typing import Annotated, Any

import msgspec

from .. import __version__
from ..artifacts import MANIFEST, atomic_folder, check_writable, content_hash, fingerprint, lock_output, read_json, resolve_path
from ..config import Config, NonNegInt, PosInt, to_dict
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..model.mixers import Longformer
from ..model.model import Model, ModelConfig
from ..model.surgery import convert_weights, extend_positions, replace_mixer
from ..pretraining.setup import MaxLength
from ..runs import command_line

REWRITTEN_KEYS = ("stage", "recipe", "model", "weights", "version")  # of the source's record, what is told anew


class Recipe(Config, frozen=True):
    """A trained model, how long its texts are to be, and how far its tokens are to see."""

    model: Annotated[str, "the checkpoint folder to begin from: BERT, RoBERTa or another with mixer=dense, or with windows"]
    out: Annotated[str, "the checkpoint folder to make; `pretrain init=` goes on with it"]
    length: Annotated[MaxLength, "the longest sequence it shall read"] = 4096
    reach: Annotated[
        tuple[PosInt, ...] | None, "tokens seen on each side, or one for each layer; none: as far as its windows, or else 256"
    ] = None
    dilation: Annotated[
        tuple[PosInt, ...] | None,
        "of the last heads, such as [2, 2]: each sees every second token, twice as far; none: as its windows have it",
    ] = None
    dilated: Annotated[NonNegInt | None, "layers from the top whose heads are dilated; all, if none; goes with dilation"] = None
    anchors: Annotated[bool, "[CLS], or what a task chooses, meets its whole sequence"] = True


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Makes the folder, or says that it is there already."""
    screen, source, out = Console(quiet), resolve_path(recipe.model, "model"), resolve_path(recipe.out, "out")
    with lock_output(out):
        before, tokenizer, _ = checkpoint.load(source)
        recipe = fill_defaults(recipe, before)
        told = {name: value for name, value in to_dict(recipe).items() if name != "out"}
        identity = fingerprint(told | {"model": content_hash(source) or str(source)})
        if made := not _is_finished(out, identity, screen):
            check_writable(out)
            model = convert_model(before, recipe)
            record = {name: value for name, value in checkpoint.read_config(source).items() if name not in REWRITTEN_KEYS}
            record |= {"stage": "convert-long", "recipe": to_dict(recipe), "tokenizer": tokenizer.fingerprint}
            record |= {"family": "longformer"} if record.get("family") == "roberta" else {}
            record |= {"length": recipe.length} if "length" in record else {}  # what it was taught, it does on longer texts
            card = {"identity": identity, "source": recipe.model, "command": command_line()}
            with atomic_folder(out) as part:
                checkpoint.write_files(part, model, tokenizer, card, record | {"version": __version__})
        _report_changes(before, recipe, screen)
    return {"out": str(out), "made": made, "positions": recipe.length, "reach": list(recipe.reach or ())}


def fill_defaults(recipe: Recipe, base: Model) -> Recipe:
    """What was left open, as the model has it if it has windows, or else as is usual."""
    has = base.config.encoder.mixer
    usual = has if isinstance(has, Longformer) else Longformer()
    if recipe.reach == ():
        raise UserError("reach=[] sees nothing; give a number of tokens, or one for each layer, or leave it out")
    names = ["reach"] if recipe.dilation is not None else ["reach", "dilation", "dilated"]  # what is dilated goes together
    open_ = {name: getattr(usual, name) for name in names if getattr(recipe, name) is None}
    return msgspec.structs.replace(recipe, **open_)


def convert_model(base: Model, recipe: Recipe) -> Model:
    """Texts that are all within reach it reads as the model before did."""
    recipe, has = fill_defaults(recipe, base), base.config.encoder.mixer
    mixer = Longformer(
        reach=recipe.reach or (), dilation=recipe.dilation or (), dilated=recipe.dilated, anchors=recipe.anchors,
        dropout=has.dropout if isinstance(has, Longformer) else 0.0,
    )  # fmt: skip
    if base.decoder is not None:
        raise UserError("a model with a decoder is not made longer; convert its encoder before it learns to write")
    encoder = extend_positions(replace_mixer(base.config.encoder, mixer), recipe.length)
    config = ModelConfig(encoder=encoder, vocabulary=base.config.vocabulary, heads=base.config.heads)
    model = Model(config, init_weights=False)
    model.load_state_dict(convert_weights(base.state_dict(), encoder))
    return model.eval()


def _report_changes(base: Model, recipe: Recipe, console: Console) -> None:
    encoder, reach = base.config.encoder, min(recipe.reach or ())
    if encoder.table is True and recipe.length > encoder.positions:
        console.info(f"{encoder.positions:,} positions are tiled to {recipe.length:,}; it has yet to learn what they mean: "
                   "go on with `pretrain init=`")  # fmt: skip
    if getattr(encoder.mixer, "rotary", None) and recipe.length > encoder.positions:
        met = ", and anchors beyond it are met as if they stood at its edge"
        console.info("rotary positions tell distances, and need no table: within a window they are as it was trained with"
                   + (met if recipe.anchors else ""))  # fmt: skip
    if (dropout := getattr(encoder.mixer, "dropout", 0.0)) and not isinstance(encoder.mixer, Longformer):
        console.info(f"mixer.dropout={dropout:g} is left out, with which windows take a slower path; who wants it says so going "
                   "on: `pretrain init= model.mixer=window model.mixer.dropout=`")  # fmt: skip
    if not recipe.dilation and not isinstance(encoder.mixer, Longformer):
        ways = "the layers above and anchors" if recipe.anchors else "the layers above"
        console.info(f"texts of up to {reach + 1:,} tokens are read as before; in longer ones, tokens more than {reach:,} apart "
                   f"meet through {ways}")  # fmt: skip


def _is_finished(out: Any, identity: str, console: Console) -> bool:
    if not (out / MANIFEST).exists():
        return False
    if read_json(out / "card.json").get("identity") != identity:
        raise UserError(f"{out} holds another model; choose another out, or remove it")
    console.info(f"{out} is there already, made from the same model")
    return True
