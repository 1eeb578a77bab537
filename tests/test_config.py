"""Recipes: parsing, overrides, defaults, error messages."""

import json
import re
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.commands import STAGES, load_stage
from bertsmith.config import Config, KeyHelp, RecipeError, Variant, from_dict, iter_keys, to_dict
from bertsmith.corpus.masking import SpanMasking, TokenMasking, WholeWordMasking
from bertsmith.corpus.sampling import Windows
from bertsmith.finetuning.recipe import FinetuneRecipe
from bertsmith.model.config import EncoderConfig
from bertsmith.objectives import MaskedLM, NextSentenceMLM, SentenceOrderMLM
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_recipe
from bertsmith.train.optim import Adamw, Lamb
from tests.support.cli import run_cli_error

REQUIRED = ["corpus=c", "out=o"]  # required keys of `pretrain`


class Inner(Config, frozen=True):
    count: Annotated[int, "how many"] = 1
    share: Annotated[float, "of them"] = 0.5
    open: Annotated[bool, "or not"] = False
    name: Annotated[str, "to go by"] = "none"
    odd: Annotated[dict[str, str], "names of columns"] = msgspec.field(default_factory=dict)


class Small(Variant, frozen=True):
    inner: Annotated[Inner, "a table"] = Inner(count=7)
    size: Annotated[int, "its size"] = 1


class LargeOne(Variant, frozen=True):
    size: Annotated[int, "its size"] = 100
    names: Annotated[tuple[str, ...], "its names"] = ()
    beside: Annotated[Small | None, "a companion"] = None


class Outer(Config, frozen=True):
    inner: Annotated[Inner, "a table"] = Inner(count=3)
    part: Annotated[Small | LargeOne, "one of two"] = LargeOne(size=50)
    maybe: Annotated[Small | LargeOne | None, "one of two, or none"] = None
    kind: Annotated[Literal["red", "green"], "a field that happens to have this name"] = "red"
    sizes: Annotated[tuple[int, ...], "several"] = (1, 2)
    either: Annotated[tuple[int, ...] | int, "one or several"] = 4
    text: Annotated[str | None, "some words"] = None

    presets: ClassVar[dict[str, Config]] = {}


def error_message(config_type: Any, *overrides: str, path: Path | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(config_type, path, overrides)
    message = str(caught.value)
    assert "\n" not in message and "$" not in message
    return message


# Error messages


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objectiv=mlm", "unknown key 'objectiv'; did you mean 'objective'?"),
        ("trian.steps=3", "unknown key 'trian'; did you mean 'train'?"),
        ("train.setps=3", "unknown key 'train.setps'; did you mean 'train.steps'?"),
        ("train.optimizer.betaz=3", "unknown key 'train.optimizer.betaz'; did you mean 'train.optimizer.betas'?"),
        ("model.mixer.num_heads=3", "unknown key 'model.mixer.num_heads'; did you mean 'model.mixer.num_attention_heads'?"),
        ("objective.short_prob=3", "unknown key 'objective.short_prob'; did you mean 'objective.short_seq_prob'?"),
        ("qqq=3", "unknown key 'qqq'; keys: corpus, eval_tokens, init, max_length,"),
        ("objective.masking.qqq=3", "unknown key 'objective.masking.qqq'; keys of objective.masking: none"),
        ("objective.qqq.deep=3", "unknown key 'objective.qqq'; keys of objective: dupe_factor, masking, mlm_probability,"),
        ("steps=3", "unknown key 'steps'; did you mean 'train.steps'?"),
        ("num_attention_heads=3", "unknown key 'num_attention_heads'; did you mean 'model.mixer.num_attention_heads'?"),
        ("hidden_dropout_prob=0", "unknown key 'hidden_dropout_prob'; did you mean 'model.hidden_dropout_prob'?"),
        ("train.num_hidden_layers=3", "unknown key 'train.num_hidden_layers'; did you mean 'model.num_hidden_layers'?"),
        (
            "model={mixer={kind='lstm', num_attention_heads=4}}",
            "unknown key 'model.mixer.num_attention_heads'; keys of model.mixer: cell, ",
        ),
    ],
)
def test_config_unknown_key_suggests_the_closest(override, message):
    assert message in error_message(PretrainRecipe, *REQUIRED, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective=mlm-spo", "objective = 'mlm-spo' is not valid; did you mean 'mlm-sop'?"),
        ("objective.kind=mlm-spo", "objective = 'mlm-spo' is not valid; did you mean 'mlm-sop'?"),
        ("objective.masking=whole-wrd", "objective.masking = 'whole-wrd' is not valid; did you mean 'whole-word'?"),
        ("objective.masking=q", "objective.masking = 'q' is not valid; choose from token, whole-word, span, ngram"),
        ("model=bert-mni", "model = 'bert-mni' is not valid; did you mean 'bert-mini'?"),
        ("model.mixer=atention", "model.mixer = 'atention' is not valid; did you mean 'attention'?"),
        ("train.precision=bf61", "train.precision = 'bf61' is not valid; did you mean 'bf16'?"),
        ("model.norm=x", "model.norm = 'x' is not valid; choose from post, pre"),
    ],
)
def test_config_unknown_value_suggests_the_closest(override, message):
    assert message in error_message(PretrainRecipe, *REQUIRED, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=many", "train.steps takes a whole number, not 'many'"),
        ("model.num_hidden_layers=2.5", "model.num_hidden_layers takes a whole number, not 2.5"),
        ("train.compile=1", "train.compile takes true or false, not '1'; for example train.compile=false"),
        ("validation_split=few", "validation_split takes a number, not 'few'; for example validation_split=0.01"),
        ("train.steps=10k", "train.steps takes a whole number, not '10k'; for example train.steps=10000"),
        ("train.steps=1.5M", "train.steps takes a whole number, not '1.5M'; for example train.steps=1500000"),
        ("train.steps=1e-3", "train.steps takes a whole number, not 0.001"),
        ("seed=true", "seed takes a whole number, not 'true'"),
        ("objective.masking=3", "objective.masking = '3' is not valid; choose from token, whole-word, span, ngram"),
        ("train=[1]", "train takes a table, not '[1]'; for example train.steps=..."),
        ('max_length=[128, "x"]', "max_length[1] takes a whole number, not 'x'"),
        ("train.optimizer.betas=0.9", "train.optimizer.betas takes 2 values, not 1"),
        ("train.steps.more=1", "train.steps takes a whole number; it has no key 'more'"),
        ("max_length.more=1", "max_length takes a list of whole numbers; it has no key 'more'"),
    ],
)
def test_config_wrong_type_names_key_and_value(override, message):
    assert message in error_message(PretrainRecipe, *REQUIRED, override)


def test_config_unknown_value_in_a_list():
    required = ["texts=a", "tokenizer=t", "out=o"]
    assert "drop[0] = 'line' is not valid; did you mean 'lines'?" in error_message(
        load_stage("prepare").Recipe, *required, "drop=line"
    )


def test_config_missing_key_is_named():
    assert "out is required: output checkpoint folder" in error_message(PretrainRecipe, "corpus=c")
    assert "kind is required: kind of page" in error_message(load_stage("show").Recipe, "out=o")
    assert "maybe.kind is required; one of: small, large-one" in error_message(Outer, "maybe.size=3")


@pytest.mark.parametrize("override", ["train.steps", "=3", "a..b=3", ".a=3", "a.=3", "", " =1"])
def test_config_override_must_be_key_value(override):
    assert f"{override!r} is not a setting" in error_message(PretrainRecipe, *REQUIRED, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sizes=[1,x]", "sizes: [1,x] is not a list"),
        ("part.names=[a.txt,b.txt]", "part.names: [a.txt,b.txt] is not a list"),
        ("inner={count=}", "inner: {count=} is not valid TOML"),
    ],
)
def test_config_broken_lists_and_tables_are_refused(override, message):
    assert message in error_message(Outer, override)


def test_config_errors_name_their_source(tmp_path):
    recipe = tmp_path / "run.toml"
    recipe.write_text('corpus = "c"\nout = "o"\n')
    assert error_message(PretrainRecipe, "corpus=c").startswith("out is required")
    assert error_message(PretrainRecipe, "sed=1", path=recipe) == f"{recipe}: unknown key 'sed'; did you mean 'seed'?"
    recipe.write_text('corpus = "c"\nout = "o"\n[train]\nstps = 3\n')
    assert error_message(PretrainRecipe, path=recipe) == f"{recipe}: unknown key 'train.stps'; did you mean 'train.steps'?"


@pytest.mark.parametrize(
    ("data", "message"), [(b"a = = 1", "not valid TOML.*line 1"), (b"a = '\xff'", "not text in UTF-8"), (None, "no recipe")]
)
def test_config_unreadable_recipe_is_named(tmp_path, data, message):
    if data is not None:
        (tmp_path / "run.toml").write_bytes(data)
    line = error_message(PretrainRecipe, path=tmp_path / "run.toml")
    assert re.search(message, line) and str(tmp_path / "run.toml") in line


# Parsing


def test_config_preset_with_overrides():
    mini = EncoderConfig.presets()["bert-mini"]
    assert read_recipe(PretrainRecipe, overrides=[*REQUIRED, "model=bert-mini"]).model == mini
    changed = read_recipe(
        PretrainRecipe, overrides=[*REQUIRED, "model=bert-mini", "model.num_hidden_layers=3", "model.mixer.causal=true"]
    ).model
    expected = to_dict(mini)
    expected["num_hidden_layers"], expected["mixer"]["causal"] = 3, True
    assert to_dict(changed) == expected
    assert EncoderConfig.presets()["bert-mini"] == mini and mini.num_hidden_layers == 4  # the preset itself is unchanged


def test_config_tables_are_assigned_before_their_keys():
    for overrides in permutations(["part=small", "part.size=5", "part.inner={share=0.25}", "part.inner.count=9"]):
        assert read_recipe(Outer, None, overrides).part == Small(size=5, inner=Inner(count=9, share=0.25))
    for overrides in permutations(["part.kind=small", "part.size=5", "part.inner.count=9"]):
        assert read_recipe(Outer, None, overrides).part == Small(size=5, inner=Inner(count=9))
    for overrides in permutations(["model=bert-mini", "model.num_hidden_layers=3"]):
        assert (
            mini := read_recipe(PretrainRecipe, None, [*REQUIRED, *overrides]).model
        ).num_hidden_layers == 3 and mini.hidden_size == 256
    assert read_recipe(Outer, None, ["inner.count=4", "inner.count=6"]).inner.count == 6  # the last of two overrides wins


def test_config_command_line_overrides_a_preset_in_a_file(tmp_path):
    (tmp_path / "run.toml").write_text('corpus = "c"\nout = "o"\nmodel = "bert-tiny"\nobjective = "mlm"\n')
    recipe = read_recipe(PretrainRecipe, tmp_path / "run.toml", ["model.num_hidden_layers=9", "objective.masking=span"])
    assert (recipe.model.num_hidden_layers, recipe.model.hidden_size) == (9, 128) and recipe.objective == MaskedLM(
        masking=SpanMasking()
    )


def test_config_recipe_with_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_text('text = "猫"\n', encoding="utf-8-sig")
    assert read_recipe(Outer, tmp_path / "run.toml").text == "猫"


def test_config_kind_as_a_bare_word():
    assert read_recipe(PretrainRecipe, overrides=[*REQUIRED, "objective=mlm"]).objective == MaskedLM()
    recipe = read_recipe(PretrainRecipe, overrides=[*REQUIRED, "objective.masking=whole-word", "objective=mlm-sop"])
    assert recipe.objective == SentenceOrderMLM(masking=WholeWordMasking())
    recipe = read_recipe(
        PretrainRecipe, overrides=[*REQUIRED, "objective=mlm", "objective.masking=span", "objective.masking.max_span_length=5"]
    )
    assert recipe.objective == MaskedLM(masking=SpanMasking(max_span_length=5), packing=Windows())
    assert read_recipe(
        PretrainRecipe, overrides=[*REQUIRED, "train.optimizer=lamb", "train.optimizer.eps=1"]
    ).train.optimizer == Lamb(eps=1)


def test_config_table_without_kind_has_the_default_kind(tmp_path):
    (tmp_path / "run.toml").write_text(
        'corpus = "c"\nout = "o"\n[objective]\nmlm_probability = 0.3\n[train.optimizer]\neps = 0.1\n'
    )
    recipe = read_recipe(PretrainRecipe, tmp_path / "run.toml", ["objective.short_seq_prob=0.7"])
    assert recipe.objective == NextSentenceMLM(mlm_probability=0.3, short_seq_prob=0.7) and recipe.train.optimizer == Adamw(
        eps=0.1
    )


def test_config_new_kind_starts_from_its_defaults(tmp_path):
    (tmp_path / "run.toml").write_text("part = {size = 7}\n")
    for override, expected in {
        "part.kind=small": Small(), "part=small": Small(), "part.kind=large-one": LargeOne(size=7),  # the same kind as before
    }.items():  # fmt: skip
        assert read_recipe(Outer, tmp_path / "run.toml", [override]).part == expected
    assert read_recipe(Outer, tmp_path / "run.toml", ["part.kind=small", "part.size=8"]).part == Small(size=8)


def test_config_plain_field_named_kind():
    assert read_recipe(Outer, overrides=["text=t", "inner.count=9", "kind=green"]) == Outer(
        text="t", inner=Inner(count=9), kind="green"
    )
    recipe = read_recipe(load_stage("tokenizer").Recipe, overrides=["texts=a.txt", "out=o", "vocab_size=9", "kind=bpe"])
    assert (recipe.texts, recipe.vocab_size, recipe.kind) == (("a.txt",), 9, "bpe")


def test_config_missing_table_starts_from_its_default():
    assert read_recipe(Outer, overrides=["inner.open=true"]).inner == Inner(count=3, open=True)
    assert read_recipe(Outer, overrides=["part.names=a"]).part == LargeOne(size=50, names=("a",))
    assert read_recipe(Outer, overrides=["part=small", "part.inner.open=true"]).part == Small(inner=Inner(count=7, open=True))
    assert read_recipe(Outer, overrides=["maybe.kind=small", "maybe.size=3"]).maybe == Small(size=3)
    assert read_recipe(Outer, overrides=["part.beside.size=3"]).part == LargeOne(size=50, beside=Small(size=3))
    assert read_recipe(PretrainRecipe, overrides=[*REQUIRED, "model.num_hidden_layers=3"]).model == EncoderConfig(
        num_hidden_layers=3
    )


def test_config_dict_field_takes_any_key():
    assert read_recipe(Outer, overrides=["inner.odd.text=sentence"]).inner == Inner(count=3, odd={"text": "sentence"})


def test_config_scalar_for_a_list_of_one(tmp_path):
    recipe = read_recipe(PretrainRecipe, overrides=[*REQUIRED, "max_length=128", "phase_fractions=1"])
    assert (recipe.max_length, recipe.phase_fractions) == ((128,), (1.0,))
    recipe = read_recipe(load_stage("prepare").Recipe, overrides=["texts=a.txt", "tokenizer=t", "out=o", "drop=lines"])
    assert (recipe.texts, recipe.drop) == (("a.txt",), ("lines",))
    (tmp_path / "run.toml").write_text('texts = "a.txt"\ntokenizer = "t"\nout = "o"\ndrop = "lines"\n')
    assert read_recipe(load_stage("prepare").Recipe, tmp_path / "run.toml") == recipe
    assert read_recipe(Outer, overrides=["either=5"]).either == 5 and read_recipe(Outer, overrides=["either=[5]"]).either == (
        5,
    )


@pytest.mark.parametrize(
    "text", ["2024", "1e5", "true", "2024-01-01", "a=b", "x==y=", "a b", "#1", "[a]*.txt", "dir/with#hash", "猫"]
)
def test_config_bare_text(text):
    assert read_recipe(Outer, overrides=[f"text={text}"]).text == text
    assert read_recipe(Outer, overrides=[f"part.names={text}"]).part.names == (text,)


@pytest.mark.parametrize(
    "text", ["[MASK] is a [MASK].", '"Hi"', "'a b'", '"a" and "b"', "{text}", "[1, 2]", r'"a\tb"', "", " a ", "none", "a,b"]
)
def test_config_text_is_taken_as_it_stands(text):
    assert read_recipe(Outer, overrides=[f"text={text}"]).text == text
    assert read_recipe(Outer, overrides=[f"inner.odd.column={text}"]).inner.odd == {"column": text}


@pytest.mark.parametrize(
    ("override", "sizes"),
    [("sizes=1,2,3", (1, 2, 3)), ("sizes=4", (4,)), ("sizes=[1, 2]", (1, 2)), ("sizes=", ()), ("sizes=[]", ())],
)
def test_config_list_of_numbers(override, sizes):
    assert read_recipe(Outer, overrides=[override]).sizes == sizes


@pytest.mark.parametrize(
    ("literal", "names"),
    [
        ("a.txt, b.txt", ("a.txt", "b.txt")),
        ('["a,b", "c"]', ("a,b", "c")),
        ("['a']", ("a",)),
        ("a b", ("a b",)),
        ("2024", ("2024",)),
    ],
)
def test_config_list_of_text(literal, names):
    assert read_recipe(Outer, overrides=[f"part.names={literal}"]).part.names == names


def test_config_table_given_as_a_file_is_answered_with_its_key():
    message = error_message(FinetuneRecipe, "task=classify", "model=m", "out=o", "data=reviews.tsv")
    assert message == "data takes a table, not 'reviews.tsv'; for example data.train=reviews.tsv"


@pytest.mark.parametrize("literal", ["10000", "10_000", "1e4", "1E4", "10000.0", "+1e4"])
def test_config_whole_numbers_may_be_written_as_floats(literal):
    steps = read_recipe(PretrainRecipe, overrides=[*REQUIRED, f"train.steps={literal}"]).train.steps
    assert steps == 10_000 and type(steps) is int


BOOLEANS = {"true": True, "True": True, "yes": True, "on": True, "False": False, "FALSE": False, "No": False, "off": False}


@pytest.mark.parametrize(("word", "value"), BOOLEANS.items())
def test_config_booleans_are_words(word, value):
    assert read_recipe(Outer, overrides=[f"inner.open={word}"]).inner.open is value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=0", "train.steps must be at least 1, not 0"),
        ("model.hidden_dropout_prob=1", "model.hidden_dropout_prob must be less than 1, not 1"),
        ("train.learning_rate=0", "train.learning_rate must be greater than 0, not 0"),
    ],
)
def test_config_number_out_of_range(override, message):
    assert error_message(PretrainRecipe, *REQUIRED, override) == message


def test_config_line_break_adds_no_key():
    assert error_message(Outer, "inner.count=1\ny = 2").startswith("inner.count takes a whole number, not '1\\ny = 2'")


def test_config_last_override_wins():
    assert read_recipe(Outer, overrides=["inner.count=1", "inner.count=2", "inner.open=true"]).inner == Inner(
        count=2, open=True
    )


def test_config_from_dict_takes_paths_tuples_and_structs():
    recipe = from_dict(load_stage("prepare").Recipe, {"texts": (Path("a"), "b"), "tokenizer": Path("t"), "out": "o"})
    assert (recipe.texts, recipe.tokenizer) == (("a", "b"), "t")
    recipe = from_dict(
        PretrainRecipe,
        {
            "corpus": "c",
            "out": "o",
            "model": EncoderConfig(num_hidden_layers=2),
            "objective": MaskedLM(mlm_probability=0.2),
            "max_length": 64,
        },
    )
    assert (recipe.model.num_hidden_layers, recipe.objective.mlm_probability, recipe.max_length) == (2, 0.2, (64,))


def test_config_is_frozen():
    with pytest.raises(AttributeError):
        Inner().count = 2  # type: ignore[misc]


# Unions at the top level


def test_config_top_level_union():
    top: Any = Small | LargeOne
    assert read_recipe(top, overrides=["kind=small", "size=3", "inner.open=true"]) == Small(
        size=3, inner=Inner(count=7, open=True)
    )
    assert read_recipe(top, overrides=["size=3", "kind=large-one"]) == LargeOne(size=3)
    assert from_dict(top, "small") == Small()
    assert "kind is required; one of: small, large-one" in error_message(top, "size=3")
    assert "kind = 'smal' is not valid; did you mean 'small'?" in error_message(top, "kind=smal")
    assert "unknown key 'nams'; did you mean 'names'?" in error_message(top, "kind=large-one", "nams=3")


def test_config_keys_of_a_top_level_union():
    keys = {key.name: key for key in iter_keys(Small | LargeOne)}
    assert keys["kind"] == KeyHelp("kind", "small | large-one", "required", "which of these")
    assert {"[small].size", "[small].inner.count", "[large-one].size", "[large-one].beside.size"} <= keys.keys()


# All stages


def reachable_structs(config_type: Any) -> set[type]:
    """Every struct type reachable from a recipe."""
    structs: set[type] = set()

    def visit(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType) and info.cls not in structs:
            structs.add(info.cls)
            for field in info.fields:
                visit(field.type)
        for member in getattr(info, "types", ()):
            visit(member)

    visit(msgspec.inspect.type_info(config_type))
    return structs


@pytest.mark.parametrize("name", STAGES)
def test_config_every_key_has_a_description(name):
    keys = list(iter_keys(load_stage(name).Recipe))
    assert len({key.name for key in keys}) == len(keys)
    assert [key.name for key in keys if not key.description or not key.type_name] == []
    last_names = {key.name.split(".")[-1] for key in keys}
    for struct in reachable_structs(load_stage(name).Recipe):
        assert set(struct.__struct_fields__) <= last_names, f"fields of {struct.__name__} are not listed"


def test_config_reachable_structs_helper():
    assert {PretrainRecipe, EncoderConfig, MaskedLM, SpanMasking, TokenMasking, SentenceOrderMLM, Lamb} <= reachable_structs(
        PretrainRecipe
    )


@pytest.mark.parametrize("name", STAGES)
def test_config_printed_defaults_can_be_typed(name):
    for struct in reachable_structs(load_stage(name).Recipe):
        own_keys = [key for key in iter_keys(struct) if key.name in struct.__struct_fields__]
        required = [key for key in iter_keys(struct) if key.default == "required" and "[" not in key.name]
        required_overrides = [
            f"{key.name}={'{}' if key.type_name == 'table' else key.type_name.split(' | ')[0]}" for key in required
        ]
        for key in own_keys:
            if key.default not in ("", "required"):  # empty: None, or a table
                assert read_recipe(struct, overrides=[*required_overrides, f"{key.name}={key.default}"]) == read_recipe(
                    struct, overrides=required_overrides
                ), key


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=bert-tiny", "objective=mlm", "objective.masking=span", "max_length=[128, 512]", "train.optimizer=bert-adam"],
        ["objective=mlm-sop", "train.steps=7", "train.learning_rate=1", "validation_split=1e-9", "init=a/b", "seed=-1"],
    ],
)
def test_config_roundtrip(overrides, tmp_path):
    recipe = read_recipe(PretrainRecipe, overrides=[*REQUIRED, *overrides])
    assert from_dict(PretrainRecipe, to_dict(recipe)) == recipe
    assert from_dict(PretrainRecipe, json.loads(json.dumps(to_dict(recipe)))) == recipe


# Round trip of any value through an override

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(count=st.integers(-(2**63), 2**63 - 1), share=st.floats(allow_nan=False), opened=st.booleans(), deep=st.booleans())
def test_config_number_roundtrip(count, share, opened, deep):
    prefix = "part.inner" if deep else "inner"
    overrides = [
        *["part=small"] * deep,
        f"{prefix}.count={count}",
        f"{prefix}.share={share!r}",
        f"{prefix}.open={str(opened).lower()}",
    ]
    recipe = read_recipe(Outer, overrides=overrides)
    inner = recipe.part.inner if deep else recipe.inner
    assert inner == Inner(count=count, share=share, open=opened)
    assert from_dict(Outer, to_dict(recipe)) == recipe


@given(texts)
def test_config_text_roundtrip(text):
    assert read_recipe(Outer, overrides=[f"text={text}"]).text == text


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(texts, max_size=5))
def test_config_list_roundtrip(sizes, names):
    recipe = read_recipe(Outer, overrides=[f"sizes={sizes}", f"part.names={json.dumps(names, ensure_ascii=False)}"])
    assert recipe.sizes == tuple(sizes) and recipe.part.names == tuple(names)


@pytest.mark.parametrize(
    ("stage", "setting", "limit"),
    [
        ("prepare", f"workers={2**62}", "at most 1024"),
        ("pretrain", f"train.workers={2**62}", "at most 1024"),
        ("suite", f"jobs={2**62}", "at most 1024"),
        ("pretrain", f"train.gradient_accumulation_steps={2**62}", "at most 1048576"),
        ("pretrain", f"model.num_hidden_layers={2**62}", "at most 10000"),
        ("pretrain", f"model.max_position_embeddings={2**62}", "at most 1099511627776"),
    ],
)
def test_numbers_that_no_machine_could_serve_are_refused(stage, setting, limit):
    key = setting.partition("=")[0]
    assert run_cli_error(stage, setting, "out=o").startswith(f"error: {key} must be {limit}, not {2**62}")
