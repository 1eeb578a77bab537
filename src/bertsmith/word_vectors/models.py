"""A model that is its table of word vectors: no positions, no blocks; a text is the mean of its words."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..artifacts import MANIFEST, verify
from ..console import Screen
from ..errors import BadInput
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..model.embeddings.fasttext import CharacterGrams, Subwords
from ..model.heads import HeadConfig, WordHead
from ..model.heads.hierarchical_softmax import TreeHead
from ..model.model import Model, ModelConfig
from ..tokenization.tokenizer import Tokenizer
from . import Vectors, of_table, read
from .hierarchical_softmax import Paths
from .keyed_vectors import Spelt, words_of

LONGEST = 1 << 20  # tokens of a text: nothing in such a model grows with it


def bag(vocabulary: int, width: int, heads: dict[str, HeadConfig] | None = None) -> ModelConfig:
    """What word2vec, GloVe and files of vectors become, so that every stage takes them for a model."""
    encoder = EncoderConfig(
        layers=0, width=width, feedforward=None, norm="none", positions=LONGEST, table=False, segments=0,
        embedding_norm=False, dropout=0.0, pool="mean", pooler="none",
    )  # fmt: skip
    return ModelConfig(encoder=encoder, vocabulary=vocabulary, heads=heads or {})


def published(
    vectors: Tensor, outputs: Tensor, paths: Paths | None, grams: CharacterGrams | None = None, buckets: Tensor | None = None
) -> Model:
    """`vectors` are of words, their n-grams in them; `buckets`, where there are some, of the n-grams."""
    words, width = vectors.shape
    heads: dict[str, HeadConfig] = {"words": WordHead(transform=False, tied=False, bias=False)}
    if paths is not None:
        heads = {"words": TreeHead(longest=paths.nodes.shape[1])}
    config = bag(words, width, heads)
    if grams is not None:
        front = Subwords(numbers=width, grams=grams)
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, front=front))
    model = Model(config, drawn=False)
    weights = {"encoder.tokens.weight": vectors, "heads.words.table.weight": outputs}
    if paths is not None:
        weights |= {"heads.words.nodes": torch.from_numpy(paths.nodes), "heads.words.turns": torch.from_numpy(paths.turns)}
    if buckets is not None:
        weights["encoder.front.buckets.weight"] = buckets
    model.load_state_dict(weights)
    return model.eval()


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
