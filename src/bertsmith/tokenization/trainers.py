"""Vocabulary training from word counts for every kind (WordPiece, BPE, byte-level BPE, Unigram, char, byte, word)."""

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
WORD_START = "▁"  # SentencePiece's word-start mark, for unigram
MAX_WORD_CHARS = 100  # longer words are [UNK] for a WordPiece model
MAX_TRAINING_WORDS = 10_000_000  # running words given to the Rust trainers at most

_ALPHABET_HINT = ", or lower limit_alphabet"


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in order of ids, special tokens first, with the merges or scores that the kind needs."""

    kind: TokenizerKind
    tokens: list[str]
    merges: list[tuple[str, str]] | None = None  # bpe and byte kinds, in order of application
    scores: list[float] | None = None  # unigram: log-probability of each token


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
    """Train a vocabulary of at most `vocab_size` tokens; fewer if the words do not yield as many.

    counts: words as the tokenizer will split them: normalized; for byte-bpe with the space before them (" the"), for
        unigram without the word-start mark. Words that contain a special token are ignored.
    min_frequency: occurrences that a pair (for `word`, a word) needs.
    limit_alphabet: words with a character that is not among this many most frequent ones are ignored; the byte kinds,
        `char` and `word` have no such limit.
    score: WordPiece only. `gain` is the change in log-likelihood, `ratio` is count(ab) / (count(a) count(b)), which
        favours rare pairs so strongly that it needs a `min_frequency` near 1/10,000 of the running words.
    progress: called with tokens learned (wordpiece) or distinct words processed (bpe, byte-bpe, unigram), and the total.

    On more than MAX_TRAINING_WORDS running words, bpe, byte-bpe and unigram train on a systematic sample of that size, with
    `min_frequency` scaled in proportion; all characters of the alphabet are kept.
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
    """The `tokenizers` model that splits one word into tokens, without normalizer and pre-tokenizer."""
    token_to_id = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    if vocabulary.kind in ("wordpiece", "char"):
        return models.WordPiece(token_to_id, unk_token=UNK_TOKEN, max_input_chars_per_word=MAX_WORD_CHARS)
    if vocabulary.kind == "word":
        return models.WordLevel(token_to_id, unk_token=UNK_TOKEN)
    if vocabulary.kind == "unigram":
        return models.Unigram(list(zip(vocabulary.tokens, vocabulary.scores or [], strict=True)), unk_id=token_to_id[UNK_TOKEN])
    if vocabulary.kind == "bpe":
        return models.BPE(
            token_to_id, vocabulary.merges, unk_token=UNK_TOKEN, continuing_subword_prefix=CONTINUING_SUBWORD_PREFIX
        )
    return models.BPE(token_to_id, vocabulary.merges)


def bytes_to_unicode() -> str:
    """The printable character that represents each byte, in order of bytes: GPT-2's table, as used by ByteLevel."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    next_code = natural(0x100)
    return "".join(chr(byte if byte in visible else next(next_code)) for byte in range(256))


def _validate(kind: TokenizerKind, vocab_size: int, special_tokens: Sequence[str]) -> None:
    if kind not in get_args(TokenizerKind):
        raise UserError(f"kind = {kind!r} is not valid; one of: {', '.join(get_args(TokenizerKind))}")
    if len(set(special_tokens)) < len(special_tokens) or "" in special_tokens:
        raise UserError(f"special tokens {list(special_tokens)} must be distinct and not empty")
    if "byte" not in kind and UNK_TOKEN not in special_tokens:
        raise UserError(f"a {kind} vocabulary needs {UNK_TOKEN} among its special tokens, for text outside the vocabulary")
    _check_vocab_size(kind, vocab_size, special_tokens, 256 if "byte" in kind else 1, "")


def _check_vocab_size(
    kind: TokenizerKind, vocab_size: int, special_tokens: Sequence[str], num_characters: int, hint: str
) -> None:
    needed = len(special_tokens) + num_characters
    if vocab_size < needed:
        parts = f"{len(special_tokens)} special tokens, {num_characters} characters"
        raise UserError(f"vocab_size={vocab_size} is too small: {kind} needs at least {needed} ({parts}); raise it{hint}")


def _select_words(
    kind: TokenizerKind, counts: Iterable[tuple[str, int]], special_tokens: Sequence[str], limit_alphabet: int
) -> WordFrequencyList:
    """Words to train on, written in the characters of their vocabulary (byte characters, word-start mark)."""
    max_chars = MAX_WORD_CHARS if kind in ("wordpiece", "char") else math.inf
    words = [
        (w, count)
        for w, count in counts
        if w and count > 0 and len(w) <= max_chars and not any(special in w for special in special_tokens)
    ]
    if kind == "byte-bpe":
        table = bytes_to_unicode()
        words = [("".join([table[byte] for byte in word.encode()]), count) for word, count in words]
    elif kind not in ("char", "word"):
        alphabet = _most_frequent_characters(words, limit_alphabet)
        words = [(word, count) for word, count in words if alphabet.issuperset(word)]
    if kind == "unigram":
        words = [(WORD_START + word, count) for word, count in words]
    if not words:
        raise UserError("the texts contain no words to train a vocabulary on; check texts, or raise limit_alphabet")
    return words


def _most_frequent_characters(words: WordFrequencyList, limit: int) -> set[str]:
    counter: Counter[str] = Counter()
    for word, count in words:
        for character in word:
            counter[character] += count
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
    max_tokens = vocab_size - len(special_tokens)
    _check_vocab_size(
        "wordpiece",
        vocab_size,
        special_tokens,
        len({token for word, _ in words for token in character_tokens(word)}),
        _ALPHABET_HINT,
    )
    return [*special_tokens, *learn_wordpieces(words, max_tokens, min_frequency=min_frequency, score=score, progress=progress)]


def _select_characters(words: WordFrequencyList, max_tokens: int) -> list[str]:
    """The most frequent characters; word-initial (`a`) and continuing (`##a`) forms count separately."""
    counter: Counter[str] = Counter()
    for word, count in words:
        for token in character_tokens(word):
            counter[token] += count
    return sorted(counter, key=lambda token: (-counter[token], token))[: max(max_tokens, 0)]


def _select_frequent_words(words: WordFrequencyList, max_tokens: int, min_frequency: int) -> list[str]:
    """The most frequent words; ties in alphabetical order."""
    ranked = sorted(((count, word) for word, count in words if count >= min_frequency), key=lambda entry: (-entry[0], entry[1]))
    if not ranked:
        raise UserError(f"no word occurs min_frequency={min_frequency} times; lower it, or give more text")
    return [word for _, word in ranked[:max_tokens]]


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
        # Given in sorted order: otherwise ids of ##characters, and thus ties, follow the order of a Rust hash map.
        continuation_chars = sorted({token for word, _ in words for token in character_tokens(word)[1:]})
        options |= {
            "continuing_subword_prefix": CONTINUING_SUBWORD_PREFIX,
            "initial_alphabet": sorted({word[0] for word, _ in words}),
        }
        trainer = trainers.BpeTrainer(special_tokens=[*special_tokens, *continuation_chars], **options)
    trained = _run_rust_trainer(models.BPE(), trainer, words, progress)
    merges = [(left, right) for left, right in trained["merges"]]
    tokens = sorted(trained["vocab"], key=trained["vocab"].get)
    _check_vocab_size(
        kind, vocab_size, special_tokens, len(tokens) - len(special_tokens) if len(tokens) > vocab_size else 0, _ALPHABET_HINT
    )
    return Vocabulary(kind, tokens, merges=merges)


def _train_unigram(words: WordFrequencyList, vocab_size: int, special_tokens: Sequence[str], progress: Progress) -> Vocabulary:
    characters = {character for word, _ in words for character in word}
    _check_vocab_size("unigram", vocab_size, special_tokens, len(characters), _ALPHABET_HINT)
    options: dict[str, Any] = {"vocab_size": vocab_size, "unk_token": UNK_TOKEN, "show_progress": False}
    trainer = trainers.UnigramTrainer(special_tokens=list(special_tokens), initial_alphabet=sorted(characters), **options)
    token_scores = _run_rust_trainer(models.Unigram(), trainer, words, progress)["vocab"][len(special_tokens) :]
    # The trainer may exceed vocab_size when it barely fits the alphabet: keep all characters, drop the lowest-scored others.
    ranked = sorted(_round_scores(token_scores), key=lambda entry: (len(entry[0]) > 1, -entry[1], entry[0]))
    scored = sorted(
        _attach_word_start(ranked[: vocab_size - len(special_tokens)], words), key=lambda entry: (-entry[1], entry[0])
    )
    tokens = [*special_tokens, *(token for token, _ in scored)]
    return Vocabulary("unigram", tokens, scores=[0.0] * len(special_tokens) + [score for _, score in scored])


def _attach_word_start(token_scores: list[tuple[str, float]], words: WordFrequencyList) -> list[tuple[str, float]]:
    """Join characters that are always a word of their own (punctuation, Chinese) with the word-start mark.

    The Rust trainer never does, so that each comma would cost two tokens.
    """
    inner_chars = {character for word, _ in words if len(word) > 2 for character in word[1:]}
    lone_chars = (
        {word[1:] for word, _ in words if len(word) == 2}
        - inner_chars
        - {token[1:] for token, _ in token_scores if len(token) == 2}
    )
    return [(WORD_START + token if token in lone_chars else token, score) for token, score in token_scores]


def _round_scores(token_scores: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Make the scores deterministic.

    The trainer sums in the order of a hash map, and gives characters without a score the lowest score plus 0, 0.0001,
    0.0002, ... in that order: here these get the lowest score, and all scores are rounded.
    """
    lowest = min(score for _, score in token_scores)
    num_single_chars = sum(len(token) == 1 for token, _ in token_scores)
    steps = [(token, score, (score - lowest) * 1e4) for token, score in token_scores]
    return [
        (token, round(lowest if len(token) == 1 and step < num_single_chars and abs(step - round(step)) < 1e-4 else score, 3))
        for token, score, step in steps
    ]


def _run_rust_trainer(
    untrained_model: models.Model, trainer: Any, words: WordFrequencyList, progress: Progress
) -> dict[str, Any]:
    """Train a model on the words, each repeated by its count; returns its JSON as a dict."""
    used = {character for word, _ in words for character in word}
    separator = next(chr(code) for code in natural() if chr(code) not in used)
    tokenizer = Tokenizer(untrained_model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(separator, "removed")
    tokenizer.train_from_iterator(_repeat_words(words, separator, progress), trainer)
    return json.loads(tokenizer.to_str())["model"]


def _sample_fraction(words: WordFrequencyList) -> Fraction:
    return min(Fraction(1), Fraction(MAX_TRAINING_WORDS, sum(count for _, count in words)))


def _repeat_words(words: WordFrequencyList, separator: str, progress: Progress) -> Iterator[str]:
    """Words repeated by count, or a systematic sample of the running words, which keeps relative frequencies."""
    fraction, words_seen, words_emitted = _sample_fraction(words), 0, 0
    for index, (word, count) in enumerate(words, 1):
        words_seen += count
        times = math.floor(words_seen * fraction) - words_emitted
        words_emitted += times
        for start in range(0, times, 10_000):
            yield separator.join([word] * min(times - start, 10_000))
        progress(index, len(words))
