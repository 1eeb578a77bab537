"""Tokenizers of whole words: the most frequent ones, the rest unknown; Chinese ones by jieba."""

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
from tests.conftest import prepared, prose
from tests.parity.test_tokenizer import hostile

CHINESE = "我们喜欢自然语言处理。自然语言处理很有意思，我们都喜欢它！\n北京大学在北京。\nBERT模型很大，北京大学也很大。\n"


def trained(folder, text: str, **settings) -> Tokenizer:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    values = {"kind": "word", "size": 1000, "quiet": True, **settings}
    api.train_tokenizer(texts=str(folder / "text.txt"), out=str(folder / "words"), **values)
    return Tokenizer.load(folder / "words")


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    pytest.importorskip("jieba")
    return trained(tmp_path_factory.mktemp("zh"), CHINESE, least=1, language="zh")


def test_the_most_frequent_words_are_kept_whole_in_order_of_their_counts(tmp_path):
    text = prose(30)
    counts = Counter(WordSplitter("word", True)(text))
    tokenizer = trained(tmp_path, text, size=5 + 20, least=1)
    assert tokenizer.id_to_token == [*SPECIAL_TOKENS, *sorted(counts, key=lambda word: (-counts[word], word))[:20]]


def test_a_word_outside_the_vocabulary_is_one_unknown_token(tmp_path):
    tokenizer = trained(tmp_path, "the cat sat\nthe cat sat\nthe dog\n", least=2)
    assert tokenizer.id_to_token[5:] == ["the", "cat", "sat"]
    assert tokenizer.encode("The dog, cats! CAT").tokens == ["the", "[UNK]", "[UNK]", "[UNK]", "[UNK]", "cat"]
    long = "x" * 300
    assert tokenizer.encode(f"the {long} sat").tokens == ["the", "[UNK]", "sat"]


def test_a_vocabulary_without_a_frequent_word_is_refused(tmp_path):
    with pytest.raises(UserError, match="no word occurs 5 times"):
        trained(tmp_path, "the cat sat\n", least=5)


def test_a_prepared_corpus_holds_the_ids_of_its_lines(tmp_path):
    tokenizer = trained(tmp_path, prose(30), size=40)
    corpus = Corpus.open(prepared(tmp_path / "text.txt", tmp_path / "words", tmp_path / "corpus", sentences="lines"))
    lines = [line for line in prose(30).split("\n") if line]
    assert corpus.tokens.tolist() == [number for line in lines for number in tokenizer.encode(line).ids]
    assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
    assert corpus.is_word_start(np.arange(50)).all()


def test_chinese_words_are_those_of_jieba(chinese):
    import jieba

    line = "我们喜欢自然语言处理"
    encoding = chinese.encode(line)
    assert encoding.tokens == jieba.lcut(line) and len(encoding.tokens) < len(line)
    assert [line[a:b] for a, b in encoding.offsets] == encoding.tokens
    assert chinese.encode("BERT模型").tokens == ["bert", "模型"]


def test_the_segmenter_goes_with_the_file_and_with_new_specials(chinese):
    again = Tokenizer.from_json(chinese.data)
    assert again.json_bytes == chinese.data and again.fingerprint == chinese.fingerprint
    longer = chinese.with_special_tokens(["[NEW]"])
    line = "北京大学很大。"
    assert again.encode(line).ids == longer.encode(line).ids == chinese.encode(line).ids
    assert Tokenizer.from_json(longer.data).encode(line).ids == chinese.encode(line).ids


def test_clause_by_clause_equals_whole_lines(chinese):
    fast = CachedEncoder(chinese, max_cached_runs=50)
    mixed = st.text(st.sampled_from(list("我们喜欢自然语言北京大学aB1+.，。 -&")), max_size=30)

    @settings(max_examples=150, deadline=None)
    @given(hostile | mixed)
    def check(line):
        line = line.replace("\n", " ")
        ids, lengths = fast.encode_lines(line + "\n" + line)
        want = chinese.encode(line).ids
        assert ids.tolist() == want * 2 and lengths.tolist() == [len(want)] * 2

    check()


def test_a_chinese_corpus_of_words_is_prepared_by_any_number_of_workers(chinese, tmp_path):
    (tmp_path / "zh.txt").write_text(CHINESE, encoding="utf-8")
    chinese.save(tmp_path)
    files = tmp_path / "zh.txt", tmp_path / "tokenizer.json"
    made = [prepared(*files, tmp_path / f"corpus{workers}", workers=workers, language="zh") for workers in (1, 2)]
    one, two = (Corpus.open(path) for path in made)
    assert one.tokens.tolist() == two.tokens.tolist()
    assert chinese.decode(one.tokens[:4].tolist()).split() == ["我们", "喜欢", "自然语言", "处理"]
    assert one.is_word_start(np.arange(len(one.tokens))).all()


def test_a_segmenter_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UserError, match="kind=word"):
        trained(tmp_path, CHINESE, kind="wordpiece", language="zh")


def test_a_file_cannot_name_code_to_run(chinese):
    data = chinese.data.replace(b'"segmenter": "jieba"', b'"segmenter": "os:system"')
    assert data != chinese.data and not Tokenizer.from_json(data).segment_chinese
