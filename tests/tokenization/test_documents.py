"""Documents come out of every format as they went in, in blocks that depend on the text alone."""

import bz2
import gzip
import json
import lzma
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.tokenization import documents as module
from bertsmith.tokenization import files
from bertsmith.tokenization.documents import read_blocks, read_documents
from bertsmith.tokenization.files import find_files, total_bytes

DOCUMENTS = [["The cat sat.", "  It slept. "], ["他来了。"], ["a b", "c", "d\te"]]
TEXT = "\n\n".join("\n".join(lines) for lines in DOCUMENTS)

line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=20).filter(str.strip)
line |= st.text("ab é中 \t\u3000\x0b", max_size=20).filter(str.strip)
some_documents = st.lists(st.lists(line, min_size=1, max_size=5), min_size=1, max_size=6)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def zstandard_compress(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard_compress}


def written(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(PACK.get(path.suffix, bytes)(raw))
    return path


def json_lines(texts: list[list[str]]) -> str:
    return "".join(json.dumps({"id": 1, "text": "\n".join(lines)}) + "\n" for lines in texts)


def rebuilt(paths: list[Path], size: int) -> str:
    """The stream put together again from its blocks."""
    parts = [part for block in read_blocks(paths, size) for part in (block.text, "\n\n" if block.ends_document else "\n")]
    return "".join(parts[:-1])


@pytest.mark.parametrize("ending", ["", ".txt", ".TXT", ".text", ".md", ".001", ".txt.gz", ".gz", ".xz", ".bz2", ".txt.zst"])
def test_text_of_every_ending(tmp_path, ending):
    assert list(read_documents([written(tmp_path / f"a{ending}", TEXT)])) == DOCUMENTS


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst"])
def test_json_lines_of_every_ending(tmp_path, ending):
    assert list(read_documents([written(tmp_path / f"a{ending}", json_lines(DOCUMENTS))])) == DOCUMENTS


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = ["\n".join(lines) for lines in DOCUMENTS] * 100
    parquet.write_table(arrow.table({"id": range(300), "text": texts}), tmp_path / "a.parquet", row_group_size=70)
    assert list(read_documents([tmp_path / "a.parquet"])) == DOCUMENTS * 100
    parquet.write_table(arrow.table({"body": texts, "id": range(300)}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no column 'text', only: body, id; .*column="):
        list(read_blocks([tmp_path / "b.parquet"]))
    parquet.write_table(arrow.table({"text": ["a", None]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"c\.parquet, row 2: `text` is None"):
        list(read_blocks([tmp_path / "c.parquet"]))
    (tmp_path / "d.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(UserError, match=r"d\.parquet cannot be read as parquet"):
        list(read_blocks([tmp_path / "d.parquet"]))


@quick
@given(some_documents, st.sampled_from([".txt", ".gz", ".jsonl"]), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_what_is_written_is_read(tmp_path, texts, ending, newline, marked):
    if ending == ".jsonl":
        data = json_lines([[*lines[:1], " \n\t", *lines[1:]] for lines in texts])  # empty lines inside end nothing
    else:
        data = f"{newline} {newline}{newline}".join(newline.join(lines) for lines in texts)
    path = written(tmp_path / f"a{ending}", "\ufeff" * marked + data)
    stream = "\n\n".join("\n".join(lines) for lines in texts)
    assert list(read_documents([path])) == texts
    assert rebuilt([path], 100_000) == stream
    longest = max(len(line) for lines in texts for line in lines)
    for limit in (longest, longest + 7, 64):
        assert rebuilt([path], max(limit, longest)) == stream


@quick
@given(some_documents, st.sampled_from([1, 2, 7, 20]))
def test_forced_cuts_lose_only_white_space(tmp_path, texts, limit):
    path = written(tmp_path / "a.txt", "\n\n".join("\n".join(lines) for lines in texts))
    found = list(read_blocks([path], limit))
    assert "".join("".join(block.text for block in found).split()) == "".join("".join(map("".join, texts)).split())
    assert all(len(block.text) <= limit and block.text[0] != "\n" != block.text[-1] for block in found)
    assert all(line.strip() for block in found for line in block.text.replace("\n\n", "\n").split("\n"))
    ended = sum(block.text.count("\n\n") + block.ends_document for block in found)
    assert ended == len(texts) and found[-1].ends_document


@quick
@given(some_documents, st.sampled_from([7, 64]), st.integers(1, 9), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_blocks_do_not_depend_on_how_the_file_is_read(tmp_path, texts, limit, piece, newline, wide):
    gap = newline + " " * 12 * wide + newline
    path = written(tmp_path / "a.txt", gap.join(newline.join(lines) for lines in texts))
    whole = [(block.text, block.ends_document) for block in read_blocks([path], limit)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK_BYTES", piece)
        assert [(block.text, block.ends_document) for block in read_blocks([path], limit)] == whole


def test_a_block_is_cut_between_documents_then_between_lines_then_at_a_space(tmp_path):
    path = written(tmp_path / "a.txt", "aa\n\nbb\n\ncc\ndd\nee ff gg hhhhhhhh\n\ni")
    assert [(block.text, block.ends_document) for block in read_blocks([path], 7)] == [
        ("aa\n\nbb", True),
        ("cc\ndd", False),
        ("ee ff", False),
        ("gg", False),
        ("hhhhhhh", False),
        ("h\n\ni", True),
    ]


def test_blocks_join_files_and_tell_where_they_are(tmp_path):
    paths = [written(tmp_path / name, f"{name}\n\nmore of {name}") for name in ("a.txt", "b.gz")]
    assert [block.text for block in read_blocks(paths)] == ["a.txt\n\nmore of a.txt\n\nb.gz\n\nmore of b.gz"]
    small = list(read_blocks(paths, 14))
    assert [Path(block.source).name for block in small] == ["a.txt", "a.txt", "b.gz", "b.gz"]
    assert [block.bytes_read for block in small] == sorted(block.bytes_read for block in small)
    assert small[-1].bytes_read == total_bytes(paths) == sum(path.stat().st_size for path in paths)


def test_a_line_without_end_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(module, "MAX_WHITESPACE", 2 << 14)
    path = written(tmp_path / "a.gz", b"x" * 5_000_000 + b" " * 5_000_000 + b"y")
    tracemalloc.start()
    lengths = [len(block.text) for block in read_blocks([path], 10_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(lengths) == 10_000 and sum(lengths) == 5_000_001
    assert peak < 1_000_000


def test_megabytes_of_empty_lines_are_one(tmp_path):
    path = written(tmp_path / "b.txt", "a\n" + " " * 3_000_000 + "\n" * 3_000_000 + "b")
    assert [block.text for block in read_blocks([path], 1000)] == ["a\n\nb"]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b" \n\n\t", "a.txt is empty"),
        ("a.gz", b"", "a.gz is empty"),
        ("a.jsonl", b'{"text": " "}', "a.jsonl is empty"),
        ("a.txt", b"abc\0def", "a.txt looks like a binary file, not text"),
        ("a.gz", bytes(range(1, 30)) * 50, "a.gz looks like a binary file"),
        ("a.txt", "hello".encode("utf-16"), "a.txt is UTF-16"),
        ("a.txt", b"one\r\ntwo\rthree \xff", r"a.txt is not UTF-8 at byte 15 \(line 3\) \(0xff\).*gb18030.*latin-1"),
        ("a.gz", "好\n\n好".encode()[:-1], r"not UTF-8 at byte 5 \(line 3\)"),
        ("a.jsonl", b'{"text": "a"}\n\n{"txt": "b"}', r"a.jsonl, line 3 is not an object with a string `text`"),
        ("a.jsonl", b'{"text": 3}', "line 1 is not"),
        ("a.jsonl", b'{"text": "a"} {"text": "b"}', "line 1 is not"),
        ("a.json", b'[\n{"text": "a"}]', r"line 1 is not .* makes lines of an array"),
        ("a.jsonl", b'{"text": "\xff"}', "not UTF-8 at line 1"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tmp_path, name, data, says):
    with pytest.raises(UserError, match=says):
        list(read_blocks([written(tmp_path / name, data)]))


@pytest.mark.parametrize("lone", [r"\ud800", r"\uDFFF", r"\ud83d\u0041", r"\ud800\ud83d\ude00", r"\\\ud83d"])
def test_lone_surrogates_in_json_become_the_replacement_character(tmp_path, lone):
    path = written(
        tmp_path / "a.jsonl", '{"text": "one"}\n{"id": 7, "text": "cut ' + lone + ' off"}\n{"text": "\\ud83d\\ude00"}'
    )
    given = json.loads(f'"cut {lone} off"')
    want = "".join("\ufffd" if 0xD800 <= ord(char) < 0xE000 else char for char in given)
    assert "\ufffd" in want and list(read_documents([path])) == [["one"], [want], ["😀"]]


@pytest.mark.parametrize("row", [r'{"txt": "\ud800"}', r'{"text": "\ud800', r'{"text": ["\ud800"]}', r'{"text": "\ud8"}'])
def test_a_surrogate_excuses_no_other_fault(tmp_path, row):
    with pytest.raises(UserError, match="line 1 is not an object with a string `text`"):
        list(read_blocks([written(tmp_path / "a.jsonl", row)]))


@pytest.mark.parametrize("piece", [1, 2, 3, 5])
def test_the_place_of_a_wrong_byte_does_not_depend_on_how_the_file_is_read(tmp_path, monkeypatch, piece):
    path = written(tmp_path / "a.txt", "好\r\n好\r好\n".encode() + b"\xe5\xa5x")
    monkeypatch.setattr(files, "CHUNK_BYTES", piece)
    with pytest.raises(UserError, match=r"byte 13 \(line 4\) \(0xe5\)"):
        list(read_blocks([path]))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_a_packed_file_that_is_not_whole_is_named(tmp_path, ending):
    path = written(tmp_path / f"a{ending}", json_lines([[f"line {n * n}"] for n in range(2000)]))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=rf"a\{ending} is truncated"):
        list(read_blocks([path]))
    path.write_bytes(b"this was never packed at all")
    with pytest.raises(UserError, match=rf"a\{ending} is truncated, damaged or no \{ending} file"):
        list(read_blocks([path]))


def test_frames_and_members_one_after_another_are_one_text(tmp_path):
    for ending in (".gz", ".xz", ".bz2", ".zst"):
        path = tmp_path / f"a{ending}"
        path.write_bytes(PACK[ending](b"one\ntw") + PACK[ending](b"o\n\nthree"))
        assert list(read_documents([path])) == [["one", "two"], ["three"]]


@pytest.mark.parametrize(("name", "library"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_a_missing_library_says_how_to_get_it(tmp_path, monkeypatch, name, library):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"needs {library} .*pip install bertsmith\[data\]"):
        list(read_blocks([tmp_path / name]))


def test_files_are_found_by_name_folder_and_pattern(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    names = ["b.txt", "a[1].txt", "in/c.gz", "in/deep/d.jsonl", "image.png", ".hidden", ".git/e.txt"]
    for name in names:
        written(tmp_path / name, "x")
    seen = ["a[1].txt", "b.txt", "in/c.gz", "in/deep/d.jsonl"]
    assert find_files([str(tmp_path)]) == [tmp_path / name for name in seen]
    assert find_files([f"{tmp_path}/**/*.jsonl", f"{tmp_path}/a[1].txt"]) == [tmp_path / seen[3], tmp_path / seen[0]]
    assert find_files([f"{tmp_path}/b.txt", f"{tmp_path}/?.txt"]) == [tmp_path / "b.txt"]
    assert find_files([f"{tmp_path}/in*"]) == [tmp_path / seen[2], tmp_path / seen[3]]


def test_what_cannot_be_found_is_named_with_the_nearest_name(tmp_path):
    (tmp_path / "corpus").mkdir()
    written(tmp_path / "corpus" / "train.txt", "x")
    written(tmp_path / "table.xlsx", "x")
    for text, says in {
        f"{tmp_path}/corpus/trian.txt": r"there is no .*trian\.txt; did you mean .*/corpus/train\.txt\?",
        f"{tmp_path}/corpsu/train.txt": r"there is no .*corpsu; did you mean .*/corpus\?",
        f"{tmp_path}/*.nothing": "no file matches",
        f"{tmp_path}/table.xlsx": r"table\.xlsx has an ending that is not known; known: \.txt",
        "": "no texts",
    }.items():
        with pytest.raises(UserError, match=says):
            find_files([text])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no file"):
        find_files([str(tmp_path / "empty")])
    with pytest.raises(UserError, match="no texts"):
        find_files([])
