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

from ..errors import UserError
from .wordpiece_trainer import CONTINUING_SUBWORD_PREFIX, MergeScore, character_tokens, learn_wordpieces

TokenizerKind = Literal["wordpiece", "bpe", "byte-bpe", "unigram", "char", "byte", "word"]
WordFrequencyList = list[tuple[str, int]]
Progress = Callable[[int, int], None]

UNK_TOKEN = "[UNK]"
WORD_START = "▁"  # before each word, for unigram
MAX_WORD_CHARS = 100  # characters: a WordPiece model takes a longer word for unknown
MAX_TRAINING_WORDS = 10_000_000  # running words that the Rust trainers are fed at most

_ALPHABET_HINT = ", or lower `alphabet`"


@dataclass(frozen=True)
class Vocabulary:
    """The pieces in order of their ids, special tokens first, and what a kind needs to choose among them."""

    kind: TokenizerKind
    tokens: list[str]
    merges: list[tuple[str, str]] | None = None  # bpe and byte kinds, in order of use
    scores: list[float] | None = None  # unigram: log-probability of each piece


def train_vocabulary(
    kind: TokenizerKind,
    counts: Iterable[tuple[str, int]],
    vocab_size: int,
    *,
    special_tokens: Sequence[str],
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    score: MergeScore = "gain",
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
    _validate(kind, vocab_size, special_tokens)
    if kind == "byte":
        return Vocabulary(kind, [*special_tokens, *bytes_to_unicode()], merges=[])
    words = _select_words(kind, counts, special_tokens, limit_alphabet)
    if kind == "word":
        return Vocabulary(
            kind, [*special_tokens, *_select_frequent_words(words, vocab_size - len(special_tokens), min_frequency)]
        )
    if kind == "wordpiece":
        return Vocabulary(kind, _train_wordpiece(words, vocab_size, special_tokens, min_frequency, score, progress))
    if kind == "char":
        return Vocabulary(kind, [*special_tokens, *_select_characters(words, vocab_size - len(special_tokens))])
    if kind == "unigram":
        return _train_unigram(words, vocab_size, special_tokens, progress)
    return _train_bpe(kind, words, vocab_size, special_tokens, min_frequency, progress)


def build_model(vocabulary: Vocabulary) -> models.Model:
    """What cuts one word into ids; the normaliser and the rule that finds words belong to the tokenizer around it."""
    ids = {piece: number for number, piece in enumerate(vocabulary.tokens)}
    if vocabulary.kind in ("wordpiece", "char"):
        return models.WordPiece(ids, unk_token=UNK_TOKEN, max_input_chars_per_word=MAX_WORD_CHARS)
    if vocabulary.kind == "word":
        return models.WordLevel(ids, unk_token=UNK_TOKEN)
    if vocabulary.kind == "unigram":
        return models.Unigram(list(zip(vocabulary.tokens, vocabulary.scores or [], strict=True)), unk_id=ids[UNK_TOKEN])
    if vocabulary.kind == "bpe":
        return models.BPE(ids, vocabulary.merges, unk_token=UNK_TOKEN, continuing_subword_prefix=CONTINUING_SUBWORD_PREFIX)
    return models.BPE(ids, vocabulary.merges)


def bytes_to_unicode() -> str:
    """The visible character that stands for each byte, in order of the bytes: GPT-2's table, as ByteLevel uses it."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = natural(0x100)
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def _validate(kind: TokenizerKind, vocab_size: int, special_tokens: Sequence[str]) -> None:
    if kind not in get_args(TokenizerKind):
        raise UserError(f"there is no vocabulary of kind {kind!r}; known: {', '.join(get_args(TokenizerKind))}")
    if len(set(special_tokens)) < len(special_tokens) or "" in special_tokens:
        raise UserError(f"the special tokens {list(special_tokens)} hold an empty one or one twice; name each once")
    if "byte" not in kind and UNK_TOKEN not in special_tokens:
        raise UserError(f"a {kind} vocabulary needs the special token {UNK_TOKEN} for what it cannot spell; add it")
    _check_vocab_size(kind, vocab_size, special_tokens, 256 if "byte" in kind else 1, "")


def _check_vocab_size(
    kind: TokenizerKind, vocab_size: int, special_tokens: Sequence[str], num_characters: int, hint: str
) -> None:
    needed = len(special_tokens) + num_characters
    if vocab_size < needed:
        given = f"size is {vocab_size}, but {kind} needs at least {needed}: {len(special_tokens)} special tokens and {num_characters} characters"
        raise UserError(f"{given}; make it larger{hint}")


def _select_words(
    kind: TokenizerKind, counts: Iterable[tuple[str, int]], special_tokens: Sequence[str], limit_alphabet: int
) -> WordFrequencyList:
    """The words that take part, in the characters of their vocabulary."""
    longest = MAX_WORD_CHARS if kind in ("wordpiece", "char") else math.inf
    words = [(w, n) for w, n in counts if w and n > 0 and len(w) <= longest and not any(s in w for s in special_tokens)]
    if kind == "byte-bpe":
        table = bytes_to_unicode()
        words = [("".join([table[byte] for byte in word.encode()]), n) for word, n in words]
    elif kind not in ("char", "word"):
        known = _most_frequent_characters(words, limit_alphabet)
        words = [(word, n) for word, n in words if known.issuperset(word)]
    if kind == "unigram":
        words = [(WORD_START + word, n) for word, n in words]
    if not words:
        raise UserError("there are no words to learn a vocabulary from; give it text that is not empty, or a larger alphabet")
    return words


def _most_frequent_characters(words: WordFrequencyList, limit: int) -> set[str]:
    counter: Counter[str] = Counter()
    for word, n in words:
        for character in word:
            counter[character] += n
    ranked = sorted(counter, key=lambda character: (-counter[character], character))
    return set(ranked[:limit])


def _train_wordpiece(
    words: WordFrequencyList,
    vocab_size: int,
    special_tokens: Sequence[str],
    min_frequency: int,
    score: MergeScore,
    progress: Progress,
) -> list[str]:
    room = vocab_size - len(special_tokens)
    _check_vocab_size(
        "wordpiece",
        vocab_size,
        special_tokens,
        len({form for word, _ in words for form in character_tokens(word)}),
        _ALPHABET_HINT,
    )
    return [*special_tokens, *learn_wordpieces(words, room, min_frequency=min_frequency, score=score, progress=progress)]


def _select_characters(words: WordFrequencyList, max_tokens: int) -> list[str]:
    """The most frequent characters, each as it begins a word and as it goes on, if it does."""
    counter: Counter[str] = Counter()
    for word, n in words:
        for form in character_tokens(word):
            counter[form] += n
    return sorted(counter, key=lambda form: (-counter[form], form))[: max(max_tokens, 0)]


def _select_frequent_words(words: WordFrequencyList, max_tokens: int, min_frequency: int) -> list[str]:
    """The most frequent words, whole; ties by spelling."""
    kept = sorted(((n, word) for word, n in words if n >= min_frequency), key=lambda entry: (-entry[0], entry[1]))
    if not kept:
        raise UserError(f"no word occurs {min_frequency} times; lower `least`, or give more text")
    return [word for _, word in kept[:max_tokens]]


def _train_bpe(
    kind: TokenizerKind,
    words: WordFrequencyList,
    vocab_size: int,
    special_tokens: Sequence[str],
    min_frequency: int,
    progress: Progress,
) -> Vocabulary:
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "min_frequency": math.ceil(min_frequency * _sample_fraction(words)),
        "show_progress": False,
    }
    if kind == "byte-bpe":
        trainer = trainers.BpeTrainer(special_tokens=list(special_tokens), initial_alphabet=list(bytes_to_unicode()), **options)
    else:
        # Named beforehand, in order: else ids of ##forms, and with them ties, follow the order of a Rust hash map.
        inside = sorted({form for word, _ in words for form in character_tokens(word)[1:]})
        options |= {
            "continuing_subword_prefix": CONTINUING_SUBWORD_PREFIX,
            "initial_alphabet": sorted({word[0] for word, _ in words}),
        }
        trainer = trainers.BpeTrainer(special_tokens=[*special_tokens, *inside], **options)
    trained = _run_rust_trainer(models.BPE(), trainer, words, progress)
    merges = [(left, right) for left, right in trained["merges"]]
    pieces = sorted(trained["vocab"], key=trained["vocab"].get)
    _check_vocab_size(
        kind, vocab_size, special_tokens, len(pieces) - len(special_tokens) if len(pieces) > vocab_size else 0, _ALPHABET_HINT
    )
    return Vocabulary(kind, pieces, merges=merges)


def _train_unigram(words: WordFrequencyList, vocab_size: int, special_tokens: Sequence[str], progress: Progress) -> Vocabulary:
    characters = {character for word, _ in words for character in word}
    _check_vocab_size("unigram", vocab_size, special_tokens, len(characters), _ALPHABET_HINT)
    options: dict[str, Any] = {"vocab_size": vocab_size, "unk_token": UNK_TOKEN, "show_progress": False}
    trainer = trainers.UnigramTrainer(special_tokens=list(special_tokens), initial_alphabet=sorted(characters), **options)
    learnt = _run_rust_trainer(models.Unigram(), trainer, words, progress)["vocab"][len(special_tokens) :]
    # The trainer overshoots a size with room for no more than the characters: they stay, the worst of the others go.
    ranked = sorted(_round_scores(learnt), key=lambda entry: (len(entry[0]) > 1, -entry[1], entry[0]))
    scored = sorted(
        _attach_word_start(ranked[: vocab_size - len(special_tokens)], words), key=lambda entry: (-entry[1], entry[0])
    )
    pieces = [*special_tokens, *(piece for piece, _ in scored)]
    return Vocabulary("unigram", pieces, scores=[0.0] * len(special_tokens) + [score for _, score in scored])


def _attach_word_start(token_scores: list[tuple[str, float]], words: WordFrequencyList) -> list[tuple[str, float]]:
    """Characters that are always a word of their own (punctuation, Chinese) in one piece with their mark.

    The Rust trainer never joins them with it, and a text would pay two pieces for each comma.
    """
    inside = {character for word, _ in words if len(word) > 2 for character in word[1:]}
    lone = (
        {word[1:] for word, _ in words if len(word) == 2} - inside - {piece[1:] for piece, _ in token_scores if len(piece) == 2}
    )
    return [(WORD_START + piece if piece in lone else piece, score) for piece, score in token_scores]


def _round_scores(token_scores: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Scores without what differs from run to run.

    The trainer sums in the order of a hash map, and hands the characters it has no score for the lowest one plus 0,
    0.0001, 0.0002 ... in that order: here these get the lowest, and all are rounded.
    """
    lowest = min(score for _, score in token_scores)
    single = sum(len(piece) == 1 for piece, _ in token_scores)
    steps = [(piece, score, (score - lowest) * 1e4) for piece, score in token_scores]
    return [
        (piece, round(lowest if len(piece) == 1 and step < single and abs(step - round(step)) < 1e-4 else score, 3))
        for piece, score, step in steps
    ]


def _run_rust_trainer(
    untrained_model: models.Model, trainer: Any, words: WordFrequencyList, progress: Progress
) -> dict[str, Any]:
    """The model, as plain values, that a Rust trainer makes of the words, each repeated as often as it counts."""
    used = {character for word, _ in words for character in word}
    separator = next(chr(code) for code in natural() if chr(code) not in used)
    tokenizer = Tokenizer(untrained_model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(separator, "removed")
    tokenizer.train_from_iterator(_repeat_words(words, separator, progress), trainer)
    return json.loads(tokenizer.to_str())["model"]


def _sample_fraction(words: WordFrequencyList) -> Fraction:
    return min(Fraction(1), Fraction(MAX_TRAINING_WORDS, sum(n for _, n in words)))


def _repeat_words(words: WordFrequencyList, separator: str, progress: Progress) -> Iterator[str]:
    """All words, or every so-manieth of the running words: rare ones are thinned out, not lost and not made frequent."""
    share, passed, fed = _sample_fraction(words), 0, 0
    for number, (word, n) in enumerate(words, 1):
        passed += n
        times = math.floor(passed * share) - fed
        fed += times
        for begin in range(0, times, 10_000):
            yield separator.join([word] * min(times - begin, 10_000))
        progress(number, len(words))
