"""Builds a corpus folder from text files: parallel, in constant memory, resumable, and independent of the worker count.

Steps: read blocks of text, split sentences and encode them in worker processes (`_BlockEncoder`), append the results in
order with a journal for resuming (`_CorpusWriter`), remove exact duplicates, and write the data card and manifest.
"""

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

from ..artifacts import MANIFEST, checksum, fingerprint, read_object, resolve_path, verify_manifest, write_manifest
from ..config import Config, NumWorkers, to_dict
from ..errors import UserError
from ..processes import WorkerPool
from ..tokenization import chinese, documents, files, hex_bytes
from ..tokenization.documents import TextBlock
from ..tokenization.fast_encode import CachedEncoder
from ..tokenization.sentences import add_line_spaces, count_line_spaces, insert_sentence_breaks, needs_line_spaces
from ..tokenization.tables import UTF8, normalize_encoding
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_only, check_writable, discard, lock_output, open_own, resolve_output, write_json
from . import card, dedup
from .store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE, BitWriter

HASHES, JOURNAL = "hashes.bin", "journal.json"
CORPUS_FILES = (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, WORD_STARTS_FILE, "card.json", "tokenizer.json")
BUILD_FILES = (HASHES, *dedup.TEMP_FILES, JOURNAL)  # removed in this order when the manifest is written
Progress = Callable[[int, int], None]
BLOCK_CHARS = 1 << 20  # characters per block of a worker


class Prepare(Config, frozen=True):
    """Recipe of `bertsmith prepare`: text files and a tokenizer to a corpus folder."""

    texts: Annotated[tuple[str, ...], "text files, folders or globs (.txt .jsonl .tsv .csv .parquet; .gz .xz .bz2 .zst)"]
    tokenizer: Annotated[str, "tokenizer: a folder, a tokenizer.json, or a BERT vocab.txt"]
    out: Annotated[str, "output folder of the corpus"]
    column: Annotated[str, "text column of .tsv, .csv, .jsonl and .parquet files; one document per row"] = "text"
    encoding: Annotated[str, "encoding of the files: utf-8 (with or without byte order mark), gb18030, latin-1 ..."] = "utf-8"
    workers: Annotated[NumWorkers, "number of worker processes; 0: one per core; does not change the result"] = 0
    language: Annotated[Literal["en", "zh"], "zh: mark Chinese word boundaries with jieba, for whole-word masking"] = "en"
    segmenter: Annotated[str | None, "Chinese word segmenter: jieba, package.module:function, or none"] = None
    sentences: Annotated[Literal["cut", "lines"], "cut: split lines into sentences; lines: each line is one sentence"] = "cut"
    drop: Annotated[tuple[Literal["lines", "documents"], ...], "exact duplicates to remove; they are counted in any case"] = ()
    lowercase: Annotated[bool | None, "for a vocab.txt: lowercase and strip accents; unset: inferred from the vocabulary"] = (
        None
    )

    @property
    def segmenter_name(self) -> str | None:
        name = self.segmenter or ("jieba" if self.language == "zh" else None)
        return None if name == "none" else name


@dataclass(frozen=True)
class EncodedBlock:
    """Token ids of one block of text."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]  # (sentences,): tokens of each
    document_ends: NDArray[np.int64]  # indices of sentences before which a document ends, from 0 to the number of sentences
    hashes: NDArray[np.uint64]  # (sentences,): hash of the text
    word_starts: NDArray[np.bool_] | None  # (tokens,), with a segmenter only
    num_bytes: int = 0  # UTF-8 bytes of the text, without line ends except those encoded as spaces
    unknown_bytes: int = 0  # of these, bytes of [UNK] words, plus one per word


def build_corpus(config: Prepare, on_read: Progress = lambda read, of: None) -> tuple[Path, bool]:
    """Build the corpus folder; returns it and False if it already existed, built from the same input."""
    out = resolve_output(config.out)
    paths = files.find_files(config.texts)
    tokenizer = Tokenizer.load(resolve_path(config.tokenizer, "tokenizer"), config.lowercase)
    if config.segmenter_name:
        chinese.load_segmenter(config.segmenter_name)  # fail early if a package is missing
    sources = [{"name": p.name, "bytes": p.stat().st_size, "sha256": checksum(p)} for p in paths]
    recipe: dict[str, Any] = {"sources": sources, "tokenizer": tokenizer.fingerprint, "segmenter": config.segmenter_name}
    recipe |= {"sentences": config.sentences, "drop": sorted(config.drop), "column": config.column}
    recipe |= {"encoding": encoding} if (encoding := normalize_encoding(config.encoding)) != UTF8 else {}
    identity = fingerprint(recipe | ({"spaced": True} if needs_line_spaces(tokenizer) else {}))
    with lock_output(out):
        if (out / MANIFEST).exists():
            if read_object(out / "card.json").get("identity") == identity:
                return out, False
            raise UserError(
                f"{out} contains a corpus with other texts, tokenizer or settings; choose another out, or remove it"
            )
        partial_folder = _check_partial(check_writable(out).absolute().with_name(out.absolute().name + ".part"), identity)
        metadata = {"identity": identity, "sources": sources, "settings": to_dict(config)}
        try:
            _build(partial_folder, config, paths, tokenizer, metadata, on_read)
        except UserError:
            _remove_if_nothing_is_kept(partial_folder)
            raise
        except OSError as error:
            raise _disk_full_error(partial_folder) if error.errno == errno.ENOSPC else error from None
        if out.exists():
            for entry in out.iterdir():
                entry.rmdir()  # empty: `check_writable` has checked that
            out.rmdir()
        partial_folder.replace(out)
    return out, True


def is_interrupted(out: Path) -> bool:
    """Whether an earlier build of this folder was interrupted and can be resumed."""
    return (Path(f"{out}.part") / JOURNAL).exists()


def _check_partial(folder: Path, identity: str) -> Path:
    """The folder of an interrupted build, to be continued, or to be started over with other texts; no other folder."""
    check_only(folder, *CORPUS_FILES, *BUILD_FILES, MANIFEST, "*.new")
    if folder.is_dir() and (folder / MANIFEST).exists() and not (folder / JOURNAL).exists():  # finished, but not renamed
        if read_object(folder / "card.json").get("identity") != identity:
            raise UserError(f"{folder} is a finished corpus of other texts or settings; choose another out, or rename it")
    elif folder.is_dir() and not (folder / JOURNAL).exists():
        check_writable(folder)
    return folder


def _remove_if_nothing_is_kept(folder: Path) -> None:
    """After an error in the input: remove the folder, unless the same command would continue from a block in it."""
    journal = read_object(folder / JOURNAL) if (folder / JOURNAL).exists() else {}
    if journal.get("complete") or not journal.get("blocks"):
        discard(folder)


def _disk_full_error(folder: Path) -> UserError:
    free = shutil.disk_usage(folder).free
    hint = "free some space and run the same command again to resume"
    return UserError(f"the disk is full: {folder} ({free:,} bytes free); {hint}")


def _build(
    folder: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, metadata: dict[str, Any], on_read: Progress
) -> None:
    """Build everything in the temporary folder, resuming what an interrupted run has done."""
    if (folder / MANIFEST).exists() and read_object(folder / "card.json").get("identity") == metadata["identity"]:
        verify_manifest(folder)  # a previous run was killed just before the end
    else:
        _encode_texts(folder, config, paths, tokenizer, metadata["identity"], on_read)
        _finalize(folder, config, tokenizer, metadata)
    # Last: until the manifest is written, an interrupted run needs the journal.
    for name in BUILD_FILES:
        (folder / name).unlink(missing_ok=True)


def _encode_texts(
    folder: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, identity: str, on_read: Progress
) -> None:
    """Encode the blocks and append them in order, with a journal of the progress."""
    writer = _CorpusWriter(folder, identity, _token_dtype(tokenizer), bool(config.segmenter_name))
    if writer.is_complete:
        return
    total, options = (
        files.total_bytes(paths),
        documents.ReadOptions(
            config.column, hex_bytes.find_hex_error if tokenizer.is_hex else None, normalize_encoding(config.encoding)
        ),
    )
    remaining_blocks = (
        block for index, block in enumerate(documents.read_blocks(paths, BLOCK_CHARS, options)) if index >= writer.num_blocks
    )
    for block, encoded in _encode_blocks(remaining_blocks, config, tokenizer):
        writer.write_block(encoded)
        on_read(block.bytes_read, total)
    writer.close()


def _finalize(folder: Path, config: Prepare, tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    sentences = (folder / SENTENCES_FILE).stat().st_size // 8 - 1
    if sentences < 2:
        raise UserError(f"{', '.join(config.texts)}: only {max(sentences, 0)} sentence(s); a corpus needs at least two "
                       "(one sentence or paragraph per line, a blank line between documents)")  # fmt: skip
    dtype = _token_dtype(tokenizer)
    metadata |= {"duplicates": _remove_duplicates(folder, dtype, config.drop)}
    journal = read_object(folder / JOURNAL)
    if not config.drop:  # the bytes of dropped text are not counted separately
        metadata |= {name: journal[name] for name in ("bytes", "unknown_bytes") if journal.get(name) is not None}
    tokenizer.save(folder)
    write_json(folder / "card.json", card.build_card(folder, tokenizer, dtype) | metadata)
    write_manifest(folder, [name for name in CORPUS_FILES if (folder / name).exists()])


def _remove_duplicates(folder: Path, dtype: np.dtype[Any], drop: tuple[str, ...]) -> dict[str, int]:
    """Count exact duplicates and drop those of the requested kinds; safe to repeat after an interruption."""
    journal = read_object(folder / JOURNAL)
    if "duplicates" not in journal:
        duplicates = dedup.find_duplicates(folder, folder / HASHES)
        num_dropped = dedup.drop_duplicates(folder, dtype, duplicates, drop) if drop else 0
        journal["duplicates"] = {**duplicates.counts, "dropped_sentences": num_dropped}
        write_json(folder / JOURNAL, journal)
    dedup.replace_files(folder)
    return journal["duplicates"]


def _token_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)


class _CorpusWriter:
    """Appends to the corpus files. On resuming, everything after the last journal entry is truncated."""

    JOURNAL_INTERVAL = 32  # blocks between two journal entries: at most this many are encoded again

    def __init__(self, folder: Path, identity: str, dtype: np.dtype[Any], with_word_starts: bool) -> None:
        self.folder, self.identity, self.dtype = folder, identity, dtype
        journal = read_object(folder / JOURNAL) if (folder / JOURNAL).exists() else {}
        if journal.get("identity") != identity:
            journal = {}
            discard(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not journal:
            write_json(folder / JOURNAL, {})  # marks the folder as ours
        self.num_blocks, self.is_complete = journal.get("blocks", 0), journal.get("complete", False)
        self.num_tokens, self.num_sentences = journal.get("tokens", 0), journal.get("sentences", 0)
        self.last_document_end = journal.get("last_document_end", -1)  # last entry written to DOCUMENTS_FILE
        self.num_bytes: int | None = journal.get("bytes") if journal else 0
        # None: started by a version that did not count them.
        self.unknown_bytes: int | None = journal.get("unknown_bytes") if journal else 0
        self.file_sizes: dict[str, int] = journal.get("sizes", {})
        if self.is_complete:
            return
        self.files = {
            name: self._open_truncated(name)
            for name in (TOKENS_FILE, SENTENCES_FILE, DOCUMENTS_FILE, HASHES, *([WORD_STARTS_FILE] if with_word_starts else []))
        }
        self.word_start_writer = (
            BitWriter(self.files[WORD_STARTS_FILE], bytes.fromhex(journal["pending_bits"]) if journal else b"")
            if with_word_starts
            else None
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
        file = open_own(self.folder / name, "ab")
        file.truncate(self.file_sizes.get(name, 0))
        return file

    def _write_journal(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self.files.items()}
        journal = {
            "identity": self.identity,
            "blocks": self.num_blocks,
            "complete": self.is_complete,
            "tokens": self.num_tokens,
        }
        journal |= {"sentences": self.num_sentences, "last_document_end": self.last_document_end, "sizes": sizes}
        journal |= {
            "pending_bits": self.word_start_writer.pending.hex() if self.word_start_writer else "",
            "bytes": self.num_bytes,
        }
        write_json(self.folder / JOURNAL, journal | {"unknown_bytes": self.unknown_bytes})


def _encode_blocks(
    blocks: Iterable[TextBlock], config: Prepare, tokenizer: Tokenizer
) -> Iterator[tuple[TextBlock, EncodedBlock]]:
    """Yield (block, encoded block) in the order of the text, for any number of workers."""
    workers = config.workers or os.cpu_count() or 1
    encoder_args = (tokenizer.json_bytes, config.sentences == "cut", config.segmenter_name)
    if workers == 1:
        encoder = _BlockEncoder(*encoder_args)
        yield from ((block, encoder(block.text, block.previous_char, block.ends_document)) for block in blocks)
        return
    pending: deque[tuple[TextBlock, Future[EncodedBlock]]] = deque()
    with WorkerPool(workers, _init_worker, encoder_args) as pool:
        for block in blocks:
            pending.append((block, pool.submit(_encode_in_worker, block.text, block.previous_char, block.ends_document)))
            if len(pending) > workers + 1:
                done_block, future = pending.popleft()
                yield done_block, future.result()
        for done_block, future in pending:
            yield done_block, future.result()


class _BlockEncoder:
    """Encodes blocks of text; its cache of encoded runs persists from block to block."""

    def __init__(self, tokenizer_json: bytes, split_sentences: bool, segmenter: str | None) -> None:
        self.tokenizer, self.split_sentences = Tokenizer.from_json(tokenizer_json), split_sentences
        self.encoder, self.needs_line_spaces = CachedEncoder(self.tokenizer), needs_line_spaces(self.tokenizer)
        self.segment = chinese.load_segmenter(segmenter) if segmenter else None

    def __call__(self, text: str, previous_char: str, ends_document: bool) -> EncodedBlock:
        source_lines, num_line_spaces = (
            text.split("\n"),
            count_line_spaces(text, previous_char) if self.needs_line_spaces else 0,
        )
        text = insert_sentence_breaks(text) if self.split_sentences else text
        sentences = text.split("\n")
        text = add_line_spaces(text, previous_char) if self.needs_line_spaces else text
        lines = text.split("\n")
        run_ids = self.encoder.lookup_runs(text)
        tokens, lengths = self.encoder.token_ids(run_ids)
        is_blank = np.fromiter((not line for line in lines), bool, len(lines))
        is_sentence = lengths > 0
        document_ends = np.append(is_sentence.cumsum()[is_blank], [is_sentence.sum()] if ends_document else [])
        word_starts = self._mark_word_starts(lines, tokens, lengths) if self.segment else None
        num_bytes = len("".join(source_lines).encode("utf-8", "replace")) + num_line_spaces
        hashes, unknown_bytes = _hash_sentences(source_lines, sentences)[is_sentence], self.encoder.count_unknown_bytes(run_ids)
        return EncodedBlock(
            tokens, lengths[is_sentence], document_ends.astype(np.int64), hashes, word_starts, num_bytes, unknown_bytes
        )

    def _mark_word_starts(self, lines: list[str], tokens: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(tokens,) bool: word starts by the segmenter, found from offsets; the token ids do not depend on it."""
        assert self.segment is not None
        word_starts, space_prefixed = [np.zeros(0, bool)], bool(self.tokenizer.word_start_prefix)
        non_empty = np.flatnonzero(lengths)
        lines, ends = [lines[index] for index in non_empty], lengths[non_empty].cumsum()
        encodings = self.tokenizer.backend_tokenizer.encode_batch(lines, add_special_tokens=False)
        for line, ids, encoding in zip(lines, np.split(tokens, ends)[:-1], encodings, strict=True):
            if not np.array_equal(encoding.ids, ids):
                raise UserError(f"cannot mark the words of {line[:60]!r}: fast encoding gave other ids than the tokenizer; "
                               "this is a bug, please report it with the tokenizer.json (language=en avoids it)")  # fmt: skip
            word_starts.append(
                chinese.token_word_starts(
                    line, self.segment(line), encoding.offsets, self.tokenizer.is_continuation[ids], space_prefixed
                )
            )
        return np.concatenate(word_starts)


def _hash_sentences(source_lines: list[str], sentences: list[str]) -> NDArray[np.uint64]:
    """(sentences,): hash of the source line plus a multiple of the index within it: equal only for sentences of equal lines."""
    line_hashes = np.frombuffer(b"".join([blake2b(line.encode(), digest_size=8).digest() for line in source_lines]), np.uint64)
    sentences_per_line, sentence = np.ones(len(source_lines), np.int64), 0
    if len(source_lines) < len(sentences):
        for index, line in enumerate(source_lines):
            if line != sentences[sentence]:
                sentences_per_line[index] = insert_sentence_breaks(line).count("\n") + 1
            sentence += int(sentences_per_line[index])
    index_in_line = np.arange(len(sentences)) - np.repeat(sentences_per_line.cumsum() - sentences_per_line, sentences_per_line)
    return np.repeat(line_hashes, sentences_per_line) + index_in_line.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


_WORKER_ENCODER: list[_BlockEncoder] = []  # one per worker process


def _init_worker(tokenizer_json: bytes, split_sentences: bool, segmenter: str | None) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _WORKER_ENCODER.append(_BlockEncoder(tokenizer_json, split_sentences, segmenter))


def _encode_in_worker(text: str, previous_char: str, ends_document: bool) -> EncodedBlock:
    return _WORKER_ENCODER[0](text, previous_char, ends_document)
