"""Vocabulary extension: greedy selection against brute force; existing text is tokenized as before."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFast
from tokenizers import models, normalizers

from bertsmith.errors import UserError
from bertsmith.tokenization.extend import (
    build_word_splitter,
    extend_tokenizer,
    extensible_kind,
    is_extension,
    lone_ideograph_fraction,
    map_to_parent_ids,
)
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, build_bert_tokenizer, register_special_tokens
from bertsmith.tokenization.trainers import Vocabulary, build_model, train_vocabulary
from tests.support.texts import VOCAB, WORDS, make_english_text

LETTERS = [*"abc", *(f"##{letter}" for letter in "abc")]


def prefix_at(start: int) -> str:
    return "##" if start else ""


def match_boundaries(word: str, vocab: set[str]) -> tuple[list[int], bool]:
    """Boundaries of the longest-match tokens (an unknown character alone), and whether all characters are known."""
    position, boundaries, is_known = 0, [0], True
    while position < len(word):
        end = next((e for e in range(len(word), position, -1) if prefix_at(position) + word[position:e] in vocab), None)
        is_known &= end is not None
        position = end or position + 1
        boundaries.append(position)
    return boundaries, is_known


def count_tokens(word: str, vocab: set[str]) -> int:
    boundaries, is_known = match_boundaries(word, vocab)
    return len(boundaries) - 1 if is_known else len(word) + 1


def candidates(word: str, vocab: set[str]) -> set[str]:
    boundaries, _ = match_boundaries(word, vocab)
    substrings = {
        prefix_at(start) + word[start:end] for index, start in enumerate(boundaries) for end in boundaries[index + 1 :]
    }
    return substrings - vocab


def brute_force_extend(vocab: list[str], counts: dict[str, int], max_added: int, min_frequency: int) -> list[tuple[str, int]]:
    """Add each candidate and tokenize every word again, in every step."""
    known, selected = set(vocab), []
    while len(selected) < max_added:
        scored = []
        for token in {token for word in counts for token in candidates(word, known)}:
            saved = {word: count_tokens(word, known) - count_tokens(word, known | {token}) for word in counts}
            if sum(counts[word] for word in counts if saved[word] > 0) >= min_frequency:
                scored.append((-sum(saved[word] * counts[word] for word in counts), token))
        if not scored or min(scored)[0] >= 0:
            break
        gain, token = min(scored)
        selected.append((token, -gain))
        known.add(token)
    return selected


@settings(max_examples=150)
@given(
    st.lists(st.text("abc", min_size=2, max_size=4), max_size=6),
    st.lists(st.text("abc", min_size=2, max_size=3), max_size=6),
    st.dictionaries(st.text("abcx", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_extend_wordpiece_matches_brute_force(initial, continuations, counts, min_frequency):
    vocab = list(dict.fromkeys([*SPECIAL_TOKENS, *LETTERS, *initial, *(f"##{token_body}" for token_body in continuations)]))
    expected = brute_force_extend(vocab, counts, 6, min_frequency)
    tokenizer = Tokenizer.from_vocab(vocab)
    if not expected:
        with pytest.raises(UserError, match="shortens these texts"):
            extend_tokenizer(tokenizer, counts.items(), 6, min_frequency)
        return
    shuffled = random.Random(0).sample(sorted(counts.items()), len(counts))
    for order in (counts.items(), shuffled):  # the order of the words does not matter
        extension = extend_tokenizer(tokenizer, order, 6, min_frequency)
        assert extension.added_tokens == expected
    assert extension.tokenizer.id_to_token == vocab + [token for token, _ in expected]


def test_extend_counts_tokens_lost_in_other_words():
    """`abc` saves a token in each abc, but in each abcdbd it prevents the match of `##cdbd`."""
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LETTERS, "##d", "ab", "##cdbd"])
    assert extend_tokenizer(tokenizer, [("abc", 10), ("abcdbd", 4)], 1, 1).added_tokens == [
        ("abcdbd", 4)
    ]  # abc: 10 - 4 x 2, less than 4
    assert extend_tokenizer(tokenizer, [("abc", 10), ("abcdbd", 3)], 1, 1).added_tokens == [("abc", 10 - 3 * 2)]


def brute_force_merges(tokenizer: Tokenizer, counts: dict[str, int], max_added: int) -> list[tuple[str, int]]:
    selected: list[tuple[str, int]] = []
    state = json.loads(tokenizer.json_bytes)
    while len(selected) < max_added:
        backend, pairs = TokenizerFast.from_str(json.dumps(state)), Counter()
        for word, count in counts.items():
            word_tokens, previous = (
                [backend.id_to_token(token_id) for token_id in backend.encode(word, add_special_tokens=False).ids],
                None,
            )
            for position, pair in enumerate(pairwise(word_tokens)):
                if pair[0] == pair[1] and previous == (position - 1, pair):
                    continue
                pairs[pair] += count
                previous = position, pair
        merged = {pair: pair[0] + pair[1].removeprefix("##") for pair in pairs}
        scored = [
            (-n, pair) for pair, n in pairs.items() if merged[pair] not in state["model"]["vocab"] and "[UNK]" not in pair
        ]
        if not scored or -min(scored)[0] < 2:
            break
        gain, pair = min(scored)
        selected.append((merged[pair], -gain))
        state["model"]["vocab"][merged[pair]] = len(state["model"]["vocab"])
        state["model"]["merges"].append(list(pair))
    return selected


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
@pytest.mark.parametrize("seed", range(8))
def test_extend_bpe_matches_brute_force(kind, seed):
    space, rng = " " if kind == "byte-bpe" else "", random.Random(seed)
    old_counts = {space + "".join(rng.choices("abcd", k=rng.randint(1, 6))): rng.randint(1, 9) for _ in range(20)}
    new_counts = {space + "".join(rng.choices("abcde", k=rng.randint(1, 9))): rng.randint(1, 9) for _ in range(30)}
    vocabulary = train_vocabulary(kind, list(old_counts.items()), 280 if space else 24, special_tokens=SPECIAL_TOKENS)
    tokenizer = Tokenizer(assemble_tokenizer(kind, build_model(vocabulary), True))
    extension = extend_tokenizer(tokenizer, new_counts.items(), 12)
    assert extension.added_tokens == brute_force_merges(tokenizer, new_counts, 12) and len(extension.added_tokens) == 12
    old_total, new_total = (
        sum(count * len(candidate.encode(word).ids) for word, count in new_counts.items())
        for candidate in (tokenizer, extension.tokenizer)
    )
    assert old_total - new_total == sum(gain for _, gain in extension.added_tokens)


def make_tokenizer(kind: str) -> Tokenizer:
    if kind == "google":
        return Tokenizer.from_vocab(VOCAB)
    prefix = " " if kind == "byte-bpe" else ""
    alphabet = [*"abcdefghijklmnopqrstuvwxyz.,;", *(f"a{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    counts = Counter(prefix + word for word in (*WORDS, *alphabet) for _ in range(len(word)))
    return Tokenizer(
        assemble_tokenizer(
            kind, build_model(train_vocabulary(kind, list(counts.items()), 330, special_tokens=SPECIAL_TOKENS)), True
        )
    )


DOMAIN = (
    "The ribosome reads Ribosomal messengers. Ribosomes are read, the message was not; ribosomal ribosomes ... two messages."
)


def count_domain_words(tokenizer: Tokenizer, *texts: str) -> Counter[str]:
    return Counter(word for text in texts for word in build_word_splitter(tokenizer)(text))


@pytest.mark.parametrize("kind", ["google", "wordpiece", "bpe", "byte-bpe"])
def test_extended_tokenizer_keeps_old_encodings_and_shortens_the_domain(kind):
    tokenizer = make_tokenizer(kind)
    child = extend_tokenizer(tokenizer, count_domain_words(tokenizer, DOMAIN).items(), 12).tokenizer
    assert child.id_to_token[: len(tokenizer)] == tokenizer.id_to_token and len(child) > len(tokenizer)
    assert len(child.encode(DOMAIN).ids) < len(tokenizer.encode(DOMAIN).ids) - 10
    assert child.decode(child.encode(DOMAIN).ids) == tokenizer.decode(tokenizer.encode(DOMAIN).ids)
    new_tokens = {token.strip("Ġ#") for token in child.id_to_token[len(tokenizer) :]}
    lines = [
        line for line in make_english_text(40, seed=3).splitlines() if not any(token in line.lower() for token in new_tokens)
    ]
    assert len(lines) > 20 and all(child.encode(line).ids == tokenizer.encode(line).ids for line in lines)
    assert is_extension(child, tokenizer) and not is_extension(tokenizer, child) and not is_extension(tokenizer, tokenizer)
    assert Tokenizer.from_json(child.json_bytes).encode(DOMAIN).ids == child.encode(DOMAIN).ids


@pytest.mark.parametrize("kind", ["google", "wordpiece", "bpe", "byte-bpe"])
def test_map_to_parent_ids_spells_each_new_token(kind):
    tokenizer = make_tokenizer(kind)
    counts = count_domain_words(tokenizer, DOMAIN)
    child = extend_tokenizer(tokenizer, counts.items(), 12).tokenizer
    parent_ids = map_to_parent_ids(child, tokenizer)
    assert len(parent_ids) == len(child) - len(tokenizer)
    for token, ids in zip(child.id_to_token[len(tokenizer) :], parent_ids, strict=True):
        concatenated = "".join(tokenizer.id_to_token[token_id].removeprefix("##") for token_id in ids)
        assert len(ids) > 1 and concatenated == token.removeprefix("##")
        assert tokenizer.id_to_token[ids[0]].startswith("##") == token.startswith("##")
    if kind == "google":
        assert parent_ids[child.id_to_token.index("ribosom") - len(tokenizer)] == tokenizer.encode("ribosom").ids


def test_word_splitter_matches_the_tokenizer():
    backend = build_bert_tokenizer(
        models.WordPiece({token: token_id for token_id, token in enumerate(VOCAB)}, unk_token="[UNK]"), True
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    text = "Crème  BRÛLÉE, it's Zürich\u00a0天地-1.5% \u200b!\nnext"
    for tokenizer in (Tokenizer(backend), Tokenizer.from_vocab(VOCAB, False), Tokenizer.from_vocab(VOCAB, True)):
        split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(
            tokenizer.backend_tokenizer.normalizer.normalize_str(text)
        )
        assert build_word_splitter(tokenizer)(text) == [word for word, _ in split]


def test_extend_adds_unknown_ideographs_without_joining_them():
    tokenizer = Tokenizer.from_vocab(VOCAB)
    counts = count_domain_words(tokenizer, "天地龘天地龘天地龘麤 the ribosome ribosome" * 3)
    extension = extend_tokenizer(tokenizer, counts.items(), 10)
    assert ("龘", 9) in extension.added_tokens and ("麤", 3) in extension.added_tokens
    assert not any(len(token) > 1 and ord(token[-1]) > 0x3400 for token, _ in extension.added_tokens)
    assert map_to_parent_ids(extension.tokenizer, tokenizer)[[name for name, _ in extension.added_tokens].index("龘")] == [
        tokenizer.unk_token_id
    ]
    assert lone_ideograph_fraction(counts.items()) == pytest.approx(30 / 39) and lone_ideograph_fraction([("the", 3)]) == 0


def test_extend_keeps_ids_of_special_tokens_outside_the_vocabulary():
    backend = build_bert_tokenizer(
        models.WordPiece({token: token_id for token_id, token in enumerate(VOCAB)}, unk_token="[UNK]"), True
    )
    backend.add_special_tokens(["[GUIDE]"])
    tokenizer = Tokenizer(backend)
    child = extend_tokenizer(tokenizer, [("ribosome", 5)], 2).tokenizer
    assert (
        child.backend_tokenizer.token_to_id("[GUIDE]") == len(VOCAB)
        and child.backend_tokenizer.token_to_id("ribosome") == len(VOCAB) + 1
    )


def test_extend_ignores_words_longer_than_max_input_chars():
    tokenizer = Tokenizer.from_vocab(VOCAB)
    with pytest.raises(UserError, match="needs no extension"):
        extend_tokenizer(tokenizer, [("ab" * 60, 9), ("the", 9)], 5)


@pytest.mark.parametrize("kind", ["unigram", "byte"])
def test_extensible_kind_refuses_unigram_and_byte(kind):
    counts = [(word, 5) for word in WORDS]
    tokenizer = Tokenizer(
        assemble_tokenizer(kind, build_model(train_vocabulary(kind, counts, 300, special_tokens=SPECIAL_TOKENS)), True),
        "folder",
    )
    with pytest.raises(UserError, match="folder cannot be extended"):
        extensible_kind(tokenizer)


def test_extensible_kind_refuses_added_tokens():
    backend = build_bert_tokenizer(
        models.WordPiece({token: token_id for token_id, token in enumerate(VOCAB)}, unk_token="[UNK]"), True
    )
    backend.add_tokens(["ribo"])
    with pytest.raises(UserError, match="inside words"):
        extensible_kind(Tokenizer(backend))


def test_is_extension_refuses_other_tokenizers():
    parent = Tokenizer.from_vocab(VOCAB, True)
    vocab = [*VOCAB, "ribosome"]
    assert is_extension(Tokenizer.from_vocab(vocab, True), parent)
    assert not is_extension(Tokenizer.from_vocab(vocab, False), parent)  # another normalizer
    assert not is_extension(Tokenizer.from_vocab([*vocab[:-3], vocab[-1], *vocab[-3:-1]], True), parent)  # ids that moved
    vocabulary = Vocabulary("bpe", [*SPECIAL_TOKENS, "a", "##b", "##c", "ab", "##bc"], merges=[("a", "##b")])
    reordered = Vocabulary("bpe", [*vocabulary.tokens, "abc"], merges=[("##b", "##c"), ("a", "##bc")])
    small, large = (
        Tokenizer(register_special_tokens(assemble_tokenizer("bpe", build_model(variant), True)))
        for variant in (vocabulary, reordered)
    )
    assert not is_extension(large, small)  # merges in a different order
