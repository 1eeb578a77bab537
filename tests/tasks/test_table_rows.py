"""Reading .tsv, .csv and .jsonl rows: invalid rows raise an error with file and line, or are skipped and counted."""

import gzip
import json
import lzma

import pytest
import zstandard

from bertsmith.errors import UserError
from bertsmith.tasks.table_rows import BadRow, ExampleReader, ExampleRow, read_examples, read_rows


def write_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_texts(path, columns=None, skip_bad=False):
    return ExampleReader(path, read_examples(path, lambda row: row.get_text("text"), columns or {}), skip_bad)


def test_quotes_are_literal_in_tsv_and_parsed_in_csv(tmp_path):
    tsv = write_file(tmp_path, "a.tsv", 'text\tlabel\n"so he said\t0\na ""b"" c\t1\n')
    assert list(read_texts(tsv)) == ['"so he said', 'a ""b"" c']
    csv = write_file(tmp_path, "a.csv", 'text,label\n"one, two",0\n"a ""b"" c",1\n')
    assert list(read_texts(csv)) == ["one, two", 'a "b" c']


def test_csv_quoted_newlines_keep_line_numbers(tmp_path):
    csv = write_file(tmp_path, "a.csv", 'text,label\n"one\ntwo",0\nthree,1\n')
    rows = [row for row in read_rows(csv) if isinstance(row, ExampleRow)]
    assert [(row.line, row.values["text"]) for row in rows] == [(2, "one\ntwo"), (4, "three")]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress], ids=["gz", "xz", "zst"])
def test_compressed_table_files_are_read(tmp_path, pack, request):
    suffix = request.node.callspec.id
    plain = '{"text": "天地", "label": 1}\n\n{"text": "b\\tc"}\n'.encode()
    path = write_file(tmp_path, f"a.jsonl.{suffix}", pack(plain))
    assert [(row.line, row.values["text"]) for row in read_rows(path) if isinstance(row, ExampleRow)] == [
        (1, "天地"),
        (3, "b\tc"),
    ]


def test_bom_and_line_endings_are_stripped(tmp_path):
    path = write_file(tmp_path, "a.tsv", b"\xef\xbb\xbftext\tlabel\r\none\t0\r\n\r\ntwo\x0c\xe2\x80\xa8three\t1")
    assert list(read_texts(path)) == ["one", "two\x0c\u2028three"]


def test_table_columns_by_name_and_by_number(tmp_path):
    named = write_file(tmp_path, "a.tsv", "id\tsentence\n7\tgood\n")
    assert list(read_texts(named, {"text": "sentence"})) == ["good"]
    bare = write_file(tmp_path, "b.tsv", "gj04\t1\t\tgood film\ngj05\t0\t*\tbad\n")
    assert list(read_texts(bare, {"text": "3"})) == ["good film", "bad"]


def test_missing_column_error_lists_columns_and_is_not_skipped(tmp_path):
    path = write_file(tmp_path, "a.tsv", "id\tsentence\n7\tgood\n")
    with pytest.raises(
        UserError, match=r"a\.tsv has no column 'text'; its columns: id, sentence; .*data\.columns\.text="
    ) as message:
        next(read_texts(path, skip_bad=True))
    assert not isinstance(message.value, BadRow)
    with pytest.raises(UserError, match=r"has no column 'sentense'.*data\.columns\.text=sentence$"):
        next(read_texts(path, {"text": "sentense"}))
    jsonl = write_file(tmp_path, "a.jsonl", '{"text": "a"}\n{"txt": "b"}\n')
    with pytest.raises(BadRow, match=r"a\.jsonl, line 2 has no column 'text'; its columns: txt; .*data\.columns\.text=txt"):
        list(read_texts(jsonl))


BAD = {
    "fields.tsv": ("text\tlabel\none\t0\ntwo\nthree\t1\n", 3, "1 fields instead of 2"),
    "more.csv": ("text,label\none,0\ntwo,1,2\nthree,1\n", 3, "3 fields instead of 2"),
    "quote.csv": ('text,label\none,0\n"tw"o,0\nthree,1\n', 3, "is a quote not closed"),
    "broken.jsonl": ('{"text": "one"}\n{"text": "tw\n{"text": "three"}\n', 2, "it is not JSON"),
    "deep.jsonl": ('{"text": "one"}\n' + "[" * 200_000 + '\n{"text": "three"}\n', 2, "it is not JSON"),
    "list.jsonl": ('{"text": "one"}\n["two"]\n{"text": "three"}\n', 2, "not an object"),
    "null.jsonl": ('{"text": "one"}\n{"text": null}\n{"text": "three"}\n', 2, "text is null"),
    "number.jsonl": ('{"text": "one"}\n{"text": 2}\n{"text": "three"}\n', 2, "text is 2, not a text"),
    "latin.tsv": (b"text\tlabel\none\t0\nd\xe9j\xe0\t0\nthree\t1\n", 3, "not UTF-8"),
    "latin.csv": (b"text,label\none,0\nd\xe9j\xe0,0\nthree,1\n", 3, "not UTF-8"),
    "latin.jsonl": (b'{"text": "one"}\n{"text": "d\xe9"}\n{"text": "three"}\n', 2, "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_row_raises_or_is_skipped_and_counted(tmp_path, name):
    text, line, message = BAD[name]
    path = write_file(tmp_path, name, text)
    with pytest.raises(BadRow, match=rf"{name}, line {line}: .*{message}.*data\.skip_bad=true"):
        list(read_texts(path))
    reader = read_texts(path, skip_bad=True)
    assert list(reader) == ["one", "three"]
    assert reader.num_skipped == 1 and f"line {line}" in reader.errors[0]


def test_unclosed_quote_error_has_its_first_line(tmp_path):
    path = write_file(tmp_path, "a.csv", 'text,label\none,0\n"two,0\nthree,1\n')
    with pytest.raises(BadRow, match=r"a\.csv, line 3: unexpected end of data; is a quote not closed"):
        list(read_texts(path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "is empty; it needs a header"),
        ("a.tsv", "text\tlabel\n", "has no usable rows"),
        ("a.jsonl", "\n", "has no usable rows"),
        ("a.jsonl", "[1]\n[2]\n", r"has no usable rows: .*line 1"),
        ("a.xlsx", "text", r"give \.tsv, \.csv or \.jsonl"),
    ],
)
def test_empty_table_file_is_rejected(tmp_path, name, text, message):
    with pytest.raises(UserError, match=message):
        list(read_texts(write_file(tmp_path, name, text), skip_bad=True))


def test_missing_table_file_error(tmp_path):
    with pytest.raises(UserError, match=r"none\.tsv cannot be read: No such file"):
        list(read_texts(tmp_path / "none.tsv"))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_row_of_a_million_characters(tmp_path, name):
    text = "word " * 200_000
    contents = {
        "a.tsv": f"text\tlabel\n{text}\t1\n",
        "a.csv": f'text,label\n"{text}",1\n',
        "a.jsonl": f'{{"text": "{text}"}}\n',
    }
    assert list(read_texts(write_file(tmp_path, name, contents[name]))) == [text]


ROWS = [{"text": "天地 café", "label": "甲"}, {"text": "b", "label": "乙"}]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "gbk", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_tables_are_read_in_other_encodings(tmp_path, encoding, name):
    separator = {"a.tsv": "\t", "a.csv": ","}.get(name)
    rows = [{**row, "text": row["text"].replace("é", "e")} for row in ROWS]
    lines = (
        [json.dumps(row, ensure_ascii=False) for row in rows]
        if separator is None
        else [separator.join(row) for row in (["text", "label"], *(row.values() for row in rows))]
    )
    path = write_file(tmp_path, name, ("\r\n".join(lines) + "\n").encode(encoding))
    assert [row.values for row in read_rows(path, encoding=encoding)] == rows


def test_latin_1_is_read_and_named_in_the_error_without_it(tmp_path):
    path = write_file(tmp_path, "a.tsv", "text\tlabel\ncafé\t1\n".encode("latin-1"))
    assert [row.values["text"] for row in read_rows(path, encoding="latin-1")] == ["café"]
    with pytest.raises(BadRow, match=r"line 2: it is not UTF-8 \(encoding=.*data\.encoding=.*latin-1"):
        list(read_texts(path))


def test_multibyte_characters_across_chunks_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.tokenization.files.CHUNK_BYTES", 7)
    for encoding in ("utf-8", "gb18030", "utf-16"):
        path = write_file(tmp_path, "a.txt", "天地玄黄\n宇宙 洪荒\n".encode(encoding))
        assert [row.values["text"] for row in read_rows(path, encoding=encoding)] == ["天地玄黄", "宇宙 洪荒"]


def test_bytes_that_the_encoding_does_not_have_are_a_bad_row(tmp_path):
    path = write_file(tmp_path, "a.tsv", "text\tlabel\n天\t1\n".encode("gbk") + b"\xff\xff\t1\nb\t1\n")
    reader = ExampleReader(path, read_examples(path, lambda row: row.get_text("text"), {}, encoding="gbk"), skip_bad=True)
    assert list(reader) == ["天", "b"] and "line 3: it is not GBK" in reader.errors[0]
    with pytest.raises(UserError, match="encoding=klingon is not an encoding"):
        list(read_rows(path, encoding="klingon"))


def test_byte_order_marks_of_joined_files_are_no_text(tmp_path):
    path = write_file(tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "one"}\n\xef\xbb\xbf{"text": "two"}\n\xef\xbb\xbf')
    assert list(read_texts(path)) == ["one", "two"]
    path = write_file(tmp_path, "a.tsv", b"\xef\xbb\xbftext\tlabel\none\t0\n\xef\xbb\xbf\n\xef\xbb\xbf")
    assert list(read_texts(path)) == ["one"]
    path = write_file(tmp_path, "a.txt", b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n\xef\xbb\xbf")
    assert list(read_texts(path)) == ["one", "two"]


@pytest.mark.parametrize(
    "row", [r'{"text": "a", "label": "\ud83d"}', r'{"text": "\udc00"}', r'{"text": "a", "id": ["\ud83d"]}']
)
def test_lone_surrogates_in_json_are_bad_rows(tmp_path, row):
    path = write_file(tmp_path, "a.jsonl", '{"text": "\\ud83d\\ude00"}\n' + row + "\n")
    with pytest.raises(BadRow, match=r"a\.jsonl, line 2: \w+ has the lone surrogate"):
        list(read_texts(path))
    reader = read_texts(path, skip_bad=True)
    assert list(reader) == ["\U0001f600"] and reader.num_skipped == 1


def test_parquet_rows_are_read_with_missing_values_as_null(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    table = {"text": ["天", "b", None], "label": [1.0, float("nan"), 3.0], "tokens": [["a"], [], None]}
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path)
    rows = list(read_rows(path))
    assert [row.values["label"] for row in rows] == [1.0, None, 3.0] and rows[0].values["tokens"] == ["a"]
    with pytest.raises(BadRow, match=r"a\.parquet, row 3: text is null"):
        list(read_texts(path))
