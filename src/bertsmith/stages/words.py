"""Vectors of words wherever they lie, in a file or as the token table of a folder, and the models that begin with them."""

from pathlib import Path

import torch

from ..artifacts import MANIFEST, verify
from ..errors import BadInput
from ..model import checkpoint
from ..model.model import Model
from ..screen import Screen
from ..text.tokenizer import Tokenizer
from ..vectors import Vectors, of_table, read
from ..vectors.spelt import Spelt
from ..vectors.table import words_of

TABLE = "encoder.tokens.weight"
BUCKETS = "encoder.front.buckets.weight"  # of n-grams, where words are made of them too


def vectors_of(place: Path) -> Vectors:
    """Of a file (text, .bin, .npy), or of a folder, whose tokenizer says which rows are words: `##ing` is none."""
    if not place.is_dir():
        return read(place)
    if (place / MANIFEST).exists():
        verify(place)
    weights = checkpoint.load_weights(place)
    if TABLE not in weights:
        raise BadInput(f"{place} spells its words, and has no table of vectors to look them up in")
    tokenizer = Tokenizer.load(place / "tokenizer.json")
    found = of_table(tokenizer, weights[TABLE].float().numpy())
    if BUCKETS not in weights:
        return found
    some = checkpoint.recorded(place)["model"]["encoder"]["front"]["grams"]
    clean = tokenizer.rust.normalizer.normalize_str if tokenizer.rust.normalizer else str
    return Spelt(found.words, found.matrix, weights[BUCKETS].float().numpy(), some["least"], some["most"], clean)


def given(model: Model, tokenizer: Tokenizer, vectors: Vectors, screen: Screen) -> int:
    """The table begins with the vectors, as they are; words that have none begin as large as those that do.

    Returns how many have one, and one that is not zero. A word is looked up as the tokenizer has it.
    """
    table = model.encoder.tokens
    if table is None or table.weight.shape[1] != vectors.width:
        found = "no table of words" if table is None else f"a table of {table.weight.shape[1]} numbers a word"
        raise BadInput(f"vectors of {vectors.width} numbers do not fit a model with {found}; set model.embedding="
                       f"{vectors.width}")  # fmt: skip
    wanted = words_of(tokenizer)
    rows = {number: vectors.index[word] for word, number in wanted.items() if word in vectors.index}
    known = {number: row for number, row in rows.items() if vectors.said[row]}
    if not known:
        raise BadInput("no word of the tokenizer has a vector; are both of one language, and both with or without capitals?")
    begun = torch.from_numpy(vectors.matrix[list(known.values())])
    with torch.no_grad():
        table.weight *= float(begun.std(correction=0)) / model.config.encoder.deviation
        table.weight[list(known)] = begun
    screen.say(f"vectors: {len(known):,} of {len(wanted):,} words begin with theirs ({len(known) / len(wanted):.1%})")
    return len(known)
