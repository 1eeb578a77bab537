"""Model setup for fine-tuning: models without pre-training, special tokens, freezing, layer-wise learning rates."""

import re
from typing import Literal

from torch import Tensor

from ..artifacts import resolve_path
from ..console import Console
from ..errors import UserError
from ..model.config import EncoderConfig
from ..model.model import Model, ModelConfig, build_model
from ..model.surgery import resize_token_embeddings
from ..tasks import TaskConfig
from ..tokenization.tokenizer import Tokenizer
from ..train.param_groups import ParamSchedule, ParamScheduleFn
from ..word_vectors.models import init_embeddings, load_vectors

_LAYER_NAME = re.compile(r"encoder\.stack\.layers\.(\d+)\.")
_TOP_PREFIXES = ("heads.", "decoder.", "encoder.pooler.", "encoder.stack.final_norm.")


def build_new_model(
    encoder_config: EncoderConfig, tokenizer_path: str | None, vectors_path: str | None, seed: int, console: Console
) -> tuple[Model, Tokenizer]:
    """A randomly initialized encoder without heads, its token embeddings from word vectors where given, and its tokenizer."""
    if tokenizer_path is None:
        raise UserError("a new model needs a tokenizer; set tokenizer=FOLDER (made by `bertsmith tokenizer`), or write ./NAME "
                       "if model is a checkpoint folder with the name of a preset")  # fmt: skip
    tokenizer = encoder_config.open_vocabulary(Tokenizer.load(resolve_path(tokenizer_path, "tokenizer")))
    model = build_model(ModelConfig(encoder=encoder_config, vocab_size=len(tokenizer)), seed, tokenizer)
    if vectors_path is not None:
        init_embeddings(model, tokenizer, load_vectors(resolve_path(vectors_path, "vectors")), console)
    return model.eval(), tokenizer


def add_special_tokens(task: TaskConfig, model: Model, tokenizer: Tokenizer) -> tuple[Tokenizer, dict[str, Tensor]]:
    """The tokenizer and the encoder's weights, extended by the task's special tokens that they do not have yet."""
    extended, weights = tokenizer.with_special_tokens(getattr(task, "special_tokens", ())), model.state_dict()
    if num_new := len(extended) - len(tokenizer):
        weights = resize_token_embeddings(weights, len(tokenizer), [tokenizer.non_special_ids.tolist()] * num_new)
    return extended, {name.removeprefix("encoder."): weight for name, weight in weights.items() if name.startswith("encoder.")}


def layer_depth(name: str, num_layers: int) -> int:
    """Depth of a parameter: 0 for embeddings, 1 to num_layers for blocks, num_layers + 1 for final norm, pooler and heads."""
    match = _LAYER_NAME.match(name)
    return int(match[1]) + 1 if match else num_layers + 1 if name.startswith(_TOP_PREFIXES) else 0


def freeze(model: Model, layers: int | Literal["embeddings", "all"]) -> None:
    """Freeze the embeddings and the lowest `layers` blocks, or with "all" the whole encoder, its pooler included.

    Frozen modules stay in eval mode, so without dropout.
    """
    stack, encoder = model.encoder.stack, model.encoder
    num_blocks = len(stack.layers)
    num_frozen = num_blocks if layers == "all" else 0 if layers == "embeddings" else layers
    if num_frozen > num_blocks:
        raise UserError(f"freeze={layers} is more than the model's {num_blocks} layers; lower it, or set freeze=all")
    if layers == 0:
        return
    for name, weight in model.named_parameters():
        if layer_depth(name, num_blocks) <= num_frozen:
            weight.requires_grad_(False)
    if layers == "all":
        encoder.requires_grad_(False)
    model.always_eval = (encoder.drop, *list(stack.layers)[:num_frozen])


def build_param_schedule(
    num_layers: int, layer_decay: float = 1.0, unfreeze_fraction: float = 0.0, head_lr_multiplier: float = 1.0
) -> ParamScheduleFn:
    """Discriminative learning rates and gradual unfreezing (ULMFiT, Howard and Ruder 2018, sections 3.2 and 3.3).

    The learning rate of each block is `layer_decay` times that of the block above it, that of heads `head_lr_multiplier` times
    the base rate; blocks are unfrozen from the top down over `unfreeze_fraction` of the run.
    """

    def param_schedule(name: str) -> ParamSchedule:
        layers_from_top = num_layers + 1 - layer_depth(name, num_layers)
        lr_multiplier = head_lr_multiplier if name.startswith("heads.") else 1.0
        return ParamSchedule(
            lr_multiplier * layer_decay**layers_from_top, unfreeze_fraction * layers_from_top / (num_layers + 1)
        )

    return param_schedule
