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

from ..artifacts import MANIFEST, checksum, claimed, fingerprint, named, read_json, seal, vacant, verify, write_json
from ..config import Config, Whole, plain
from ..errors import BadInput
from ..processes import Workers
from ..tokenization import chinese, documents, files, hex_bytes
from ..tokenization.documents import Block
from ..tokenization.fast_encode import Pieces
from ..tokenization.sentences import cut, joints, spaced, wanted
from ..tokenization.tokenizer import Tokenizer
from . import card, dedup
from .store import DOCUMENTS, SENTENCES, TOKENS, WORDS, MarkWriter

HASHES, JOURNAL = "hashes.bin", "journal.json"
Progress = Callable[[int, int], None]
BLOCK = 1 << 20  # characters a worker takes at a time


class Prepare(Config, frozen=True):
    """Text files and a tokenizer to a corpus folder."""

    texts: Annotated[tuple[str, ...], "files, folders or patterns: .txt .gz .xz .bz2 .zst .jsonl .tsv .csv .parquet"]
    tokenizer: Annotated[str, "a tokenizer folder, a tokenizer.json, or a vocab.txt as Google wrote them"]
    out: Annotated[str, "the corpus folder to make"]
    column: Annotated[str, "of .tsv .csv .jsonl .parquet: where the documents stand, one a row"] = "text"
    workers: Annotated[Whole, "processes; 0 takes every core; the result is the same"] = 0
    language: Annotated[Literal["en", "zh"], "zh also marks words, by jieba, for whole-word masks"] = "en"
    segmenter: Annotated[str | None, "jieba, package.module:function, or none: where words begin in Chinese"] = None
    sentences: Annotated[Literal["cut", "lines"], "cut lines into sentences, or take each line as one"] = "cut"
    drop: Annotated[tuple[Literal["lines", "documents"], ...], "exact duplicates to leave out; they are always counted"] = ()
    lowercase: Annotated[bool | None, "for a vocab.txt: fold case and accents; unset: as the vocabulary is"] = None

    @property
    def segments_by(self) -> str | None:
        named = self.segmenter or ("jieba" if self.language == "zh" else None)
        return None if named == "none" else named


@dataclass(frozen=True)
class Encoded:
    """One block as ids."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]  # of each sentence
    borders: NDArray[np.int64]  # sentences before which a document ends; 0 and all are possible
    hashes: NDArray[np.uint64]  # of each sentence's text
    words: NDArray[np.bool_] | None  # for each token, where a segmenter was asked
    bytes: int = 0  # of its text in UTF-8, without the ends of lines but for those that are spaces
    unknown: int = 0  # of those, what the tokenizer does not know, and a byte for the end of each such word


def prepare(config: Prepare, on_read: Progress = lambda read, of: None) -> tuple[Path, bool]:
    """Make the corpus folder; returns it and whether there was anything left to do."""
    out = named(config.out, "out")
    paths = files.found(config.texts)
    tokenizer = Tokenizer.load(named(config.tokenizer, "tokenizer"), config.lowercase)
    if config.segments_by:
        chinese.segmenter(config.segments_by)  # missing packages are found before the hour of work
    sources = [{"name": p.name, "bytes": p.stat().st_size, "sha256": checksum(p)} for p in paths]
    recipe: dict[str, Any] = {"sources": sources, "tokenizer": tokenizer.fingerprint, "segmenter": config.segments_by}
    recipe |= {"sentences": config.sentences, "drop": sorted(config.drop), "column": config.column}
    made_by = fingerprint(recipe | ({"spaced": True} if wanted(tokenizer) else {}))
    with claimed(out):
        if (out / MANIFEST).exists():
            if read_json(out / "card.json").get("made_by") == made_by:
                return out, False
            raise BadInput(f"{out} holds a corpus of other text, tokenizer or settings; choose another out, or remove it")
        part = vacant(out).with_name(out.name + ".part")
        facts = {"made_by": made_by, "sources": sources, "settings": plain(config)}
        try:
            _made(vacant(part, JOURNAL, MANIFEST), config, paths, tokenizer, facts, on_read)
        except OSError as error:
            raise _no_space(part) if error.errno == errno.ENOSPC else error from None
        if out.exists():
            for inner in out.iterdir():
                inner.rmdir()  # empty, as `vacant` found it
            out.rmdir()
        part.replace(out)
    return out, True


def begun(out: Path) -> bool:
    """A preparation of this folder was interrupted."""
    return (out.with_name(out.name + ".part") / JOURNAL).exists()


def _no_space(part: Path) -> BadInput:
    free = shutil.disk_usage(part).free
    kept = "make room and run the same command again: what is done is kept"
    return BadInput(f"no space left for {part} ({free:,} bytes free); {kept}")


def _made(
    part: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, facts: dict[str, Any], on_read: Progress
) -> None:
    """The whole folder under its working name; what an earlier, interrupted run did is not done again."""
    if (part / MANIFEST).exists() and read_json(part / "card.json").get("made_by") == facts["made_by"]:
        verify(part)  # it was killed just before the end
    else:
        _filled(part, config, paths, tokenizer, facts["made_by"], on_read)
        _finished(part, config, tokenizer, facts)
    for name in (HASHES, JOURNAL, *dedup.FILES):  # last: until it is sealed, a kill must find the journal
        (part / name).unlink(missing_ok=True)


def _filled(part: Path, config: Prepare, paths: list[Path], tokenizer: Tokenizer, made_by: str, on_read: Progress) -> None:
    """Append block after block, in order, and keep a journal of how far it got."""
    writing = _Writing(part, made_by, _dtype(tokenizer), bool(config.segments_by))
    if writing.complete:
        return
    total, reading = files.size(paths), documents.Reading(config.column, hex_bytes.fault if tokenizer.hex else None)
    todo = (block for number, block in enumerate(documents.blocks(paths, BLOCK, reading)) if number >= writing.blocks)
    for block, encoded in _encoded(todo, config, tokenizer):
        writing.add(encoded)
        on_read(block.read, total)
    writing.close()


def _finished(part: Path, config: Prepare, tokenizer: Tokenizer, facts: dict[str, Any]) -> None:
    sentences = (part / SENTENCES).stat().st_size // 8 - 1
    if sentences < 2:
        raise BadInput(f"{', '.join(config.texts)}: {max(sentences, 0)} sentence(s) in all; a corpus needs some text "
                       "(one sentence or paragraph a line, a blank line between documents)")  # fmt: skip
    dtype = _dtype(tokenizer)
    facts |= {"duplicates": _without_repeats(part, dtype, config.drop)}
    note = read_json(part / JOURNAL)
    if not config.drop:  # of what is left out nobody kept the text
        facts |= {name: note[name] for name in ("bytes", "unknown bytes") if note.get(name) is not None}
    tokenizer.save(part)
    write_json(part / "card.json", card.made(part, tokenizer, dtype) | facts)
    names = (TOKENS, SENTENCES, DOCUMENTS, WORDS, "card.json", "tokenizer.json")
    seal(part, [name for name in names if (part / name).exists()])


def _without_repeats(part: Path, dtype: np.dtype[Any], drop: tuple[str, ...]) -> dict[str, int]:
    """Count exact duplicates, and leave out those that were asked for; killed half-way, it begins or ends the swap again."""
    note = read_json(part / JOURNAL)
    if "duplicates" not in note:
        repeats = dedup.found(part, part / HASHES)
        gone = dedup.left_out(part, dtype, repeats, drop) if drop else 0
        note["duplicates"] = {**repeats.counts, "sentences dropped": gone}
        write_json(part / JOURNAL, note)
    dedup.swapped(part)
    return note["duplicates"]


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)


class _Writing:
    """The growing files. What the journal has not noted is cut off when work goes on after a kill."""

    EVERY = 32  # blocks between two notes: at most this many are encoded again

    def __init__(self, part: Path, made_by: str, dtype: np.dtype[Any], words: bool) -> None:
        self.part, self.made_by, self.dtype = part, made_by, dtype
        note = read_json(part / JOURNAL) if (part / JOURNAL).exists() else {}
        if note.get("made_by") != made_by:
            note = {}
            shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True, exist_ok=True)
        if not note:
            write_json(part / JOURNAL, {})  # the folder is ours from here on
        self.blocks, self.complete = note.get("blocks", 0), note.get("complete", False)
        self.tokens, self.sentences = note.get("tokens", 0), note.get("sentences", 0)
        self.border = note.get("border", -1)  # the last document border written
        self.bytes: int | None = note.get("bytes") if note else 0
        self.unknown: int | None = note.get("unknown bytes") if note else 0  # None: begun by a version that did not count
        self.sizes: dict[str, int] = note.get("sizes", {})
        if self.complete:
            return
        self.files = {name: self._opened(name) for name in (TOKENS, SENTENCES, DOCUMENTS, HASHES, *([WORDS] if words else []))}
        self.marks = MarkWriter(self.files[WORDS], bytes.fromhex(note["spare"]) if note else b"") if words else None

    def add(self, block: Encoded) -> None:
        self.files[TOKENS].write(block.tokens.astype(self.dtype, copy=False).tobytes())
        self.files[SENTENCES].write((self.tokens + block.lengths.cumsum() - block.lengths).tobytes())
        self.files[HASHES].write(block.hashes.tobytes())
        if self.marks and block.words is not None:
            self.marks.add(block.words)
        self._add_borders(np.unique(self.sentences + block.borders))
        self.tokens, self.sentences = self.tokens + len(block.tokens), self.sentences + len(block.lengths)
        self.bytes = None if self.bytes is None else self.bytes + block.bytes
        self.unknown = None if self.unknown is None else self.unknown + block.unknown
        self.blocks += 1
        if self.blocks % self.EVERY == 0:
            self._note()

    def close(self) -> None:
        self.files[SENTENCES].write(np.int64(self.tokens).tobytes())
        self._add_borders(np.array([0, self.sentences]) if self.border < 0 else np.array([self.sentences]))
        if self.marks:
            self.marks.finish()
        self.complete = True
        self._note()
        for file in self.files.values():
            file.close()

    def _add_borders(self, borders: NDArray[np.int64]) -> None:
        borders = borders[borders > self.border]
        if self.border < 0 and len(borders):
            borders = np.unique(np.append(borders, 0))
        self.files[DOCUMENTS].write(borders.astype(np.int64).tobytes())
        self.border = int(borders[-1]) if len(borders) else self.border

    def _opened(self, name: str) -> Any:
        path = self.part / name
        path.touch()
        os.truncate(path, self.sizes.get(name, 0))
        return path.open("ab")

    def _note(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self.files.items()}
        note = {"made_by": self.made_by, "blocks": self.blocks, "complete": self.complete, "tokens": self.tokens}
        note |= {"sentences": self.sentences, "border": self.border, "sizes": sizes}
        note |= {"spare": self.marks.spare.hex() if self.marks else "", "bytes": self.bytes}
        write_json(self.part / JOURNAL, note | {"unknown bytes": self.unknown})


def _encoded(blocks: Iterable[Block], config: Prepare, tokenizer: Tokenizer) -> Iterator[tuple[Block, Encoded]]:
    """Blocks with their ids, in the order of the text, however many work on them."""
    workers = config.workers or os.cpu_count() or 1
    begin = (tokenizer.data, config.sentences == "cut", config.segments_by)
    if workers == 1:
        encoder = _Encoder(*begin)
        yield from ((block, encoder(block.text, block.before, block.ends)) for block in blocks)
        return
    waiting: deque[tuple[Block, Future[Encoded]]] = deque()
    with Workers(workers, _begin, begin) as pool:
        for block in blocks:
            waiting.append((block, pool.submit(_work, block.text, block.before, block.ends)))
            if len(waiting) > workers + 1:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()


class _Encoder:
    """One block of text to ids; it keeps the pieces it has met from block to block."""

    def __init__(self, tokenizer: bytes, cutting: bool, segmenter: str | None) -> None:
        self.tokenizer, self.cutting = Tokenizer.parsed(tokenizer), cutting
        self.pieces, self.spaced = Pieces(self.tokenizer), wanted(self.tokenizer)
        self.segment = chinese.segmenter(segmenter) if segmenter else None

    def __call__(self, text: str, before: str, ends: bool) -> Encoded:
        given, apart = text.split("\n"), joints(text, before) if self.spaced else 0
        text = cut(text) if self.cutting else text
        sentences = text.split("\n")
        text = spaced(text, before) if self.spaced else text
        lines = text.split("\n")
        met = self.pieces.met(text)
        tokens, lengths = self.pieces.ids(met)
        blank = np.fromiter((not line for line in lines), bool, len(lines))
        kept = lengths > 0
        borders = np.append(kept.cumsum()[blank], [kept.sum()] if ends else [])
        words = self._words(lines, tokens, lengths) if self.segment else None
        size = len("".join(given).encode("utf-8", "replace")) + apart
        hashes, unknown = _hashes(given, sentences)[kept], self.pieces.unknown(met)
        return Encoded(tokens, lengths[kept], borders.astype(np.int64), hashes, words, size, unknown)

    def _words(self, lines: list[str], tokens: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where words begin, by offsets: the ids are those without a segmenter."""
        assert self.segment is not None
        marks, spaced = [np.zeros(0, bool)], bool(self.tokenizer.marks_starts)
        some = np.flatnonzero(lengths)
        lines, ends = [lines[number] for number in some], lengths[some].cumsum()
        encodings = self.tokenizer.rust.encode_batch(lines, add_special_tokens=False)
        for line, ids, encoding in zip(lines, np.split(tokens, ends)[:-1], encodings, strict=True):
            if not np.array_equal(encoding.ids, ids):
                raise BadInput(f"the ids of {line[:60]!r} run by run are not those of the whole line, so its words cannot be "
                               "marked: a fault of bertsmith's, please report it with the tokenizer.json")  # fmt: skip
            marks.append(chinese.marked(line, self.segment(line), encoding.offsets, self.tokenizer.continues[ids], spaced))
        return np.concatenate(marks)


def _hashes(given: list[str], lines: list[str]) -> NDArray[np.uint64]:
    """For each sentence, the line it was cut from and its number there: equal only where whole lines are."""
    each = np.frombuffer(b"".join([blake2b(line.encode(), digest_size=8).digest() for line in given]), np.uint64)
    sizes, at = np.ones(len(given), np.int64), 0
    if len(given) < len(lines):
        for number, line in enumerate(given):
            if line != lines[at]:
                sizes[number] = cut(line).count("\n") + 1
            at += int(sizes[number])
    nth = np.arange(len(lines)) - np.repeat(sizes.cumsum() - sizes, sizes)
    return np.repeat(each, sizes) + nth.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


_ENCODER: list[_Encoder] = []  # one in each worker process, made when it begins


def _begin(tokenizer: bytes, cutting: bool, segmenter: str | None) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _ENCODER.append(_Encoder(tokenizer, cutting, segmenter))


def _work(text: str, before: str, ends: bool) -> Encoded:
    return _ENCODER[0](text, before, ends)
