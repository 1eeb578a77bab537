"""A model that begins anew: a preset or a table, a tokenizer, and vectors for its words, if there are any."""

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


def build_new_model(
    encoder_config: EncoderConfig, tokenizer_path: str | None, vectors_path: str | None, seed: int, console: Console
) -> tuple[Model, Tokenizer]:
    """Without heads, and with random weights but for the vectors of words that have one."""
    if tokenizer_path is None:
        raise UserError("a new model reads by a tokenizer: give tokenizer=FOLDER, which `bertsmith tokenizer` makes (a folder "
                       "that is called like a preset is written ./NAME)")  # fmt: skip
    words = Tokenizer.load(resolve_path(tokenizer_path, "tokenizer"))
    model = build_model(ModelConfig(encoder=encoder_config, vocabulary=len(words)), seed)
    model.attach_tokenizer(words)
    if vectors_path is not None:
        init_embeddings(model, words, load_vectors(resolve_path(vectors_path, "vectors")), console)
    return model.eval(), words


def add_special_tokens(task: TaskConfig, model: Model, tokenizer: Tokenizer) -> tuple[Tokenizer, dict[str, Tensor]]:
    """The tokenizer and the encoder's weights with the task's guide tokens; those they have already stay as they are."""
    longer, weights = tokenizer.with_special_tokens(getattr(task, "guides", ())), model.state_dict()
    if new := len(longer) - len(tokenizer):
        weights = resize_token_embeddings(weights, len(tokenizer), [tokenizer.non_special_ids.tolist()] * new)
    return longer, {name.removeprefix("encoder."): one for name, one in weights.items() if name.startswith("encoder.")}


_LAYER_NAME = re.compile(r"encoder\.stack\.blocks\.(\d+)\.")
_TOP_PREFIXES = ("heads.", "decoder.", "encoder.pooler.", "encoder.stack.norm.")


def layer_depth(name: str, num_layers: int) -> int:
    """0 for embeddings, 1 for the lowest block, one more for what is above all of them: last norm, pooler and heads."""
    found = _LAYER_NAME.match(name)
    return int(found[1]) + 1 if found else num_layers + 1 if name.startswith(_TOP_PREFIXES) else 0


def freeze(model: Model, layers: int | Literal["embeddings", "all"]) -> None:
    """What is frozen drops nothing out either: it gives the same features for the same text, always."""
    stack, encoder = model.encoder.stack, model.encoder
    blocks = len(stack.blocks)
    count = blocks if layers == "all" else 0 if layers == "embeddings" else layers
    if count > blocks:
        raise UserError(f"freeze={layers} is more than the model's {blocks} blocks; take fewer, or freeze=all")
    if layers == 0:
        return
    for name, weight in model.named_parameters():
        if layer_depth(name, blocks) <= count:
            weight.requires_grad_(False)
    if layers == "all":
        stack.norm.requires_grad_(False)
    model.always_eval = (encoder.drop, *list(stack.blocks)[:count])


def build_param_schedule(
    num_layers: int, layer_decay: float = 1.0, unfreeze_fraction: float = 0.0, head_lr_multiplier: float = 1.0
) -> ParamScheduleFn:
    """Each block at `decay` times the rate of the one above it; waking from the top down over `thaw` of the run."""

    def param_schedule(name: str) -> ParamSchedule:
        below = num_layers + 1 - layer_depth(name, num_layers)
        rate = head_lr_multiplier if name.startswith("heads.") else 1.0
        return ParamSchedule(rate * layer_decay**below, unfreeze_fraction * below / (num_layers + 1))

    return param_schedule
