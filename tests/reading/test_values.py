"""JSON and TOML: limits on depth, digits and lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.reading import as_object, check_depth, parse_json, parse_toml, read_json_lines, read_toml
from bertsmith.recipes import read_recipe
from bertsmith.schema import load_stage_schema

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_is_read_as_it_was_written(value):
    assert parse_json(json.dumps(value).encode(), "value.json") == value


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:0123456789eE+-.truefalsn \\u', max_size=100).map(str.encode))
def test_any_bytes_are_a_value_or_one_error(data):
    try:
        value = parse_json(data, "value.json")
    except UserError as error:
        assert str(error).startswith("value.json is damaged: ")
    else:
        assert json.dumps(value) == json.dumps(json.loads(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 levels deep"),
        (b"[" + b"9" * 5000 + b"]", "an integer of 5,000 digits"),
        (b"[" + b"9" * 41 + b"]", "an integer of 41 digits"),
        (b"\xff", "can't decode byte 0xff"),
        (b"", "Expecting value"),
    ],
)
def test_json_beyond_the_limits_is_refused(data, message):
    with pytest.raises(UserError, match=f"config.json is damaged: .*{message}"):
        parse_json(data, "config.json")


def test_integer_that_transformers_writes_for_no_limit_is_read():
    assert parse_json(b"1000000000000000019884624838656", "tokenizer_config.json") == int(1e30)


def test_depth_within_the_limit_is_no_error():
    check_depth(parse_json(b"[" * 100 + b"]" * 100, "value.json"))


@pytest.mark.parametrize(
    ("value", "kind"), [([], "a list"), ("a", "a string"), (1, "a number"), (None, "null"), (True, "a boolean")]
)
def test_value_that_is_no_object_is_refused(value, kind):
    with pytest.raises(UserError, match=f"card.json is damaged: it is not a JSON object, but {kind}"):
        as_object(value, "card.json")


def test_json_lines_end_at_an_incomplete_line_and_name_a_damaged_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert list(read_json_lines(path)) == [(1, {"step": 1}), (2, {"step": 2})]
    path.write_bytes(b'{"step": 1}\nnot JSON\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is damaged"):
        list(read_json_lines(path))
    path.write_bytes(b" " * (1 << 21))
    with pytest.raises(UserError, match="line 1 is longer than 1,048,576 bytes"):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        (".".join(["a"] * 500) + " = 1", "nested more than 100 levels deep"),
        ("a = " + "9" * 5000, "digits"),
        ("a = ", "Invalid value"),
    ],
)
def test_toml_beyond_the_limits_is_a_value_error(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        parse_toml(text)
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.toml is not valid TOML"):
        read_recipe(load_stage_schema("prepare"), tmp_path / "recipe.toml")


def test_toml_above_a_mebibyte_is_refused(tmp_path):
    (tmp_path / "recipe.toml").write_text("#" * (2 << 20))
    with pytest.raises(UserError, match="more than the 1,048,576"):
        read_toml(tmp_path / "recipe.toml")
