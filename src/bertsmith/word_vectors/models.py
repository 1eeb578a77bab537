"""A model that is its table of word vectors: no positions, no blocks; a text is the mean of its words."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..artifacts import MANIFEST, verify_manifest
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..model.embeddings.fasttext import CharNgramConfig, FastTextConfig
from ..model.heads import HeadConfig, LMHeadConfig
from ..model.heads.hierarchical_softmax import HierarchicalSoftmaxHeadConfig
from ..model.model import Model, ModelConfig
from ..tokenization.tokenizer import Tokenizer
from . import KeyedVectors, read_vectors, vectors_from_table
from .hierarchical_softmax import HuffmanPaths
from .keyed_vectors import FastTextKeyedVectors, whole_words

MAX_POSITIONS = 1 << 20  # tokens of a text: nothing in such a model grows with it


def bag_of_vectors(vocab_size: int, vector_size: int, heads: dict[str, HeadConfig] | None = None) -> ModelConfig:
    """What word2vec, GloVe and files of vectors become, so that every stage takes them for a model."""
    encoder = EncoderConfig(
        layers=0, width=vector_size, feedforward=None, norm="none", positions=MAX_POSITIONS, table=False, segments=0,
        embedding_norm=False, dropout=0.0, pool="mean", pooler="none",
    )  # fmt: skip
    return ModelConfig(encoder=encoder, vocabulary=vocab_size, heads=heads or {})


def build_model(
    vectors: Tensor,
    outputs: Tensor,
    paths: HuffmanPaths | None,
    ngrams: CharNgramConfig | None = None,
    buckets: Tensor | None = None,
) -> Model:
    """`vectors` are of words, their n-grams in them; `buckets`, where there are some, of the n-grams."""
    words, width = vectors.shape
    heads: dict[str, HeadConfig] = {"words": LMHeadConfig(transform=False, tied=False, bias=False)}
    if paths is not None:
        heads = {"words": HierarchicalSoftmaxHeadConfig(longest=paths.nodes.shape[1])}
    config = bag_of_vectors(words, width, heads)
    if ngrams is not None:
        front = FastTextConfig(numbers=width, grams=ngrams)
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, front=front))
    model = Model(config, init_weights=False)
    weights = {"encoder.tokens.weight": vectors, "heads.words.table.weight": outputs}
    if paths is not None:
        weights |= {"heads.words.nodes": torch.from_numpy(paths.nodes), "heads.words.turns": torch.from_numpy(paths.codes)}
    if buckets is not None:
        weights["encoder.front.buckets.weight"] = buckets
    model.load_state_dict(weights)
    return model.eval()


TOKEN_TABLE = "encoder.tokens.weight"
NGRAM_TABLE = "encoder.front.buckets.weight"  # of n-grams, where words are made of them too


def load_vectors(path: Path) -> KeyedVectors:
    """Of a file (text, .bin, .npy), or of a folder, whose tokenizer says which rows are words: `##ing` is none."""
    if not path.is_dir():
        return read_vectors(path)
    if (path / MANIFEST).exists():
        verify_manifest(path)
    weights = checkpoint.load_weights(path)
    if TOKEN_TABLE not in weights:
        raise UserError(f"{path} spells its words, and has no table of vectors to look them up in")
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    found = vectors_from_table(tokenizer, weights[TOKEN_TABLE].float().numpy())
    if NGRAM_TABLE not in weights:
        return found
    some = checkpoint.read_config(path)["model"]["encoder"]["front"]["grams"]
    clean = tokenizer.backend_tokenizer.normalizer.normalize_str if tokenizer.backend_tokenizer.normalizer else str
    return FastTextKeyedVectors(
        found.words, found.matrix, weights[NGRAM_TABLE].float().numpy(), some["least"], some["most"], clean
    )


def init_embeddings(model: Model, tokenizer: Tokenizer, vectors: KeyedVectors, console: Console) -> int:
    """The table begins with the vectors, as they are; words that have none begin as large as those that do.

    Returns how many have one, and one that is not zero. A word is looked up as the tokenizer has it.
    """
    table = model.encoder.tokens
    if table is None or table.weight.shape[1] != vectors.vector_size:
        found = "no table of words" if table is None else f"a table of {table.weight.shape[1]} numbers a word"
        raise UserError(f"vectors of {vectors.vector_size} numbers do not fit a model with {found}; set model.embedding="
                       f"{vectors.vector_size}")  # fmt: skip
    wanted = whole_words(tokenizer)
    rows = {number: vectors.key_to_index[word] for word, number in wanted.items() if word in vectors.key_to_index}
    known = {number: row for number, row in rows.items() if vectors.is_nonzero[row]}
    if not known:
        raise UserError("no word of the tokenizer has a vector; are both of one language, and both with or without capitals?")
    begun = torch.from_numpy(vectors.matrix[list(known.values())])
    with torch.no_grad():
        table.weight *= float(begun.std(correction=0)) / model.config.encoder.deviation
        table.weight[list(known)] = begun
    console.info(f"vectors: {len(known):,} of {len(wanted):,} words begin with theirs ({len(known) / len(wanted):.1%})")
    return len(known)
