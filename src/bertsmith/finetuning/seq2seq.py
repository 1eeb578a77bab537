"""Models that write: the decoder they have, what it begins as, and that sources and answers have room."""

from typing import TYPE_CHECKING

import msgspec

from ..console import Console
from ..errors import UserError
from ..model.heads import LM_HEAD
from ..model.mixers import Attention
from ..model.model import Model, ModelConfig
from ..tasks import Seq2Seq

if TYPE_CHECKING:
    from .recipe import FinetuneRecipe


def check_seq2seq(recipe: "FinetuneRecipe") -> None:
    """Settings that contradict each other, before anything is read."""
    writes = isinstance(recipe.task, Seq2Seq)
    if recipe.decoder and not writes:
        raise UserError("a decoder writes the answers of task=generate, and other tasks have none; leave out `decoder`")
    if writes and (recipe.rdrop or recipe.adversary):
        raise UserError("task=generate is learnt by what it would have written; leave out rdrop and adversary")


def build_seq2seq_config(recipe: "FinetuneRecipe", task: Seq2Seq, base: Model, config: ModelConfig) -> ModelConfig:
    """The config of a model that writes: with a decoder, new or its own; or one stack, causal behind the source (UniLM)."""
    if recipe.decoder and base.config.decoder:
        raise UserError(f"{recipe.model} has a decoder already; leave out `decoder`")
    decoder, encoder = recipe.decoder or base.config.decoder, config.encoder
    if decoder is None:
        if not isinstance(encoder.mixer, Attention) or encoder.others or encoder.front is not None:
            raise UserError("an encoder of this kind writes nothing by itself; give it a decoder, such as decoder=recurrent")
        encoder = msgspec.structs.replace(encoder, mixer=msgspec.structs.replace(encoder.mixer, causal=True))
    _check_lengths(recipe.length, task.longest, encoder.positions, joint=decoder is None)
    heads = config.heads | {name: head for name, head in base.config.heads.items() if name == LM_HEAD}
    return msgspec.structs.replace(config, encoder=encoder, decoder=decoder, heads=heads)


def init_from_base(recipe: "FinetuneRecipe", model: Model, base: Model, console: Console) -> None:
    """What the model it comes from knew of writing: its head for words, its decoder; or the decoder begins as its encoder."""
    if recipe.scratch or not isinstance(recipe.model, str):
        return
    if LM_HEAD in base.heads:
        model.heads[LM_HEAD].load_state_dict(base.heads[LM_HEAD].state_dict())
    if model.decoder is not None and base.decoder is not None:
        model.decoder.load_state_dict(base.decoder.state_dict())
    elif model.decoder is not None and (new := model.decoder.init_from_encoder(model.encoder)):
        console.info(f"the decoder cannot begin as this encoder: {new} begins anew, as attention to the source always does")


def _check_lengths(length: int, max_target_length: int, max_positions: int, joint: bool) -> None:
    wanted = length + max_target_length if joint else max(length, max_target_length)
    if wanted > max_positions:
        both = f"sources of {length} tokens and answers of {max_target_length}" + (" behind them" if joint else "")
        raise UserError(f"{both} are more than the model's {max_positions} positions; lower length or task.longest")
