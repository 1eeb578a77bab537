"""A model of short texts to one of long ones: windows instead of full attention, positions tiled, anchors with copies."""

from typing import Annotated, Any

import msgspec

from .. import __version__
from ..artifacts import MANIFEST, claimed, content, fingerprint, named, new_folder, read_json, vacant
from ..config import Config, Count, Whole, plain
from ..console import Screen
from ..errors import BadInput
from ..model import checkpoint
from ..model.mixers import Window
from ..model.model import Model, ModelConfig
from ..model.surgery import adopted, lengthened, swapped
from ..pretraining.setup import Length
from ..runs import command

MADE = ("stage", "recipe", "model", "weights", "version")  # of the source's record, what is told anew


class Recipe(Config, frozen=True):
    """A trained model, how long its texts are to be, and how far its tokens are to see."""

    model: Annotated[str, "the checkpoint folder to begin from: BERT, RoBERTa or another with mixer=dense, or with windows"]
    out: Annotated[str, "the checkpoint folder to make; `pretrain init=` goes on with it"]
    length: Annotated[Length, "the longest sequence it shall read"] = 4096
    reach: Annotated[
        tuple[Count, ...] | None, "tokens seen on each side, or one for each layer; none: as far as its windows, or else 256"
    ] = None
    dilation: Annotated[
        tuple[Count, ...] | None,
        "of the last heads, such as [2, 2]: each sees every second token, twice as far; none: as its windows have it",
    ] = None
    dilated: Annotated[Whole | None, "layers from the top whose heads are dilated; all, if none; goes with dilation"] = None
    anchors: Annotated[bool, "[CLS], or what a task chooses, meets its whole sequence"] = True


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Makes the folder, or says that it is there already."""
    screen, source, out = Screen(quiet), named(recipe.model, "model"), named(recipe.out, "out")
    with claimed(out):
        before, tokenizer, _ = checkpoint.load(source)
        recipe = settled(recipe, before)
        told = {name: value for name, value in plain(recipe).items() if name != "out"}
        identity = fingerprint(told | {"model": content(source) or str(source)})
        if made := not _finished(out, identity, screen):
            vacant(out)
            model = converted(before, recipe)
            record = {name: value for name, value in checkpoint.recorded(source).items() if name not in MADE}
            record |= {"stage": "convert-long", "recipe": plain(recipe), "tokenizer": tokenizer.fingerprint}
            record |= {"family": "longformer"} if record.get("family") == "roberta" else {}
            record |= {"length": recipe.length} if "length" in record else {}  # what it was taught, it does on longer texts
            card = {"identity": identity, "source": recipe.model, "command": command()}
            with new_folder(out) as part:
                checkpoint.write(part, model, tokenizer, card, record | {"version": __version__})
        _tell(before, recipe, screen)
    return {"out": str(out), "made": made, "positions": recipe.length, "reach": list(recipe.reach or ())}


def settled(recipe: Recipe, before: Model) -> Recipe:
    """What was left open, as the model has it if it has windows, or else as is usual."""
    has = before.config.encoder.mixer
    usual = has if isinstance(has, Window) else Window()
    if recipe.reach == ():
        raise BadInput("reach=[] sees nothing; give a number of tokens, or one for each layer, or leave it out")
    names = ["reach"] if recipe.dilation is not None else ["reach", "dilation", "dilated"]  # what is dilated goes together
    open_ = {name: getattr(usual, name) for name in names if getattr(recipe, name) is None}
    return msgspec.structs.replace(recipe, **open_)


def converted(before: Model, recipe: Recipe) -> Model:
    """Texts that are all within reach it reads as the model before did."""
    recipe, has = settled(recipe, before), before.config.encoder.mixer
    mixer = Window(
        reach=recipe.reach or (), dilation=recipe.dilation or (), dilated=recipe.dilated, anchors=recipe.anchors,
        dropout=has.dropout if isinstance(has, Window) else 0.0,
    )  # fmt: skip
    if before.decoder is not None:
        raise BadInput("a model with a decoder is not made longer; convert its encoder before it learns to write")
    encoder = lengthened(swapped(before.config.encoder, mixer), recipe.length)
    config = ModelConfig(encoder=encoder, vocabulary=before.config.vocabulary, heads=before.config.heads)
    model = Model(config, drawn=False)
    model.load_state_dict(adopted(before.state_dict(), encoder))
    return model.eval()


def _tell(before: Model, recipe: Recipe, screen: Screen) -> None:
    encoder, reach = before.config.encoder, min(recipe.reach or ())
    if encoder.table is True and recipe.length > encoder.positions:
        screen.say(f"{encoder.positions:,} positions are tiled to {recipe.length:,}; it has yet to learn what they mean: "
                   "go on with `pretrain init=`")  # fmt: skip
    if getattr(encoder.mixer, "rotary", None) and recipe.length > encoder.positions:
        met = ", and anchors beyond it are met as if they stood at its edge"
        screen.say("rotary positions tell distances, and need no table: within a window they are as it was trained with"
                   + (met if recipe.anchors else ""))  # fmt: skip
    if (dropout := getattr(encoder.mixer, "dropout", 0.0)) and not isinstance(encoder.mixer, Window):
        screen.say(f"mixer.dropout={dropout:g} is left out, with which windows take a slower path; who wants it says so going "
                   "on: `pretrain init= model.mixer=window model.mixer.dropout=`")  # fmt: skip
    if not recipe.dilation and not isinstance(encoder.mixer, Window):
        ways = "the layers above and anchors" if recipe.anchors else "the layers above"
        screen.say(f"texts of up to {reach + 1:,} tokens are read as before; in longer ones, tokens more than {reach:,} apart "
                   f"meet through {ways}")  # fmt: skip


def _finished(out: Any, identity: str, screen: Screen) -> bool:
    if not (out / MANIFEST).exists():
        return False
    if read_json(out / "card.json").get("identity") != identity:
        raise BadInput(f"{out} holds another model; choose another out, or remove it")
    screen.say(f"{out} is there already, made from the same model")
    return True
