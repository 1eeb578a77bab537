"""Bytes written in hex: any byte is one token, the same for the corpus and for the task, and what is no hex is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.config import from_dict
from bertsmith.corpus.build import Prepare, build_corpus
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.tasks import TextClassification
from bertsmith.tasks.base import encode_texts
from bertsmith.tokenization import train_tokenizer as stage
from bertsmith.tokenization.hex_bytes import find_hex_error
from bertsmith.tokenization.pipeline import build_hex_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.conftest import PIECES

HEX = Tokenizer(build_hex_tokenizer(SPECIAL_TOKENS))
PAYLOADS = [bytes(range(256)), b"\xff\xfe\x00\n\r\t \x80", "天地 [MASK]".encode(), b"\x16\x03\x01"]


def table(path, payloads):
    """A file of payloads in the format of its ending."""
    rows = [{"label": f"{i % 2}", "payload_hex": one} for i, one in enumerate(payloads)]
    joined = {"tsv": "\t", "csv": ","}.get(path.suffix[1:])
    if joined is None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join(joined.join(row) + "\n" for row in [["label", "payload_hex"], *(r.values() for r in rows)]))
    return path


@given(st.binary(max_size=300), st.booleans())
def test_every_byte_is_one_token_whatever_it_would_be_as_text(data, loud):
    written = data.hex().upper() if loud else data.hex(" ")
    ids = HEX.encode(written).ids
    assert [number - len(SPECIAL_TOKENS) for number in ids] == list(data)
    assert bytes.fromhex(HEX.decode(ids)) == data and find_hex_error(written) is None
    assert not np.isin(ids, [HEX.unk_token_id, HEX.mask_token_id]).any()


def test_only_such_a_tokenizer_says_that_it_reads_hex(tmp_path):
    HEX.with_special_tokens(["[direction=c]"]).save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert HEX.is_hex and again.is_hex and again.encode("00ff").ids == HEX.encode("00ff").ids
    assert not Tokenizer.from_vocab(PIECES).is_hex
    assert not again.is_continuation.any()  # whole-word masks take a byte for a word


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_pretraining_and_fine_tuning_see_the_same_tokens(tmp_path, ending):
    path = table(tmp_path / f"a.{ending}", [one.hex() for one in PAYLOADS])
    stage.run(from_dict(stage.Recipe, {"texts": str(path), "column": "payload_hex", "kind": "byte", "hex": True,
                                   "out": str(tmp_path / "tokenizer")}), quiet=True)  # fmt: skip
    corpus = prepared(tmp_path, path)
    task = TextClassification(columns={"text": "payload_hex"}, labels=("0", "1"), hex=corpus.tokenizer.is_hex)
    encoded = task.encode(list(task.read(path)), corpus.tokenizer, 300)
    assert len(corpus.document_offsets) - 1 == len(PAYLOADS)
    for number, data in enumerate(PAYLOADS):
        read = corpus.tokens[corpus.document_token_offsets[number] : corpus.document_token_offsets[number + 1]].tolist()
        assert read == encoded.input_ids[number][1:-1].tolist() == [byte + len(SPECIAL_TOKENS) for byte in data]


def prepared(folder, path, **settings):
    values = {"texts": [str(path)], "tokenizer": str(folder / "tokenizer"), "out": str(folder / "corpus"), "workers": 1}
    return Corpus.open(build_corpus(from_dict(Prepare, values | {"column": "payload_hex"} | settings))[0])


@pytest.mark.parametrize(
    ("bad", "what"),
    [("160", "3 digits are not whole bytes"), ("16 3 01", "1 digits are not whole bytes"), ("16zz", "'z', its character 3")],
)
def test_bad_hex_is_a_bad_row_of_a_task(tmp_path, bad, what):
    path = table(tmp_path / "a.tsv", ["1603", bad, "ff00"])
    task = TextClassification(columns={"text": "payload_hex"}, hex=True)
    with pytest.raises(UserError, match=rf"a\.tsv, line 3: text is not hex: {what}.*data\.skip_bad=true"):
        list(task.read(path))
    rows = TextClassification(columns={"text": "payload_hex"}, hex=True, skip_bad=True).read(path)
    assert [one.text for one in rows] == ["1603", "ff00"] and rows.num_skipped == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.txt"])
def test_bad_hex_stops_the_making_of_a_corpus_where_it_stands(tmp_path, name):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path, texts = tmp_path / name, ["1603", "16f", "ff00"]
    path.write_text("\n".join(texts)) if name == "a.txt" else table(path, texts)
    line = 3 if name in ("a.tsv", "a.csv") else 2
    with pytest.raises(UserError, match=rf"{name}, line {line}: 3 digits are not whole bytes"):
        prepared(tmp_path, path)


def test_a_text_that_is_no_hex_never_becomes_unknown_tokens():
    with pytest.raises(UserError, match=r"'hello' is not hex: 'h', its character 1, .* bytes written in hex"):
        encode_texts(["00", "hello"], HEX)
    with pytest.raises(UserError, match="'hello ' is not hex"):
        HEX.encode_with_mask("hello [MASK]")
    assert HEX.encode_with_mask("1603 [MASK]ff") == [*HEX.encode("1603").ids, HEX.mask_token_id, *HEX.encode("ff").ids]


def test_a_column_that_is_not_there_is_named_with_the_nearest(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = table(tmp_path / "a.tsv", ["1603"])
    with pytest.raises(UserError, match=r"a\.tsv has no column 'payload', only: label, payload_hex; .*column=payload_hex"):
        prepared(tmp_path, path, column="payload")


def test_a_bad_row_of_a_table_is_named(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = tmp_path / "a.tsv"
    path.write_text("label\tpayload_hex\n0\t1603\n0\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 3: 1 fields, where there should be 2"):
        prepared(tmp_path, path)


def test_hex_goes_with_the_byte_kind_alone(tmp_path):
    path = table(tmp_path / "a.tsv", ["1603"])
    recipe = {"texts": str(path), "column": "payload_hex", "hex": True, "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match=r"hex=true .* kind=byte"):
        stage.run(from_dict(stage.Recipe, recipe), quiet=True)


def test_a_corpus_of_another_column_is_another_corpus(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = tmp_path / "a.tsv"
    path.write_text("payload_hex\tother\n1603\tff\n1604\tfe\n")
    prepared(tmp_path, path)
    with pytest.raises(UserError, match="other text, tokenizer or settings"):
        prepared(tmp_path, path, column="other")
