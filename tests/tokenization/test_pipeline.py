"""Every kind of tokenizer: run by run gives the ids of the whole, and what is learnt is what is used."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings

from bertsmith.api import train_tokenizer
from bertsmith.tokenization.fast_encode import CachedEncoder
from bertsmith.tokenization.pipeline import WordSplitter
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import TokenizerKind
from tests.conftest import han, prose
from tests.parity.test_tokenizer import hostile

every_kind = pytest.mark.parametrize("kind", get_args(TokenizerKind))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tokenizer folder of each kind, and cased ones of two."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "text.txt").write_text(prose(40) + "\n" + han(20) + "\nÜber Straße, café — naïve! 100%\n", encoding="utf-8")
    for kind in get_args(TokenizerKind):
        for lowercase in (True, False):
            out = folder / f"{kind}-{lowercase}"
            train_tokenizer(texts=str(folder / "text.txt"), kind=kind, size=400, lowercase=lowercase, out=str(out), quiet=True)
    return folder


@every_kind
@pytest.mark.parametrize("lowercase", [True, False])
def test_run_by_run_equals_whole_lines(trained, kind, lowercase):
    tokenizer = Tokenizer.load(trained / f"{kind}-{lowercase}")
    fast = CachedEncoder(tokenizer, max_cached_runs=50)

    @settings(max_examples=150, deadline=None)
    @given(hostile)
    def check(line):
        line = line.replace("\n", " ")
        ids, lengths = fast.encode_lines(line + "\n" + line)
        want = tokenizer.encode(line).ids
        assert ids.tolist() == want * 2 and lengths.tolist() == [len(want)] * 2

    check()


@every_kind
def test_specials_stand_first_and_are_never_made_from_text(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    assert tokenizer.id_to_token[:5] == list(SPECIAL_TOKENS)
    ids = set(tokenizer.encode("[MASK] the [CLS][SEP] of [PAD]").ids)
    assert ids.isdisjoint({tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id})


@every_kind
def test_ordinary_text_comes_back(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    text = "the people made this way"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.unk_token_id not in tokenizer.encode(text).ids


@every_kind
def test_words_begin_where_spaces_do(trained, kind):
    tokenizer = Tokenizer.load(trained / f"{kind}-True")
    encoding = tokenizer.encode("the people made")
    begins = ~tokenizer.is_continuation[encoding.ids]
    begins[0] = True  # the first of a line has no space before it, which byte kinds would need
    assert begins.sum() == 3


def test_punctuation_and_chinese_cost_unigram_one_piece_each(trained):
    tokenizer = Tokenizer.load(trained / "unigram-True")
    assert tokenizer.encode("the, the.").tokens == ["▁the", "▁,", "▁the", "▁."]
    assert len(tokenizer.encode("天地玄黄。").ids) == 5


@every_kind
def test_training_twice_gives_the_same_bytes(trained, kind, tmp_path):
    train_tokenizer(texts=str(trained / "text.txt"), kind=kind, size=400, out=str(tmp_path / "again"), quiet=True)
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (trained / f"{kind}-True" / "tokenizer.json").read_bytes()


def test_a_trained_wordpiece_vocabulary_loads_as_googles_do(trained):
    from_json = Tokenizer.load(trained / "wordpiece-True")
    from_text = Tokenizer.load(trained / "wordpiece-True" / "vocab.txt", lowercase=True)
    line = "The people, over 天地 café 100%"
    assert from_json.encode(line).ids == from_text.encode(line).ids


def test_case_is_read_off_a_vocabulary(vocabulary):
    assert Tokenizer.load(vocabulary).encode("THE").ids == Tokenizer.load(vocabulary).encode("the").ids
    cased = Tokenizer.from_vocab([*SPECIAL_TOKENS, "The", "the"])
    assert cased.encode("The the THE").ids == [5, 6, cased.unk_token_id]


def test_random_replacements_are_never_special_or_unused():
    tokenizer = Tokenizer.from_vocab([*SPECIAL_TOKENS, "[unused0]", "the", "##s", "[unused99]"])
    assert tokenizer.non_special_ids.tolist() == [6, 7]
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [7]


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_those_the_tokenizer_cuts(lowercase):
    text = "The Café—at 天地, don't!\nÜber"
    words = WordSplitter("wordpiece", lowercase)(text)
    want = ["The", "Café", "—", "at", "天", "地", ",", "don", "'", "t", "!", "Über"]
    assert words == (["the", "cafe", "—", "at", "天", "地", ",", "don", "'", "t", "!", "uber"] if lowercase else want)
    assert WordSplitter("byte-bpe", False)("The way, don't") == ["The", " way", ",", " don", "'t"]
