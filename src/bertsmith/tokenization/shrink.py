"""Shrink a tokenizer: drop the tokens that a corpus does not use, so that its texts are tokenized as before.

- count_used_tokens: the ids that texts are encoded with
- shrink_tokenizer: the tokenizer with those tokens, special tokens, and what is needed to spell every word of their characters
"""

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .tokenizer import Tokenizer
from .wordpiece_trainer import CONTINUING_SUBWORD_PREFIX

BATCH_SIZE = 256  # texts encoded at a time
BYTE_LEVEL = "ByteLevel"


class ShrunkTokenizer(NamedTuple):
    """The smaller tokenizer, and the old id of each of its tokens, in ascending order."""

    tokenizer: Tokenizer
    kept_ids: NDArray[np.int64]


def count_used_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> NDArray[np.int64]:
    """(vocab_size,): how often the texts are encoded with each token."""
    counts = np.zeros(len(tokenizer), np.int64)
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH_SIZE)):
        ids = [token_id for encoding in tokenizer.encode_batch(batch, return_offsets=False) for token_id in encoding.ids]
        counts += np.bincount(np.array(ids, np.int64), minlength=len(tokenizer))
    return counts


def shrink_tokenizer(tokenizer: Tokenizer, used: NDArray[np.bool_]) -> ShrunkTokenizer:
    """The tokenizer with the `used` tokens, (vocab_size,) bool; ids close up, in the same order.

    Special and added tokens stay, and the single characters (byte-level: all bytes) that the kept tokens consist of. BPE keeps
    the merges that build a kept token, with their parts.
    """
    config = copy.deepcopy(tokenizer.json_dict)
    model = config["model"]
    shrink_model = {"WordPiece": _shrink_wordpiece, "WordLevel": _shrink_words, "BPE": _shrink_bpe, "Unigram": _shrink_unigram}
    if model["type"] not in shrink_model or tokenizer.is_hex:
        raise UserError(f"{tokenizer.source} cannot be pruned: its vocabulary is the 256 bytes, or of a kind without tokens to "
                       "remove")  # fmt: skip
    required = {tokenizer.id_to_token[token_id] for token_id in np.flatnonzero(tokenizer.is_special)
                if not tokenizer.id_to_token[token_id].startswith("[unused")}  # fmt: skip
    required |= {token["content"] for token in config["added_tokens"]}
    tokens = {tokenizer.id_to_token[token_id] for token_id in np.flatnonzero(used)} | required
    kept = shrink_model[model["type"]](config, tokens)
    kept_ids = np.array([token_id for token_id, token in enumerate(tokenizer.id_to_token) if token in kept], np.int64)
    new_ids = {int(old): new for new, old in enumerate(kept_ids)}
    _renumber(config, new_ids)
    smaller = Tokenizer.from_json(json.dumps(config, ensure_ascii=False).encode(), tokenizer.source)
    smaller.open_vocabulary = tokenizer.open_vocabulary
    assert smaller.id_to_token == [tokenizer.id_to_token[token_id] for token_id in kept_ids], "a token moved"
    return ShrunkTokenizer(smaller, kept_ids)


def _shrink_wordpiece(config: dict[str, Any], tokens: set[str]) -> set[str]:
    """The tokens, and each of their characters at the start of a word and inside it."""
    vocab = config["model"]["vocab"]
    characters = {character for token in tokens for character in token.removeprefix(CONTINUING_SUBWORD_PREFIX)}
    spelled = {form for character in characters for form in (character, CONTINUING_SUBWORD_PREFIX + character)}
    return _keep_vocab(config, tokens | (spelled & vocab.keys()))


def _shrink_words(config: dict[str, Any], tokens: set[str]) -> set[str]:
    return _keep_vocab(config, tokens)


def _shrink_bpe(config: dict[str, Any], tokens: set[str]) -> set[str]:
    """The tokens, the parts of every merge that builds one of them, and their alphabet (byte-level: all single characters)."""
    model = config["model"]
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    sources: dict[str, list[tuple[str, str]]] = {}
    for left, right in pairs:
        sources.setdefault(left + right.removeprefix(prefix), []).append((left, right))
    kept, pending = set[str](), list(tokens)
    while pending:
        token = pending.pop()
        if token not in kept:
            kept.add(token)
            pending += [part for pair in sources.get(token, ()) for part in pair]
    is_byte_level = BYTE_LEVEL in json.dumps(config["pre_tokenizer"])
    alphabet = {token for token in model["vocab"] if len(_bare(token, prefix, suffix)) == 1}
    characters = {character for token in kept for character in _bare(token, prefix, suffix)}
    kept |= alphabet if is_byte_level else {token for token in alphabet if _bare(token, prefix, suffix) in characters}
    model["merges"] = [
        merge
        for merge, (left, right) in zip(model["merges"], pairs, strict=True)
        if {left, right, left + right.removeprefix(prefix)} <= kept
    ]
    return _keep_vocab(config, kept)


def _shrink_unigram(config: dict[str, Any], tokens: set[str]) -> set[str]:
    """The tokens and their single characters; the vocabulary is a list of (token, log-probability) by id."""
    model = config["model"]
    unk_token = model["vocab"][model["unk_id"]][0] if model["unk_id"] is not None else None
    characters = {character for token in tokens for character in token}
    kept = tokens | (characters & {token for token, _ in model["vocab"]}) | ({unk_token} if unk_token else set())
    model["vocab"] = [entry for entry in model["vocab"] if entry[0] in kept]
    if unk_token:
        model["unk_id"] = next(index for index, (token, _) in enumerate(model["vocab"]) if token == unk_token)
    return kept


def _keep_vocab(config: dict[str, Any], kept: set[str]) -> set[str]:
    vocab = config["model"]["vocab"]
    config["model"]["vocab"] = {token: token_id for token, token_id in vocab.items() if token in kept}
    return kept


def _bare(token: str, prefix: str, suffix: str) -> str:
    return token.removeprefix(prefix).removesuffix(suffix)


def _renumber(config: dict[str, Any], new_ids: dict[int, int]) -> None:
    """Replaces old ids by new ones wherever tokenizer.json has them."""
    if isinstance(config["model"]["vocab"], dict):
        config["model"]["vocab"] = {token: new_ids[token_id] for token, token_id in config["model"]["vocab"].items()}
    for token in config["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    for processor in _list_processors(config.get("post_processor")):
        for name in ("sep", "cls"):  # BertProcessing, RobertaProcessing: [token, id]
            if name in processor:
                processor[name][1] = new_ids[processor[name][1]]
        if processor["type"] == "TemplateProcessing":
            for special in processor["special_tokens"].values():
                special["ids"] = [new_ids[token_id] for token_id in special["ids"]]


def _list_processors(processor: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if processor is not None:
        yield processor
        nested: Sequence[dict[str, Any]] = processor.get("processors", ())
        for inner in nested:
            yield from _list_processors(inner)
