"""Extending a vocabulary: each piece is the best one at its time, by brute force; old text is cut as before."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust
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
from tests.conftest import PIECES, WORDS, prose

LETTERS = [*"abc", *(f"##{letter}" for letter in "abc")]


def mark(begin: int) -> str:
    return "##" if begin else ""


def borders(word: str, pieces: set[str]) -> tuple[list[int], bool]:
    """Where the longest matches end, a character that none spells taken alone; and whether all were spelled."""
    at, found, whole = 0, [0], True
    while at < len(word):
        end = next((e for e in range(len(word), at, -1) if mark(at) + word[at:e] in pieces), None)
        whole &= end is not None
        at = end or at + 1
        found.append(at)
    return found, whole


def tokens(word: str, pieces: set[str]) -> int:
    found, whole = borders(word, pieces)
    return len(found) - 1 if whole else len(word) + 1


def candidates(word: str, pieces: set[str]) -> set[str]:
    found, _ = borders(word, pieces)
    runs = {mark(a) + word[a:b] for i, a in enumerate(found) for b in found[i + 1 :]}
    return runs - pieces


def extend_by_force(pieces: list[str], counts: dict[str, int], room: int, least: int) -> list[tuple[str, int]]:
    """Every candidate is put in and every word cut again, each time."""
    have, out = set(pieces), []
    while len(out) < room:
        scored = []
        for piece in {piece for word in counts for piece in candidates(word, have)}:
            saved = {word: tokens(word, have) - tokens(word, have | {piece}) for word in counts}
            if sum(counts[word] for word in counts if saved[word] > 0) >= least:
                scored.append((-sum(saved[word] * counts[word] for word in counts), piece))
        if not scored or min(scored)[0] >= 0:
            break
        gain, piece = min(scored)
        out.append((piece, -gain))
        have.add(piece)
    return out


@settings(max_examples=150)
@given(
    st.lists(st.text("abc", min_size=2, max_size=4), max_size=6),
    st.lists(st.text("abc", min_size=2, max_size=3), max_size=6),
    st.dictionaries(st.text("abcx", min_size=1, max_size=9), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_each_piece_is_the_best_one_at_its_time(begins, insides, counts, least):
    pieces = list(dict.fromkeys([*SPECIAL_TOKENS, *LETTERS, *begins, *(f"##{inside}" for inside in insides)]))
    wanted = extend_by_force(pieces, counts, 6, least)
    tokenizer = Tokenizer.from_vocab(pieces)
    if not wanted:
        with pytest.raises(UserError, match="would make this text shorter"):
            extend_tokenizer(tokenizer, counts.items(), 6, least)
        return
    shuffled = random.Random(0).sample(sorted(counts.items()), len(counts))
    for order in (counts.items(), shuffled):  # the order of the words decides nothing
        extension = extend_tokenizer(tokenizer, order, 6, least)
        assert extension.gains == wanted
    assert extension.tokenizer.id_to_token == pieces + [piece for piece, _ in wanted]


def test_a_piece_that_cuts_other_words_worse_pays_for_them():
    """`abc` would save a piece in each abc, and leave b and d of each abcdbd without the `##cd` and `##bd` they are cut by."""
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, *LETTERS, "##d", "ab", "##cdbd"])
    assert extend_tokenizer(tokenizer, [("abc", 10), ("abcdbd", 4)], 1, 1).gains == [
        ("abcdbd", 4)
    ]  # abc: 10 - 4 x 2, less than 4
    assert extend_tokenizer(tokenizer, [("abc", 10), ("abcdbd", 3)], 1, 1).gains == [("abc", 10 - 3 * 2)]


def bpe_by_force(tokenizer: Tokenizer, counts: dict[str, int], room: int) -> list[tuple[str, int]]:
    out: list[tuple[str, int]] = []
    state = json.loads(tokenizer.json_bytes)
    while len(out) < room:
        rust, pairs = Rust.from_str(json.dumps(state)), Counter()
        for word, count in counts.items():
            cut, last = [rust.id_to_token(i) for i in rust.encode(word, add_special_tokens=False).ids], None
            for at, pair in enumerate(pairwise(cut)):
                if pair[0] == pair[1] and last == (at - 1, pair):
                    continue
                pairs[pair] += count
                last = at, pair
        join = {pair: pair[0] + pair[1].removeprefix("##") for pair in pairs}
        scored = [(-n, pair) for pair, n in pairs.items() if join[pair] not in state["model"]["vocab"] and "[UNK]" not in pair]
        if not scored or -min(scored)[0] < 2:
            break
        gain, pair = min(scored)
        out.append((join[pair], -gain))
        state["model"]["vocab"][join[pair]] = len(state["model"]["vocab"])
        state["model"]["merges"].append(list(pair))
    return out


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
@pytest.mark.parametrize("seed", range(8))
def test_each_merge_is_the_most_frequent_pair_left(kind, seed):
    space, rng = " " if kind == "byte-bpe" else "", random.Random(seed)
    old = {space + "".join(rng.choices("abcd", k=rng.randint(1, 6))): rng.randint(1, 9) for _ in range(20)}
    new = {space + "".join(rng.choices("abcde", k=rng.randint(1, 9))): rng.randint(1, 9) for _ in range(30)}
    learnt = train_vocabulary(kind, list(old.items()), 280 if space else 24, special_tokens=SPECIAL_TOKENS)
    tokenizer = Tokenizer(assemble_tokenizer(kind, build_model(learnt), True))
    extension = extend_tokenizer(tokenizer, new.items(), 12)
    assert extension.gains == bpe_by_force(tokenizer, new, 12) and len(extension.gains) == 12
    before, after = (
        sum(count * len(one.encode(word).ids) for word, count in new.items()) for one in (tokenizer, extension.tokenizer)
    )
    assert before - after == sum(gain for _, gain in extension.gains)


def of_kind(kind: str) -> Tokenizer:
    if kind == "google":
        return Tokenizer.from_vocab(PIECES)
    space = " " if kind == "byte-bpe" else ""
    alphabet = [*"abcdefghijklmnopqrstuvwxyz.,;", *(f"a{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    counts = Counter(space + word for word in (*WORDS, *alphabet) for _ in range(len(word)))
    return Tokenizer(
        assemble_tokenizer(
            kind, build_model(train_vocabulary(kind, list(counts.items()), 330, special_tokens=SPECIAL_TOKENS)), True
        )
    )


DOMAIN = (
    "The ribosome reads Ribosomal messengers. Ribosomes are read, the message was not; ribosomal ribosomes ... two messages."
)


def counted(tokenizer: Tokenizer, *texts: str) -> Counter[str]:
    return Counter(word for text in texts for word in build_word_splitter(tokenizer)(text))


@pytest.mark.parametrize("kind", ["google", "wordpiece", "bpe", "byte-bpe"])
def test_old_text_is_cut_as_before_and_the_domain_is_shorter(kind):
    tokenizer = of_kind(kind)
    child = extend_tokenizer(tokenizer, counted(tokenizer, DOMAIN).items(), 12).tokenizer
    assert child.id_to_token[: len(tokenizer)] == tokenizer.id_to_token and len(child) > len(tokenizer)
    assert len(child.encode(DOMAIN).ids) < len(tokenizer.encode(DOMAIN).ids) - 10
    assert child.decode(child.encode(DOMAIN).ids) == tokenizer.decode(tokenizer.encode(DOMAIN).ids)
    new = {piece.strip("Ġ#") for piece in child.id_to_token[len(tokenizer) :]}
    lines = [line for line in prose(40, seed=3).splitlines() if not any(piece in line.lower() for piece in new)]
    assert len(lines) > 20 and all(child.encode(line).ids == tokenizer.encode(line).ids for line in lines)
    assert is_extension(child, tokenizer) and not is_extension(tokenizer, child) and not is_extension(tokenizer, tokenizer)
    assert Tokenizer.from_json(child.json_bytes).encode(DOMAIN).ids == child.encode(DOMAIN).ids


@pytest.mark.parametrize("kind", ["google", "wordpiece", "bpe", "byte-bpe"])
def test_a_new_piece_stands_for_the_old_ones_that_spell_it(kind):
    tokenizer = of_kind(kind)
    counts = counted(tokenizer, DOMAIN)
    child = extend_tokenizer(tokenizer, counts.items(), 12).tokenizer
    replaced = map_to_parent_ids(child, tokenizer)
    assert len(replaced) == len(child) - len(tokenizer)
    for piece, ids in zip(child.id_to_token[len(tokenizer) :], replaced, strict=True):
        spelled = "".join(tokenizer.id_to_token[number].removeprefix("##") for number in ids)
        assert len(ids) > 1 and spelled == piece.removeprefix("##")
        assert tokenizer.id_to_token[ids[0]].startswith("##") == piece.startswith("##")
    if kind == "google":
        assert replaced[child.id_to_token.index("ribosom") - len(tokenizer)] == tokenizer.encode("ribosom").ids


def test_words_are_those_the_tokenizer_makes():
    rust = build_bert_tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"), True)
    rust.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    text = "Crème  BRÛLÉE, it's Zürich\u00a0天地-1.5% \u200b!\nnext"
    for tokenizer in (Tokenizer(rust), Tokenizer.from_vocab(PIECES, False), Tokenizer.from_vocab(PIECES, True)):
        split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(
            tokenizer.backend_tokenizer.normalizer.normalize_str(text)
        )
        assert build_word_splitter(tokenizer)(text) == [word for word, _ in split]


def test_chinese_characters_are_not_joined_and_unknown_ones_are_added():
    tokenizer = Tokenizer.from_vocab(PIECES)
    counts = counted(tokenizer, "天地龘天地龘天地龘麤 the ribosome ribosome" * 3)
    extension = extend_tokenizer(tokenizer, counts.items(), 10)
    assert ("龘", 9) in extension.gains and ("麤", 3) in extension.gains
    assert not any(len(piece) > 1 and ord(piece[-1]) > 0x3400 for piece, _ in extension.gains)
    assert map_to_parent_ids(extension.tokenizer, tokenizer)[[p for p, _ in extension.gains].index("龘")] == [
        tokenizer.unk_token_id
    ]
    assert lone_ideograph_fraction(counts.items()) == pytest.approx(30 / 39) and lone_ideograph_fraction([("the", 3)]) == 0


def test_special_tokens_outside_the_vocabulary_keep_their_ids():
    rust = build_bert_tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"), True)
    rust.add_special_tokens(["[GUIDE]"])
    tokenizer = Tokenizer(rust)
    child = extend_tokenizer(tokenizer, [("ribosome", 5)], 2).tokenizer
    assert (
        child.backend_tokenizer.token_to_id("[GUIDE]") == len(PIECES)
        and child.backend_tokenizer.token_to_id("ribosome") == len(PIECES) + 1
    )


def test_a_word_beyond_the_longest_takes_no_part():
    tokenizer = Tokenizer.from_vocab(PIECES)
    with pytest.raises(UserError, match="fits it as it is"):
        extend_tokenizer(tokenizer, [("ab" * 60, 9), ("the", 9)], 5)


@pytest.mark.parametrize("kind", ["unigram", "byte"])
def test_kinds_that_would_cut_old_text_anew_are_refused(kind):
    counts = [(word, 5) for word in WORDS]
    tokenizer = Tokenizer(
        assemble_tokenizer(kind, build_model(train_vocabulary(kind, counts, 300, special_tokens=SPECIAL_TOKENS)), True),
        "folder",
    )
    with pytest.raises(UserError, match="folder is of a kind that cannot be extended"):
        extensible_kind(tokenizer)


def test_added_words_are_refused():
    rust = build_bert_tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"), True)
    rust.add_tokens(["ribo"])
    with pytest.raises(UserError, match="inside words"):
        extensible_kind(Tokenizer(rust))


def test_another_tokenizer_is_no_extension():
    parent = Tokenizer.from_vocab(PIECES, True)
    longer = [*PIECES, "ribosome"]
    assert is_extension(Tokenizer.from_vocab(longer, True), parent)
    assert not is_extension(Tokenizer.from_vocab(longer, False), parent)  # another cleaning
    assert not is_extension(Tokenizer.from_vocab([*longer[:-3], longer[-1], *longer[-3:-1]], True), parent)  # ids that moved
    learnt = Vocabulary("bpe", [*SPECIAL_TOKENS, "a", "##b", "##c", "ab", "##bc"], merges=[("a", "##b")])
    other = Vocabulary("bpe", [*learnt.tokens, "abc"], merges=[("##b", "##c"), ("a", "##bc")])
    small, large = (
        Tokenizer(register_special_tokens(assemble_tokenizer("bpe", build_model(one), True))) for one in (learnt, other)
    )
    assert not is_extension(large, small)  # merges in another order
