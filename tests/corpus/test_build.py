"""`prepare`: the same bytes for any number of workers, after any kill, and clear words for bad text."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest

from bertsmith.corpus import build, dedup, store
from bertsmith.corpus.store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE, Corpus
from bertsmith.errors import UserError
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import han, prepared, prose
from tests.corpus.test_chinese_words import saved

ARRAYS = (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE)


@pytest.fixture
def small_blocks(monkeypatch):
    """Many blocks of little text, noted often: what gigabytes would bring."""
    monkeypatch.setattr(build, "BLOCK_CHARS", 2000)
    monkeypatch.setattr(build._CorpusWriter, "JOURNAL_INTERVAL", 2)


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_corpus_is_its_text_as_ids(tmp_path, vocabulary):
    text = prose(30, seed=1)
    corpus = Corpus.open(prepared(written(tmp_path / "a.txt", text), vocabulary, tmp_path / "out"))
    tokenizer = Tokenizer.load(vocabulary)
    documents = [[line for line in part.split("\n") if line] for part in text.strip().split("\n\n")]
    assert len(corpus.document_offsets) - 1 == len(documents)
    lines = [line for document in documents for line in document]
    assert np.diff(corpus.document_offsets).tolist() == [len(document) for document in documents]
    assert corpus.tokens.tolist() == [i for line in lines for i in tokenizer.encode(line).ids]
    assert np.diff(corpus.sentence_offsets).tolist() == [len(tokenizer.encode(line).ids) for line in lines]
    assert corpus.tokens.dtype == np.uint16


SPACED = """the first one. 2 the second, and then
some more of it.
天地玄黄。宇宙洪荒。
here it 天
ends.

another text.
"""


@pytest.mark.parametrize("sentences", ["cut", "lines"])
@pytest.mark.parametrize("block", [1 << 20, 40])
def test_where_pieces_carry_their_space_sentences_of_a_document_are_apart(sentences, block, tmp_path, monkeypatch):
    """What a model that writes learns from is the text as somebody would write it, not sentence glued to sentence."""
    monkeypatch.setattr(build, "BLOCK_CHARS", block)
    saved(tmp_path, "byte-bpe", prose(30) + SPACED)
    folder = prepared(written(tmp_path / "a.txt", SPACED), tmp_path / "tokenizer.json", tmp_path / "out", sentences=sentences)
    corpus = Corpus.open(folder)
    texts = [
        corpus.tokenizer.backend_tokenizer.decode(corpus.tokens[a:b].tolist())
        for a, b in pairwise(corpus.document_token_offsets.tolist())
    ]
    first = "the first one. 2 the second, and then some more of it.天地玄黄。宇宙洪荒。here it 天ends."
    assert texts == [first, "another text."]
    assert corpus.card["bytes"] == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_change_no_byte(tmp_path, vocabulary, small_blocks, workers):
    texts = written(tmp_path / "a.txt", prose(200, seed=2))
    one = prepared(texts, vocabulary, tmp_path / "one")
    many = prepared(texts, vocabulary, tmp_path / "many", workers=workers)
    for name in (*ARRAYS, "tokenizer.json"):
        assert (one / name).read_bytes() == (many / name).read_bytes(), name


@pytest.mark.parametrize("workers", [1, 3])
def test_the_bytes_of_unknown_words_are_counted(tmp_path, vocabulary, small_blocks, workers):
    strange = ["to 文中 be", "ЖЖЖ people ЖЖЖ"]
    lines = [*strange, "the time", *strange] * 40
    corpus = prepared(written(tmp_path / "a.txt", "\n\n".join(lines)), vocabulary, tmp_path / "out", workers=workers)
    found, tokenizer = Corpus.open(corpus), Tokenizer.load(vocabulary)
    assert (
        tokenizer.encode(strange[0]).ids.count(tokenizer.unk_token_id)
        == 2
        == tokenizer.encode(strange[1]).ids.count(tokenizer.unk_token_id)
    )
    assert found.card["unknown bytes"] == 80 * (2 * (3 + 1) + 2 * (6 + 1))  # each with one for its end
    assert found.card["bytes"] == sum(len(line.encode()) for line in lines)


def test_blocks_change_no_byte(tmp_path, vocabulary, monkeypatch):
    texts = written(tmp_path / "a.txt", prose(60, seed=2))
    whole = prepared(texts, vocabulary, tmp_path / "whole")
    monkeypatch.setattr(build, "BLOCK_CHARS", 300)  # documents go on from block to block
    parts = prepared(texts, vocabulary, tmp_path / "parts")
    for name in ARRAYS:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path, vocabulary):
    texts = written(tmp_path / "a.txt", prose(3000, seed=3) + "\n" + prose(100, seed=3))
    whole = prepared(texts, vocabulary, tmp_path / "whole", drop=["lines"])
    code = (
        "import time; from bertsmith.corpus import build; from tests.conftest import prepared; from pathlib import Path\n"
        "build.BLOCK = 4000; build._Writing.EVERY = 3; add = build._Writing.add\n"
        "build._Writing.add = lambda self, block: (add(self, block), time.sleep(0.005))\n"
        f"prepared(Path({str(texts)!r}), Path({str(vocabulary)!r}), Path({str(tmp_path / 'out')!r}), drop=['lines'])\n"
    )
    kills = 0
    for _ in range(30):
        process = subprocess.Popen([sys.executable, "-c", code])
        journal = tmp_path / "out.part" / "journal.json"
        before, patience = (journal.read_text() if journal.exists() else ""), time.monotonic() + 60
        while process.poll() is None and time.monotonic() < patience:
            if journal.exists() and journal.read_text() != before:  # it has got on: kill it now
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        if process.wait() == 0:
            break
        if kills >= 3:
            code = code.replace("time.sleep(0.005)", "None")
            subprocess.run([sys.executable, "-c", code], check=True)
            break
    assert kills >= 1
    for name in ARRAYS:
        assert (whole / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


def test_made_twice_is_made_once_and_other_settings_are_refused(tmp_path, vocabulary):
    texts = written(tmp_path / "a.txt", prose(20))
    first = prepared(texts, vocabulary, tmp_path / "out")
    before = (first / "manifest.json").stat().st_mtime_ns
    assert prepared(texts, vocabulary, tmp_path / "out") == first
    assert (first / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="other text, tokenizer or settings"):
        prepared(texts, vocabulary, tmp_path / "out", drop=["lines"])


def test_a_place_that_holds_empty_folders_is_taken(tmp_path, vocabulary):
    (tmp_path / "out" / "state").mkdir(parents=True)
    Corpus.open(prepared(written(tmp_path / "a.txt", prose(5)), vocabulary, tmp_path / "out"))


def test_duplicates_are_counted_always_and_dropped_on_request(tmp_path, vocabulary):
    text = "The one.\nThe two.\n\nThe one.\nThe two.\n\nThe two.\nThe way.\n"
    texts = written(tmp_path / "a.txt", text)
    kept = Corpus.open(prepared(texts, vocabulary, tmp_path / "kept"))
    assert kept.card["duplicates"] == {"sentences": 3, "documents": 1, "sentences dropped": 0}
    lines = Corpus.open(prepared(texts, vocabulary, tmp_path / "lines", drop=["lines"]))
    assert (lines.card["sentences"], lines.card["documents"]) == (3, 2)
    documents = Corpus.open(prepared(texts, vocabulary, tmp_path / "documents", drop=["documents"]))
    assert (documents.card["sentences"], documents.card["documents"]) == (4, 2)
    assert np.array_equal(documents.tokens[: documents.sentence_offsets[2]], kept.tokens[: kept.sentence_offsets[2]])


def test_a_repeated_line_goes_whole_and_a_repeated_sentence_stays(tmp_path, vocabulary):
    text = "The way. It was.\nThe time. It was.\n\nThe way. It was.\nThe people. It was.\n"
    corpus = Corpus.open(prepared(written(tmp_path / "a.txt", text), vocabulary, tmp_path / "out", drop=["lines"]))
    assert corpus.card["duplicates"] == {"sentences": 2, "documents": 0, "sentences dropped": 2}
    assert np.diff(corpus.document_offsets).tolist() == [4, 2]


def test_killed_while_it_is_sealed_nothing_is_encoded_again(tmp_path, vocabulary, monkeypatch):
    texts = written(tmp_path / "a.txt", prose(40, seed=6))
    whole = prepared(texts, vocabulary, tmp_path / "whole")
    seal = build.write_manifest
    for moment in ("before", "after"):
        out = tmp_path / moment

        def killed(*given, moment=moment):
            if moment == "after":
                seal(*given)
            raise KeyboardInterrupt

        monkeypatch.setattr(build, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            prepared(texts, vocabulary, out)
        monkeypatch.setattr(build, "write_manifest", seal)
        with monkeypatch.context() as patch:
            patch.setattr(build._CorpusWriter, "write_block", lambda self, block: pytest.fail("encoded again"))
            prepared(texts, vocabulary, out)
        for name in (*ARRAYS, "tokenizer.json"):
            assert (whole / name).read_bytes() == (out / name).read_bytes(), name
        assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}


def test_repeats_are_found_in_bounded_memory(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 2**64, 500, dtype=np.uint64)[np.random.default_rng(1).integers(0, 500, 5000)]
    want = np.ones(5000, bool)
    want[np.unique(values, return_index=True)[1]] = False
    monkeypatch.setattr(dedup, "MAX_SORTED_HASHES", 64)
    assert np.array_equal(dedup.flag_repeats(values, tmp_path / "flags"), want)


def test_words_of_chinese_are_marked_and_ids_do_not_change(tmp_path, vocabulary):
    texts = written(tmp_path / "a.txt", han(30) + "\n" + prose(5))
    plain = Corpus.open(prepared(texts, vocabulary, tmp_path / "plain"))
    for drop in ([], ["lines"]):
        out = tmp_path / f"marked{len(drop)}"
        marked = Corpus.open(prepared(texts, vocabulary, out, segmenter="tests.conftest:twos", drop=drop))
        if not drop:
            assert np.array_equal(plain.tokens, marked.tokens)
        starts = marked.is_word_start(np.arange(len(marked.tokens)))
        for a, b in zip(marked.sentence_offsets[:20], marked.sentence_offsets[1:21], strict=True):
            pieces = [marked.tokenizer.id_to_token[i] for i in marked.tokens[a:b]]
            want = [place % 2 == 0 or piece == "。" for place, piece in enumerate(pieces)]
            assert starts[a:b].tolist() == want, pieces
    assert (tmp_path / "marked0" / WORD_STARTS_FILE).stat().st_size == -(-len(plain.tokens) // 8)


def test_marks_survive_any_cutting(tmp_path):
    flags = np.random.default_rng(0).random(1001) < 0.5
    with (tmp_path / "marks").open("wb") as file:
        writer = store.BitWriter(file)
        for part in np.split(flags, [3, 3, 20, 500, 501]):
            writer.add(part)
        writer.finish()
    stored = np.fromfile(tmp_path / "marks", np.uint8)
    assert np.array_equal(store.unpack_range(stored, 13, 777), flags[13:777])
    assert np.array_equal(store.unpack_positions(stored, np.arange(1001)), flags)


def test_the_card_counts_what_is_there(corpus):
    opened = Corpus.open(corpus)
    card, shares = opened.card, np.bincount(opened.tokens) / len(opened.tokens)
    assert card["tokens"] == len(opened.tokens) and card["documents"] == len(opened.document_offsets) - 1
    assert card["unigram entropy"] == pytest.approx(-(shares[shares > 0] * np.log(shares[shares > 0])).sum(), abs=1e-3)
    assert sum(card["sentence lengths"].values()) == card["sentences"]
    assert card["sources"][0]["sha256"] and card["tokenizer"] == opened.tokenizer.fingerprint


def test_disk_stays_near_two_bytes_a_token(corpus):
    opened = Corpus.open(corpus)
    index = 8 * (len(opened.sentence_offsets) + len(opened.document_offsets))
    assert sum((corpus / name).stat().st_size for name in ARRAYS) <= 2.2 * len(opened.tokens) + index


# Bad input: each a clear message, nothing half made.


def refused(tmp_path, vocabulary, name, data, match, **settings):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=match):
        prepared(path, vocabulary, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_bad_text_is_named(tmp_path, vocabulary):
    refused(tmp_path, vocabulary, "empty.txt", b"", "empty.txt is empty")
    refused(tmp_path, vocabulary, "binary.txt", bytes(range(256)) * 50, "binary")
    refused(tmp_path, vocabulary, "latin.txt", b"The way.\n" * 5 + "caf\xe9 au lait\n".encode("latin-1"), "48")
    refused(tmp_path, vocabulary, "line.txt", b"The only sentence there is.\n", "1 sentence")
    refused(tmp_path, vocabulary, "cut.gz", gzip.compress(b"The way.\n" * 1000)[:-20], "cut.gz")


def test_one_document_is_warned_about(tmp_path, vocabulary):
    texts = written(tmp_path / "a.txt", "The way.\nThe time.\nThe people.\n")
    card = Corpus.open(prepared(texts, vocabulary, tmp_path / "out")).card
    assert any("one document only" in warning for warning in card["warnings"])


def test_a_vocabulary_without_mask_is_refused(tmp_path):
    texts, vocabulary = (
        written(tmp_path / "a.txt", prose(5)),
        written(tmp_path / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n"),
    )
    with pytest.raises(UserError, match=r"vocab.txt has no \[MASK\]"):
        prepared(texts, vocabulary, tmp_path / "out")


@pytest.mark.parametrize("name", ARRAYS)
def test_damage_is_found_and_named(tmp_path, vocabulary, name):
    folder = prepared(written(tmp_path / "a.txt", prose(20)), vocabulary, tmp_path / "out")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        Corpus.open(folder)
    (folder / name).write_bytes(data[:-3])
    with pytest.raises(UserError, match=f"{name}.*truncated"):
        Corpus.open(folder)


def test_a_full_disk_loses_nothing(tmp_path, vocabulary, small_blocks, monkeypatch):
    texts = written(tmp_path / "a.txt", prose(200, seed=5))
    whole = prepared(texts, vocabulary, tmp_path / "whole")
    add, count = build._CorpusWriter.write_block, []

    def full(self, block):
        count.append(1)
        if len(count) == 9:
            raise OSError(28, os.strerror(28))
        add(self, block)

    monkeypatch.setattr(build._CorpusWriter, "write_block", full)
    with pytest.raises(UserError, match=r"no space left for .*out\.part.*what is done is kept"):
        prepared(texts, vocabulary, tmp_path / "out")
    assert json.loads((tmp_path / "out.part" / "journal.json").read_text())["blocks"] == 8
    prepared(texts, vocabulary, tmp_path / "out")
    for name in ARRAYS:
        assert (whole / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
