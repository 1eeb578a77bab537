"""Training vocabularies: WordPiece against brute force, the Rust trainers against themselves on raw text."""

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
from bertsmith.tokenization import trainers as vocabularies
from bertsmith.tokenization.trainers import Vocabulary, build_model, bytes_to_unicode, train_vocabulary
from bertsmith.tokenization.wordpiece_trainer import character_tokens, learn_wordpieces

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def merged(word: list[str], left: str, right: str) -> list[str]:
    out, at = [], 0
    while at < len(word):
        if word[at : at + 2] == [left, right]:
            out.append(left + right.removeprefix("##"))
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


def numbers(words: list[tuple[list[str], int]]) -> Counter[str]:
    pieces: Counter[str] = Counter()
    for word, count in words:
        for piece in word:
            pieces[piece] += count
    return pieces


def likelihood(words: list[tuple[list[str], int]]) -> float:
    pieces = numbers(words)
    total = sum(pieces.values())
    return sum(count * math.log(count / total) for count in pieces.values())


def score_by_force(words, left: str, right: str, rule: str) -> tuple[int, np.float32]:
    """How often the pair can be merged, and its score: by really merging it."""
    after = [(merged(word, left, right), count) for word, count in words]
    times = sum((len(old) - len(new)) * count for (old, count), (new, _) in zip(words, after, strict=True))
    pieces = numbers(words)
    if rule == "ratio":
        return times, np.float32(times / (pieces[left] * pieces[right]))
    return times, np.float32(likelihood(after) - likelihood(words))


def learn_by_force(counts: list[tuple[str, int]], room: int, least: int, rule: str) -> list[str]:
    words = [(character_tokens(word), count) for word, count in counts]
    pieces = sorted(numbers(words))
    while len(pieces) < room:
        pairs = {pair for word, _ in words for pair in pairwise(word)}
        scored = {pair: score_by_force(words, *pair, rule) for pair in pairs if merged(list(pair), *pair)[0] not in pieces}
        worth = {pair: score for pair, (times, score) in scored.items() if times >= least and score > 1e-6}
        if not worth:
            break
        left, right = min(worth, key=lambda pair: (-worth[pair], pair))
        words = [(merged(word, left, right), count) for word, count in words]
        pieces.append(merged([left, right], left, right)[0])
    return pieces


corpora = st.dictionaries(
    st.text("ab", min_size=1, max_size=8) | st.text("abc狗🐶", min_size=1, max_size=6) | st.text("#a", min_size=1, max_size=5),
    st.integers(1, 40),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("rule", ["gain", "ratio"])
@settings(max_examples=150, deadline=None)
@given(corpus=corpora, least=st.integers(1, 4), room=st.integers(5, 40))
def test_wordpiece_merges_what_brute_force_would_merge(rule, corpus, least, room):
    counts = sorted(corpus.items())
    assert learn_wordpieces(counts, room, min_frequency=least, score=rule) == learn_by_force(counts, room, least, rule)


@pytest.mark.parametrize("rule", ["gain", "ratio"])
def test_wordpiece_agrees_with_brute_force_over_many_merges(rule):
    dice = random.Random(4)
    stems = ["".join(dice.choices("etaoinshr", k=dice.randint(1, 4))) for _ in range(12)]
    words = Counter("".join(dice.choices(stems, k=dice.randint(1, 3))) for _ in range(120))
    counts = list(words.items())
    assert learn_wordpieces(counts, 80, score=rule) == learn_by_force(counts, 80, 2, rule)


def test_runs_of_one_character_are_paired_without_overlap():
    # Inside "aaaa" lies ##a three times, of which one pair can be made: 10 pairs, not 20.
    assert learn_wordpieces([("aaaa", 10)], 99, min_frequency=11, score="ratio") == ["##a", "a"]
    assert learn_wordpieces([("aaaa", 10)], 4, min_frequency=10, score="ratio")[:3] == ["##a", "a", "aa"]


def test_the_order_of_words_does_not_matter():
    counts = [("hugging", 3), ("hugs", 4), ("face", 5), ("faces", 2), ("bugs", 4)]
    assert learn_wordpieces(counts, 40) == learn_wordpieces(counts[::-1], 40)


def test_merging_stops_where_no_merge_raises_the_likelihood():
    evenly = [(a + b, 5) for a in "abcd" for b in "wxyz"]  # both halves are independent: nothing to gain
    assert len(learn_wordpieces(evenly, 99, score="gain")) == 8


def test_progress_counts_up_to_the_room():
    heard: list[tuple[int, int]] = []
    learn_wordpieces([("banana", 9), ("bandana", 5)], 9, progress=lambda done, room: heard.append((done, room)))
    assert [done for done, _ in heard] == list(range(heard[0][0], 10)) and heard[-1] == (9, 9)


def some_words(seed: int = 1, number: int = 3000) -> list[str]:
    dice = random.Random(seed)
    syllables = ["ka", "to", "mi", "re", "sun", "né", "ing", "th", "e", "s", "ü", "狗", "'"]
    lexicon = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(300)]
    return dice.choices(lexicon, weights=[1 / (rank + 1) for rank in range(300)], k=number)


COUNTS = Counter(some_words())


def trained_on_text(words: list[str], trainer, untrained, pre_tokenizer) -> dict:
    tokenizer = Tokenizer(untrained)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([" ".join(words[at : at + 50]) for at in range(0, len(words), 50)], trainer)
    return json.loads(tokenizer.to_str())["model"]


def in_order(ids: dict[str, int]) -> list[str]:
    return sorted(ids, key=ids.__getitem__)


def test_bpe_from_counts_is_bpe_from_text():
    inside = sorted({form for word in COUNTS for form in character_tokens(word)[1:]})
    trainer = trainers.BpeTrainer(
        vocab_size=150,
        min_frequency=2,
        special_tokens=[*SPECIALS, *inside],
        continuing_subword_prefix="##",
        show_progress=False,
    )
    expected = trained_on_text(some_words(), trainer, models.BPE(), pre_tokenizers.WhitespaceSplit())
    got = train_vocabulary("bpe", COUNTS.items(), 150, special_tokens=SPECIALS)
    assert got.tokens == in_order(expected["vocab"]) and len(got.tokens) == 150
    assert got.merges == [tuple(pair) for pair in expected["merges"]]


def test_byte_bpe_from_counts_is_byte_bpe_from_text():
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = some_words()
    expected = trained_on_text(words, trainer, models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False))
    blocks = Counter(
        " " + " ".join(words[at : at + 50]) for at in range(0, len(words), 50)
    )  # use_regex=False: one block, one word
    got = train_vocabulary("byte-bpe", blocks.items(), 400, special_tokens=SPECIALS)
    assert got.tokens == in_order(expected["vocab"])
    assert got.merges == [tuple(pair) for pair in expected["merges"]]


def test_unigram_from_counts_is_unigram_from_text():
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIALS, unk_token="[UNK]", show_progress=False)
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    expected = dict(trained_on_text(some_words(), trainer, models.Unigram(), metaspace)["vocab"])
    got = train_vocabulary("unigram", COUNTS.items(), 120, special_tokens=SPECIALS)
    assert set(got.tokens) == set(expected)
    assert max(abs(expected[piece] - score) for piece, score in zip(got.tokens, got.scores, strict=True)) < 0.01


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "char"])
def test_the_same_counts_give_the_same_vocabulary(kind):
    assert len({repr(train_vocabulary(kind, COUNTS.items(), 300, special_tokens=SPECIALS)) for _ in range(3)}) == 1


CUT = {  # kind -> how a word comes to the model
    "wordpiece": str,
    "bpe": str,
    "char": str,
    "unigram": lambda word: "▁" + word,
    "byte-bpe": lambda word: "".join(bytes_to_unicode()[byte] for byte in word.encode()),
    "byte": lambda word: "".join(bytes_to_unicode()[byte] for byte in word.encode()),
}


@pytest.mark.parametrize("kind", CUT)
def test_every_kind_cuts_its_words_without_loss(kind):
    vocabulary = train_vocabulary(kind, COUNTS.items(), 330, special_tokens=SPECIALS)
    assert vocabulary.tokens[:5] == SPECIALS and len(set(vocabulary.tokens)) == len(vocabulary.tokens) <= 330
    cutter = build_model(vocabulary)
    for word in COUNTS:
        spelled = CUT[kind](word)
        pieces = [token.value for token in cutter.tokenize(spelled)]
        assert [vocabulary.tokens[token.id] for token in cutter.tokenize(spelled)] == pieces
        assert "".join(piece.removeprefix("##") for piece in pieces) == spelled


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "char"])
def test_what_cannot_be_spelled_is_unknown(kind):
    cutter = build_model(train_vocabulary(kind, COUNTS.items(), 300, special_tokens=SPECIALS))
    assert 1 in [token.id for token in cutter.tokenize(CUT[kind]("ж"))]


def test_byte_characters_are_those_of_byte_level():
    assert sorted(bytes_to_unicode()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    everything = "".join(map(chr, range(0x250))) + "狗🐶"
    [(shown, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(everything)
    assert shown == "".join(bytes_to_unicode()[byte] for byte in everything.encode())


def test_a_byte_vocabulary_needs_no_words():
    assert train_vocabulary("byte", [], 261, special_tokens=SPECIALS) == Vocabulary(
        "byte", [*SPECIALS, *bytes_to_unicode()], merges=[]
    )


def test_char_keeps_the_most_frequent_forms():
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
def test_words_with_rare_characters_take_no_part(kind):
    pieces = train_vocabulary(
        kind, [("aab", 50), ("abb", 50), ("bx", 3)], 30, special_tokens=["[UNK]"], limit_alphabet=2
    ).tokens
    assert not any("x" in piece for piece in pieces) and any("ab" in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram"])
def test_a_word_that_spells_a_special_token_does_not_double_it(kind):
    vocabulary = train_vocabulary(kind, [("[UNK]", 500), ("abc", 30), ("abd", 20)], 300, special_tokens=SPECIALS)
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens)
    assert not any("K" in piece for piece in vocabulary.tokens[5:] if len(piece.removeprefix("##")) > 1)


def test_a_large_corpus_is_sampled_in_proportion(monkeypatch):
    monkeypatch.setattr(vocabularies, "MAX_TRAINING_WORDS", 1000)
    often = [(word, count * 1000) for word, count in COUNTS.items()]
    rare = [(f"{word}{number}", 7) for number in range(500) for word in COUNTS]  # a fifth of all running words
    share = 1000 / sum(n for _, n in often + rare)
    fed = Counter(
        word for text in vocabularies._repeat_words(often + rare, "\0", lambda done, total: None) for word in text.split("\0")
    )
    assert fed.total() == 1000
    assert all(abs(fed[word] - n * share) < 1 for word, n in often + rare)
    assert sum(fed[word] for word, _ in rare) == pytest.approx(share * 7 * len(rare), abs=1)


def test_a_small_corpus_is_fed_whole():
    fed = Counter(
        word
        for text in vocabularies._repeat_words(list(COUNTS.items()), " ", lambda done, total: None)
        for word in text.split()
    )
    assert fed == COUNTS


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_least_counts_occurrences_in_the_text_not_in_the_sample(monkeypatch, kind):
    monkeypatch.setattr(vocabularies, "MAX_TRAINING_WORDS", 1000)
    counts = [("ab", 60_000), ("cd", 40_000)]
    pieces = train_vocabulary(kind, counts, 300, special_tokens=SPECIALS, min_frequency=50_000).tokens
    assert "ab" in pieces and "cd" not in pieces
    assert {"ab", "cd"} <= set(train_vocabulary(kind, counts, 300, special_tokens=SPECIALS, min_frequency=40_000).tokens)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_character_that_the_sample_misses_stays_in_the_alphabet(monkeypatch, kind):
    monkeypatch.setattr(vocabularies, "MAX_TRAINING_WORDS", 1000)
    cutter = build_model(
        train_vocabulary(kind, [("abc", 60_000), ("bca", 40_000), ("ж", 1), ("aщ", 1)], 60, special_tokens=SPECIALS)
    )
    for word in ("ж", "aщ", "abc"):
        assert 1 not in [token.id for token in cutter.tokenize(CUT[kind](word))]


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram"])
def test_a_large_corpus_of_words_that_all_are_rare_teaches_pieces_still(monkeypatch, kind):
    monkeypatch.setattr(vocabularies, "MAX_TRAINING_WORDS", 1000)
    syllables = ["ka", "to", "mi", "re"]
    counts = [(f"{a}{b}{c}{d}{e}{f}", 1) for a in syllables for b in syllables for c in syllables for d in syllables
              for e in syllables for f in syllables]  # fmt: skip
    assert set(syllables) <= {
        piece.strip("▁#") for piece in train_vocabulary(kind, counts, 290, special_tokens=SPECIALS).tokens
    }


@pytest.mark.parametrize(
    "kind, size", [("wordpiece", 20), ("bpe", 20), ("unigram", 12), ("char", 5), ("byte-bpe", 260), ("byte", 100)]
)
def test_a_size_too_small_is_refused_with_the_size_that_would_do(kind, size):
    with pytest.raises(UserError, match=rf"size is {size}.*at least (\d+)") as caught:
        train_vocabulary(kind, COUNTS.items(), size, special_tokens=SPECIALS)
    needed = int(str(caught.value).split("at least ")[1].split(":")[0])
    assert len(train_vocabulary(kind, COUNTS.items(), needed, special_tokens=SPECIALS).tokens) == needed
    with pytest.raises(UserError):
        train_vocabulary(kind, COUNTS.items(), needed - 1, special_tokens=SPECIALS)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "char"])
def test_no_words_at_all_is_refused(kind):
    with pytest.raises(UserError, match="no words"):
        train_vocabulary(kind, [("", 4), ("gone", 0)], 300, special_tokens=SPECIALS)


def test_special_tokens_are_checked():
    with pytest.raises(UserError, match="twice"):
        train_vocabulary("char", [("a", 1)], 9, special_tokens=["[UNK]", "[UNK]"])
    with pytest.raises(UserError, match=r"\[UNK\]"):
        train_vocabulary("char", [("a", 1)], 9, special_tokens=["[PAD]"])
    with pytest.raises(UserError, match="wordpiece"):
        train_vocabulary("word-piece", [("a", 1)], 9, special_tokens=["[UNK]"])  # type: ignore[arg-type]
