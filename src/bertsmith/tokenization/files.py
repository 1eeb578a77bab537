"""Input files: expand paths, folders and glob patterns, detect formats, and read decompressed bytes."""

import bz2
import codecs
import glob
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from ..errors import NOT_UTF8, SURROGATE, UserError, explain_reason

CHUNK_BYTES = 1 << 20  # decompressed bytes per chunk

_TEXT_SUFFIXES, _JSON_LINES_SUFFIXES, _COMPRESSED_SUFFIXES = (
    {"", ".txt", ".text", ".md"},
    {".jsonl", ".ndjson", ".json"},
    {".gz", ".xz", ".bz2", ".zst"},
)
_TABLE_SUFFIXES = {".tsv", ".csv"}
_SUPPORTED_FORMATS = (
    ".txt .text .md (or none), .jsonl .ndjson .json, .tsv .csv, also compressed (.gz .xz .bz2 .zst), and .parquet"
)
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Files matched by paths, folders (recursively, sorted) and glob patterns such as `*.txt.gz`, without duplicates.

    Folders do not yield .tsv and .csv files, which are rarely text: name these explicitly.
    """
    if not all(patterns) or not patterns:
        raise UserError("texts is empty; set files, folders or globs, for example texts=wiki/*.txt.gz")
    paths = list(dict.fromkeys(path for pattern in patterns for path in _expand_pattern(pattern)))
    if other := next((path for path in paths if SURROGATE.search(str(path))), None):
        raise UserError(f"the file name {str(other)!a} {NOT_UTF8}")
    return paths


def total_bytes(paths: Sequence[Path]) -> int:
    """Sum of the file sizes on disk."""
    return sum(path.stat().st_size for path in paths)


def detect_format(path: Path) -> str:
    if file_format := _format_from_suffix(path):
        return file_format
    raise UserError(f"{path} has an unknown file extension; supported: {_SUPPORTED_FORMATS}")


def read_decompressed(path: Path, is_wide: bool = False) -> Iterator[tuple[bytes, int]]:
    """Yield (decompressed chunk, bytes of the file on disk read so far); a binary file raises UserError.

    `is_wide`: the text has code units of two or four bytes (UTF-16, UTF-32), so zero bytes are allowed.
    """
    decompressed_bytes = 0
    try:
        with path.open("rb") as raw_file:
            for data in _decompress(path, raw_file):
                if decompressed_bytes < CHUNK_BYTES and not is_wide:
                    _refuse_binary(path, data, is_first=not decompressed_bytes)
                decompressed_bytes += len(data)
                yield data, raw_file.tell()
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise UserError(f"{path} cannot be read: {explain_reason(error)}") from None
        suffix = path.suffix.lower()
        raise UserError(
            f"{path} is truncated, damaged or not a {suffix} file ({error}); download or compress it again"
        ) from None


def _decompress(path: Path, raw_file: BinaryIO) -> Iterator[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".zst":
        yield from _decompress_zstd(path, raw_file)
        return
    openers: dict[str, Callable[[BinaryIO], BinaryIO]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}  # type: ignore[dict-item]
    file = openers[suffix](raw_file) if suffix in openers else raw_file
    while data := file.read(CHUNK_BYTES):
        yield data


def _decompress_zstd(path: Path, raw_file: BinaryIO) -> Iterator[bytes]:
    """Not zstandard's stream reader: it does not detect a truncated file."""
    try:
        import zstandard
    except ImportError:
        raise UserError(f"reading {path} needs zstandard: pip install bertsmith[data]") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    try:
        while compressed := raw_file.read(1 << 14):  # small, since it may decompress to a thousand times as much
            while compressed:
                frame = decompressor.decompressobj() if frame is None or frame.eof else frame
                data = frame.decompress(compressed)
                yield from (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
                compressed = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError as error:
        raise EOFError(str(error)) from None
    if frame is not None and not frame.eof:
        raise EOFError("it ends in the middle of a frame")


def _refuse_binary(path: Path, data: bytes, is_first: bool) -> None:
    if is_first and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(f"{path} is UTF-16, not UTF-8; set encoding=utf-16 (data.encoding in finetune), or convert it: "
                       f"iconv -f utf-16 -t utf-8 {path.name} > new.txt")  # fmt: skip
    if b"\0" in data or len(data) - len(data.translate(None, _CONTROL_BYTES)) > 32 + len(data) // 10:
        raise UserError(
            f"{path} looks like a binary file; give UTF-8 text, or rename it with the extension of its format (.gz, .xz, ...)"
        )


def _format_from_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return "parquet"
    if suffix in _COMPRESSED_SUFFIXES:
        suffix = Path(path.stem).suffix.lower()
    is_shard_number = suffix[1:].isdigit()  # shard.001 is treated as having no suffix
    if suffix in _TABLE_SUFFIXES:
        return "table"
    return "text" if suffix in _TEXT_SUFFIXES or is_shard_number else "lines" if suffix in _JSON_LINES_SUFFIXES else ""


def _expand_pattern(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        return _list_folder(path)
    if not path.exists() and glob.has_magic(pattern):
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise UserError(f"no file matches {pattern}; check the folder and the pattern")
        return [file for match in matches for file in (_list_folder(match) if match.is_dir() else [_check_readable(match)])]
    return [_check_readable(path)]


def _list_folder(folder: Path) -> list[Path]:
    entries = [path for path in sorted(folder.rglob("*")) if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    if readable := [path for path in entries if path.is_file() and _format_from_suffix(path) not in ("", "table")]:
        return readable
    raise UserError(f"{folder} contains no text files; supported: {_SUPPORTED_FORMATS}")


def _check_readable(path: Path) -> Path:
    if not path.exists():
        raise UserError(_missing_path_message(path))
    if not path.is_file():
        raise UserError(f"{path} is not a regular file, but it must be read twice; write the text to a file first")
    detect_format(path)
    return path


def _missing_path_message(path: Path) -> str:
    """Names the first component of the path that does not exist, and suggests a similar name from its folder."""
    missing = next(missing for missing in (*reversed(path.parents), path) if not missing.exists())
    siblings = sorted(entry.name for entry in missing.parent.iterdir()) if missing.parent.is_dir() else []
    close_matches = get_close_matches(missing.name, siblings, n=1, cutoff=0.5)
    return f"there is no {missing}; " + (
        f"did you mean {missing.parent / close_matches[0]}?" if close_matches else f"look in {missing.parent.absolute()}"
    )
