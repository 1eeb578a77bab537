"""WordPiece is BERT's: ids equal to `tokenizers`' own, whole and run by run, on hostile Unicode."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertsmith.tokenization.fast_encode import BERT_RUN_PATTERN, BYTE_LEVEL_RUN_PATTERN, LINE_PATTERN, CachedEncoder
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary
from tests.conftest import LETTERS, PIECES, SPECIALS, prose

CASED = [*PIECES, *LETTERS.upper(), *(f"##{c}" for c in LETTERS.upper()), "é", "##é", "İ", "##̇", "ß", "##ß"]
ODD = "天地玄ａＡ，。“”‘’…ςΣİıßéÉＺ≠﷽👩🏽‍🚀\u0301\u0338\u200b\u200d\ufffd\x00\x85\u00a0\u3000\u2028"
likely = st.sampled_from(list(LETTERS + LETTERS.upper() + " .,'\"-\t\r" + ODD))
hostile = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), likely), max_size=60)


def original(pieces, lowercase):
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    rust = Rust(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, lowercase=lowercase)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return rust


@pytest.mark.parametrize(("pieces", "lowercase"), [(PIECES, True), (CASED, False)], ids=["uncased", "cased"])
def test_ids_are_those_of_the_original(pieces, lowercase):
    ours, theirs = Tokenizer.from_vocab(pieces), original(pieces, lowercase)
    fast = CachedEncoder(ours, max_cached_runs=50)

    @settings(max_examples=400, deadline=None)
    @given(st.lists(hostile, min_size=1, max_size=4))
    def check(lines):
        lines = [line.replace("\n", " ") for line in lines]
        want = [theirs.encode(line, add_special_tokens=False).ids for line in lines]
        assert [ours.encode(line).ids for line in lines] == want
        ids, lengths = fast.encode_lines("\n".join(lines))
        assert lengths.tolist() == [len(line) for line in want]
        assert ids.tolist() == [number for line in want for number in line]

    check()


def byte_level(**splitting):
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, **splitting), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, initial_alphabet=letters, show_progress=False)
    rust.train_from_iterator(prose(30).split("\n"), trainer)
    return rust


def with_tokens(rust, *texts):
    rust.add_tokens(list(texts))
    return rust


FOREIGN = {
    "bert, tokens added": lambda: with_tokens(Tokenizer.from_vocab(PIECES).backend_tokenizer, "C++", "hello world", "eop"),
    "byte-level, tokens added": lambda: with_tokens(byte_level(), "C++", "of the", " way to"),
    "byte-level, words not split": lambda: byte_level(use_regex=False),
    "byte-level": byte_level,
}


@pytest.mark.parametrize("family", FOREIGN)
def test_ids_are_the_librarys_for_other_families_too(family):
    rust = FOREIGN[family]()
    theirs = Rust.from_str(rust.to_str())
    theirs.encode_special_tokens = True
    fast = CachedEncoder(Tokenizer(rust), max_cached_runs=50)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(hostile | st.sampled_from(["C++", " hello world", "people", " of the way", "way to"]), max_size=6))
    def check(parts):
        line = "".join(parts).replace("\n", " ")
        ids, lengths = fast.encode_lines(line + "\nC++ of the hello world, people on their way to it")
        want = [
            theirs.encode(text, add_special_tokens=False).ids
            for text in (line, "C++ of the hello world, people on their way to it")
        ]
        assert ids.tolist() == want[0] + want[1] and lengths.tolist() == [len(want[0]), len(want[1])]

    check()


def test_only_tokenizers_that_look_over_spaces_are_asked_line_by_line():
    by_byte = Tokenizer(
        assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIALS)), True)
    )
    assert CachedEncoder(by_byte).run_pattern is BYTE_LEVEL_RUN_PATTERN is CachedEncoder(Tokenizer(byte_level())).run_pattern
    assert CachedEncoder(Tokenizer.from_vocab(PIECES)).run_pattern is BERT_RUN_PATTERN
    assert CachedEncoder(Tokenizer(byte_level(use_regex=False))).run_pattern is LINE_PATTERN


def test_long_words_and_lone_surrogates():
    tokenizer = Tokenizer.from_vocab(PIECES)
    assert (
        tokenizer.encode("a" * 100).ids
        == [tokenizer.backend_tokenizer.token_to_id("a")] + [tokenizer.backend_tokenizer.token_to_id("##a")] * 99
    )
    assert tokenizer.encode("a" * 101).ids == [tokenizer.unk_token_id]
    assert tokenizer.encode("a\ud800b").ids == tokenizer.encode("ab").ids  # no file can hold it; it is dropped as U+FFFD is
    assert tokenizer.encode("🙂").ids == [tokenizer.unk_token_id]


def test_special_tokens_in_a_text_are_only_text():
    tokenizer = Tokenizer.from_vocab(PIECES)
    assert tokenizer.mask_token_id not in tokenizer.encode("the [MASK] of").ids
    ids, _ = CachedEncoder(tokenizer).encode_lines("the [MASK] of [SEP]")
    assert not np.isin(ids, [tokenizer.mask_token_id, tokenizer.sep_token_id]).any()
    assert tokenizer.encode_with_mask("the [MASK] of").count(tokenizer.mask_token_id) == 1


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_border_of_a_run_is_a_border_of_words(lowercase):
    """For each character that runs are cut at: its neighbours are never joined with it by the original."""
    theirs = original(PIECES, lowercase)
    alone = [
        chr(c)
        for c in range(sys.maxunicode + 1)
        if not 0xD800 <= c < 0xE000 and BERT_RUN_PATTERN.findall(f"a{chr(c)}b") != [f"a{chr(c)}b"]
    ]
    assert len(alone) > 20_000  # the Chinese characters are among them
    for char in alone:
        words = [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(theirs.normalizer.normalize_str(f"a{char}b"))]
        assert words[0] == "a" and words[-1] == "b", f"U+{ord(char):04X}"
