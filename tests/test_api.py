"""The Python API: typed functions generated from the recipes, results that print and render, messages through logging."""

import ast
import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import bertsmith
from bertsmith import api, codegen, stages
from bertsmith.commands import STAGES, load_stage
from bertsmith.console import logger
from bertsmith.errors import UserError
from bertsmith.results import ModelResult, StageResult, flatten_values
from bertsmith.schema import SCHEMA_FILE


def test_generated_files_are_up_to_date():
    generated = codegen.generate_stages(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    for path, text in zip((codegen.STAGES_FILE, codegen.TYPES_FILE), generated, strict=True):
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run `make schema`"
        ast.parse(text)


@pytest.mark.parametrize("stage", STAGES)
def test_function_has_the_keys_of_its_stage(stage):
    function = getattr(bertsmith, codegen.FUNCTIONS[stage].name)
    signature, fields = inspect.signature(function), msgspec.structs.fields(load_stage(stage).Recipe)
    assert set(signature.parameters) == {field.name for field in fields} | {"quiet"}
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values())
    for field in fields:
        parameter = signature.parameters[field.name]
        assert (parameter.default is parameter.empty) == field.required
        if not field.required and isinstance(field.default, int | float | str):
            assert parameter.default == field.default
        assert f"        {field.name}: " in function.__doc__
    assert "Example:" in function.__doc__ and "Returns:" in function.__doc__


def test_typed_dictionaries_evaluate():
    """The annotations name types that exist."""
    import typing

    from bertsmith import stage_types

    for value in vars(stage_types).values():
        if typing.is_typeddict(value):
            typing.get_type_hints(value)


def test_dir_lists_stages_and_load():
    assert set(api.__all__) < set(dir(bertsmith))
    assert {"load", "models", "finetune", "pretrain", "train_tokenizer", "import_model"} <= set(dir(bertsmith))
    assert all(callable(getattr(bertsmith, name)) for name in api.__all__)
    assert stages.race is bertsmith.race


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bertsmith.finetune(num_train_epochs=3), "did you mean 'train.epochs'? Write train={\"epochs\": ...}."),
        (lambda: bertsmith.pretrain(model={"n_head": 3}), 'Write model={"mixer": {"num_attention_heads": ...}}.'),
        (lambda: bertsmith.finetune(task="ner"), "bertsmith.finetune: task = 'ner' is not valid; did you mean 'tag'?"),
        (lambda: bertsmith.predict(modle="mini-en"), "unknown key 'modle'; did you mean 'model'?"),
        (lambda: bertsmith.prepare(texts="a", out="o"), "bertsmith.prepare: tokenizer is required"),
        (
            lambda: bertsmith.finetune(task="classify", num_labels=2),
            "did you mean 'task.labels'? Write task={\"labels\": ...}.",
        ),
        (lambda: bertsmith.finetune(task="classify", device="cpu"), 'Write train={"device": ...}.'),
        (lambda: bertsmith.finetune(task="classify", learning_rate=2e-5), 'Write train={"learning_rate": ...}.'),
        (lambda: bertsmith.finetune(task="text-classification"), "did you mean 'classify'?"),
        (lambda: bertsmith.finetune(task="classify", model="m", out="o", data="a.tsv"), 'Write data={"train": "a.tsv"}.'),
        (lambda: bertsmith.pretrain(corpus="c", out="o", train=3), 'Write train={"steps": ...}.'),
        (lambda: bertsmith.pretrain(corpus="c", out="o", train={"compile": "x"}), 'Write train={"compile": False}.'),
    ],
)
def test_unknown_arguments_are_answered_with_the_right_key(call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert message in str(caught.value)


def test_functions_take_keyword_arguments_only():
    with pytest.raises(TypeError, match=r"bertsmith\.prepare\(\) takes keyword arguments only"):
        bertsmith.prepare("books.txt")
    with pytest.raises(TypeError, match=r"keyword arguments only: predict\(model=\.\.\., text=\.\.\.\)"):
        bertsmith.predict("mini-en", "a text")


@pytest.fixture
def prepare_arguments(tmp_path: Path, vocabulary: Path) -> dict[str, object]:
    (tmp_path / "text.txt").write_text("The cat sat.\nIt was there.\n\nThe other one.\n")
    return {"texts": tmp_path / "text.txt", "tokenizer": vocabulary, "out": tmp_path / "corpus", "workers": 1}


def test_functions_take_paths_and_none_and_return_without_printing(prepare_arguments, capsys):
    result = bertsmith.prepare(**prepare_arguments, segmenter=None, quiet=True)
    assert isinstance(result, StageResult) and result.folder == prepare_arguments["out"]
    assert capsys.readouterr().out == ""
    assert str(result).startswith("StageResult:\n  out ") and "<table>" in result._repr_html_()
    assert json.loads(msgspec.json.encode(result)) == result


def test_messages_go_to_the_logging_of_the_program(prepare_arguments, monkeypatch, capsys):
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    bertsmith.prepare(**prepare_arguments)
    assert messages and capsys.readouterr() == ("", "")


def test_messages_go_to_stderr_without_logging(prepare_arguments):
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in prepare_arguments.items()}
    script = f"import bertsmith; bertsmith.prepare(**{arguments!r})"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout == "" and "documents" in completed.stderr


def test_results_escape_html_and_shorten_lists():
    result = ModelResult(out="a<b>", scores={"accuracy": 0.912345}, seeds=list(range(20)), step=12345, done=True)
    assert flatten_values(result) == [
        ("out", "a<b>"),
        ("scores.accuracy", "0.9123"),
        ("seeds", "0, 1, 2, 3, 4, 5, 6, 7, ... (20)"),
        ("step", "12,345"),
        ("done", "true"),
    ]
    assert "a&lt;b&gt;" in result._repr_html_() and "<b>" not in result._repr_html_()
    assert result.scores == {"accuracy": 0.912345} and result.folder == Path("a<b>")


def test_import_of_the_package_is_light():
    script = "import sys, bertsmith; print('torch' in sys.modules, 'numpy' in sys.modules, 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False False False\n"


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("num_labels", "bertsmith.finetune"),
        ("device_map", "device="),
        ("torch_dtype", "precision="),
        ("spam", "its arguments are"),
    ],
)
def test_arguments_of_from_pretrained_are_answered_with_ours(argument, hint):
    with pytest.raises(UserError, match=f"load\\(\\) has no argument {argument}; .*{hint}"):
        bertsmith.load("mini-en", **{argument: 2})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("pipeline", "bertsmith.load"), ("AutoModelForMaskedLM", "bertsmith.load"), ("BertModel", "bertsmith.load"),
     ("Trainer", "bertsmith.finetune"), ("finetun", "bertsmith.finetune"), ("xyzzy", "dir")],
)  # fmt: skip
def test_names_of_other_libraries_are_answered_with_ours(name, hint):
    assert not hasattr(bertsmith, name)
    with pytest.raises(AttributeError, match=f"bertsmith has no {name}; .*{hint}"):
        getattr(bertsmith, name)
