"""docs/python.md: the functions and classes of the Python API, from signatures and docstrings."""

import ast
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..commands import STAGES
from ..help import STAGE_HELP
from .markdown import NOTE, PACKAGE, escape, heading_anchor, link, parse_module

WIDTH = 110
PROSE_BEFORE_CODE = re.compile(r"^((?! *>>>).+)\n(?= *>>>)", re.MULTILINE)
Functions = Mapping[str, tuple[str, str, str, str]]  # stage -> name, result type, result in words, example

INTRODUCTION = """
```python
import bertsmith

model = bertsmith.load("mini-en")
model.fill("He opened the [MASK] and walked in.", top_k=3)

run = bertsmith.finetune(task="classify", model="mini-en", data={"train": "train.tsv", "dev": "dev.tsv"}, out="out/mood")
run.scores, run.model("a fine film")
```

Functions return their results and print nothing to stdout. Messages go to the logger `bertsmith`: to stderr unless your
program has set up logging. An error in what you pass (a key, a file, a value) is a `bertsmith.errors.UserError`, with one line
that says what to change.
"""

STAGES_INTRODUCTION = """
Each stage of the command line is a function with the same keys, as keyword arguments. A table is a dictionary:
`train={"steps": 20000}`. `quiet=True` suppresses messages and progress. A signature shows the required keys and those that
people change; the link below it leads to all keys.
"""


def generate_python(schema: dict[str, Any], functions: Functions) -> str:
    """The text of docs/python.md: loading and using a model, the stages as functions, and their results."""
    api, predictor, results = (parse_module(PACKAGE / name) for name in ("api.py", "inference/predictor.py", "results.py"))
    top_level = [node for node in api.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    predictor_class = _find_class(predictor, "Predictor")
    result_classes = [_find_class(results, name) for name in ("StageResult", "ModelResult", "ShowResult")]
    models = [*(link(node.name, f"bertsmith.{node.name}") for node in top_level), link("Predictor", "Predictor")]
    lines = [
        "# Python reference",
        "",
        NOTE,
        "",
        INTRODUCTION.strip(),
        "",
        f"**Models**: {', '.join(models)}",
        "",
        "**Stages**: " + ", ".join(link(functions[stage][0], f"bertsmith.{functions[stage][0]}") for stage in STAGES),
        "",
        "**Results**: " + ", ".join(link(node.name, node.name) for node in result_classes),
        "",
        "## Models",
    ]
    for node in top_level:
        lines += _format_definition(node, "bertsmith.", "###")
    lines += [*_format_class(predictor_class), "", "## Stages", "", STAGES_INTRODUCTION.strip()]
    for stage in STAGES:
        lines += _format_function(stage, schema, functions[stage])
    lines += ["", "## Results"]
    for node in result_classes:
        lines += _format_class(node)
    return "\n".join(lines) + "\n"


def _find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _format_function(stage: str, schema: dict[str, Any], function: tuple[str, str, str, str]) -> list[str]:
    """The section of a stage: signature with its main keys, summary, example, link to all keys."""
    name, result, returns, example = function
    fields = schema["structs"][schema["stages"][stage]]["fields"]
    main = {key.partition(".")[0] for key in STAGE_HELP[stage].keys}
    required = [key for key in fields if "default" not in fields[key]]
    optional = [key for key in fields if key in main and key not in required]
    parameters = [*required, *(f"{key}={_python_default(fields[key]['default'])}" for key in optional), "..."]
    return [
        "",
        f"### `bertsmith.{name}`",
        "",
        *_code_block(_wrap_signature(f"{name}(*, ", parameters, f") -> {result}")),
        "",
        escape(STAGE_HELP[stage].summary),
        "",
        *_code_block(line.removeprefix(">>> ") for line in example.splitlines()),
        "",
        f"Returns {returns}. [All keys](configuration.md#{heading_anchor(f'bertsmith {stage}')}).",
    ]


def _python_default(default: Any) -> str:
    if isinstance(default, dict):
        return json.dumps(default["kind"]) if list(default) == ["kind"] else "None"
    if isinstance(default, list):
        return repr(tuple(default))
    return json.dumps(default, ensure_ascii=False) if isinstance(default, str) else repr(default)


def _format_class(node: ast.ClassDef) -> list[str]:
    """A class: its docstring, and a section for each public method or property."""
    lines = ["", f"### `{node.name}`", "", *_format_docstring(ast.get_docstring(node) or "")]
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and _is_documented(member):
            lines += _format_definition(member, f"{node.name}.", "####")
    return lines


def _is_documented(node: ast.FunctionDef) -> bool:
    is_public = node.name == "__call__" or not node.name.startswith("_")
    return is_public and ast.get_docstring(node) is not None


def _format_definition(node: ast.FunctionDef | ast.ClassDef, prefix: str, level: str) -> list[str]:
    """Heading, signature and docstring of a function, a method, a property or a class."""
    body = ["", *_format_docstring(ast.get_docstring(node) or "")]
    if isinstance(node, ast.ClassDef):
        return ["", f"{level} `{prefix}{node.name}`", *body]
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return ["", f"{level} `{prefix}{node.name}`", *body]
    is_call = node.name == "__call__"
    result = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns else ""
    signature = _wrap_signature(f"{'model' if is_call else node.name}(", list(_iter_parameters(node.args)), f"){result}")
    heading = "Calling a model" if is_call else f"`{prefix}{node.name}`"
    return ["", f"{level} {heading}", "", *_code_block(signature), *body]


def _iter_parameters(arguments: ast.arguments) -> Iterator[str]:
    """The parameters of a signature as text, without self."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if argument.arg != "self":
            yield _format_parameter(argument, default)
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            yield "/"
    if arguments.vararg:
        yield f"*{_format_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _format_parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_format_parameter(arguments.kwarg, None)}"


def _format_parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}".replace("'", "") if argument.annotation else ""
    if default is None:
        return argument.arg + annotation
    value = ast.unparse(default)
    value = f'"{value[1:-1]}"' if value.startswith("'") else value
    return f"{argument.arg}{annotation} = {value}" if annotation else f"{argument.arg}={value}"


def _wrap_signature(start: str, parameters: Sequence[str], end: str) -> list[str]:
    one_line = start + ", ".join(parameters) + end
    if len(one_line) <= WIDTH:
        return [one_line]
    glued = ", ".join(parameter.replace(" ", "\N{NO-BREAK SPACE}") for parameter in parameters)
    star = "*, " if start.endswith("*, ") else ""
    wrapped = textwrap.wrap(star + glued + ",", WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]
    return [start.removesuffix("*, "), *lines, end]


def _format_docstring(docstring: str) -> list[str]:
    """A docstring as Markdown: examples as code blocks, arguments as a list."""
    lines: list[str] = []
    section = ""
    for paragraph in PROSE_BEFORE_CODE.sub(r"\1\n\n", docstring).split("\n\n"):
        rows = paragraph.splitlines()
        if match := re.fullmatch(r"(Examples?|Args|Returns|Raises):", rows[0]):
            section, rows = match[1], rows[1:]
        elif not rows[0].startswith((" ", ">>>")):
            section = ""
        text = textwrap.dedent("\n".join(rows))
        if not text:
            continue
        if text.startswith(">>>") or section.startswith("Example") or (rows[0].startswith("    ") and not section):
            lines += ["", *_code_block(re.sub(r"^(>>>|\.\.\.) ?", "", row) for row in text.splitlines())]
        elif section == "Args":
            lines += ["", *(re.sub(r"^(\*{0,2}\w+): ", r"- `\1`: ", item) for item in re.sub(r"\n +", " ", text).splitlines())]
        elif section:
            lines += ["", f"{section}: {' '.join(text.split())}"]
        else:
            lines += ["", *text.splitlines()]
    return lines[1:]


def _code_block(lines: Iterable[str]) -> list[str]:
    return ["```python", *lines, "```"]
