"""Models that write: the decoder they have, what it begins as, and that sources and answers have room."""

from typing import TYPE_CHECKING

import msgspec

from ..console import Screen
from ..errors import BadInput
from ..model.heads import HEAD
from ..model.mixers import Dense
from ..model.model import Model, ModelConfig
from ..tasks import Generate

if TYPE_CHECKING:
    from .recipe import FinetuneRecipe


def check(recipe: "FinetuneRecipe") -> None:
    """Settings that contradict each other, before anything is read."""
    writes = isinstance(recipe.task, Generate)
    if recipe.decoder and not writes:
        raise BadInput("a decoder writes the answers of task=generate, and other tasks have none; leave out `decoder`")
    if writes and (recipe.rdrop or recipe.adversary):
        raise BadInput("task=generate is learnt by what it would have written; leave out rdrop and adversary")


def writing(recipe: "FinetuneRecipe", task: Generate, base: Model, config: ModelConfig) -> ModelConfig:
    """The config of a model that writes: with a decoder, new or its own; or one stack, causal behind the source (UniLM)."""
    if recipe.decoder and base.config.decoder:
        raise BadInput(f"{recipe.model} has a decoder already; leave out `decoder`")
    decoder, encoder = recipe.decoder or base.config.decoder, config.encoder
    if decoder is None:
        if not isinstance(encoder.mixer, Dense) or encoder.others or encoder.front is not None:
            raise BadInput("an encoder of this kind writes nothing by itself; give it a decoder, such as decoder=recurrent")
        encoder = msgspec.structs.replace(encoder, mixer=msgspec.structs.replace(encoder.mixer, causal=True))
    _room(recipe.length, task.longest, encoder.positions, joint=decoder is None)
    heads = config.heads | {name: head for name, head in base.config.heads.items() if name == HEAD}
    return msgspec.structs.replace(config, encoder=encoder, decoder=decoder, heads=heads)


def begin(recipe: "FinetuneRecipe", model: Model, base: Model, screen: Screen) -> None:
    """What the model it comes from knew of writing: its head for words, its decoder; or the decoder begins as its encoder."""
    if recipe.scratch or not isinstance(recipe.model, str):
        return
    if HEAD in base.heads:
        model.heads[HEAD].load_state_dict(base.heads[HEAD].state_dict())
    if model.decoder is not None and base.decoder is not None:
        model.decoder.load_state_dict(base.decoder.state_dict())
    elif model.decoder is not None and (new := model.decoder.start_from(model.encoder)):
        screen.say(f"the decoder cannot begin as this encoder: {new} begins anew, as attention to the source always does")


def _room(length: int, longest: int, positions: int, joint: bool) -> None:
    wanted = length + longest if joint else max(length, longest)
    if wanted > positions:
        both = f"sources of {length} tokens and answers of {longest}" + (" behind them" if joint else "")
        raise BadInput(f"{both} are more than the model's {positions} positions; lower length or task.longest")
