"""Hex tokenizers: one token per byte, the same for corpus and task, and errors for text that is not hex."""

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
from bertsmith.tasks.sequences import encode_texts
from bertsmith.tokenization import train_tokenizer as stage
from bertsmith.tokenization.hex_bytes import find_hex_error
from bertsmith.tokenization.pipeline import build_hex_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.support.texts import VOCAB

HEX = Tokenizer(build_hex_tokenizer(SPECIAL_TOKENS))
PAYLOADS = [bytes(range(256)), b"\xff\xfe\x00\n\r\t \x80", "天地 [MASK]".encode(), b"\x16\x03\x01"]


def write_table(path, payloads):
    """Write payloads in the format of the file's suffix."""
    rows = [{"label": f"{i % 2}", "payload_hex": payload} for i, payload in enumerate(payloads)]
    separator = {"tsv": "\t", "csv": ","}.get(path.suffix[1:])
    if separator is None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("".join(separator.join(row) + "\n" for row in [["label", "payload_hex"], *(r.values() for r in rows)]))
    return path


@given(st.binary(max_size=300), st.booleans())
def test_hex_tokenizer_encodes_every_byte_as_one_token(data, upper):
    text = data.hex().upper() if upper else data.hex(" ")
    ids = HEX.encode(text).ids
    assert [token_id - len(SPECIAL_TOKENS) for token_id in ids] == list(data)
    assert bytes.fromhex(HEX.decode(ids)) == data and find_hex_error(text) is None
    assert not np.isin(ids, [HEX.unk_token_id, HEX.mask_token_id]).any()


def test_is_hex_only_for_hex_tokenizers(tmp_path):
    HEX.with_special_tokens(["[direction=c]"]).save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert HEX.is_hex and loaded.is_hex and loaded.encode("00ff").ids == HEX.encode("00ff").ids
    assert not Tokenizer.from_vocab(VOCAB).is_hex
    assert not loaded.is_continuation.any()  # each byte is a word for whole-word masking


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_hex_pretraining_and_fine_tuning_see_the_same_tokens(tmp_path, suffix):
    path = write_table(tmp_path / f"a.{suffix}", [payload.hex() for payload in PAYLOADS])
    stage.run(from_dict(stage.Recipe, {"texts": str(path), "column": "payload_hex", "kind": "byte", "hex": True,
                                   "out": str(tmp_path / "tokenizer")}), quiet=True)  # fmt: skip
    corpus = open_prepared(tmp_path, path)
    task = TextClassification(columns={"text": "payload_hex"}, labels=("0", "1"), hex=corpus.tokenizer.is_hex)
    encoded = task.encode(list(task.read(path)), corpus.tokenizer, 300)
    assert len(corpus.document_offsets) - 1 == len(PAYLOADS)
    for index, data in enumerate(PAYLOADS):
        corpus_ids = corpus.tokens[corpus.document_token_offsets[index] : corpus.document_token_offsets[index + 1]].tolist()
        assert corpus_ids == encoded.input_ids[index][1:-1].tolist() == [byte + len(SPECIAL_TOKENS) for byte in data]


def open_prepared(folder, path, **settings):
    values = {"texts": [str(path)], "tokenizer": str(folder / "tokenizer"), "out": str(folder / "corpus"), "workers": 1}
    return Corpus.open(build_corpus(from_dict(Prepare, values | {"column": "payload_hex"} | settings))[0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("160", "3 hex digits in a row are not whole bytes"),
        ("16 3 01", "1 hex digits in a row are not whole bytes"),
        ("16zz", "'z' at character 3 is not a hex digit"),
    ],
)
def test_bad_hex_is_an_invalid_row_of_a_task(tmp_path, bad, message):
    path = write_table(tmp_path / "a.tsv", ["1603", bad, "ff00"])
    task = TextClassification(columns={"text": "payload_hex"}, hex=True)
    with pytest.raises(UserError, match=rf"a\.tsv, line 3: text is not hex: {message}.*data\.skip_bad=true"):
        list(task.read(path))
    examples = TextClassification(columns={"text": "payload_hex"}, hex=True, skip_bad=True).read(path)
    assert [example.text for example in examples] == ["1603", "ff00"] and examples.num_skipped == 1


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.txt"])
def test_prepare_refuses_bad_hex_and_names_the_line(tmp_path, name):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path, texts = tmp_path / name, ["1603", "16f", "ff00"]
    path.write_text("\n".join(texts)) if name == "a.txt" else write_table(path, texts)
    line = 3 if name in ("a.tsv", "a.csv") else 2
    with pytest.raises(UserError, match=rf"{name}, line {line}: 3 hex digits in a row are not whole bytes"):
        open_prepared(tmp_path, path)


def test_hex_tokenizer_refuses_text_that_is_not_hex():
    with pytest.raises(UserError, match=r"'hello' is not hexadecimal: 'h' at character 1 .* reads hex-encoded bytes"):
        encode_texts(["00", "hello"], HEX)
    with pytest.raises(UserError, match="'hello ' is not hexadecimal"):
        HEX.encode_with_mask("hello [MASK]")
    assert HEX.encode_with_mask("1603 [MASK]ff") == [*HEX.encode("1603").ids, HEX.mask_token_id, *HEX.encode("ff").ids]


def test_prepare_names_a_missing_column_with_a_suggestion(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = write_table(tmp_path / "a.tsv", ["1603"])
    with pytest.raises(
        UserError, match=r"a\.tsv has no column 'payload'; its columns: label, payload_hex; set column=payload_hex"
    ):
        open_prepared(tmp_path, path, column="payload")


def test_prepare_names_an_invalid_row_of_a_table(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = tmp_path / "a.tsv"
    path.write_text("label\tpayload_hex\n0\t1603\n0\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 3: 1 fields instead of 2"):
        open_prepared(tmp_path, path)


def test_hex_requires_the_byte_kind(tmp_path):
    path = write_table(tmp_path / "a.tsv", ["1603"])
    recipe = {"texts": str(path), "column": "payload_hex", "hex": True, "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match=r"hex=true .* kind=byte"):
        stage.run(from_dict(stage.Recipe, recipe), quiet=True)


def test_prepare_refuses_an_existing_corpus_of_another_column(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    HEX.save(tmp_path / "tokenizer")
    path = tmp_path / "a.tsv"
    path.write_text("payload_hex\tother\n1603\tff\n1604\tfe\n")
    open_prepared(tmp_path, path)
    with pytest.raises(UserError, match="other texts, tokenizer or settings"):
        open_prepared(tmp_path, path, column="other")
