"""A model that begins anew: a preset or a table, a tokenizer, and vectors for its words, if there are any."""

from ..artifacts import named
from ..errors import BadInput
from ..model.encoder import EncoderConfig
from ..model.model import Model, ModelConfig, built
from ..screen import Screen
from ..text.tokenizer import Tokenizer
from .words import given, vectors_of


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
