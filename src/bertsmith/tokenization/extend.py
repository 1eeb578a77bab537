"""Vocabulary extension for domain adaptation: adds the tokens that shorten a text most; existing tokens keep their ids."""

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from ..errors import UserError
from .chinese import IDEOGRAPH
from .pipeline import WordSplitter
from .tokenizer import Tokenizer
from .vocab_selection import BpeSelector, Pair, WordPieceSelector, merge_pair, select_tokens
from .wordpiece_trainer import CONTINUING_SUBWORD_PREFIX

ExtensibleKind = Literal["wordpiece", "bpe", "byte-bpe"]
WordFrequencies = Iterable[tuple[str, int]]

MAX_WORDS = 500_000  # the most frequent distinct words, to bound memory
LONE_IDEOGRAPH_THRESHOLD = 0.1  # fraction of lone ideographs from which the user is informed


@dataclass(frozen=True)
class Extension:
    """The extended tokenizer, and for each new token the number of tokens of the text it saved when it was added."""

    tokenizer: Tokenizer
    added_tokens: list[tuple[str, int]]  # (token, tokens saved), in order of ids


def extensible_kind(tokenizer: Tokenizer) -> ExtensibleKind:
    """The kind of vocabulary; UserError if it cannot be extended without changing how its existing tokens are used."""
    config = tokenizer.json_dict
    model, pre_tokenizer = config["model"], (config["pre_tokenizer"] or {}).get("type")
    if any(not token["special"] for token in config["added_tokens"]):
        raise UserError(f"{tokenizer.source} has added tokens that match inside words; remove these before you extend it")
    is_bert = (
        pre_tokenizer == "BertPreTokenizer"
        and _is_bert_normalizer(config["normalizer"])
        and model.get("continuing_subword_prefix") == CONTINUING_SUBWORD_PREFIX
    )
    if model["type"] == "WordPiece" and is_bert:
        return "wordpiece"
    if model["type"] == "BPE" and model["merges"] and not (model.get("dropout") or model.get("end_of_word_suffix")):
        if is_bert:
            return "bpe"
        is_raw = (config["normalizer"] or {}).get("type") in (None, "Lowercase")
        if pre_tokenizer == "ByteLevel" and config["pre_tokenizer"]["use_regex"] and is_raw:
            return "byte-bpe"
    raise UserError(
        f"{tokenizer.source} cannot be extended ({model['type']} model, {pre_tokenizer} pre-tokenizer): new tokens would "
        "change how existing ones are used; use WordPiece or BPE as in BERT, RoBERTa or `bertsmith tokenizer`"
    )


def build_word_splitter(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """A function that splits text into words with the normalization and pre-tokenization of this tokenizer."""
    kind, normalizer = extensible_kind(tokenizer), tokenizer.json_dict["normalizer"] or {}
    split_words = WordSplitter(kind, bool(normalizer.get("lowercase", normalizer.get("type") == "Lowercase")))
    if normalizer:
        split_words.normalizer = tokenizer.backend_tokenizer.normalizer  # it may treat accents differently
    return split_words


def extend_tokenizer(
    tokenizer: Tokenizer, counts: WordFrequencies, max_added: int, min_frequency: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Extension:  # fmt: skip
    """Add at most `max_added` tokens, greedily by tokens saved on these word counts, each used at least `min_frequency` times.

    `counts` are words from `build_word_splitter`. BPE is extended by merges: a long word takes several, and an unknown
    character stays unknown.
    """
    kind = extensible_kind(tokenizer)
    merges: list[Pair] = []
    if kind == "wordpiece":
        max_chars = tokenizer.json_dict["model"]["max_input_chars_per_word"]  # longer words are always [UNK]
        candidates = ((word, n) for word, n in counts if len(word) <= max_chars)
        gains = select_tokens(
            WordPieceSelector(tokenizer.id_to_token, islice(candidates, MAX_WORDS)), max_added, min_frequency, progress
        )
    else:
        unmergeable = {token for token, special in zip(tokenizer.id_to_token, tokenizer.is_special, strict=True) if special}
        selected = select_tokens(
            BpeSelector(tokenizer.id_to_token, _tokenize_words(tokenizer, islice(counts, MAX_WORDS)), unmergeable),
            max_added,
            min_frequency,
            progress,
        )
        merges, gains = [pair for pair, _ in selected], [(merge_pair(pair), gain) for pair, gain in selected]
    if not gains:
        raise UserError(
            f"no new token with min_frequency={min_frequency} shortens these texts: {tokenizer.source} needs no extension"
        )
    return Extension(_add_tokens(tokenizer, [token for token, _ in gains], merges), gains)


def is_extension(child: Tokenizer, parent: Tokenizer) -> bool:
    """Whether `child` is `parent` plus tokens at the end: same normalizer, pre-tokenizer, ids and order of merges."""
    child_config, parent_config = _config_without_vocab(child), _config_without_vocab(parent)
    child_merges, parent_merges = (tokenizer.json_dict["model"].get("merges", []) for tokenizer in (child, parent))
    same = (
        child_config == parent_config
        and child.id_to_token[: len(parent)] == parent.id_to_token
        and child_merges[: len(parent_merges)] == parent_merges
    )
    return same and len(child) > len(parent)


def map_to_parent_ids(child: Tokenizer, parent: Tokenizer) -> list[list[int]]:
    """For each new token, in order of ids, the parent's token ids that it replaces (to initialise its embedding)."""
    new_tokens = child.id_to_token[len(parent) :]
    if child.json_dict["model"]["type"] == "WordPiece":
        token_to_id = {token: token_id for token_id, token in enumerate(parent.id_to_token)}
        return [_greedy_match(token, token_to_id) or [parent.unk_token_id] for token in new_tokens]
    parent_ids = {token: [token_id] for token_id, token in enumerate(parent.id_to_token)}
    for merge in child.json_dict["model"]["merges"][len(parent.json_dict["model"]["merges"]) :]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        parent_ids[merge_pair((left, right))] = parent_ids[left] + parent_ids[right]
    return [parent_ids[token] for token in new_tokens]


def lone_ideograph_fraction(counts: WordFrequencies) -> float:
    """Fraction of running words that are a single Chinese character, which no new token can join in BERT's pre-tokenization."""
    total = lone = 0
    for word, count in counts:
        total, lone = total + count, lone + count * (len(word) == 1 and IDEOGRAPH.match(word) is not None)
    return lone / max(total, 1)


def _is_bert_normalizer(normalizer: dict[str, Any] | None) -> bool:
    config = normalizer or {}
    return config.get("type") == "BertNormalizer" and config["clean_text"] and config["handle_chinese_chars"]


def _tokenize_words(tokenizer: Tokenizer, counts: WordFrequencies) -> Iterable[tuple[list[str], int]]:
    entries = list(counts)
    encodings = tokenizer.backend_tokenizer.encode_batch_fast([word for word, _ in entries], add_special_tokens=False)
    id_to_token = tokenizer.id_to_token
    return (([id_to_token[i] for i in encoding.ids], count) for encoding, (_, count) in zip(encodings, entries, strict=True))


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], merges: list[Pair]) -> Tokenizer:
    config = copy.deepcopy(tokenizer.json_dict)
    model, first_new_id = config["model"], len(tokenizer)
    # Special tokens outside the model's vocabulary would be moved after the new tokens; inside it they keep their ids.
    model["vocab"] |= {token["content"]: token["id"] for token in config["added_tokens"]}
    model["vocab"] |= {name: first_new_id + index for index, name in enumerate(tokens)}
    if merges:
        merges_are_strings = isinstance(model["merges"][0], str)
        model["merges"] += [" ".join(pair) if merges_are_strings else list(pair) for pair in merges]
    extended = Tokenizer.from_json(json.dumps(config).encode(), tokenizer.source)
    if not is_extension(extended, tokenizer):
        raise UserError(
            f"{tokenizer.source} cannot be extended: new tokens would change the ids of old ones; fill gaps in its ids with "
            "tokens such as [unused-7]"
        )
    return extended


def _config_without_vocab(tokenizer: Tokenizer) -> dict[str, Any]:
    """The configuration that determines token ids, without vocabulary and merges."""
    model = {name: value for name, value in tokenizer.json_dict["model"].items() if name not in ("vocab", "merges")}
    names = ("normalizer", "pre_tokenizer", "added_tokens")
    return {"model": model, **{name: tokenizer.json_dict[name] for name in names}}


def _greedy_match(token: str, ids: dict[str, int]) -> list[int]:
    """Ids of the longest-match-first split of a token into existing tokens; empty if there is none."""
    prefix, rest = (
        (CONTINUING_SUBWORD_PREFIX, token[len(CONTINUING_SUBWORD_PREFIX) :])
        if token.startswith(CONTINUING_SUBWORD_PREFIX)
        else ("", token)
    )
    matched: list[int] = []
    while rest:
        size = next((size for size in range(len(rest), 0, -1) if prefix + rest[:size] in ids), 0)
        if not size:
            return []
        matched.append(ids[prefix + rest[:size]])
        prefix, rest = CONTINUING_SUBWORD_PREFIX, rest[size:]
    return matched
