"""A model that begins anew: a preset or a table, a tokenizer, and vectors for its words, if there are any."""

import re
from typing import Literal

from torch import Tensor

from ..artifacts import named
from ..console import Screen
from ..errors import BadInput
from ..model.config import EncoderConfig
from ..model.model import Model, ModelConfig, built
from ..model.surgery import grown
from ..tasks import TaskConfig
from ..tokenization.tokenizer import Tokenizer
from ..train.param_groups import Pace, Paces
from ..word_vectors.models import given, vectors_of


def begun(
    encoder: EncoderConfig, tokenizer: str | None, vectors: str | None, seed: int, screen: Screen
) -> tuple[Model, Tokenizer]:
    """Without heads, and with random weights but for the vectors of words that have one."""
    if tokenizer is None:
        raise BadInput("a new model reads by a tokenizer: give tokenizer=FOLDER, which `bertsmith tokenizer` makes (a folder "
                       "that is called like a preset is written ./NAME)")  # fmt: skip
    words = Tokenizer.load(named(tokenizer, "tokenizer"))
    model = built(ModelConfig(encoder=encoder, vocabulary=len(words)), seed)
    model.meet(words)
    if vectors is not None:
        given(model, words, vectors_of(named(vectors, "vectors")), screen)
    return model.eval(), words


def guided(task: TaskConfig, model: Model, tokenizer: Tokenizer) -> tuple[Tokenizer, dict[str, Tensor]]:
    """The tokenizer and the encoder's weights with the task's guide tokens; those they have already stay as they are."""
    longer, weights = tokenizer.with_specials(getattr(task, "guides", ())), model.state_dict()
    if new := len(longer) - len(tokenizer):
        weights = grown(weights, len(tokenizer), [tokenizer.ordinary.tolist()] * new)
    return longer, {name.removeprefix("encoder."): one for name, one in weights.items() if name.startswith("encoder.")}


_BLOCK = re.compile(r"encoder\.stack\.blocks\.(\d+)\.")
_ABOVE = ("heads.", "decoder.", "encoder.pooler.", "encoder.stack.norm.")


def depth(name: str, blocks: int) -> int:
    """0 for embeddings, 1 for the lowest block, one more for what is above all of them: last norm, pooler and heads."""
    found = _BLOCK.match(name)
    return int(found[1]) + 1 if found else blocks + 1 if name.startswith(_ABOVE) else 0


def freeze(model: Model, layers: int | Literal["embeddings", "all"]) -> None:
    """What is frozen drops nothing out either: it gives the same features for the same text, always."""
    stack, encoder = model.encoder.stack, model.encoder
    blocks = len(stack.blocks)
    count = blocks if layers == "all" else 0 if layers == "embeddings" else layers
    if count > blocks:
        raise BadInput(f"freeze={layers} is more than the model's {blocks} blocks; take fewer, or freeze=all")
    if layers == 0:
        return
    for name, weight in model.named_parameters():
        if depth(name, blocks) <= count:
            weight.requires_grad_(False)
    if layers == "all":
        stack.norm.requires_grad_(False)
    model.still = (encoder.drop, *list(stack.blocks)[:count])


def paces(blocks: int, decay: float = 1.0, thaw: float = 0.0, head: float = 1.0) -> Paces:
    """Each block at `decay` times the rate of the one above it; waking from the top down over `thaw` of the run."""

    def pace(name: str) -> Pace:
        below = blocks + 1 - depth(name, blocks)
        rate = head if name.startswith("heads.") else 1.0
        return Pace(rate * decay**below, thaw * below / (blocks + 1))

    return pace
