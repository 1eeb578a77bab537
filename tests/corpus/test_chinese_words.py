"""Word starts in a corpus whose tokenizer marks words by the space before them, which Chinese words do not have."""

import re

import numpy as np
import pytest

from bertsmith.corpus import build
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.tokenization import fast_encode
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.corpora import prepare_test_corpus, train_and_save
from tests.support.texts import VOCAB, make_chinese_text, make_english_text

spaced_kinds = pytest.mark.parametrize("kind", ["byte", "byte-bpe", "unigram"])
TEXT = "天地玄黄 the people,宇宙洪 made  this荒\nway 日月盈昃\n\n辰宿列张龘\nof寒来 。\n"  # two documents, four sentences
SEGMENTER = "tests.corpus.test_chinese_words:segment"


def segment(text):
    """A segmenter: words of letters, Chinese words of two characters, all other characters alone."""
    return re.findall(r"[a-z]+|[\u4e00-\u9fff]{1,2}|.", text)


def build_corpus(folder, kind, text, **settings):
    """A corpus of `text` with a tokenizer trained on English words and single Chinese characters."""
    tokenizer = train_and_save(folder, kind, make_english_text(30).lower() + " ".join(make_chinese_text(20)) + " , 龘")
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus_path = prepare_test_corpus(folder / "text.txt", tokenizer, folder / "corpus", sentences="lines", **settings)
    return Corpus.open(corpus_path)


def word_texts(corpus):
    """The text of each word of the corpus, in order."""
    starts = np.flatnonzero(corpus.is_word_start(np.arange(len(corpus.tokens))))
    return [corpus.tokenizer.decode(token_ids).replace(" ", "") for token_ids in np.split(corpus.tokens, starts[1:])]


@spaced_kinds
def test_is_word_start_at_first_word_of_a_sentence(tmp_path, kind):
    text = make_english_text(20, seed=3).lower().replace(".", "")
    corpus = build_corpus(tmp_path, kind, text)
    assert word_texts(corpus) == text.split()
    positions = np.random.default_rng(0).permutation(len(corpus.tokens))[:200]
    assert np.array_equal(corpus.is_word_start(positions), corpus.is_word_start(np.arange(len(corpus.tokens)))[positions])


@spaced_kinds
def test_chinese_word_starts_are_those_of_the_segmenter(tmp_path, kind):
    corpus = build_corpus(tmp_path, kind, TEXT, segmenter=SEGMENTER)
    expected = [word for line in TEXT.split("\n") for word in segment(line) if word != " "]
    words_found = word_texts(corpus)
    assert [word for word in words_found if word] == expected
    assert len(words_found) - len(expected) == (0 if kind == "unigram" else 1)  # the first of two spaces is a word of its own
    assert corpus.is_word_start(corpus.sentence_offsets[:-1]).all()


def test_word_starts_are_the_same_with_trimmed_offsets(tmp_path):
    from tokenizers import processors

    tokenizer = Tokenizer.load(
        train_and_save(tmp_path, "byte-bpe", " ".join(make_chinese_text(20)) + " the people made this way")
    )
    trimmed = Tokenizer.from_json(tokenizer.json_bytes)
    trimmed.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    word_starts = []
    for variant in (tokenizer, trimmed):
        encoder = build._BlockEncoder(variant.backend_tokenizer.to_str().encode(), False, SEGMENTER)
        word_starts.append(encoder(TEXT, "", True).word_starts)
    offsets = [variant.encode("天地 the").offsets for variant in (tokenizer, trimmed)]
    assert offsets[0] != offsets[1] and np.array_equal(*word_starts)


def test_word_starts_are_refused_if_cached_encoding_differs(monkeypatch):
    tokenizer = Tokenizer.from_vocab(VOCAB)
    tokenizer.backend_tokenizer.add_tokens(["way of"])
    data = tokenizer.backend_tokenizer.to_str().encode()
    encoded = build._BlockEncoder(data, False, SEGMENTER)("the way of天地玄", "", True)
    assert len(encoded.word_starts) == len(encoded.tokens) == 5
    # As if the added token with a space in it were not recognised.
    monkeypatch.setattr(fast_encode, "_choose_run_pattern", lambda tokenizer: fast_encode.BERT_RUN_PATTERN)
    with pytest.raises(UserError, match="cannot mark the words of 'the way of天地玄'"):
        build._BlockEncoder(data, False, SEGMENTER)("the way of天地玄", "", True)
