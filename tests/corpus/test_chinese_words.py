"""Where words begin in a corpus whose tokenizer marks a word by the space before it, which words of Chinese have not."""

import re

import numpy as np
import pytest

from bertsmith.corpus import build
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.tokenization import fast_encode
from bertsmith.tokenization.pipeline import WordSplitter, assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary
from tests.conftest import PIECES, han, prepared, prose

spaced_kinds = pytest.mark.parametrize("kind", ["byte", "byte-bpe", "unigram"])
TEXT = "天地玄黄 the people,宇宙洪 made  this荒\nway 日月盈昃\n\n辰宿列张龘\nof寒来 。\n"  # two documents, four sentences


def cut(text):
    """A segmenter: runs of letters, two Chinese characters at a time, and all else alone."""
    return re.findall(r"[a-z]+|[\u4e00-\u9fff]{1,2}|.", text)


def saved(folder, kind, text, size=320):
    counts: dict[str, int] = {}
    for word in WordSplitter(kind, True)(text):
        counts[word] = counts.get(word, 0) + 1
    learnt = train_vocabulary(kind, counts.items(), size, special_tokens=SPECIAL_TOKENS)
    Tokenizer(assemble_tokenizer(kind, build_model(learnt), True)).save(folder)
    return folder / "tokenizer.json"


def made(folder, kind, text, **settings):
    """A corpus of a text whose tokenizer was learnt from English words and from Chinese characters, each for itself."""
    tokenizer = saved(folder, kind, prose(30).lower() + " ".join(han(20)) + " , 龘")
    (folder / "text.txt").write_text(text, encoding="utf-8")
    out = prepared(folder / "text.txt", tokenizer, folder / "corpus", sentences="lines", **settings)
    return Corpus.open(out)


def words(corpus):
    """The text of each word, sentence after sentence."""
    starts = np.flatnonzero(corpus.starts_word(np.arange(len(corpus.tokens))))
    return [corpus.tokenizer.decode(part).replace(" ", "") for part in np.split(corpus.tokens, starts[1:])]


@spaced_kinds
def test_the_first_word_of_a_sentence_is_not_the_end_of_the_one_before(tmp_path, kind):
    text = prose(20, seed=3).lower().replace(".", "")
    corpus = made(tmp_path, kind, text)
    assert words(corpus) == text.split()
    where = np.random.default_rng(0).permutation(len(corpus.tokens))[:200]
    assert np.array_equal(corpus.is_word_start(where), corpus.is_word_start(np.arange(len(corpus.tokens)))[where])


@spaced_kinds
def test_words_of_chinese_are_those_of_the_segmenter(tmp_path, kind):
    corpus = made(tmp_path, kind, TEXT, segmenter="tests.corpus.test_chinese_words:cut")
    want = [word for line in TEXT.split("\n") for word in cut(line) if word != " "]
    got = words(corpus)
    assert [word for word in got if word] == want
    assert len(got) - len(want) == (0 if kind == "unigram" else 1)  # the first of two spaces stands alone
    assert corpus.is_word_start(corpus.sentence_offsets[:-1]).all()


def test_offsets_without_their_spaces_give_the_same_words(tmp_path):
    from tokenizers import processors

    tokenizer = Tokenizer.load(saved(tmp_path, "byte-bpe", " ".join(han(20)) + " the people made this way"))
    trimming = Tokenizer.from_json(tokenizer.json_bytes)
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    marks = [build._BlockEncoder(t.backend_tokenizer.to_str().encode(), False, "tests.corpus.test_chinese_words:cut")(TEXT, "", True).word_starts
             for t in (tokenizer, trimming)]  # fmt: skip
    offsets = [t.encode("天地 the").offsets for t in (tokenizer, trimming)]
    assert offsets[0] != offsets[1] and np.array_equal(*marks)


def test_marks_that_belong_to_other_ids_are_never_written(monkeypatch):
    tokenizer = Tokenizer.from_vocab(PIECES)
    tokenizer.backend_tokenizer.add_tokens(["way of"])
    data = tokenizer.backend_tokenizer.to_str().encode()
    encoded = build._BlockEncoder(data, False, "tests.corpus.test_chinese_words:cut")("the way of天地玄", "", True)
    assert len(encoded.word_starts) == len(encoded.tokens) == 5
    monkeypatch.setattr(
        fast_encode, "_choose_run_pattern", lambda tokenizer: fast_encode.BERT_RUN_PATTERN
    )  # as if the token's spaces were not known
    with pytest.raises(UserError, match="'the way of天地玄' run by run"):
        build._BlockEncoder(data, False, "tests.corpus.test_chinese_words:cut")("the way of天地玄", "", True)
