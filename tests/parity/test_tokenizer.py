"""Token ids equal those of the `tokenizers` library, for whole texts and with the run cache, on unusual Unicode."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFast
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from bertsmith.tokenization.fast_encode import BERT_RUN_PATTERN, BYTE_LEVEL_RUN_PATTERN, LINE_PATTERN, CachedEncoder
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary
from tests.support.texts import LETTERS, SPECIAL_TOKENS, VOCAB, make_english_text, unicode_texts
from tests.support.tokenizers import encode_lines

CASED = [*VOCAB, *LETTERS.upper(), *(f"##{c}" for c in LETTERS.upper()), "é", "##é", "İ", "##̇", "ß", "##ß"]


def reference_tokenizer(vocab, lowercase):
    token_to_id = {token: token_id for token_id, token in enumerate(vocab)}
    backend = TokenizerFast(models.WordPiece(token_to_id, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


@pytest.mark.parametrize(("vocab", "lowercase"), [(VOCAB, True), (CASED, False)], ids=["uncased", "cased"])
def test_wordpiece_ids_match_tokenizers(vocab, lowercase):
    ours, theirs = Tokenizer.from_vocab(vocab), reference_tokenizer(vocab, lowercase)
    encoder = CachedEncoder(ours, max_cached_runs=50)

    @settings(max_examples=400, deadline=None)
    @given(st.lists(unicode_texts, min_size=1, max_size=4))
    def check(lines):
        lines = [line.replace("\n", " ") for line in lines]
        expected = [theirs.encode(line, add_special_tokens=False).ids for line in lines]
        assert [ours.encode(line).ids for line in lines] == expected
        ids, lengths = encode_lines(encoder, "\n".join(lines))
        assert lengths.tolist() == [len(line) for line in expected]
        assert ids.tolist() == [token_id for line in expected for token_id in line]

    check()


def train_byte_level(**options):
    backend = TokenizerFast(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, **options), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(make_english_text(30).split("\n"), trainer)
    return backend


def add_tokens_to(backend, *texts):
    backend.add_tokens(list(texts))
    return backend


OTHER_TOKENIZERS = {
    "bert, tokens added": lambda: add_tokens_to(Tokenizer.from_vocab(VOCAB).backend_tokenizer, "C++", "hello world", "eop"),
    "byte-level, tokens added": lambda: add_tokens_to(train_byte_level(), "C++", "of the", " way to"),
    "byte-level, words not split": lambda: train_byte_level(use_regex=False),
    "byte-level": train_byte_level,
}


@pytest.mark.parametrize("family", OTHER_TOKENIZERS)
def test_cached_encoder_ids_match_tokenizers(family):
    backend = OTHER_TOKENIZERS[family]()
    theirs = TokenizerFast.from_str(backend.to_str())
    theirs.encode_special_tokens = True
    encoder = CachedEncoder(Tokenizer(backend), max_cached_runs=50)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(unicode_texts | st.sampled_from(["C++", " hello world", "people", " of the way", "way to"]), max_size=6))
    def check(parts):
        line = "".join(parts).replace("\n", " ")
        ids, lengths = encode_lines(encoder, line + "\nC++ of the hello world, people on their way to it")
        expected = [
            theirs.encode(text, add_special_tokens=False).ids
            for text in (line, "C++ of the hello world, people on their way to it")
        ]
        assert ids.tolist() == expected[0] + expected[1] and lengths.tolist() == [len(expected[0]), len(expected[1])]

    check()


def test_cached_encoder_run_patterns():
    byte_tokenizer = Tokenizer(
        assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIAL_TOKENS)), True)
    )
    assert (
        CachedEncoder(byte_tokenizer).run_pattern
        is BYTE_LEVEL_RUN_PATTERN
        is CachedEncoder(Tokenizer(train_byte_level())).run_pattern
    )
    assert CachedEncoder(Tokenizer.from_vocab(VOCAB)).run_pattern is BERT_RUN_PATTERN
    assert CachedEncoder(Tokenizer(train_byte_level(use_regex=False))).run_pattern is LINE_PATTERN


def test_wordpiece_long_words_and_lone_surrogates():
    tokenizer = Tokenizer.from_vocab(VOCAB)
    assert (
        tokenizer.encode("a" * 100).ids
        == [tokenizer.backend_tokenizer.token_to_id("a")] + [tokenizer.backend_tokenizer.token_to_id("##a")] * 99
    )
    assert tokenizer.encode("a" * 101).ids == [tokenizer.unk_token_id]
    assert tokenizer.encode("a\ud800b").ids == tokenizer.encode("ab").ids  # replaced by U+FFFD, which BERT's normalizer drops
    assert tokenizer.encode("🙂").ids == [tokenizer.unk_token_id]


def test_special_tokens_in_text_are_encoded_as_text():
    tokenizer = Tokenizer.from_vocab(VOCAB)
    assert tokenizer.mask_token_id not in tokenizer.encode("the [MASK] of").ids
    ids, _ = encode_lines(CachedEncoder(tokenizer), "the [MASK] of [SEP]")
    assert not np.isin(ids, [tokenizer.mask_token_id, tokenizer.sep_token_id]).any()
    assert tokenizer.encode_with_mask("the [MASK] of").count(tokenizer.mask_token_id) == 1


@pytest.mark.parametrize("lowercase", [True, False])
def test_cached_encoder_run_boundaries_are_word_boundaries(lowercase):
    """The reference tokenizer never joins a character that ends a run with its neighbours."""
    theirs = reference_tokenizer(VOCAB, lowercase)
    boundary_chars = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if not 0xD800 <= code < 0xE000 and BERT_RUN_PATTERN.findall(f"a{chr(code)}b") != [f"a{chr(code)}b"]
    ]
    assert len(boundary_chars) > 20_000  # including Chinese characters
    for char in boundary_chars:
        words = [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(theirs.normalizer.normalize_str(f"a{char}b"))]
        assert words[0] == "a" and words[-1] == "b", f"U+{ord(char):04X}"
