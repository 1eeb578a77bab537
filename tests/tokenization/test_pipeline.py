"""Every kind of tokenizer: cached encoding, special tokens, decoding, word starts, deterministic training."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings

from bertsmith.api import train_tokenizer
from bertsmith.tokenization.fast_encode import CachedEncoder
from bertsmith.tokenization.pipeline import WordSplitter
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import TokenizerKind
from tests.support.texts import make_chinese_text, make_english_text, unicode_texts
from tests.support.tokenizers import encode_lines

every_kind = pytest.mark.parametrize("kind", get_args(TokenizerKind))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with tokenizers of each kind, uncased and cased."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "text.txt").write_text(
        make_english_text(40) + "\n" + make_chinese_text(20) + "\nÜber Straße, café — naïve! 100%\n", encoding="utf-8"
    )
    for kind in get_args(TokenizerKind):
        for lowercase in (True, False):
            out = folder / f"{kind}-{lowercase}"
            train_tokenizer(
                texts=str(folder / "text.txt"), kind=kind, vocab_size=400, lowercase=lowercase, out=str(out), quiet=True
            )
    return folder


@every_kind
@pytest.mark.parametrize("lowercase", [True, False])
def test_cached_encoder_matches_tokenizer(trained, kind, lowercase):
    tokenizer = Tokenizer.load(trained / f"{kind}-{lowercase}")
    encoder = CachedEncoder(tokenizer, max_cached_runs=50)

    @settings(max_examples=150, deadline=None)
    @given(unicode_texts)
    def check(line):
        line = line.replace("\n", " ")
        ids, lengths = encode_lines(encoder, line + "\n" + line)
        expected = tokenizer.encode(line).ids
        assert ids.tolist() == expected * 2 and lengths.tolist() == [len(expected)] * 2

    check()


@every_kind
def test_special_tokens_come_first_and_are_never_encoded_from_text(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    assert tokenizer.id_to_token[:5] == list(SPECIAL_TOKENS)
    ids = set(tokenizer.encode("[MASK] the [CLS][SEP] of [PAD]").ids)
    assert ids.isdisjoint({tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id})


@every_kind
def test_decode_inverts_encode(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    text = "the people made this way"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.unk_token_id not in tokenizer.encode(text).ids


@every_kind
def test_is_continuation_marks_words_at_spaces(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    encoding = tokenizer.encode("the people made")
    is_start = ~tokenizer.is_continuation[encoding.ids]
    is_start[0] = True  # the first word of a line has no space before it, by which the byte kinds mark words
    assert is_start.sum() == 3


def test_unigram_encodes_punctuation_and_chinese_as_one_token_each(trained):
    tokenizer = Tokenizer.load(trained / "unigram-True")
    assert tokenizer.encode("the, the.").tokens == ["▁the", "▁,", "▁the", "▁."]
    assert len(tokenizer.encode("天地玄黄。").ids) == 5


@every_kind
def test_tokenizer_training_is_deterministic(trained, kind, tmp_path):
    train_tokenizer(texts=str(trained / "text.txt"), kind=kind, vocab_size=400, out=str(tmp_path / "again"), quiet=True)
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (trained / f"{kind}-True" / "tokenizer.json").read_bytes()


def test_trained_wordpiece_loads_from_vocab_txt(trained):
    from_json = Tokenizer.load(trained / "wordpiece-True")
    from_text = Tokenizer.load(trained / "wordpiece-True" / "vocab.txt", lowercase=True)
    line = "The people, over 天地 café 100%"
    assert from_json.encode(line).ids == from_text.encode(line).ids


def test_lowercase_is_inferred_from_vocabulary(vocabulary):
    assert Tokenizer.load(vocabulary).encode("THE").ids == Tokenizer.load(vocabulary).encode("the").ids
    cased = Tokenizer.from_vocab([*SPECIAL_TOKENS, "The", "the"])
    assert cased.encode("The the THE").ids == [5, 6, cased.unk_token_id]


def test_non_special_ids_exclude_special_and_unused_tokens():
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, "[unused0]", "the", "##s", "[unused99]"])
    assert tokenizer.non_special_ids.tolist() == [6, 7]
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [7]


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_splitter_normalizes_and_splits_words(lowercase):
    text = "The Café—at 天地, don't!\nÜber"
    words = WordSplitter("wordpiece", lowercase)(text)
    cased_words = ["The", "Café", "—", "at", "天", "地", ",", "don", "'", "t", "!", "Über"]
    assert words == (["the", "cafe", "—", "at", "天", "地", ",", "don", "'", "t", "!", "uber"] if lowercase else cased_words)
    assert WordSplitter("byte-bpe", False)("The way, don't") == ["The", " way", ",", " don", "'t"]
