"""A tokenizer extended for a domain: the pieces that shorten its text most, behind all old ones, which keep their ids."""

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

MAX_WORDS = 500_000  # distinct words that are looked at, the most frequent first: what bounds memory
LONE_IDEOGRAPH_THRESHOLD = 0.1  # share of running words that are lone ideographs from which on it is worth saying


@dataclass(frozen=True)
class Extension:
    """The new tokenizer, and what each new piece gained when it was added: tokens of the text."""

    tokenizer: Tokenizer
    gains: list[tuple[str, int]]  # in the order of their ids


def extensible_kind(tokenizer: Tokenizer) -> ExtensibleKind:
    """The kind of vocabulary, if it can be extended: old text is cut as before, whatever comes behind the old pieces."""
    state = tokenizer.json_dict
    model, splitter = state["model"], (state["pre_tokenizer"] or {}).get("type")
    if any(not token["special"] for token in state["added_tokens"]):
        raise UserError(f"{tokenizer.source} has added tokens that it finds inside words; extend the tokenizer without them")
    bert = (
        splitter == "BertPreTokenizer"
        and _is_bert_normalizer(state["normalizer"])
        and model.get("continuing_subword_prefix") == CONTINUING_SUBWORD_PREFIX
    )
    if model["type"] == "WordPiece" and bert:
        return "wordpiece"
    if model["type"] == "BPE" and model["merges"] and not (model.get("dropout") or model.get("end_of_word_suffix")):
        if bert:
            return "bpe"
        raw = (state["normalizer"] or {}).get("type") in (None, "Lowercase")
        if splitter == "ByteLevel" and state["pre_tokenizer"]["use_regex"] and raw:
            return "byte-bpe"
    raise UserError(
        f"{tokenizer.source} is of a kind that cannot be extended ({model['type']}, words by {splitter}); WordPiece and BPE "
        "as BERT, RoBERTa and `bertsmith tokenizer` make them can: a new piece of another would cut old text anew"
    )


def build_word_splitter(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Blocks of text to words, cleaned and cut as this tokenizer does."""
    kind, normalizer = extensible_kind(tokenizer), tokenizer.json_dict["normalizer"] or {}
    words = WordSplitter(kind, bool(normalizer.get("lowercase", normalizer.get("type") == "Lowercase")))
    if normalizer:
        words.normalizer = tokenizer.backend_tokenizer.normalizer  # accents may be its own
    return words


def extend_tokenizer(
    tokenizer: Tokenizer, counts: WordFrequencies, max_added: int, min_frequency: int = 2,
    progress: Callable[[int, int], None] = lambda done, room: None,
) -> Extension:  # fmt: skip
    """At most `room` new pieces, by what they gain on these words (made by `words_of`); none occurs fewer than `least` times.

    A BPE vocabulary grows by merges: a long word takes several, and a character it does not know stays unknown.
    """
    kind = extensible_kind(tokenizer)
    merges: list[Pair] = []
    if kind == "wordpiece":
        longest = tokenizer.json_dict["model"]["max_input_chars_per_word"]  # beyond it a word is unknown, whatever there is
        split = ((word, n) for word, n in counts if len(word) <= longest)
        gains = select_tokens(
            WordPieceSelector(tokenizer.id_to_token, islice(split, MAX_WORDS)), max_added, min_frequency, progress
        )
    else:
        fixed = {piece for piece, special in zip(tokenizer.id_to_token, tokenizer.is_special, strict=True) if special}
        found = select_tokens(
            BpeSelector(tokenizer.id_to_token, _tokenize_words(tokenizer, islice(counts, MAX_WORDS)), fixed),
            max_added,
            min_frequency,
            progress,
        )
        merges, gains = [pair for pair, _ in found], [(merge_pair(pair), gain) for pair, gain in found]
    if not gains:
        raise UserError(
            f"no new piece of {min_frequency} occurrences would make this text shorter: {tokenizer.source} fits it as it is"
        )
    return Extension(_add_tokens(tokenizer, [piece for piece, _ in gains], merges), gains)


def is_extension(child: Tokenizer, parent: Tokenizer) -> bool:
    """Whether a tokenizer is another with pieces behind: the same cleaning, words, ids and order of merges."""
    ours, theirs = _config_without_vocab(child), _config_without_vocab(parent)
    merges, before = (tokenizer.json_dict["model"].get("merges", []) for tokenizer in (child, parent))
    same = ours == theirs and child.id_to_token[: len(parent)] == parent.id_to_token and merges[: len(before)] == before
    return same and len(child) > len(parent)


def map_to_parent_ids(child: Tokenizer, parent: Tokenizer) -> list[list[int]]:
    """For each new piece, in the order of ids, the ids of the parent's pieces that it replaces."""
    new = child.id_to_token[len(parent) :]
    if child.json_dict["model"]["type"] == "WordPiece":
        ids = {piece: number for number, piece in enumerate(parent.id_to_token)}
        return [_greedy_match(piece, ids) or [parent.unk_token_id] for piece in new]
    parts = {piece: [number] for number, piece in enumerate(parent.id_to_token)}
    for merge in child.json_dict["model"]["merges"][len(parent.json_dict["model"]["merges"]) :]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        parts[merge_pair((left, right))] = parts[left] + parts[right]
    return [parts[piece] for piece in new]


def lone_ideograph_fraction(counts: WordFrequencies) -> float:
    """The share of running words that are one Chinese character, which BERT's words never join: no piece can either."""
    total = lone = 0
    for word, count in counts:
        total, lone = total + count, lone + count * (len(word) == 1 and IDEOGRAPH.match(word) is not None)
    return lone / max(total, 1)


def _is_bert_normalizer(normalizer: dict[str, Any] | None) -> bool:
    own = normalizer or {}
    return own.get("type") == "BertNormalizer" and own["clean_text"] and own["handle_chinese_chars"]


def _tokenize_words(tokenizer: Tokenizer, counts: WordFrequencies) -> Iterable[tuple[list[str], int]]:
    entries = list(counts)
    cut = tokenizer.backend_tokenizer.encode_batch_fast([word for word, _ in entries], add_special_tokens=False)
    pieces = tokenizer.id_to_token
    return (([pieces[i] for i in encoding.ids], count) for encoding, (_, count) in zip(cut, entries, strict=True))


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], merges: list[Pair]) -> Tokenizer:
    state = copy.deepcopy(tokenizer.json_dict)
    model, first = state["model"], len(tokenizer)
    # Special tokens that stand outside the vocabulary would be moved behind the new pieces: inside it they keep their ids.
    model["vocab"] |= {token["content"]: token["id"] for token in state["added_tokens"]}
    model["vocab"] |= {piece: first + number for number, piece in enumerate(tokens)}
    if merges:
        spaced = isinstance(model["merges"][0], str)
        model["merges"] += [" ".join(pair) if spaced else list(pair) for pair in merges]
    grown = Tokenizer.from_json(json.dumps(state).encode(), tokenizer.source)
    assert is_extension(grown, tokenizer), "an old id moved"
    return grown


def _config_without_vocab(tokenizer: Tokenizer) -> dict[str, Any]:
    """All that makes ids of text but the pieces."""
    model = {name: value for name, value in tokenizer.json_dict["model"].items() if name not in ("vocab", "merges")}
    names = ("normalizer", "pre_tokenizer", "added_tokens")
    return {"model": model, **{name: tokenizer.json_dict[name] for name in names}}


def _greedy_match(token: str, ids: dict[str, int]) -> list[int]:
    """A piece by the longest old ones, begun as it begins; nothing, if they cannot spell it."""
    mark, rest = (
        (CONTINUING_SUBWORD_PREFIX, token[len(CONTINUING_SUBWORD_PREFIX) :])
        if token.startswith(CONTINUING_SUBWORD_PREFIX)
        else ("", token)
    )
    found: list[int] = []
    while rest:
        size = next((size for size in range(len(rest), 0, -1) if mark + rest[:size] in ids), 0)
        if not size:
            return []
        found.append(ids[mark + rest[:size]])
        mark, rest = CONTINUING_SUBWORD_PREFIX, rest[size:]
    return found
