"""A tokenizer extended for a domain: the pieces that shorten its text most, behind all old ones, which keep their ids."""

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from ..errors import BadInput
from .chinese import IDEOGRAPH
from .pipeline import Words
from .tokenizer import Tokenizer
from .vocab_selection import Longest, Merged, Pair, joined, taken
from .wordpiece_trainer import INSIDE

Extensible = Literal["wordpiece", "bpe", "byte-bpe"]
Counts = Iterable[tuple[str, int]]

WORDS = 500_000  # distinct words that are looked at, the most frequent first: what bounds memory
ALONE = 0.1  # share of running words that are lone ideographs from which on it is worth saying


@dataclass(frozen=True)
class Extension:
    """The new tokenizer, and what each new piece gained when it was added: tokens of the text."""

    tokenizer: Tokenizer
    gains: list[tuple[str, int]]  # in the order of their ids


def kind_of(tokenizer: Tokenizer) -> Extensible:
    """The kind of vocabulary, if it can be extended: old text is cut as before, whatever comes behind the old pieces."""
    state = tokenizer.state
    model, splitter = state["model"], (state["pre_tokenizer"] or {}).get("type")
    if any(not token["special"] for token in state["added_tokens"]):
        raise BadInput(f"{tokenizer.source} has added tokens that it finds inside words; extend the tokenizer without them")
    bert = splitter == "BertPreTokenizer" and _cleans(state["normalizer"]) and model.get("continuing_subword_prefix") == INSIDE
    if model["type"] == "WordPiece" and bert:
        return "wordpiece"
    if model["type"] == "BPE" and model["merges"] and not (model.get("dropout") or model.get("end_of_word_suffix")):
        if bert:
            return "bpe"
        raw = (state["normalizer"] or {}).get("type") in (None, "Lowercase")
        if splitter == "ByteLevel" and state["pre_tokenizer"]["use_regex"] and raw:
            return "byte-bpe"
    raise BadInput(
        f"{tokenizer.source} is of a kind that cannot be extended ({model['type']}, words by {splitter}); WordPiece and BPE "
        "as BERT, RoBERTa and `bertsmith tokenizer` make them can: a new piece of another would cut old text anew"
    )


def words_of(tokenizer: Tokenizer) -> Callable[[str], list[str]]:
    """Blocks of text to words, cleaned and cut as this tokenizer does."""
    kind, normalizer = kind_of(tokenizer), tokenizer.state["normalizer"] or {}
    words = Words(kind, bool(normalizer.get("lowercase", normalizer.get("type") == "Lowercase")))
    if normalizer:
        words.normalizer = tokenizer.rust.normalizer  # accents may be its own
    return words


def extended(
    tokenizer: Tokenizer, counts: Counts, room: int, least: int = 2,
    progress: Callable[[int, int], None] = lambda done, room: None,
) -> Extension:  # fmt: skip
    """At most `room` new pieces, by what they gain on these words (made by `words_of`); none occurs fewer than `least` times.

    A BPE vocabulary grows by merges: a long word takes several, and a character it does not know stays unknown.
    """
    kind = kind_of(tokenizer)
    merges: list[Pair] = []
    if kind == "wordpiece":
        longest = tokenizer.state["model"]["max_input_chars_per_word"]  # beyond it a word is unknown, whatever there is
        split = ((word, n) for word, n in counts if len(word) <= longest)
        gains = taken(Longest(tokenizer.pieces, islice(split, WORDS)), room, least, progress)
    else:
        fixed = {piece for piece, special in zip(tokenizer.pieces, tokenizer.special, strict=True) if special}
        found = taken(Merged(tokenizer.pieces, _cuts(tokenizer, islice(counts, WORDS)), fixed), room, least, progress)
        merges, gains = [pair for pair, _ in found], [(joined(pair), gain) for pair, gain in found]
    if not gains:
        raise BadInput(f"no new piece of {least} occurrences would make this text shorter: {tokenizer.source} fits it as it is")
    return Extension(_grown(tokenizer, [piece for piece, _ in gains], merges), gains)


def extends(child: Tokenizer, parent: Tokenizer) -> bool:
    """Whether a tokenizer is another with pieces behind: the same cleaning, words, ids and order of merges."""
    ours, theirs = _bare(child), _bare(parent)
    merges, before = (tokenizer.state["model"].get("merges", []) for tokenizer in (child, parent))
    same = ours == theirs and child.pieces[: len(parent)] == parent.pieces and merges[: len(before)] == before
    return same and len(child) > len(parent)


def origins(child: Tokenizer, parent: Tokenizer) -> list[list[int]]:
    """For each new piece, in the order of ids, the ids of the parent's pieces that it replaces."""
    new = child.pieces[len(parent) :]
    if child.state["model"]["type"] == "WordPiece":
        ids = {piece: number for number, piece in enumerate(parent.pieces)}
        return [_spelled(piece, ids) or [parent.unk] for piece in new]
    parts = {piece: [number] for number, piece in enumerate(parent.pieces)}
    for merge in child.state["model"]["merges"][len(parent.state["model"]["merges"]) :]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        parts[joined((left, right))] = parts[left] + parts[right]
    return [parts[piece] for piece in new]


def lone_ideographs(counts: Counts) -> float:
    """The share of running words that are one Chinese character, which BERT's words never join: no piece can either."""
    total = lone = 0
    for word, count in counts:
        total, lone = total + count, lone + count * (len(word) == 1 and IDEOGRAPH.match(word) is not None)
    return lone / max(total, 1)


def _cleans(normalizer: dict[str, Any] | None) -> bool:
    own = normalizer or {}
    return own.get("type") == "BertNormalizer" and own["clean_text"] and own["handle_chinese_chars"]


def _cuts(tokenizer: Tokenizer, counts: Counts) -> Iterable[tuple[list[str], int]]:
    entries = list(counts)
    cut = tokenizer.rust.encode_batch_fast([word for word, _ in entries], add_special_tokens=False)
    pieces = tokenizer.pieces
    return (([pieces[i] for i in encoding.ids], count) for encoding, (_, count) in zip(cut, entries, strict=True))


def _grown(tokenizer: Tokenizer, pieces: list[str], merges: list[Pair]) -> Tokenizer:
    state = copy.deepcopy(tokenizer.state)
    model, first = state["model"], len(tokenizer)
    # Special tokens that stand outside the vocabulary would be moved behind the new pieces: inside it they keep their ids.
    model["vocab"] |= {token["content"]: token["id"] for token in state["added_tokens"]}
    model["vocab"] |= {piece: first + number for number, piece in enumerate(pieces)}
    if merges:
        spaced = isinstance(model["merges"][0], str)
        model["merges"] += [" ".join(pair) if spaced else list(pair) for pair in merges]
    grown = Tokenizer.parsed(json.dumps(state).encode(), tokenizer.source)
    assert extends(grown, tokenizer), "an old id moved"
    return grown


def _bare(tokenizer: Tokenizer) -> dict[str, Any]:
    """All that makes ids of text but the pieces."""
    model = {name: value for name, value in tokenizer.state["model"].items() if name not in ("vocab", "merges")}
    names = ("normalizer", "pre_tokenizer", "added_tokens")
    return {"model": model, **{name: tokenizer.state[name] for name in names}}


def _spelled(piece: str, ids: dict[str, int]) -> list[int]:
    """A piece by the longest old ones, begun as it begins; nothing, if they cannot spell it."""
    mark, rest = (INSIDE, piece[len(INSIDE) :]) if piece.startswith(INSIDE) else ("", piece)
    found: list[int] = []
    while rest:
        size = next((size for size in range(len(rest), 0, -1) if mark + rest[:size] in ids), 0)
        if not size:
            return []
        found.append(ids[mark + rest[:size]])
        mark, rest = INSIDE, rest[size:]
    return found
