"""Building a corpus: identical files for any number of workers and after any interruption, clear errors for bad text."""

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
from tests.support.corpora import prepare_test_corpus, train_and_save
from tests.support.texts import make_chinese_text, make_english_text

ARRAYS = (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE)


@pytest.fixture
def small_blocks(monkeypatch):
    """Small blocks and frequent journal entries, so that little text behaves like gigabytes."""
    monkeypatch.setattr(build, "BLOCK_CHARS", 2000)
    monkeypatch.setattr(build._CorpusWriter, "JOURNAL_INTERVAL", 2)


def write_text(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_corpus_holds_the_token_ids_of_its_text(tmp_path, vocabulary):
    text = make_english_text(30, seed=1)
    corpus = Corpus.open(prepare_test_corpus(write_text(tmp_path / "a.txt", text), vocabulary, tmp_path / "out"))
    tokenizer = Tokenizer.load(vocabulary)
    documents = [[line for line in part.split("\n") if line] for part in text.strip().split("\n\n")]
    assert len(corpus.document_offsets) - 1 == len(documents)
    lines = [line for document in documents for line in document]
    assert np.diff(corpus.document_offsets).tolist() == [len(document) for document in documents]
    assert corpus.tokens.tolist() == [token_id for line in lines for token_id in tokenizer.encode(line).ids]
    assert np.diff(corpus.sentence_offsets).tolist() == [len(tokenizer.encode(line).ids) for line in lines]
    assert corpus.tokens.dtype == np.uint16


MIXED_TEXT = """the first one. 2 the second, and then
some more of it.
天地玄黄。宇宙洪荒。
here it 天
ends.

another text.
"""


@pytest.mark.parametrize("sentences", ["cut", "lines"])
@pytest.mark.parametrize("block", [1 << 20, 40])
def test_corpus_keeps_spaces_between_sentences_for_space_prefixed_tokens(sentences, block, tmp_path, monkeypatch):
    """A causal LM must see the text as it is written, with spaces between sentences."""
    monkeypatch.setattr(build, "BLOCK_CHARS", block)
    train_and_save(tmp_path, "byte-bpe", make_english_text(30) + MIXED_TEXT)
    folder = prepare_test_corpus(
        write_text(tmp_path / "a.txt", MIXED_TEXT), tmp_path / "tokenizer.json", tmp_path / "out", sentences=sentences
    )
    corpus = Corpus.open(folder)
    texts = [
        corpus.tokenizer.backend_tokenizer.decode(corpus.tokens[start:end].tolist())
        for start, end in pairwise(corpus.document_token_offsets.tolist())
    ]
    first_document = "the first one. 2 the second, and then some more of it.天地玄黄。宇宙洪荒。here it 天ends."
    assert texts == [first_document, "another text."]
    assert corpus.card["bytes"] == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("workers", [2, 5])
def test_corpus_is_identical_for_any_number_of_workers(tmp_path, vocabulary, small_blocks, workers):
    texts = write_text(tmp_path / "a.txt", make_english_text(200, seed=2))
    single = prepare_test_corpus(texts, vocabulary, tmp_path / "one")
    parallel = prepare_test_corpus(texts, vocabulary, tmp_path / "many", workers=workers)
    for name in (*ARRAYS, "tokenizer.json"):
        assert (single / name).read_bytes() == (parallel / name).read_bytes(), name


@pytest.mark.parametrize("workers", [1, 3])
def test_corpus_card_counts_bytes_of_unknown_words(tmp_path, vocabulary, small_blocks, workers):
    with_unknown = ["to 文中 be", "ЖЖЖ people ЖЖЖ"]
    lines = [*with_unknown, "the time", *with_unknown] * 40
    folder = prepare_test_corpus(
        write_text(tmp_path / "a.txt", "\n\n".join(lines)), vocabulary, tmp_path / "out", workers=workers
    )
    corpus, tokenizer = Corpus.open(folder), Tokenizer.load(vocabulary)
    assert (
        tokenizer.encode(with_unknown[0]).ids.count(tokenizer.unk_token_id)
        == 2
        == tokenizer.encode(with_unknown[1]).ids.count(tokenizer.unk_token_id)
    )
    assert corpus.card["unknown_bytes"] == 80 * (2 * (3 + 1) + 2 * (6 + 1))  # plus one byte per word
    assert corpus.card["bytes"] == sum(len(line.encode()) for line in lines)


def test_corpus_is_independent_of_block_size(tmp_path, vocabulary, monkeypatch):
    texts = write_text(tmp_path / "a.txt", make_english_text(60, seed=2))
    one_block = prepare_test_corpus(texts, vocabulary, tmp_path / "whole")
    monkeypatch.setattr(build, "BLOCK_CHARS", 300)  # documents continue from block to block
    many_blocks = prepare_test_corpus(texts, vocabulary, tmp_path / "parts")
    for name in ARRAYS:
        assert (one_block / name).read_bytes() == (many_blocks / name).read_bytes(), name


def test_killed_corpus_build_resumes_to_identical_files(tmp_path, vocabulary):
    texts = write_text(tmp_path / "a.txt", make_english_text(3000, seed=3) + "\n" + make_english_text(100, seed=3))
    uninterrupted = prepare_test_corpus(texts, vocabulary, tmp_path / "whole", drop=["lines"])
    code = (
        "import time; from pathlib import Path; from bertsmith.corpus import build\n"
        "from tests.support.corpora import prepare_test_corpus\n"
        "build.BLOCK_CHARS = 4000; build._CorpusWriter.JOURNAL_INTERVAL = 3; write = build._CorpusWriter.write_block\n"
        "build._CorpusWriter.write_block = lambda self, block: (write(self, block), time.sleep(0.005))\n"
        f"prepare_test_corpus(Path({str(texts)!r}), Path({str(vocabulary)!r}), Path({str(tmp_path / 'out')!r}), "
        "drop=['lines'])\n"
    )
    kills = 0
    for _ in range(30):
        process = subprocess.Popen([sys.executable, "-c", code])
        journal = tmp_path / "out.part" / "journal.json"
        last_journal, deadline = (journal.read_text() if journal.exists() else ""), time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.read_text() != last_journal:  # it has made progress: kill it now
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
        assert (uninterrupted / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name


def test_corpus_build_is_idempotent_and_refuses_other_settings(tmp_path, vocabulary):
    texts = write_text(tmp_path / "a.txt", make_english_text(20))
    first = prepare_test_corpus(texts, vocabulary, tmp_path / "out")
    mtime = (first / "manifest.json").stat().st_mtime_ns
    assert prepare_test_corpus(texts, vocabulary, tmp_path / "out") == first
    assert (first / "manifest.json").stat().st_mtime_ns == mtime
    with pytest.raises(UserError, match="other texts, tokenizer or settings"):
        prepare_test_corpus(texts, vocabulary, tmp_path / "out", drop=["lines"])


def test_corpus_build_accepts_out_with_empty_folders(tmp_path, vocabulary):
    (tmp_path / "out" / "state").mkdir(parents=True)
    Corpus.open(prepare_test_corpus(write_text(tmp_path / "a.txt", make_english_text(5)), vocabulary, tmp_path / "out"))


def test_duplicates_are_always_counted_and_dropped_on_request(tmp_path, vocabulary):
    text = "The one.\nThe two.\n\nThe one.\nThe two.\n\nThe two.\nThe way.\n"
    texts = write_text(tmp_path / "a.txt", text)
    complete = Corpus.open(prepare_test_corpus(texts, vocabulary, tmp_path / "kept"))
    assert complete.card["duplicates"] == {"sentences": 3, "documents": 1, "dropped_sentences": 0}
    without_lines = Corpus.open(prepare_test_corpus(texts, vocabulary, tmp_path / "lines", drop=["lines"]))
    assert (without_lines.card["sentences"], without_lines.card["documents"]) == (3, 2)
    without_documents = Corpus.open(prepare_test_corpus(texts, vocabulary, tmp_path / "documents", drop=["documents"]))
    assert (without_documents.card["sentences"], without_documents.card["documents"]) == (4, 2)
    assert np.array_equal(
        without_documents.tokens[: without_documents.sentence_offsets[2]], complete.tokens[: complete.sentence_offsets[2]]
    )


def test_dedup_drops_repeated_lines_not_repeated_sentences(tmp_path, vocabulary):
    text = "The way. It was.\nThe time. It was.\n\nThe way. It was.\nThe people. It was.\n"
    corpus = Corpus.open(
        prepare_test_corpus(write_text(tmp_path / "a.txt", text), vocabulary, tmp_path / "out", drop=["lines"])
    )
    assert corpus.card["duplicates"] == {"sentences": 2, "documents": 0, "dropped_sentences": 2}
    assert np.diff(corpus.document_offsets).tolist() == [4, 2]


def test_corpus_build_killed_at_manifest_does_not_encode_again(tmp_path, vocabulary, monkeypatch):
    texts = write_text(tmp_path / "a.txt", make_english_text(40, seed=6))
    uninterrupted = prepare_test_corpus(texts, vocabulary, tmp_path / "whole")
    write_manifest = build.write_manifest
    for moment in ("before", "after"):
        out = tmp_path / moment

        def interrupt(*args, moment=moment):
            if moment == "after":
                write_manifest(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(build, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_test_corpus(texts, vocabulary, out)
        monkeypatch.setattr(build, "write_manifest", write_manifest)
        with monkeypatch.context() as patched:
            patched.setattr(build._CorpusWriter, "write_block", lambda self, block: pytest.fail("encoded again"))
            prepare_test_corpus(texts, vocabulary, out)
        for name in (*ARRAYS, "tokenizer.json"):
            assert (uninterrupted / name).read_bytes() == (out / name).read_bytes(), name
        assert {path.name for path in out.iterdir()} == {path.name for path in uninterrupted.iterdir()}


def test_flag_repeats_in_bounded_memory(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 2**64, 500, dtype=np.uint64)[np.random.default_rng(1).integers(0, 500, 5000)]
    expected = np.ones(5000, bool)
    expected[np.unique(values, return_index=True)[1]] = False
    monkeypatch.setattr(dedup, "MAX_SORTED_HASHES", 64)
    assert np.array_equal(dedup.flag_repeats(values, tmp_path / "flags"), expected)


def test_segmenter_marks_chinese_words_without_changing_token_ids(tmp_path, vocabulary):
    texts = write_text(tmp_path / "a.txt", make_chinese_text(30) + "\n" + make_english_text(5))
    unmarked = Corpus.open(prepare_test_corpus(texts, vocabulary, tmp_path / "plain"))
    for drop in ([], ["lines"]):
        out = tmp_path / f"marked{len(drop)}"
        marked = Corpus.open(
            prepare_test_corpus(texts, vocabulary, out, segmenter="tests.support.corpora:segment_pairs", drop=drop)
        )
        if not drop:
            assert np.array_equal(unmarked.tokens, marked.tokens)
        starts = marked.is_word_start(np.arange(len(marked.tokens)))
        for start, end in zip(marked.sentence_offsets[:20], marked.sentence_offsets[1:21], strict=True):
            tokens = [marked.tokenizer.id_to_token[i] for i in marked.tokens[start:end]]
            expected = [index % 2 == 0 or token == "。" for index, token in enumerate(tokens)]
            assert starts[start:end].tolist() == expected, tokens
    assert (tmp_path / "marked0" / WORD_STARTS_FILE).stat().st_size == -(-len(unmarked.tokens) // 8)


def test_bit_writer_round_trips_flags_in_any_chunks(tmp_path):
    flags = np.random.default_rng(0).random(1001) < 0.5
    with (tmp_path / "marks").open("wb") as file:
        writer = store.BitWriter(file)
        for part in np.split(flags, [3, 3, 20, 500, 501]):
            writer.add(part)
        writer.finish()
    packed_bits = np.fromfile(tmp_path / "marks", np.uint8)
    assert np.array_equal(store.unpack_range(packed_bits, 13, 777), flags[13:777])
    assert np.array_equal(store.unpack_positions(packed_bits, np.arange(1001)), flags)


def test_corpus_card_matches_corpus(corpus):
    opened = Corpus.open(corpus)
    card, probs = opened.card, np.bincount(opened.tokens) / len(opened.tokens)
    assert card["tokens"] == len(opened.tokens) and card["documents"] == len(opened.document_offsets) - 1
    assert card["unigram_entropy"] == pytest.approx(-(probs[probs > 0] * np.log(probs[probs > 0])).sum(), abs=1e-3)
    assert sum(card["sentence_lengths"].values()) == card["sentences"]
    assert card["sources"][0]["sha256"] and card["tokenizer_fingerprint"] == opened.tokenizer.fingerprint


def test_corpus_takes_about_two_bytes_per_token_on_disk(corpus):
    opened = Corpus.open(corpus)
    offsets_size = 8 * (len(opened.sentence_offsets) + len(opened.document_offsets))
    assert sum((corpus / name).stat().st_size for name in ARRAYS) <= 2.2 * len(opened.tokens) + offsets_size


# Bad input: a clear message, and no partial output.


def assert_refused(tmp_path, vocabulary, name, data, match, **settings):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=match):
        prepare_test_corpus(path, vocabulary, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_prepare_refuses_bad_text_and_names_the_file(tmp_path, vocabulary):
    assert_refused(tmp_path, vocabulary, "empty.txt", b"", "empty.txt contains no text")
    assert_refused(tmp_path, vocabulary, "binary.txt", bytes(range(256)) * 50, "binary")
    assert_refused(tmp_path, vocabulary, "latin.txt", b"The way.\n" * 5 + "caf\xe9 au lait\n".encode("latin-1"), "48")
    assert_refused(tmp_path, vocabulary, "line.txt", b"The only sentence there is.\n", "1 sentence")
    assert_refused(tmp_path, vocabulary, "cut.gz", gzip.compress(b"The way.\n" * 1000)[:-20], "cut.gz")


def test_corpus_card_warns_about_a_single_document(tmp_path, vocabulary):
    texts = write_text(tmp_path / "a.txt", "The way.\nThe time.\nThe people.\n")
    card = Corpus.open(prepare_test_corpus(texts, vocabulary, tmp_path / "out")).card
    assert any("the corpus is a single document" in warning for warning in card["warnings"])


def test_prepare_refuses_vocabulary_without_mask_token(tmp_path):
    texts, vocabulary = (
        write_text(tmp_path / "a.txt", make_english_text(5)),
        write_text(tmp_path / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n"),
    )
    with pytest.raises(UserError, match=r"vocab.txt has no \[MASK\]"):
        prepare_test_corpus(texts, vocabulary, tmp_path / "out")


@pytest.mark.parametrize("name", ARRAYS)
def test_corpus_open_detects_damaged_and_truncated_files(tmp_path, vocabulary, name):
    folder = prepare_test_corpus(write_text(tmp_path / "a.txt", make_english_text(20)), vocabulary, tmp_path / "out")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 4
    (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        Corpus.open(folder)
    (folder / name).write_bytes(data[:-3])
    with pytest.raises(UserError, match=f"{name}.*truncated"):
        Corpus.open(folder)


def test_corpus_build_resumes_after_full_disk(tmp_path, vocabulary, small_blocks, monkeypatch):
    texts = write_text(tmp_path / "a.txt", make_english_text(200, seed=5))
    uninterrupted = prepare_test_corpus(texts, vocabulary, tmp_path / "whole")
    write_block, calls = build._CorpusWriter.write_block, []

    def fail_on_ninth(self, block):
        calls.append(1)
        if len(calls) == 9:
            raise OSError(28, os.strerror(28))
        write_block(self, block)

    monkeypatch.setattr(build._CorpusWriter, "write_block", fail_on_ninth)
    with pytest.raises(UserError, match=r"the disk is full: .*out\.part.*run the same command again to resume"):
        prepare_test_corpus(texts, vocabulary, tmp_path / "out")
    assert json.loads((tmp_path / "out.part" / "journal.json").read_text())["blocks"] == 8
    prepare_test_corpus(texts, vocabulary, tmp_path / "out")
    for name in ARRAYS:
        assert (uninterrupted / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
