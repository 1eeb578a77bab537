"""Models of word vectors: an embedding table without positions and layers; a text is the mean of its word vectors.

- bag_of_vectors, build_model: the model that word2vec, fastText and GloVe publish
- load_vectors: KeyedVectors of a file or a model folder
- init_embeddings: pre-trained vectors as initial token embeddings of another model
"""

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..artifacts import detect_kind, require_kind, verify_if_sealed
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..model.embeddings.fasttext import CharNgramConfig, FastTextConfig
from ..model.heads import LM_HEAD, HeadConfig, LMHeadConfig
from ..model.heads.hierarchical_softmax import HierarchicalSoftmaxHeadConfig
from ..model.model import Model, ModelConfig
from ..tokenization.tokenizer import Tokenizer
from . import KeyedVectors, read_vectors, vectors_from_table
from .hierarchical_softmax import HuffmanPaths
from .keyed_vectors import FastTextKeyedVectors, whole_words

MAX_POSITIONS = 1 << 20  # no parameter depends on it


def bag_of_vectors(vocab_size: int, vector_size: int, heads: dict[str, HeadConfig] | None = None) -> ModelConfig:
    """Config of a model with only token embeddings and mean pooling, which every stage can use like other models."""
    encoder = EncoderConfig(
        num_hidden_layers=0, hidden_size=vector_size, feedforward=None, norm="none", max_position_embeddings=MAX_POSITIONS,
        position_embedding_type="none", type_vocab_size=0, embedding_norm=False, hidden_dropout_prob=0.0, pooling="mean",
        pooler_act="none",
    )  # fmt: skip
    return ModelConfig(encoder=encoder, vocab_size=vocab_size, heads=heads or {})


def build_model(
    vectors: Tensor,
    outputs: Tensor,
    paths: HuffmanPaths | None,
    ngrams: CharNgramConfig | None = None,
    buckets: Tensor | None = None,
) -> Model:
    """The published model of word2vec or fastText.

    vectors: (vocab_size, vector_size), for fastText including n-grams; outputs: output table of negative sampling or of the
    Huffman nodes (then with `paths`); buckets: (buckets, vector_size) of n-grams.
    """
    vocab_size, vector_size = vectors.shape
    heads: dict[str, HeadConfig] = {LM_HEAD: LMHeadConfig(transform=False, tied=False, bias=False)}
    if paths is not None:
        heads = {LM_HEAD: HierarchicalSoftmaxHeadConfig(max_path_length=paths.nodes.shape[1])}
    config = bag_of_vectors(vocab_size, vector_size, heads)
    if ngrams is not None:
        embedding = FastTextConfig(vector_size=vector_size, ngrams=ngrams)
        config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, embeddings=embedding))
    model = Model(config, init_weights=False)
    output_name = "output_embeddings" if paths is None else "node_embeddings"
    weights = {"encoder.word_embeddings.weight": vectors, f"heads.lm.{output_name}.weight": outputs}
    if paths is not None:
        weights |= {"heads.lm.path_nodes": torch.from_numpy(paths.nodes), "heads.lm.path_codes": torch.from_numpy(paths.codes)}
    if buckets is not None:
        weights["encoder.input_embeddings.ngram_embeddings.weight"] = buckets
    model.load_state_dict(weights)
    return model.eval()


TOKEN_TABLE = "encoder.word_embeddings.weight"
NGRAM_TABLE = "encoder.input_embeddings.ngram_embeddings.weight"  # of character n-grams (fastText)


def load_vectors(path: Path) -> KeyedVectors:
    """Vectors of a file (text, .bin, .npy), or of the whole words of the tokenizer in a model folder."""
    if not path.is_dir() and detect_kind(path) is None:
        return read_vectors(path)
    require_kind(path, "checkpoint")
    verify_if_sealed(path)
    weights = checkpoint.load_weights(path)
    if TOKEN_TABLE not in weights:
        raise UserError(f"{path} computes its embeddings from characters, and has no table of word vectors")
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    if weights[TOKEN_TABLE].ndim != 2 or len(weights[TOKEN_TABLE]) < len(tokenizer):
        raise UserError(
            f"{path} has {len(tokenizer):,} tokens, but a table of shape {list(weights[TOKEN_TABLE].shape)}; create it again"
        )
    vectors = vectors_from_table(tokenizer, weights[TOKEN_TABLE].float().numpy())
    if NGRAM_TABLE not in weights:
        return vectors
    embeddings = checkpoint.read_model_config(path).encoder.embeddings
    if not isinstance(embeddings, FastTextConfig):
        raise UserError(f"{path} does not match its config.json: it has vectors of n-grams, but no embeddings of kind fasttext")
    ngrams = embeddings.ngrams
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str if tokenizer.backend_tokenizer.normalizer else str
    return FastTextKeyedVectors(
        vectors.words, vectors.matrix, weights[NGRAM_TABLE].float().numpy(), ngrams.min_n, ngrams.max_n, normalize
    )


def init_embeddings(model: Model, tokenizer: Tokenizer, vectors: KeyedVectors, console: Console) -> int:
    """Initializes token embeddings with pre-trained vectors; returns the number of words with a nonzero vector.

    Other rows keep their random initialization, scaled to the standard deviation of the vectors. Words are looked up as in
    the tokenizer's vocabulary.
    """
    table = model.encoder.word_embeddings
    if table is None or table.weight.shape[1] != vectors.vector_size:
        problem = "without token embeddings" if table is None else f"with token embeddings of size {table.weight.shape[1]}"
        raise UserError(f"vectors of size {vectors.vector_size} do not fit a model {problem}; set model.embedding_size="
                       f"{vectors.vector_size}")  # fmt: skip
    token_ids = whole_words(tokenizer)
    rows = {token_id: vectors.key_to_index[word] for word, token_id in token_ids.items() if word in vectors.key_to_index}
    covered = {token_id: row for token_id, row in rows.items() if vectors.is_nonzero[row]}
    if not covered:
        raise UserError("no word of the tokenizer has a vector; check that language and case match")
    initial = torch.from_numpy(vectors.matrix[list(covered.values())])
    with torch.no_grad():
        table.weight *= float(initial.std(correction=0)) / model.config.encoder.init_std
        table.weight[list(covered)] = initial
    console.info(f"vectors: initialized {len(covered):,} of {len(token_ids):,} words ({len(covered) / len(token_ids):.1%})")
    return len(covered)
