"""Vocabularies learnt from the counts of words, one function for every kind, and the models that cut words by them."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count as natural
from typing import Any, Literal, get_args

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ..errors import BadInput
from .wordpiece_trainer import INSIDE, Score, forms, learn

Kind = Literal["wordpiece", "bpe", "byte-bpe", "unigram", "char", "byte", "word"]
Counts = list[tuple[str, int]]
Progress = Callable[[int, int], None]

UNKNOWN = "[UNK]"
WORD_START = "▁"  # before each word, for unigram
LONGEST = 100  # characters: a WordPiece model takes a longer word for unknown
CAP = 10_000_000  # running words that the Rust trainers are fed at most

_FEWER = ", or lower `alphabet`"


@dataclass(frozen=True)
class Vocabulary:
    """The pieces in order of their ids, special tokens first, and what a kind needs to choose among them."""

    kind: Kind
    pieces: list[str]
    merges: list[tuple[str, str]] | None = None  # bpe and byte kinds, in order of use
    scores: list[float] | None = None  # unigram: log-probability of each piece


def train(
    kind: Kind,
    counts: Iterable[tuple[str, int]],
    size: int,
    *,
    specials: Sequence[str],
    least: int = 2,
    alphabet: int = 1000,
    score: Score = "gain",
    progress: Progress = lambda done, total: None,
) -> Vocabulary:
    """Learn at most `size` pieces; there are fewer when the words give no more.

    Words come as the tokenizer will cut them: normalised, for byte-bpe with the space before them (" the"), for unigram
    without their start mark. A pair (for `word`, a word) under `least` occurrences makes no piece. A word takes no part
    if it spells a special token or has a character that is not among the `alphabet` most frequent; the byte kinds know
    every character, and `word` does not look at them.
    `score` is WordPiece's alone: `gain` is the change in log-likelihood, `ratio` is count(ab) / (count(a) count(b)),
    which prefers rare pairs so strongly that it needs a `least` near a ten-thousandth of the running words. Of more than
    ten million running words, bpe, byte-bpe and unigram learn from an even sample of so many, with `least` made smaller in
    proportion; every character of the alphabet is kept. `progress` hears of pieces learnt (wordpiece) or of distinct words
    fed (bpe, byte-bpe, unigram).
    """
    _check(kind, size, specials)
    if kind == "byte":
        return Vocabulary(kind, [*specials, *byte_characters()], merges=[])
    words = _words(kind, counts, specials, alphabet)
    if kind == "word":
        return Vocabulary(kind, [*specials, *_frequent_words(words, size - len(specials), least)])
    if kind == "wordpiece":
        return Vocabulary(kind, _wordpiece(words, size, specials, least, score, progress))
    if kind == "char":
        return Vocabulary(kind, [*specials, *_characters(words, size - len(specials))])
    if kind == "unigram":
        return _unigram(words, size, specials, progress)
    return _bpe(kind, words, size, specials, least, progress)


def model(vocabulary: Vocabulary) -> models.Model:
    """What cuts one word into ids; the normaliser and the rule that finds words belong to the tokenizer around it."""
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
    if vocabulary.kind in ("wordpiece", "char"):
        return models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=LONGEST)
    if vocabulary.kind == "word":
        return models.WordLevel(ids, unk_token=UNKNOWN)
    if vocabulary.kind == "unigram":
        return models.Unigram(list(zip(vocabulary.pieces, vocabulary.scores or [], strict=True)), unk_id=ids[UNKNOWN])
    if vocabulary.kind == "bpe":
        return models.BPE(ids, vocabulary.merges, unk_token=UNKNOWN, continuing_subword_prefix=INSIDE)
    return models.BPE(ids, vocabulary.merges)


def byte_characters() -> str:
    """The visible character that stands for each byte, in order of the bytes: GPT-2's table, as ByteLevel uses it."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = natural(0x100)
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def _check(kind: Kind, size: int, specials: Sequence[str]) -> None:
    if kind not in get_args(Kind):
        raise BadInput(f"there is no vocabulary of kind {kind!r}; known: {', '.join(get_args(Kind))}")
    if len(set(specials)) < len(specials) or "" in specials:
        raise BadInput(f"the special tokens {list(specials)} hold an empty one or one twice; name each once")
    if "byte" not in kind and UNKNOWN not in specials:
        raise BadInput(f"a {kind} vocabulary needs the special token {UNKNOWN} for what it cannot spell; add it")
    _fits(kind, size, specials, 256 if "byte" in kind else 1, "")


def _fits(kind: Kind, size: int, specials: Sequence[str], letters: int, advice: str) -> None:
    needed = len(specials) + letters
    if size < needed:
        given = f"size is {size}, but {kind} needs at least {needed}: {len(specials)} special tokens and {letters} characters"
        raise BadInput(f"{given}; make it larger{advice}")


def _words(kind: Kind, counts: Iterable[tuple[str, int]], specials: Sequence[str], alphabet: int) -> Counts:
    """The words that take part, in the characters of their vocabulary."""
    longest = LONGEST if kind in ("wordpiece", "char") else math.inf
    words = [(w, n) for w, n in counts if w and n > 0 and len(w) <= longest and not any(s in w for s in specials)]
    if kind == "byte-bpe":
        table = byte_characters()
        words = [("".join([table[byte] for byte in word.encode()]), n) for word, n in words]
    elif kind not in ("char", "word"):
        known = _frequent(words, alphabet)
        words = [(word, n) for word, n in words if known.issuperset(word)]
    if kind == "unigram":
        words = [(WORD_START + word, n) for word, n in words]
    if not words:
        raise BadInput("there are no words to learn a vocabulary from; give it text that is not empty, or a larger alphabet")
    return words


def _frequent(words: Counts, number: int) -> set[str]:
    counter: Counter[str] = Counter()
    for word, n in words:
        for character in word:
            counter[character] += n
    ranked = sorted(counter, key=lambda character: (-counter[character], character))
    return set(ranked[:number])


def _wordpiece(words: Counts, size: int, specials: Sequence[str], least: int, score: Score, progress: Progress) -> list[str]:
    room = size - len(specials)
    _fits("wordpiece", size, specials, len({form for word, _ in words for form in forms(word)}), _FEWER)
    return [*specials, *learn(words, room, least=least, score=score, progress=progress)]


def _characters(words: Counts, room: int) -> list[str]:
    """The most frequent characters, each as it begins a word and as it goes on, if it does."""
    counter: Counter[str] = Counter()
    for word, n in words:
        for form in forms(word):
            counter[form] += n
    return sorted(counter, key=lambda form: (-counter[form], form))[: max(room, 0)]


def _frequent_words(words: Counts, room: int, least: int) -> list[str]:
    """The most frequent words, whole; ties by spelling."""
    kept = sorted(((n, word) for word, n in words if n >= least), key=lambda entry: (-entry[0], entry[1]))
    if not kept:
        raise BadInput(f"no word occurs {least} times; lower `least`, or give more text")
    return [word for _, word in kept[:room]]


def _bpe(kind: Kind, words: Counts, size: int, specials: Sequence[str], least: int, progress: Progress) -> Vocabulary:
    options: dict[str, Any] = {"vocab_size": size, "min_frequency": math.ceil(least * _share(words)), "show_progress": False}
    if kind == "byte-bpe":
        trainer = trainers.BpeTrainer(special_tokens=list(specials), initial_alphabet=list(byte_characters()), **options)
    else:
        # Named beforehand, in order: else ids of ##forms, and with them ties, follow the order of a Rust hash map.
        inside = sorted({form for word, _ in words for form in forms(word)[1:]})
        options |= {"continuing_subword_prefix": INSIDE, "initial_alphabet": sorted({word[0] for word, _ in words})}
        trainer = trainers.BpeTrainer(special_tokens=[*specials, *inside], **options)
    trained = _fed(models.BPE(), trainer, words, progress)
    merges = [(left, right) for left, right in trained["merges"]]
    pieces = sorted(trained["vocab"], key=trained["vocab"].get)
    _fits(kind, size, specials, len(pieces) - len(specials) if len(pieces) > size else 0, _FEWER)
    return Vocabulary(kind, pieces, merges=merges)


def _unigram(words: Counts, size: int, specials: Sequence[str], progress: Progress) -> Vocabulary:
    characters = {character for word, _ in words for character in word}
    _fits("unigram", size, specials, len(characters), _FEWER)
    options: dict[str, Any] = {"vocab_size": size, "unk_token": UNKNOWN, "show_progress": False}
    trainer = trainers.UnigramTrainer(special_tokens=list(specials), initial_alphabet=sorted(characters), **options)
    learnt = _fed(models.Unigram(), trainer, words, progress)["vocab"][len(specials) :]
    # The trainer overshoots a size with room for no more than the characters: they stay, the worst of the others go.
    ranked = sorted(_settled(learnt), key=lambda entry: (len(entry[0]) > 1, -entry[1], entry[0]))
    scored = sorted(_marked(ranked[: size - len(specials)], words), key=lambda entry: (-entry[1], entry[0]))
    pieces = [*specials, *(piece for piece, _ in scored)]
    return Vocabulary("unigram", pieces, scores=[0.0] * len(specials) + [score for _, score in scored])


def _marked(learnt: list[tuple[str, float]], words: Counts) -> list[tuple[str, float]]:
    """Characters that are always a word of their own (punctuation, Chinese) in one piece with their mark.

    The Rust trainer never joins them with it, and a text would pay two pieces for each comma.
    """
    inside = {character for word, _ in words if len(word) > 2 for character in word[1:]}
    lone = {word[1:] for word, _ in words if len(word) == 2} - inside - {piece[1:] for piece, _ in learnt if len(piece) == 2}
    return [(WORD_START + piece if piece in lone else piece, score) for piece, score in learnt]


def _settled(learnt: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Scores without what differs from run to run.

    The trainer sums in the order of a hash map, and hands the characters it has no score for the lowest one plus 0,
    0.0001, 0.0002 ... in that order: here these get the lowest, and all are rounded.
    """
    lowest = min(score for _, score in learnt)
    single = sum(len(piece) == 1 for piece, _ in learnt)
    steps = [(piece, score, (score - lowest) * 1e4) for piece, score in learnt]
    return [
        (piece, round(lowest if len(piece) == 1 and step < single and abs(step - round(step)) < 1e-4 else score, 3))
        for piece, score, step in steps
    ]


def _fed(untrained: models.Model, trainer: Any, words: Counts, progress: Progress) -> dict[str, Any]:
    """The model, as plain values, that a Rust trainer makes of the words, each repeated as often as it counts."""
    used = {character for word, _ in words for character in word}
    separator = next(chr(code) for code in natural() if chr(code) not in used)
    tokenizer = Tokenizer(untrained)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(separator, "removed")
    tokenizer.train_from_iterator(_repeated(words, separator, progress), trainer)
    return json.loads(tokenizer.to_str())["model"]


def _share(words: Counts) -> Fraction:
    return min(Fraction(1), Fraction(CAP, sum(n for _, n in words)))


def _repeated(words: Counts, separator: str, progress: Progress) -> Iterator[str]:
    """All words, or every so-manieth of the running words: rare ones are thinned out, not lost and not made frequent."""
    share, passed, fed = _share(words), 0, 0
    for number, (word, n) in enumerate(words, 1):
        passed += n
        times = math.floor(passed * share) - fed
        fed += times
        for begin in range(0, times, 10_000):
            yield separator.join([word] * min(times - begin, 10_000))
        progress(number, len(words))
