"""Word-level tokenizers: the most frequent words, all others unknown; Chinese words by jieba."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.tokenization.fast_encode import CachedEncoder
from bertsmith.tokenization.pipeline import WordSplitter
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import make_english_text, unicode_texts
from tests.support.tokenizers import encode_lines

CHINESE = "我们喜欢自然语言处理。自然语言处理很有意思，我们都喜欢它！\n北京大学在北京。\nBERT模型很大，北京大学也很大。\n"


def train_word_tokenizer(folder, text: str, **settings) -> Tokenizer:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    values = {"kind": "word", "vocab_size": 1000, "quiet": True, **settings}
    api.train_tokenizer(texts=str(folder / "text.txt"), out=str(folder / "words"), **values)
    return Tokenizer.load(folder / "words")


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    pytest.importorskip("jieba")
    return train_word_tokenizer(tmp_path_factory.mktemp("zh"), CHINESE, min_frequency=1, language="zh")


def test_word_vocabulary_is_the_most_frequent_words_in_order(tmp_path):
    text = make_english_text(30)
    counts = Counter(WordSplitter("word", True)(text))
    tokenizer = train_word_tokenizer(tmp_path, text, vocab_size=5 + 20, min_frequency=1)
    assert tokenizer.id_to_token == [*SPECIAL_TOKENS, *sorted(counts, key=lambda word: (-counts[word], word))[:20]]


def test_word_tokenizer_encodes_unknown_words_as_unk(tmp_path):
    tokenizer = train_word_tokenizer(tmp_path, "the cat sat\nthe cat sat\nthe dog\n", min_frequency=2)
    assert tokenizer.id_to_token[5:] == ["the", "cat", "sat"]
    assert tokenizer.encode("The dog, cats! CAT").tokens == ["the", "[UNK]", "[UNK]", "[UNK]", "[UNK]", "cat"]
    long_word = "x" * 300
    assert tokenizer.encode(f"the {long_word} sat").tokens == ["the", "[UNK]", "sat"]


def test_word_vocabulary_refuses_text_without_frequent_words(tmp_path):
    with pytest.raises(UserError, match="no word occurs min_frequency=5 times"):
        train_word_tokenizer(tmp_path, "the cat sat\n", min_frequency=5)


def test_word_tokenizer_corpus_holds_the_ids_of_its_lines(tmp_path):
    tokenizer = train_word_tokenizer(tmp_path, make_english_text(30), vocab_size=40)
    corpus = Corpus.open(prepare_test_corpus(tmp_path / "text.txt", tmp_path / "words", tmp_path / "corpus", sentences="lines"))
    lines = [line for line in make_english_text(30).split("\n") if line]
    assert corpus.tokens.tolist() == [token_id for line in lines for token_id in tokenizer.encode(line).ids]
    assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
    assert corpus.is_word_start(np.arange(50)).all()


def test_chinese_word_tokenizer_uses_jieba(chinese):
    import jieba

    line = "我们喜欢自然语言处理"
    encoding = chinese.encode(line)
    assert encoding.tokens == jieba.lcut(line) and len(encoding.tokens) < len(line)
    assert [line[start:end] for start, end in encoding.offsets] == encoding.tokens
    assert chinese.encode("BERT模型").tokens == ["bert", "模型"]


def test_jieba_survives_saving_and_new_special_tokens(chinese):
    loaded = Tokenizer.from_json(chinese.json_bytes)
    assert loaded.json_bytes == chinese.json_bytes and loaded.fingerprint == chinese.fingerprint
    extended = chinese.with_special_tokens(["[NEW]"])
    line = "北京大学很大。"
    assert loaded.encode(line).ids == extended.encode(line).ids == chinese.encode(line).ids
    assert Tokenizer.from_json(extended.json_bytes).encode(line).ids == chinese.encode(line).ids


def test_cached_encoder_matches_chinese_word_tokenizer(chinese):
    encoder = CachedEncoder(chinese, max_cached_runs=50)
    mixed_texts = st.text(st.sampled_from(list("我们喜欢自然语言北京大学aB1+.，。 -&")), max_size=30)

    @settings(max_examples=150, deadline=None)
    @given(unicode_texts | mixed_texts)
    def check(line):
        line = line.replace("\n", " ")
        ids, lengths = encode_lines(encoder, line + "\n" + line)
        expected = chinese.encode(line).ids
        assert ids.tolist() == expected * 2 and lengths.tolist() == [len(expected)] * 2

    check()


def test_chinese_word_corpus_does_not_depend_on_workers(chinese, tmp_path):
    (tmp_path / "zh.txt").write_text(CHINESE, encoding="utf-8")
    chinese.save(tmp_path)
    files = tmp_path / "zh.txt", tmp_path / "tokenizer.json"
    corpus_paths = [
        prepare_test_corpus(*files, tmp_path / f"corpus{workers}", workers=workers, language="zh") for workers in (1, 2)
    ]
    single, parallel = (Corpus.open(path) for path in corpus_paths)
    assert single.tokens.tolist() == parallel.tokens.tolist()
    assert chinese.decode(single.tokens[:4].tolist()).split() == ["我们", "喜欢", "自然语言", "处理"]
    assert single.is_word_start(np.arange(len(single.tokens))).all()


def test_chinese_segmentation_requires_the_word_kind(tmp_path):
    with pytest.raises(UserError, match="kind=word"):
        train_word_tokenizer(tmp_path, CHINESE, kind="wordpiece", language="zh")


def test_tokenizer_json_cannot_name_code_to_run(chinese):
    data = chinese.json_bytes.replace(b'"segmenter": "jieba"', b'"segmenter": "os:system"')
    assert data != chinese.json_bytes and not Tokenizer.from_json(data).segment_chinese
