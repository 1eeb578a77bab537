"""Fine-tuning of seq2seq models: decoder config and initialization, prefix LM (UniLM), and length checks."""

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


def build_seq2seq_config(
    recipe: "FinetuneRecipe", task: Seq2Seq, base: Model, config: ModelConfig, max_length: int
) -> ModelConfig:
    """Config with the recipe's decoder or the base's own; without one, a prefix LM: the encoder with a causal mask (UniLM)."""
    if recipe.decoder and base.config.decoder:
        raise UserError(f"model={recipe.model} has a decoder already; leave out `decoder`")
    decoder, encoder = recipe.decoder or base.config.decoder, config.encoder
    if decoder is None:
        if (
            not isinstance(encoder.mixer, Attention)
            or encoder.separates_directions
            or encoder.layer_types
            or encoder.embeddings is not None
        ):
            raise UserError(
                "this encoder cannot be a prefix LM, which needs mixer=attention in all layers; set decoder=rnn or transformer"
            )
        encoder = msgspec.structs.replace(encoder, mixer=msgspec.structs.replace(encoder.mixer, causal=True))
    _check_lengths(max_length, task.max_target_length, encoder.max_position_embeddings, joint=decoder is None)
    heads = config.heads | {name: head for name, head in base.config.heads.items() if name == LM_HEAD}
    return msgspec.structs.replace(config, encoder=encoder, decoder=decoder, heads=heads)


def init_from_base(recipe: "FinetuneRecipe", model: Model, base: Model, console: Console) -> None:
    """Copy LM head and decoder from the base model; a new decoder is initialized from the encoder where shapes allow."""
    if recipe.random_init or not isinstance(recipe.model, str):
        return
    if LM_HEAD in base.heads:
        model.heads[LM_HEAD].load_state_dict(base.heads[LM_HEAD].state_dict())
    if model.decoder is not None and base.decoder is not None:
        model.decoder.load_state_dict(base.decoder.state_dict())
    elif model.decoder is not None and (uninitialized := model.decoder.init_from_encoder(model.encoder)):
        console.info(
            f"decoder: {uninitialized} is randomly initialized (it does not match the encoder), and so is the cross-attention"
        )


def _check_lengths(length: int, max_target_length: int, max_positions: int, joint: bool) -> None:
    needed = length + max_target_length if joint else max(length, max_target_length)
    if needed > max_positions:
        lengths = f"max_length={length} {'+' if joint else 'or'} task.max_target_length={max_target_length}"
        raise UserError(f"{lengths} is more than the model's {max_positions} positions; lower max_length or max_target_length")
