"""Data augmentation of TinyBERT (Jiao et al. 2020, section 3.2 and algorithm 1): copies of each example with replaced words.

A word that is one token of a masked language model may become one of the tokens that the model predicts in its place; a word
of several tokens one of its nearest neighbours among word vectors. The copies keep the label; soft labels come from the
teacher, who sees the copies themselves.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch

from ...artifacts import fingerprint, resolve_path
from ...config import Config, PosInt, Probability
from ...device import resolve_device
from ...errors import UserError
from ...inference.framed_texts import encode_framed
from ...model import checkpoint
from ...model.batch import Inputs
from ...model.heads import LM_HEAD
from ...model.model import Model
from ...model.packing import Layout
from ...reading import MAX_JSON_BYTES, read_bytes
from ...rng import Stream, randint, random_bits, uniform
from ...runs import Run
from ...tasks import Task
from ...tokenization.tokenizer import Tokenizer
from ...word_vectors.keyed_vectors import KeyedVectors
from ...word_vectors.models import load_vectors
from ...writing import write_atomic

WORD = re.compile(r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")  # a Chinese character, or a run of other letters
SHARD = 1024  # texts whose candidates are in one file
BATCH_TOKENS = 4096
Candidates = list[list[str]]  # of each word of a text


class Augmentation(Config, frozen=True):
    """The sources of replacements, and how many words are replaced."""

    model: Annotated[str, "masked language model that predicts words: a pre-trained checkpoint, such as mini-en"]
    vectors: Annotated[str | None, "word vectors (text, .bin, .npy), for words of several tokens; default: they stay"] = None
    copies: Annotated[PosInt, "augmented copies of each example (20 in TinyBERT)"] = 20
    probability: Annotated[Probability, "probability that a word is replaced (0.4 in TinyBERT)"] = 0.4
    top_k: Annotated[PosInt, "candidates for each word, most probable or nearest first (15 in TinyBERT)"] = 15


class Sources(NamedTuple):
    """What candidates come from, loaded."""

    model: Model
    tokenizer: Tokenizer
    vectors: KeyedVectors | None


def check_sources(config: Augmentation) -> None:
    """Raises a UserError for a model that predicts no masked tokens, before the work."""
    model = checkpoint.read_model_config(resolve_path(config.model, "model"))
    if LM_HEAD not in model.heads or model.encoder.is_causal:
        raise UserError(
            f"augmentation.model={config.model} cannot fill masks; give a model pre-trained with objective=mlm, such as mini-en"
        )


def load_sources(config: Augmentation, device: str) -> Sources:
    model, tokenizer, _ = checkpoint.load(resolve_path(config.model, "model"))
    vectors = load_vectors(resolve_path(config.vectors, "vectors")) if config.vectors else None
    return Sources(model.to(resolve_device(device, "train.device")).eval().requires_grad_(False), tokenizer, vectors)


def augment_examples(
    config: Augmentation, task: Task, examples: list[Any], sources: Callable[[], Sources], run: Run, seed: int
) -> list[Any]:
    """The examples, each followed by `copies` with replaced words; a pure function of the examples, the sources and the seed.

    The candidates are computed once and cached in the folder of the run.
    """
    fields = [name for name in ("text", "text_b") if examples and isinstance(getattr(examples[0], name, None), str)]
    if not fields or task.head_type == "lm":
        kind = task.__struct_config__.tag
        raise UserError(f"augmentation replaces words of texts, which task={kind} does not have; leave it out (it works with "
                       "classify, regress and similar)")  # fmt: skip
    texts = list(dict.fromkeys(text for example in examples for name in fields if (text := getattr(example, name))))
    candidates = dict(zip(texts, _cached_candidates(config, texts, sources, run), strict=True))
    augmented = []
    for index, example in enumerate(examples):
        augmented.append(example)
        for copy in range(config.copies):
            changes = {
                name: replace_words(text, candidates[text], config.probability, (seed, index, copy, number))
                for number, name in enumerate(fields)
                if (text := getattr(example, name))
            }
            augmented.append(replace(example, **changes))
    run.console.info(f"augmentation: {len(augmented):,} examples from {len(examples):,}")
    return augmented


def replace_words(text: str, candidates: Candidates, probability: float, key: tuple[int, ...]) -> str:
    """The text with each word replaced by one of its candidates with this probability; key: seed and counters."""
    words = list(WORD.finditer(text))
    seed, *counters = key
    draws = uniform(random_bits(seed, Stream.AUGMENTATION, *counters, 0, np.arange(len(words))))
    choices = random_bits(seed, Stream.AUGMENTATION, *counters, 1, np.arange(len(words)))
    parts, end = list[str](), 0
    for index, (word, options) in enumerate(zip(words, candidates, strict=True)):
        if options and draws[index] <= probability:
            parts += [text[end : word.start()], options[int(randint(choices[index], len(options)))]]
            end = word.end()
    return "".join([*parts, text[end:]])


def find_candidates(config: Augmentation, texts: Sequence[str], sources: Sources) -> list[Candidates]:
    """For each word of each text: the `top_k` tokens that the model predicts for it, or its nearest neighbours, without itself.

    A word that is neither one token nor in the vectors has none.
    """
    limit = sources.model.config.encoder.max_position_embeddings
    words = [WORD.findall(text) for text in texts]
    results: list[Candidates] = [[[] for _ in found] for found in words]
    masked, positions, owners = list[np.ndarray](), list[int](), list[tuple[int, int]]()
    neighbours: dict[str, list[str]] = {}
    for number, (text, encoded) in enumerate(zip(texts, encode_framed(sources.tokenizer, texts, limit), strict=True)):
        places = {tuple(offset): position for position, offset in enumerate(encoded.offsets.tolist())}
        for index, word in enumerate(WORD.finditer(text)):
            position = places.get(word.span())
            if position is not None and encoded.ids[position] != sources.tokenizer.unk_token_id:
                ids = encoded.ids.copy()
                ids[position] = sources.tokenizer.mask_token_id
                masked.append(ids)
                positions.append(position)
                owners.append((number, index))
            elif sources.vectors is not None:
                results[number][index] = _nearest(word.group(), sources.vectors, config.top_k, neighbours)
    for (number, index), options in zip(owners, _predict(masked, positions, sources, config.top_k), strict=True):
        results[number][index] = [option for option in options if option != words[number][index].lower()][: config.top_k]
    return results


def _cached_candidates(config: Augmentation, texts: list[str], sources: Callable[[], Sources], run: Run) -> list[Candidates]:
    """Candidates from the shards of the run; those that are missing are computed and written."""
    starts = range(0, len(texts), SHARD)
    key = fingerprint([run.identity, SHARD])
    paths = [run.cache / f"words-{key}-{start // SHARD:05d}.json" for start in starts]
    loaded: Sources | None = None
    results = list[Candidates]()
    with run.console.progress_bar("augmentation") as update:
        for start, path in zip(starts, paths, strict=True):
            if not path.exists():
                if loaded is None:
                    run.console.info(f"augmentation: candidates for the words of {len(texts):,} texts, computed once")
                loaded = loaded or sources()
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, msgspec.json.encode(find_candidates(config, texts[start : start + SHARD], loaded)))
            results += msgspec.json.decode(read_bytes(path, MAX_JSON_BYTES), type=list[Candidates])
            update(start // SHARD + 1, len(paths))
    return results


@torch.no_grad()
def _predict(masked: list[np.ndarray], positions: list[int], sources: Sources, top_k: int) -> list[list[str]]:
    """The most probable whole words for the mask of each sequence, best first: up to top_k and one more."""
    model, tokenizer = sources.model, sources.tokenizer
    device = next(model.parameters()).device
    is_word = torch.tensor([
        bool(WORD.fullmatch(token)) and not continues and not special
        for token, continues, special in zip(_texts(tokenizer), tokenizer.is_continuation, tokenizer.is_special, strict=True)
    ], device=device)  # fmt: skip
    lengths, texts = np.array([len(ids) for ids in masked], np.int64), _texts(tokenizer)
    results: list[list[str]] = [[] for _ in masked]
    order = np.argsort(lengths, kind="stable")
    per_batch = max(1, BATCH_TOKENS // int(lengths.max(initial=1)))
    for first in range(0, len(order), per_batch):
        batch = order[first : first + per_batch]
        starts = np.cumsum([0, *lengths[batch][:-1]])
        rows = torch.from_numpy(starts + np.array([positions[i] for i in batch]))
        ids = torch.from_numpy(np.concatenate([masked[i] for i in batch]))
        inputs = Inputs(ids, Layout.from_lengths(lengths[batch].tolist()), output_indices=rows).to(device)
        logits = model.compute_logits(LM_HEAD, model(inputs))[:, : len(is_word)].masked_fill(~is_word, float("-inf"))
        best = logits.topk(min(top_k + 1, int(is_word.sum())), -1).indices.cpu().tolist()
        for index, tokens in zip(batch, best, strict=True):
            results[index] = [texts[token] for token in tokens]
    return results


def _texts(tokenizer: Tokenizer) -> list[str]:
    """The text of each token that begins a word, without the mark of a word's start."""
    prefix = tokenizer.word_start_prefix
    return [token.removeprefix(prefix) if prefix else token for token in tokenizer.id_to_token]


def _nearest(word: str, vectors: KeyedVectors, top_k: int, known: dict[str, list[str]]) -> list[str]:
    if word not in known:
        key = next((form for form in (word, word.lower()) if vectors.get_index(form) is not None), None)
        known[word] = [] if key is None else [other for other, _ in vectors.most_similar(key, top_k)]
    return known[word]
