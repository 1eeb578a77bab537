"""Vocabulary training: WordPiece against brute force, the Rust trainers from counts against the same on raw text."""

import json
import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertsmith.errors import UserError
from bertsmith.tokenization import trainers as trainers_module
from bertsmith.tokenization.trainers import Vocabulary, build_model, bytes_to_unicode, train_vocabulary
from bertsmith.tokenization.wordpiece_trainer import character_tokens, learn_wordpieces

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def merge_pair(word: list[str], left: str, right: str) -> list[str]:
    result, position = [], 0
    while position < len(word):
        if word[position : position + 2] == [left, right]:
            result.append(left + right.removeprefix("##"))
            position += 2
        else:
            result.append(word[position])
            position += 1
    return result


def count_tokens(words: list[tuple[list[str], int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in words:
        for token in word:
            counts[token] += count
    return counts


def log_likelihood(words: list[tuple[list[str], int]]) -> float:
    counts = count_tokens(words)
    total = sum(counts.values())
    return sum(count * math.log(count / total) for count in counts.values())


def brute_force_score(words, left: str, right: str, rule: str) -> tuple[int, np.float32]:
    """Number of merges of a pair and its score, computed by merging it."""
    after = [(merge_pair(word, left, right), count) for word, count in words]
    num_merges = sum((len(old) - len(new)) * count for (old, count), (new, _) in zip(words, after, strict=True))
    counts = count_tokens(words)
    if rule == "ratio":
        return num_merges, np.float32(num_merges / (counts[left] * counts[right]))
    return num_merges, np.float32(log_likelihood(after) - log_likelihood(words))


def brute_force_wordpieces(counts: list[tuple[str, int]], max_tokens: int, min_frequency: int, rule: str) -> list[str]:
    words = [(character_tokens(word), count) for word, count in counts]
    tokens = sorted(count_tokens(words))
    while len(tokens) < max_tokens:
        pairs = {pair for word, _ in words for pair in pairwise(word)}
        scored = {
            pair: brute_force_score(words, *pair, rule) for pair in pairs if merge_pair(list(pair), *pair)[0] not in tokens
        }
        eligible = {pair: score for pair, (num_merges, score) in scored.items() if num_merges >= min_frequency and score > 1e-6}
        if not eligible:
            break
        left, right = min(eligible, key=lambda pair: (-eligible[pair], pair))
        words = [(merge_pair(word, left, right), count) for word, count in words]
        tokens.append(merge_pair([left, right], left, right)[0])
    return tokens


word_count_dicts = st.dictionaries(
    st.text("ab", min_size=1, max_size=8) | st.text("abc狗🐶", min_size=1, max_size=6) | st.text("#a", min_size=1, max_size=5),
    st.integers(1, 40),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("rule", ["gain", "ratio"])
@settings(max_examples=150, deadline=None)
@given(word_counts=word_count_dicts, min_frequency=st.integers(1, 4), max_tokens=st.integers(5, 40))
def test_wordpiece_matches_brute_force(rule, word_counts, min_frequency, max_tokens):
    counts = sorted(word_counts.items())
    assert learn_wordpieces(counts, max_tokens, min_frequency=min_frequency, score=rule) == brute_force_wordpieces(
        counts, max_tokens, min_frequency, rule
    )


@pytest.mark.parametrize("rule", ["gain", "ratio"])
def test_wordpiece_matches_brute_force_over_many_merges(rule):
    rng = random.Random(4)
    stems = ["".join(rng.choices("etaoinshr", k=rng.randint(1, 4))) for _ in range(12)]
    words = Counter("".join(rng.choices(stems, k=rng.randint(1, 3))) for _ in range(120))
    counts = list(words.items())
    assert learn_wordpieces(counts, 80, score=rule) == brute_force_wordpieces(counts, 80, 2, rule)


def test_wordpiece_pairs_do_not_overlap():
    # "aaaa" holds ##a three times, which makes one pair: 10 pairs, not 20.
    assert learn_wordpieces([("aaaa", 10)], 99, min_frequency=11, score="ratio") == ["##a", "a"]
    assert learn_wordpieces([("aaaa", 10)], 4, min_frequency=10, score="ratio")[:3] == ["##a", "a", "aa"]


def test_wordpiece_does_not_depend_on_the_order_of_words():
    counts = [("hugging", 3), ("hugs", 4), ("face", 5), ("faces", 2), ("bugs", 4)]
    assert learn_wordpieces(counts, 40) == learn_wordpieces(counts[::-1], 40)


def test_wordpiece_stops_when_no_merge_increases_the_likelihood():
    counts = [(a + b, 5) for a in "abcd" for b in "wxyz"]  # both characters are independent: no merge has a gain
    assert len(learn_wordpieces(counts, 99, score="gain")) == 8


def test_wordpiece_reports_progress_up_to_max_tokens():
    calls: list[tuple[int, int]] = []
    learn_wordpieces([("banana", 9), ("bandana", 5)], 9, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == list(range(calls[0][0], 10)) and calls[-1] == (9, 9)


def sample_words(seed: int = 1, num_words: int = 3000) -> list[str]:
    rng = random.Random(seed)
    syllables = ["ka", "to", "mi", "re", "sun", "né", "ing", "th", "e", "s", "ü", "狗", "'"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    return rng.choices(lexicon, weights=[1 / (rank + 1) for rank in range(300)], k=num_words)


COUNTS = Counter(sample_words())


def train_on_text(words: list[str], trainer, untrained, pre_tokenizer) -> dict:
    tokenizer = Tokenizer(untrained)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([" ".join(words[start : start + 50]) for start in range(0, len(words), 50)], trainer)
    return json.loads(tokenizer.to_str())["model"]


def tokens_by_id(token_to_id: dict[str, int]) -> list[str]:
    return sorted(token_to_id, key=token_to_id.__getitem__)


def test_bpe_from_counts_matches_bpe_from_text():
    continuation_chars = sorted({token for word in COUNTS for token in character_tokens(word)[1:]})
    trainer = trainers.BpeTrainer(
        vocab_size=150,
        min_frequency=2,
        special_tokens=[*SPECIALS, *continuation_chars],
        continuing_subword_prefix="##",
        show_progress=False,
    )
    expected = train_on_text(sample_words(), trainer, models.BPE(), pre_tokenizers.WhitespaceSplit())
    vocabulary = train_vocabulary("bpe", COUNTS.items(), 150, special_tokens=SPECIALS)
    assert vocabulary.tokens == tokens_by_id(expected["vocab"]) and len(vocabulary.tokens) == 150
    assert vocabulary.merges == [tuple(pair) for pair in expected["merges"]]


def test_byte_bpe_from_counts_matches_byte_bpe_from_text():
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = sample_words()
    expected = train_on_text(words, trainer, models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False))
    blocks = Counter(
        " " + " ".join(words[start : start + 50]) for start in range(0, len(words), 50)
    )  # use_regex=False: one block, one word
    vocabulary = train_vocabulary("byte-bpe", blocks.items(), 400, special_tokens=SPECIALS)
    assert vocabulary.tokens == tokens_by_id(expected["vocab"])
    assert vocabulary.merges == [tuple(pair) for pair in expected["merges"]]


def test_unigram_from_counts_matches_unigram_from_text():
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIALS, unk_token="[UNK]", show_progress=False)
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    expected = dict(train_on_text(sample_words(), trainer, models.Unigram(), metaspace)["vocab"])
    vocabulary = train_vocabulary("unigram", COUNTS.items(), 120, special_tokens=SPECIALS)
    assert set(vocabulary.tokens) == set(expected)
    assert max(abs(expected[token] - score) for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)) < 0.01


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "char"])
def test_train_vocabulary_is_deterministic(kind):
    assert len({repr(train_vocabulary(kind, COUNTS.items(), 300, special_tokens=SPECIALS)) for _ in range(3)}) == 1


TO_MODEL_INPUT = {  # kind -> a word as the model receives it
    "wordpiece": str,
    "bpe": str,
    "char": str,
    "unigram": lambda word: "▁" + word,
    "byte-bpe": lambda word: "".join(bytes_to_unicode()[byte] for byte in word.encode()),
    "byte": lambda word: "".join(bytes_to_unicode()[byte] for byte in word.encode()),
}


@pytest.mark.parametrize("kind", TO_MODEL_INPUT)
def test_model_of_every_kind_tokenizes_without_loss(kind):
    vocabulary = train_vocabulary(kind, COUNTS.items(), 330, special_tokens=SPECIALS)
    assert vocabulary.tokens[:5] == SPECIALS and len(set(vocabulary.tokens)) == len(vocabulary.tokens) <= 330
    model = build_model(vocabulary)
    for word in COUNTS:
        model_input = TO_MODEL_INPUT[kind](word)
        tokens = [token.value for token in model.tokenize(model_input)]
        assert [vocabulary.tokens[token.id] for token in model.tokenize(model_input)] == tokens
        assert "".join(each.removeprefix("##") for each in tokens) == model_input


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char"])
def test_model_encodes_unknown_characters_as_unk(kind):
    model = build_model(train_vocabulary(kind, COUNTS.items(), 300, special_tokens=SPECIALS))
    assert 1 in [token.id for token in model.tokenize(TO_MODEL_INPUT[kind]("ж"))]


def test_bytes_to_unicode_matches_byte_level():
    assert sorted(bytes_to_unicode()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    text = "".join(map(chr, range(0x250))) + "狗🐶"
    [(encoded, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert encoded == "".join(bytes_to_unicode()[byte] for byte in text.encode())


def test_byte_vocabulary_needs_no_words():
    assert train_vocabulary("byte", [], 261, special_tokens=SPECIALS) == Vocabulary(
        "byte", [*SPECIALS, *bytes_to_unicode()], merges=[]
    )


def test_char_vocabulary_keeps_the_most_frequent_tokens():
    assert train_vocabulary("char", [("ab", 5), ("b", 4), ("ca", 3)], 8, special_tokens=["[UNK]"]).tokens == [
        "[UNK]",
        "##b",
        "a",
        "b",
        "##a",
        "c",
    ]
    assert train_vocabulary("char", [("ab", 5), ("b", 4), ("ca", 3)], 3, special_tokens=["[UNK]"]).tokens == [
        "[UNK]",
        "##b",
        "a",
    ]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_limit_alphabet_ignores_words_with_rare_characters(kind):
    tokens = train_vocabulary(
        kind, [("aab", 50), ("abb", 50), ("bx", 3)], 30, special_tokens=["[UNK]"], limit_alphabet=2
    ).tokens
    assert not any("x" in token for token in tokens) and any("ab" in token for token in tokens)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram"])
def test_train_vocabulary_ignores_words_with_special_tokens(kind):
    vocabulary = train_vocabulary(kind, [("[UNK]", 500), ("abc", 30), ("abd", 20)], 300, special_tokens=SPECIALS)
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens)
    assert not any("K" in token for token in vocabulary.tokens[5:] if len(token.removeprefix("##")) > 1)


def test_repeat_words_samples_a_large_corpus_in_proportion(monkeypatch):
    monkeypatch.setattr(trainers_module, "MAX_TRAINING_WORDS", 1000)
    frequent = [(word, count * 1000) for word, count in COUNTS.items()]
    rare = [(f"{word}{index}", 7) for index in range(500) for word in COUNTS]  # a fifth of all running words
    fraction = 1000 / sum(n for _, n in frequent + rare)
    sampled = Counter(
        word
        for text in trainers_module._repeat_words(frequent + rare, "\0", lambda done, total: None)
        for word in text.split("\0")
    )
    assert sampled.total() == 1000
    assert all(abs(sampled[word] - n * fraction) < 1 for word, n in frequent + rare)
    assert sum(sampled[word] for word, _ in rare) == pytest.approx(fraction * 7 * len(rare), abs=1)


def test_repeat_words_emits_all_of_a_small_corpus():
    emitted = Counter(
        word
        for text in trainers_module._repeat_words(list(COUNTS.items()), " ", lambda done, total: None)
        for word in text.split()
    )
    assert emitted == COUNTS


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_min_frequency_counts_occurrences_in_the_text_not_in_the_sample(monkeypatch, kind):
    monkeypatch.setattr(trainers_module, "MAX_TRAINING_WORDS", 1000)
    counts = [("ab", 60_000), ("cd", 40_000)]
    tokens = train_vocabulary(kind, counts, 300, special_tokens=SPECIALS, min_frequency=50_000).tokens
    assert "ab" in tokens and "cd" not in tokens
    assert {"ab", "cd"} <= set(train_vocabulary(kind, counts, 300, special_tokens=SPECIALS, min_frequency=40_000).tokens)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_keeps_all_characters_in_the_alphabet(monkeypatch, kind):
    monkeypatch.setattr(trainers_module, "MAX_TRAINING_WORDS", 1000)
    model = build_model(
        train_vocabulary(kind, [("abc", 60_000), ("bca", 40_000), ("ж", 1), ("aщ", 1)], 60, special_tokens=SPECIALS)
    )
    for word in ("ж", "aщ", "abc"):
        assert 1 not in [token.id for token in model.tokenize(TO_MODEL_INPUT[kind](word))]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram"])
def test_sampling_of_rare_words_still_learns_subwords(monkeypatch, kind):
    monkeypatch.setattr(trainers_module, "MAX_TRAINING_WORDS", 1000)
    syllables = ["ka", "to", "mi", "re"]
    counts = [(f"{a}{b}{c}{d}{e}{f}", 1) for a in syllables for b in syllables for c in syllables for d in syllables
              for e in syllables for f in syllables]  # fmt: skip
    assert set(syllables) <= {
        token.strip("▁#") for token in train_vocabulary(kind, counts, 290, special_tokens=SPECIALS).tokens
    }


@pytest.mark.parametrize(
    "kind, vocab_size", [("wordpiece", 20), ("bpe", 20), ("unigram", 12), ("char", 5), ("byte-bpe", 260), ("byte", 100)]
)
def test_train_vocabulary_refuses_too_small_a_size_and_names_the_minimum(kind, vocab_size):
    with pytest.raises(UserError, match=rf"vocab_size={vocab_size}.*at least (\d+)") as caught:
        train_vocabulary(kind, COUNTS.items(), vocab_size, special_tokens=SPECIALS)
    needed = int(str(caught.value).split("at least ")[1].split(" ")[0])
    assert len(train_vocabulary(kind, COUNTS.items(), needed, special_tokens=SPECIALS).tokens) == needed
    with pytest.raises(UserError):
        train_vocabulary(kind, COUNTS.items(), needed - 1, special_tokens=SPECIALS)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "char"])
def test_train_vocabulary_refuses_no_words(kind):
    with pytest.raises(UserError, match="no words"):
        train_vocabulary(kind, [("", 4), ("gone", 0)], 300, special_tokens=SPECIALS)


def test_train_vocabulary_checks_special_tokens():
    with pytest.raises(UserError, match="must be distinct and not empty"):
        train_vocabulary("char", [("a", 1)], 9, special_tokens=["[UNK]", "[UNK]"])
    with pytest.raises(UserError, match=r"\[UNK\]"):
        train_vocabulary("char", [("a", 1)], 9, special_tokens=["[PAD]"])
    with pytest.raises(UserError, match="wordpiece"):
        train_vocabulary("word-piece", [("a", 1)], 9, special_tokens=["[UNK]"])  # type: ignore[arg-type]
