"""Text files to a corpus folder: all cores, flat memory, the same bytes for any number of workers, resumable."""

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..artifacts import (
    MANIFEST,
    check_writable,
    checksum,
    fingerprint,
    lock_output,
    read_json,
    resolve_path,
    verify_manifest,
    write_json,
    write_manifest,
)
from ..config import Config, NonNegInt, to_dict
from ..errors import UserError
from ..processes import WorkerPool
from ..tokenization import chinese, documents, files, hex_bytes
from ..tokenization.documents import TextBlock
from ..tokenization.fast_encode import CachedEncoder
from ..tokenization.sentences import add_line_spaces, count_line_spaces, insert_sentence_breaks, needs_line_spaces
from ..tokenization.tokenizer import Tokenizer
from . import card, dedup
from .store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE, BitWriter

HASHES, JOURNAL = "hashes.bin", "journal.json"
Progress = Callable[[int, int], None]
BLOCK_CHARS = 1 << 20  # characters a worker takes at a time


class Prepare(Config, frozen=True):
    """Text files and a tokenizer to a corpus folder."""

    texts: Annotated[tuple[str, ...], "files, folders or patterns: .txt .gz .xz .bz2 .zst .jsonl .tsv .csv .parquet"]
    tokenizer: Annotated[str, "a tokenizer folder, a tokenizer.json, or a vocab.txt as Google wrote them"]
    out: Annotated[str, "the corpus folder to make"]
    column: Annotated[str, "of .tsv .csv .jsonl .parquet: where the documents stand, one a row"] = "text"
    workers: Annotated[NonNegInt, "processes; 0 takes every core; the result is the same"] = 0
    language: Annotated[Literal["en", "zh"], "zh also marks words, by jieba, for whole-word masks"] = "en"
    segmenter: Annotated[str | None, "jieba, package.module:function, or none: where words begin in Chinese"] = None
    sentences: Annotated[Literal["cut", "lines"], "cut lines into sentences, or take each line as one"] = "cut"
    drop: Annotated[tuple[Literal["lines", "documents"], ...], "exact duplicates to leave out; they are always counted"] = ()
    lowercase: Annotated[bool | None, "for a vocab.txt: fold case and accents; unset: as the vocabulary is"] = None

    @property
    def segmenter_name(self) -> str | None:
        named = self.segmenter or ("jieba" if self.language == "zh" else None)
        return None if named == "none" else named


@dataclass(frozen=True)
class EncodedBlock:
    """One block as ids."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]  # of each sentence
    document_ends: NDArray[np.int64]  # sentences before which a document ends; 0 and all are possible
    hashes: NDArray[np.uint64]  # of each sentence's text
    word_starts: NDArray[np.bool_] | None  # for each token, where a segmenter was asked
    num_bytes: int = 0  # of its text in UTF-8, without the ends of lines but for those that are spaces
    unknown_bytes: int = 0  # of those, what the tokenizer does not know, and a byte for the end of each such word


def build_corpus(config: Prepare, on_read: Progress = lambda read, of: None) -> tuple[Path, bool]:
    """Make the corpus folder; returns it and whether there was anything left to do."""
    out = resolve_path(config.out, "out")
    paths = files.find_files(config.texts)
    tokenizer = Tokenizer.load(resolve_path(config.tokenizer, "tokenizer"), config.lowercase)
    if config.segmenter_name:
        chinese.load_segmenter(config.segmenter_name)  # missing packages are found before the hour of work
    sources = [{"name": p.name, "bytes": p.stat().st_size, "sha256": checksum(p)} for p in paths]
    recipe: dict[str, Any] = {"sources": sources, "tokenizer": tokenizer.fingerprint, "segmenter": config.segmenter_name}
    recipe |= {"sentences": config.sentences, "drop": sorted(config.drop), "column": config.column}
    made_by = fingerprint(recipe | ({"spaced": True} if needs_line_spaces(tokenizer) else {}))
    with lock_output(out):
        if (out / MANIFEST).exists():
            if read_json(out / "card.json").get("made_by") == made_by:
                return out, False
            raise UserError(f"{out} holds a corpus of other text, tokenizer or settings; choose another out, or remove it")
        part = check_writable(out).with_name(out.name + ".part")
        facts = {"made_by": made_by, "sources": sources, "settings": to_dict(config)}
        try:
            _build(check_writable(part, JOURNAL, MANIFEST), config, paths, tokenizer, facts, on_read)
        except OSError as error:
            raise _disk_full_error(part) if error.errno == errno.ENOSPC else error from None
        if out.exists():
            for inner in out.iterdir():
                inner.rmdir()  # empty, as `vacant` found it
            out.rmdir()
        part.replace(out)
    return out, True


def is_interrupted(out: Path) -> bool:
    """A preparation of this folder was interrupted."""
    return (out.with_name(out.name + ".part") / JOURNAL).exists()


def _disk_full_error(folder: Path) -> UserError:
    free = shutil.disk_usage(folder).free
    kept = "make room and run the same command again: what is done is kept"
    return UserError(f"no space left for {folder} ({free:,} bytes free); {kept}")


def _build(
    folder: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, metadata: dict[str, Any], on_read: Progress
) -> None:
    """The whole folder under its working name; what an earlier, interrupted run did is not done again."""
    if (folder / MANIFEST).exists() and read_json(folder / "card.json").get("made_by") == metadata["made_by"]:
        verify_manifest(folder)  # it was killed just before the end
    else:
        _encode_texts(folder, config, paths, tokenizer, metadata["made_by"], on_read)
        _finalize(folder, config, tokenizer, metadata)
    for name in (HASHES, JOURNAL, *dedup.TEMP_FILES):  # last: until it is sealed, a kill must find the journal
        (folder / name).unlink(missing_ok=True)


def _encode_texts(
    folder: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, input_fingerprint: str, on_read: Progress
) -> None:
    """Append block after block, in order, and keep a journal of how far it got."""
    writing = _CorpusWriter(folder, input_fingerprint, _token_dtype(tokenizer), bool(config.segmenter_name))
    if writing.is_complete:
        return
    total, reading = (
        files.total_bytes(paths),
        documents.ReadOptions(config.column, hex_bytes.find_hex_error if tokenizer.is_hex else None),
    )
    todo = (
        block for number, block in enumerate(documents.read_blocks(paths, BLOCK_CHARS, reading)) if number >= writing.num_blocks
    )
    for block, encoded in _encode_blocks(todo, config, tokenizer):
        writing.write_block(encoded)
        on_read(block.bytes_read, total)
    writing.close()


def _finalize(folder: Path, config: Prepare, tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    sentences = (folder / SENTENCES_FILE).stat().st_size // 8 - 1
    if sentences < 2:
        raise UserError(f"{', '.join(config.texts)}: {max(sentences, 0)} sentence(s) in all; a corpus needs some text "
                       "(one sentence or paragraph a line, a blank line between documents)")  # fmt: skip
    dtype = _token_dtype(tokenizer)
    metadata |= {"duplicates": _remove_duplicates(folder, dtype, config.drop)}
    note = read_json(folder / JOURNAL)
    if not config.drop:  # of what is left out nobody kept the text
        metadata |= {name: note[name] for name in ("bytes", "unknown bytes") if note.get(name) is not None}
    tokenizer.save(folder)
    write_json(folder / "card.json", card.build_card(folder, tokenizer, dtype) | metadata)
    names = (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE, "card.json", "tokenizer.json")
    write_manifest(folder, [name for name in names if (folder / name).exists()])


def _remove_duplicates(folder: Path, dtype: np.dtype[Any], drop: tuple[str, ...]) -> dict[str, int]:
    """Count exact duplicates, and leave out those that were asked for; killed half-way, it begins or ends the swap again."""
    note = read_json(folder / JOURNAL)
    if "duplicates" not in note:
        repeats = dedup.find_duplicates(folder, folder / HASHES)
        gone = dedup.drop_duplicates(folder, dtype, repeats, drop) if drop else 0
        note["duplicates"] = {**repeats.counts, "sentences dropped": gone}
        write_json(folder / JOURNAL, note)
    dedup.replace_files(folder)
    return note["duplicates"]


def _token_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)


class _CorpusWriter:
    """The growing files. What the journal has not noted is cut off when work goes on after a kill."""

    JOURNAL_INTERVAL = 32  # blocks between two notes: at most this many are encoded again

    def __init__(self, folder: Path, input_fingerprint: str, dtype: np.dtype[Any], with_word_starts: bool) -> None:
        self.folder, self.input_fingerprint, self.dtype = folder, input_fingerprint, dtype
        note = read_json(folder / JOURNAL) if (folder / JOURNAL).exists() else {}
        if note.get("made_by") != input_fingerprint:
            note = {}
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        if not note:
            write_json(folder / JOURNAL, {})  # the folder is ours from here on
        self.num_blocks, self.is_complete = note.get("blocks", 0), note.get("complete", False)
        self.num_tokens, self.num_sentences = note.get("tokens", 0), note.get("sentences", 0)
        self.last_document_end = note.get("border", -1)  # the last document border written
        self.num_bytes: int | None = note.get("bytes") if note else 0
        self.unknown_bytes: int | None = note.get("unknown bytes") if note else 0  # None: begun by a version that did not count
        self.file_sizes: dict[str, int] = note.get("sizes", {})
        if self.is_complete:
            return
        self.files = {
            name: self._open_truncated(name)
            for name in (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, HASHES, *([WORD_STARTS_FILE] if with_word_starts else []))
        }
        self.word_start_writer = (
            BitWriter(self.files[WORD_STARTS_FILE], bytes.fromhex(note["spare"]) if note else b"") if with_word_starts else None
        )

    def write_block(self, block: EncodedBlock) -> None:
        self.files[TOKENS_FILE].write(block.tokens.astype(self.dtype, copy=False).tobytes())
        self.files[SENTENCES_FILE].write((self.num_tokens + block.lengths.cumsum() - block.lengths).tobytes())
        self.files[HASHES].write(block.hashes.tobytes())
        if self.word_start_writer and block.word_starts is not None:
            self.word_start_writer.add(block.word_starts)
        self._write_document_ends(np.unique(self.num_sentences + block.document_ends))
        self.num_tokens, self.num_sentences = self.num_tokens + len(block.tokens), self.num_sentences + len(block.lengths)
        self.num_bytes = None if self.num_bytes is None else self.num_bytes + block.num_bytes
        self.unknown_bytes = None if self.unknown_bytes is None else self.unknown_bytes + block.unknown_bytes
        self.num_blocks += 1
        if self.num_blocks % self.JOURNAL_INTERVAL == 0:
            self._write_journal()

    def close(self) -> None:
        self.files[SENTENCES_FILE].write(np.int64(self.num_tokens).tobytes())
        self._write_document_ends(
            np.array([0, self.num_sentences]) if self.last_document_end < 0 else np.array([self.num_sentences])
        )
        if self.word_start_writer:
            self.word_start_writer.finish()
        self.is_complete = True
        self._write_journal()
        for file in self.files.values():
            file.close()

    def _write_document_ends(self, document_ends: NDArray[np.int64]) -> None:
        document_ends = document_ends[document_ends > self.last_document_end]
        if self.last_document_end < 0 and len(document_ends):
            document_ends = np.unique(np.append(document_ends, 0))
        self.files[DOCUMENTS_FILE].write(document_ends.astype(np.int64).tobytes())
        self.last_document_end = int(document_ends[-1]) if len(document_ends) else self.last_document_end

    def _open_truncated(self, name: str) -> Any:
        path = self.folder / name
        path.touch()
        os.truncate(path, self.file_sizes.get(name, 0))
        return path.open("ab")

    def _write_journal(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self.files.items()}
        note = {
            "made_by": self.input_fingerprint,
            "blocks": self.num_blocks,
            "complete": self.is_complete,
            "tokens": self.num_tokens,
        }
        note |= {"sentences": self.num_sentences, "border": self.last_document_end, "sizes": sizes}
        note |= {"spare": self.word_start_writer.pending.hex() if self.word_start_writer else "", "bytes": self.num_bytes}
        write_json(self.folder / JOURNAL, note | {"unknown bytes": self.unknown_bytes})


def _encode_blocks(
    blocks: Iterable[TextBlock], config: Prepare, tokenizer: Tokenizer
) -> Iterator[tuple[TextBlock, EncodedBlock]]:
    """Blocks with their ids, in the order of the text, however many work on them."""
    workers = config.workers or os.cpu_count() or 1
    begin = (tokenizer.json_bytes, config.sentences == "cut", config.segmenter_name)
    if workers == 1:
        encoder = _BlockEncoder(*begin)
        yield from ((block, encoder(block.text, block.previous_char, block.ends_document)) for block in blocks)
        return
    waiting: deque[tuple[TextBlock, Future[EncodedBlock]]] = deque()
    with WorkerPool(workers, _init_worker, begin) as pool:
        for block in blocks:
            waiting.append((block, pool.submit(_encode_in_worker, block.text, block.previous_char, block.ends_document)))
            if len(waiting) > workers + 1:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()


class _BlockEncoder:
    """One block of text to ids; it keeps the pieces it has met from block to block."""

    def __init__(self, tokenizer_json: bytes, split_sentences: bool, segmenter: str | None) -> None:
        self.tokenizer, self.split_sentences = Tokenizer.from_json(tokenizer_json), split_sentences
        self.encoder, self.needs_line_spaces = CachedEncoder(self.tokenizer), needs_line_spaces(self.tokenizer)
        self.segment = chinese.load_segmenter(segmenter) if segmenter else None

    def __call__(self, text: str, previous_char: str, ends_document: bool) -> EncodedBlock:
        given, apart = text.split("\n"), count_line_spaces(text, previous_char) if self.needs_line_spaces else 0
        text = insert_sentence_breaks(text) if self.split_sentences else text
        sentences = text.split("\n")
        text = add_line_spaces(text, previous_char) if self.needs_line_spaces else text
        lines = text.split("\n")
        met = self.encoder.lookup_runs(text)
        tokens, lengths = self.encoder.token_ids(met)
        blank = np.fromiter((not line for line in lines), bool, len(lines))
        kept = lengths > 0
        borders = np.append(kept.cumsum()[blank], [kept.sum()] if ends_document else [])
        words = self._mark_word_starts(lines, tokens, lengths) if self.segment else None
        size = len("".join(given).encode("utf-8", "replace")) + apart
        hashes, unknown = _hash_sentences(given, sentences)[kept], self.encoder.count_unknown_bytes(met)
        return EncodedBlock(tokens, lengths[kept], borders.astype(np.int64), hashes, words, size, unknown)

    def _mark_word_starts(self, lines: list[str], tokens: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where words begin, by offsets: the ids are those without a segmenter."""
        assert self.segment is not None
        marks, spaced = [np.zeros(0, bool)], bool(self.tokenizer.word_start_prefix)
        some = np.flatnonzero(lengths)
        lines, ends = [lines[number] for number in some], lengths[some].cumsum()
        encodings = self.tokenizer.backend_tokenizer.encode_batch(lines, add_special_tokens=False)
        for line, ids, encoding in zip(lines, np.split(tokens, ends)[:-1], encodings, strict=True):
            if not np.array_equal(encoding.ids, ids):
                raise UserError(f"the ids of {line[:60]!r} run by run are not those of the whole line, so its words cannot be "
                               "marked: a fault of bertsmith's, please report it with the tokenizer.json")  # fmt: skip
            marks.append(
                chinese.token_word_starts(
                    line, self.segment(line), encoding.offsets, self.tokenizer.is_continuation[ids], spaced
                )
            )
        return np.concatenate(marks)


def _hash_sentences(source_lines: list[str], sentences: list[str]) -> NDArray[np.uint64]:
    """For each sentence, the line it was cut from and its number there: equal only where whole lines are."""
    each = np.frombuffer(b"".join([blake2b(line.encode(), digest_size=8).digest() for line in source_lines]), np.uint64)
    sizes, at = np.ones(len(source_lines), np.int64), 0
    if len(source_lines) < len(sentences):
        for number, line in enumerate(source_lines):
            if line != sentences[at]:
                sizes[number] = insert_sentence_breaks(line).count("\n") + 1
            at += int(sizes[number])
    nth = np.arange(len(sentences)) - np.repeat(sizes.cumsum() - sizes, sizes)
    return np.repeat(each, sizes) + nth.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


_WORKER_ENCODER: list[_BlockEncoder] = []  # one in each worker process, made when it begins


def _init_worker(tokenizer_json: bytes, split_sentences: bool, segmenter: str | None) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _WORKER_ENCODER.append(_BlockEncoder(tokenizer_json, split_sentences, segmenter))


def _encode_in_worker(text: str, previous_char: str, ends_document: bool) -> EncodedBlock:
    return _WORKER_ENCODER[0](text, previous_char, ends_document)
