"""Reading documents: every format and compression, blocks independent of chunking, errors that name the position."""

import bz2
import gzip
import json
import lzma
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.tokenization import documents as module
from bertsmith.tokenization import files
from bertsmith.tokenization.documents import ReadOptions, read_blocks
from bertsmith.tokenization.files import find_files, total_bytes
from bertsmith.tokenization.tables import normalize_encoding
from tests.support.cli import run_cli, run_cli_error

DOCUMENTS = [["The cat sat.", "  It slept. "], ["他来了。"], ["a b", "c", "d\te"]]
TEXT = "\n\n".join("\n".join(lines) for lines in DOCUMENTS)

line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0\ufeff"), max_size=20).filter(str.strip)
line |= st.text("ab é中 \t\u3000\x0b", max_size=20).filter(str.strip)
document_lists = st.lists(st.lists(line, min_size=1, max_size=5), min_size=1, max_size=6)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def zstandard_compress(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard_compress}


def write_file(path: Path, data: str | bytes) -> Path:
    content = data.encode() if isinstance(data, str) else data
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return path


def to_json_lines(texts: list[list[str]]) -> str:
    return "".join(json.dumps({"id": 1, "text": "\n".join(lines)}) + "\n" for lines in texts)


def read_documents(paths: list[Path]) -> Iterator[list[str]]:
    """The lines of each document, joined from its blocks."""
    lines: list[str] = []
    for block in read_blocks(paths):
        *complete, last = block.text.split("\n\n")
        for document in complete:
            yield lines + document.split("\n")
            lines = []
        lines += last.split("\n")
        if block.ends_document:
            yield lines
            lines = []


def join_blocks(paths: list[Path], max_chars: int) -> str:
    """The text stream reassembled from its blocks."""
    parts = [part for block in read_blocks(paths, max_chars) for part in (block.text, "\n\n" if block.ends_document else "\n")]
    return "".join(parts[:-1])


@pytest.mark.parametrize("suffix", ["", ".txt", ".TXT", ".text", ".md", ".001", ".txt.gz", ".gz", ".xz", ".bz2", ".txt.zst"])
def test_read_documents_from_text_of_every_suffix(tmp_path, suffix):
    assert list(read_documents([write_file(tmp_path / f"a{suffix}", TEXT)])) == DOCUMENTS


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
def test_read_documents_from_json_lines_of_every_suffix(tmp_path, suffix):
    assert list(read_documents([write_file(tmp_path / f"a{suffix}", to_json_lines(DOCUMENTS))])) == DOCUMENTS


def test_read_documents_from_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["\n".join(lines) for lines in DOCUMENTS] * 100
    parquet.write_table(arrow.table({"id": range(300), "text": texts}), tmp_path / "a.parquet", row_group_size=70)
    assert list(read_documents([tmp_path / "a.parquet"])) == DOCUMENTS * 100
    parquet.write_table(arrow.table({"body": texts, "id": range(300)}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no column 'text'; its columns: body, id; set column="):
        list(read_blocks([tmp_path / "b.parquet"]))
    parquet.write_table(arrow.table({"text": ["a", None]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet, row 2: `text` is None"):
        list(read_blocks([tmp_path / "c.parquet"]))
    (tmp_path / "d.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(UserError, match=r"d\.parquet cannot be read as parquet"):
        list(read_blocks([tmp_path / "d.parquet"]))


@quick
@given(document_lists, st.sampled_from([".txt", ".gz", ".jsonl"]), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_read_documents_round_trip(tmp_path, texts, suffix, newline, with_bom):
    if suffix == ".jsonl":
        data = to_json_lines([[*lines[:1], " \n\t", *lines[1:]] for lines in texts])  # empty lines inside do not end a document
    else:
        data = f"{newline} {newline}{newline}".join(newline.join(lines) for lines in texts)
    path = write_file(tmp_path / f"a{suffix}", "\ufeff" * with_bom + data)
    stream = "\n\n".join("\n".join(lines) for lines in texts)
    assert list(read_documents([path])) == texts
    assert join_blocks([path], 100_000) == stream
    max_line = max(len(line) for lines in texts for line in lines)
    for max_chars in (max_line, max_line + 7, 64):
        assert join_blocks([path], max(max_chars, max_line)) == stream


@quick
@given(document_lists, st.sampled_from([1, 2, 7, 20]))
def test_read_blocks_lose_only_white_space_when_splitting_lines(tmp_path, texts, max_chars):
    path = write_file(tmp_path / "a.txt", "\n\n".join("\n".join(lines) for lines in texts))
    blocks = list(read_blocks([path], max_chars))
    assert "".join("".join(block.text for block in blocks).split()) == "".join("".join(map("".join, texts)).split())
    assert all(len(block.text) <= max_chars and block.text[0] != "\n" != block.text[-1] for block in blocks)
    assert all(line.strip() for block in blocks for line in block.text.replace("\n\n", "\n").split("\n"))
    num_ended = sum(block.text.count("\n\n") + block.ends_document for block in blocks)
    assert num_ended == len(texts) and blocks[-1].ends_document


@quick
@given(document_lists, st.sampled_from([7, 64]), st.integers(1, 9), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_read_blocks_do_not_depend_on_chunk_size(tmp_path, texts, max_chars, chunk_bytes, newline, with_spaces):
    separator = newline + " " * 12 * with_spaces + newline
    path = write_file(tmp_path / "a.txt", separator.join(newline.join(lines) for lines in texts))
    expected = [(block.text, block.ends_document) for block in read_blocks([path], max_chars)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "CHUNK_BYTES", chunk_bytes)
        assert [(block.text, block.ends_document) for block in read_blocks([path], max_chars)] == expected


def test_read_blocks_split_at_documents_then_lines_then_spaces(tmp_path):
    path = write_file(tmp_path / "a.txt", "aa\n\nbb\n\ncc\ndd\nee ff gg hhhhhhhh\n\ni")
    assert [(block.text, block.ends_document) for block in read_blocks([path], 7)] == [
        ("aa\n\nbb", True),
        ("cc\ndd", False),
        ("ee ff", False),
        ("gg", False),
        ("hhhhhhh", False),
        ("h\n\ni", True),
    ]


def test_read_blocks_join_files_and_report_source_and_progress(tmp_path):
    paths = [write_file(tmp_path / name, f"{name}\n\nmore of {name}") for name in ("a.txt", "b.gz")]
    assert [block.text for block in read_blocks(paths)] == ["a.txt\n\nmore of a.txt\n\nb.gz\n\nmore of b.gz"]
    blocks = list(read_blocks(paths, 14))
    assert [Path(block.source).name for block in blocks] == ["a.txt", "a.txt", "b.gz", "b.gz"]
    assert [block.bytes_read for block in blocks] == sorted(block.bytes_read for block in blocks)
    assert blocks[-1].bytes_read == total_bytes(paths) == sum(path.stat().st_size for path in paths)


def test_read_blocks_of_a_huge_line_in_constant_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(module, "MAX_WHITESPACE", 2 << 14)
    path = write_file(tmp_path / "a.gz", b"x" * 5_000_000 + b" " * 5_000_000 + b"y")
    tracemalloc.start()
    lengths = [len(block.text) for block in read_blocks([path], 10_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(lengths) == 10_000 and sum(lengths) == 5_000_001
    assert peak < 1_000_000


def test_read_blocks_collapse_megabytes_of_empty_lines(tmp_path):
    path = write_file(tmp_path / "b.txt", "a\n" + " " * 3_000_000 + "\n" * 3_000_000 + "b")
    assert [block.text for block in read_blocks([path], 1000)] == ["a\n\nb"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "a.txt contains no text"),
        ("a.txt", b" \n\n\t", "a.txt contains no text"),
        ("a.gz", b"", "a.gz contains no text"),
        ("a.jsonl", b'{"text": " "}', "a.jsonl contains no text"),
        ("a.txt", b"abc\0def", "a.txt looks like a binary file; give UTF-8 text"),
        ("a.gz", bytes(range(1, 30)) * 50, "a.gz looks like a binary file"),
        ("a.txt", "hello".encode("utf-16"), "a.txt is UTF-16"),
        ("a.txt", b"one\r\ntwo\rthree \xff", r"a.txt is not UTF-8 at byte 15 \(line 3\) \(0xff\).*gb18030.*latin-1"),
        ("a.gz", "好\n\n好".encode()[:-1], r"not UTF-8 at byte 5 \(line 3\)"),
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}', r"a.jsonl, line 3 is not a JSON object with a string field `text`"),
        ("a.jsonl", b'{"text": 3}', "line 1 is not"),
        ("a.jsonl", b'{"text": "a"} {"text": "b"}', "line 1 is not"),
        ("a.json", b'[\n{"text": "a"}]', r"line 1 is not .* converts an array to JSON lines"),
        ("a.jsonl", b'{"text": "\xff"}', "not UTF-8 at line 1"),
    ],
)
def test_read_blocks_refuse_invalid_text_and_name_the_position(tmp_path, name, data, message):
    with pytest.raises(UserError, match=message):
        list(read_blocks([write_file(tmp_path / name, data)]))


@pytest.mark.parametrize("surrogate", [r"\ud800", r"\uDFFF", r"\ud83d\u0041", r"\ud800\ud83d\ude00", r"\\\ud83d"])
def test_read_json_lines_replaces_lone_surrogates(tmp_path, surrogate):
    path = write_file(
        tmp_path / "a.jsonl", '{"text": "one"}\n{"id": 7, "text": "cut ' + surrogate + ' off"}\n{"text": "\\ud83d\\ude00"}'
    )
    decoded = json.loads(f'"cut {surrogate} off"')
    expected = "".join("\ufffd" if 0xD800 <= ord(char) < 0xE000 else char for char in decoded)
    assert "\ufffd" in expected and list(read_documents([path])) == [["one"], [expected], ["😀"]]


@pytest.mark.parametrize("row", [r'{"txt": "\ud800"}', r'{"text": "\ud800', r'{"text": ["\ud800"]}', r'{"text": "\ud8"}'])
def test_read_json_lines_with_surrogates_reports_other_errors(tmp_path, row):
    with pytest.raises(UserError, match="line 1 is not a JSON object with a string field `text`"):
        list(read_blocks([write_file(tmp_path / "a.jsonl", row)]))


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5])
def test_position_of_invalid_utf8_does_not_depend_on_chunk_size(tmp_path, monkeypatch, chunk_bytes):
    path = write_file(tmp_path / "a.txt", "好\r\n好\r好\n".encode() + b"\xe5\xa5x")
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk_bytes)
    with pytest.raises(UserError, match=r"byte 13 \(line 4\) \(0xe5\)"):
        list(read_blocks([path]))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_read_blocks_refuse_truncated_compressed_files(tmp_path, suffix):
    path = write_file(tmp_path / f"a{suffix}", to_json_lines([[f"line {n * n}"] for n in range(2000)]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=rf"a\{suffix} is truncated"):
        list(read_blocks([path]))
    path.write_bytes(b"this was never packed at all")
    with pytest.raises(UserError, match=rf"a\{suffix} is truncated, damaged or not a \{suffix} file"):
        list(read_blocks([path]))


def test_read_documents_from_concatenated_compressed_frames(tmp_path):
    for suffix in (".gz", ".xz", ".bz2", ".zst"):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"o\n\nthree"))
        assert list(read_documents([path])) == [["one", "two"], ["three"]]


@pytest.mark.parametrize(("name", "library"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_read_blocks_without_library_says_how_to_install_it(tmp_path, monkeypatch, name, library):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"needs {library}: pip install bertsmith\[data\]"):
        list(read_blocks([tmp_path / name]))


def test_find_files_by_name_folder_and_pattern(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    names = ["b.txt", "a[1].txt", "in/c.gz", "in/deep/d.jsonl", "image.png", ".hidden", ".git/e.txt"]
    for name in names:
        write_file(tmp_path / name, "x")
    expected = ["a[1].txt", "b.txt", "in/c.gz", "in/deep/d.jsonl"]
    assert find_files([str(tmp_path)]) == [tmp_path / name for name in expected]
    assert find_files([f"{tmp_path}/**/*.jsonl", f"{tmp_path}/a[1].txt"]) == [tmp_path / expected[3], tmp_path / expected[0]]
    assert find_files([f"{tmp_path}/b.txt", f"{tmp_path}/?.txt"]) == [tmp_path / "b.txt"]
    assert find_files([f"{tmp_path}/in*"]) == [tmp_path / expected[2], tmp_path / expected[3]]


def test_find_files_names_missing_paths_with_a_suggestion(tmp_path):
    (tmp_path / "corpus").mkdir()
    write_file(tmp_path / "corpus" / "train.txt", "x")
    write_file(tmp_path / "table.xlsx", "x")
    for pattern, message in {
        f"{tmp_path}/corpus/trian.txt": r"there is no .*trian\.txt; did you mean .*/corpus/train\.txt\?",
        f"{tmp_path}/corpsu/train.txt": r"there is no .*corpsu; did you mean .*/corpus\?",
        f"{tmp_path}/*.nothing": "no file matches",
        f"{tmp_path}/table.xlsx": r"table\.xlsx has an unknown file extension; supported: \.txt",
        "": "texts is empty",
    }.items():
        with pytest.raises(UserError, match=message):
            find_files([pattern])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty contains no text files"):
        find_files([str(tmp_path / "empty")])
    with pytest.raises(UserError, match="texts is empty"):
        find_files([])


GERMAN = "Erster Satz.\nZweiter Satz: \u00c4rger.\n\nEin anderes Dokument.\n"


@pytest.mark.parametrize("encoding", ["latin-1", "gb18030", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".tsv"])
def test_texts_of_another_encoding_are_read_as_in_utf8(tmp_path, encoding, suffix):
    def write(folder, encoding):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / f"text{suffix}"
        rows = {".jsonl": json.dumps({"text": GERMAN}, ensure_ascii=False) + "\n", ".tsv": "text\n\u00c4rger\nzwei\n"}
        data = rows.get(suffix, GERMAN).encode("utf-8" if encoding is None else encoding)
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
        return path

    expected = [(block.text, block.ends_document) for block in read_blocks([write("utf8", None)])]
    options = ReadOptions(encoding=normalize_encoding(encoding))
    assert [(block.text, block.ends_document) for block in read_blocks([write("other", encoding)], options=options)] == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_where_files_were_joined_are_no_text(tmp_path, encoding):
    path = tmp_path / "joined.txt"
    path.write_bytes("one\n\n".encode(encoding) + "two\n".encode(encoding))
    (block,) = read_blocks([path], options=ReadOptions(encoding=normalize_encoding(encoding)))
    assert block.text == "one\n\ntwo"


def test_text_that_is_not_of_its_encoding_names_the_line(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("eins\nzwei\n".encode("ascii") + b"\xff\xff\n")
    with pytest.raises(UserError, match=r"text.txt is not GB18030 at line 3 .*set encoding"):
        list(read_blocks([path], options=ReadOptions(encoding="gb18030")))
    with pytest.raises(UserError, match=r"is not UTF-8 at byte 10 \(line 3\).*encoding=gb18030"):
        list(read_blocks([path]))


def test_tokenizer_and_prepare_read_other_encodings(tmp_path):
    folders = {}
    for name, encoding in (("a", "utf-8"), ("b", "gb18030")):
        path = tmp_path / name / "text.txt"
        path.parent.mkdir()
        path.write_bytes(("\u6f22\u5b57 and words.\nMore \u6f22\u5b57.\n" * 20).encode(encoding))
        run_cli("tokenizer", f"texts={path}", f"encoding={encoding}", "vocab_size=100", f"out={tmp_path / name / 'tokenizer'}")
        folders[name] = tmp_path / name / "corpus"
        words = ("prepare", f"texts={path}", f"tokenizer={tmp_path / name / 'tokenizer'}", "workers=1", f"out={folders[name]}")
        run_cli(*words, f"encoding={encoding}")
    assert (folders["a"] / "tokens.bin").read_bytes() == (folders["b"] / "tokens.bin").read_bytes()
    assert "contains a corpus with other" in run_cli_error(*words, "encoding=big5")
    assert "encoding=nonsense is not an encoding" in run_cli_error(*words, "encoding=nonsense")
