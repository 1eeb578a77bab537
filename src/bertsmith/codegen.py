"""Writes what is derived from the recipes' structs: `schema.json`, and from its entries `stages.py`, `stage_types.py` and docs.

`make schema` runs it. The functions of `stages.py` have the keys of a recipe as keyword arguments, with types, defaults and
help texts, so that editors complete and check them; tables such as `train=` are typed dictionaries.
"""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .commands import STAGES
from .help import STAGE_HELP
from .reference import generate_pages
from .schema import SCHEMA_FILE, generate_schema, iter_structs

STAGES_FILE, TYPES_FILE = (Path(__file__).with_name(name) for name in ("stages.py", "stage_types.py"))
WIDTH = 120
# Keys of type text that hold a path, and so also take a pathlib.Path.
PATH_KEYS = (
    *("texts", "out", "tokenizer", "extend", "corpus", "valid", "init", "vectors", "source", "model", "models", "data"),
    *("train", "dev", "test", "against", "documents", "folder", "card", "teacher"),
)


# Keys that take what only Python has, besides what the command line takes.
PYTHON_TYPES = {
    ("finetune", "data"): "Data",
    ("distill", "data"): "Data | None",
    ("prune", "data"): "Data | None",
    ("share", "data"): "Data | None",
    ("quantize", "data"): "Data | None",
    ("compress", "data"): "Data",
    ("evaluate", "data"): "t.Rows",
}


DATA_FRAME = '''

class DataFrame(Protocol):
    """Named columns, as in pandas and polars."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...


Rows = DataFrame | Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]]'''


class StageFunction(NamedTuple):
    """How a stage looks in Python."""

    name: str
    result: str  # the type it returns
    returns: str  # the same in words
    example: str


RESULT = ("StageResult", "the values that `--json` prints; a notebook shows them as a table")
MODEL = ("ModelResult", "a dictionary of results with `.model`, `.scores` and `.folder`")
FUNCTIONS = {
    "tokenizer": StageFunction(
        "train_tokenizer", *RESULT, 'bertsmith.train_tokenizer(texts="books/*.txt.gz", vocab_size=30000, out="out/tokenizer")'
    ),
    "prepare": StageFunction(
        "prepare", *RESULT, 'bertsmith.prepare(texts="books/*.txt.gz", tokenizer="out/tokenizer", out="out/corpus")'
    ),
    "pretrain": StageFunction(
        "pretrain", *MODEL, 'bertsmith.pretrain(corpus="out/corpus", model="bert-mini", train={"steps": 20000}, out="out/bert")'
    ),
    "plan": StageFunction(
        "plan", *RESULT, 'bertsmith.plan(model="bert-base", max_length=512, train={"steps": 100000}, machine="h200")'
    ),
    "import": StageFunction(
        "import_model", *MODEL, 'bertsmith.import_model(source="a/hugging-face/folder", out="out/imported")'
    ),
    "convert-long": StageFunction(
        "convert_long", *MODEL, 'bertsmith.convert_long(model="mini-en", max_length=4096, out="out/mini-long")'
    ),
    "export": StageFunction("export", *RESULT, 'bertsmith.export(model="out/bert", format="hf", out="out/bert-hf")'),
    "finetune": StageFunction(
        "finetune",
        *MODEL,
        'run = bertsmith.finetune(task="classify", model="mini-en", data={"train": "train.tsv", "dev": "dev.tsv"}, '
        'out="out/mood")\n>>> run.scores, run.model("a fine film")',
    ),
    "prune": StageFunction(
        "prune",
        *MODEL,
        'bertsmith.prune(model="out/mood", data={"train": "train.tsv", "dev": "dev.tsv"}, amount=0.5, out="out/mood-small")',
    ),
    "distill": StageFunction(
        "distill",
        *MODEL,
        'run = bertsmith.distill(teacher="out/mood", student={"num_hidden_layers": 2}, data={"train": "train.tsv", '
        '"dev": "dev.tsv"}, out="out/small")\n>>> run.scores, run.model("a fine film")',
    ),
    "share": StageFunction(
        "share",
        *MODEL,
        'bertsmith.share(model="out/mood", data={"train": "train.tsv", "dev": "dev.tsv"}, num_hidden_groups=1, '
        'out="out/shared")',
    ),
    "compress": StageFunction(
        "compress",
        *MODEL,
        'run = bertsmith.compress(model="out/mood", data={"train": "train.tsv", "dev": "dev.tsv"}, gate=0.98, out="out/small")'
        '\n>>> run["chosen"], run.model("a fine film")',
    ),
    "quantize": StageFunction(
        "quantize",
        *MODEL,
        'bertsmith.quantize(model="out/mood", data={"train": "train.tsv", "dev": "dev.tsv"}, out="out/mood-int8")',
    ),
    "evaluate": StageFunction(
        "evaluate", *RESULT, 'bertsmith.evaluate(model="out/mood", data="test.tsv", out="out/report").scores'
    ),
    "suite": StageFunction(
        "suite",
        *RESULT,
        'bertsmith.suite(models={"mini": "mini-en"}, tasks={"mood": {"task": "classify", "data": {"train": "train.tsv", '
        '"dev": "dev.tsv"}}}, out="out/suite")',
    ),
    "race": StageFunction(
        "race",
        *RESULT,
        'bertsmith.race(members={"bert": {"model": "bert-tiny"}, "gpt": {"model": "gpt", "objective": "clm"}}, '
        'corpus="out/corpus", out="out/race")',
    ),
    "predict": StageFunction(
        "predict",
        "Any",
        "the prediction for one text, or a list of predictions; with `out`, a `StageResult`",
        'bertsmith.predict(model="mini-en", text="Paris is the [MASK] of France.")',
    ),
    "embed": StageFunction(
        "embed",
        "Any",
        "the vector of one text, an array with a row per text of a file, or the nearest documents or words; with `out`, a "
        "`StageResult`",
        'bertsmith.embed(model="mini-en", text="one text").shape',
    ),
    "serve": StageFunction("serve", *RESULT, 'bertsmith.serve(model=["mini-en"], port=8000)  # until it is interrupted'),
    "doctor": StageFunction("doctor", *RESULT, 'bertsmith.doctor(folder="out/bert")["findings"]'),
    "verify": StageFunction("verify", *RESULT, 'bertsmith.verify(folder="out/bert")["intact"]'),
    "show": StageFunction(
        "show",
        "ShowResult",
        "a dictionary of results, which a notebook shows as its page or picture",
        'bertsmith.show(kind="attention", model="mini-en", texts=["The bank of the river was steep."])',
    ),
}


def generate_stages(schema: dict[str, Any]) -> tuple[str, str]:
    """The text of stages.py and of stage_types.py."""
    types = _TypeWriter(schema["structs"])
    functions = [_format_function(stage, schema["structs"][schema["stages"][stage]]["fields"], types) for stage in STAGES]
    note = "Generated by `make schema` (codegen.py); do not edit."
    names = sorted(function.name for function in FUNCTIONS.values())
    stages = [
        f'"""The stages of the command line as typed functions. {note}"""',
        "",
        "# ruff: noqa",
        '# mypy: disable-error-code="empty-body"',
        "from __future__ import annotations",
        "",
        "from collections.abc import Sequence",
        "from typing import TYPE_CHECKING, Any, Literal",
        "",
        "from .calls import Data, stage",
        "from .results import ModelResult, ShowResult, StageResult, pass_through",
        "",
        "if TYPE_CHECKING:",
        "    from . import stage_types as t",
        "    from .config import Config",
        "    from .stage_types import StrPath",
        "",
        f"__all__ = {json.dumps(names)}",
        *functions,
    ]
    return "\n".join(stages) + "\n", f'"""The tables of recipes as typed dictionaries. {note}"""\n\n' + types.format_module()


def _format_function(stage: str, fields: dict[str, Any], types: "_TypeWriter") -> str:
    function = FUNCTIONS[stage]
    ordered = sorted(fields, key=lambda name: "default" in fields[name])  # required keys first
    parameters = [_format_parameter(stage, name, fields[name], types) for name in ordered]
    arguments = [
        textwrap.fill(f"{name}: {field['help']}", WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for name, field in fields.items()
    ]
    wrapper = function.result if function.result != "Any" else "pass_through"
    lines = [
        "",
        "",
        f'@stage("{stage}", {wrapper})',
        f"def {function.name}(",
        "    *,",
        *(f"    {parameter}," for parameter in parameters),
        "    quiet: bool = False,",
        f") -> {function.result}:",
        *textwrap.wrap(f'"""{STAGE_HELP[stage].summary}', WIDTH - 4, initial_indent="    ", subsequent_indent="    "),
        "",
        "    Example:",
        *(f"        {'' if line.startswith('>>>') else '>>> '}{line}" for line in function.example.splitlines()),
        "",
        "    Args:",
        *arguments,
        "        quiet: suppress messages and progress, but not warnings",
        "",
        *textwrap.wrap(f"Returns: {function.returns}.", WIDTH - 4, initial_indent="    ", subsequent_indent="    "),
        '    """',
    ]
    return "\n".join(lines).replace("\\", "\\\\")


def _format_parameter(stage: str, name: str, field: dict[str, Any], types: "_TypeWriter") -> str:
    annotation = types.name_parameter(stage, name, field["type"])
    if python_type := PYTHON_TYPES.get((stage, name)):
        annotation += f" | {python_type}"
    if "default" not in field:
        return f"{name}: {annotation}"
    default = _format_default(field["default"])
    if default == "None" and "None" not in annotation.split(" | "):
        annotation += " | None"
    return f"{name}: {annotation} = {default}"


def _format_default(default: Any) -> str:
    """A default in a signature; None for tables and for kinds with other than their own defaults."""
    if isinstance(default, dict):
        return json.dumps(default["kind"]) if list(default) == ["kind"] else "None"
    if isinstance(default, list):
        return repr(tuple(default))
    return json.dumps(default, ensure_ascii=False) if isinstance(default, str) else repr(default)


class _TypeWriter:
    """Python annotations for the types of the schema, and the typed dictionaries they refer to."""

    def __init__(self, structs: dict[str, Any]) -> None:
        self.structs = structs
        self.aliases: dict[str, str] = {}  # name -> annotation, for unions in signatures

    def name_parameter(self, stage: str, name: str, encoded: Any) -> str:
        """The annotation of a parameter; a union of tables gets an alias, so that signatures stay readable."""
        annotation = self.format(encoded, name)
        if len(annotation) < 60:
            return annotation
        optional = " | None" if annotation.endswith(" | None") else ""
        return self._add_alias(stage, name, annotation.removesuffix(" | None")) + optional

    def _add_alias(self, stage: str, name: str, annotation: str) -> str:
        local = annotation.replace("t.", "")
        for alias in (_camel_case(name), _camel_case(f"{stage}_{name}")):
            if self.aliases.setdefault(alias, local) == local:
                return f"t.{alias}"
        raise ValueError(f"two types named {alias}")

    def format(self, encoded: Any, name: str = "", prefix: str = "t.") -> str:
        members = list(dict.fromkeys(self._iter_members(encoded, name, prefix)))
        literals = [member.removeprefix("Literal[").removesuffix("]") for member in members if member.startswith("Literal[")]
        others = [member for member in members if not member.startswith("Literal[")]
        return " | ".join(([f"Literal[{', '.join(literals)}]"] if literals else []) + others)

    def _iter_members(self, encoded: Any, name: str, prefix: str) -> Iterator[str]:
        if isinstance(encoded, str):
            yield {"null": "None", "any": "Any", "str": "StrPath" if name in PATH_KEYS else "str"}.get(encoded, encoded)
        elif isinstance(encoded, list):
            for member in sorted(encoded, key=lambda member: member == "null"):
                yield from self._iter_members(member, name, prefix)
        elif "type" in encoded:
            yield from self._iter_members(encoded["type"], name, prefix)
        elif "literal" in encoded:
            yield f"Literal[{', '.join(map(json.dumps, encoded['literal']))}]"
        elif "list" in encoded:
            item = self.format(encoded["list"], name, prefix)
            yield from (f"Sequence[{item}]", *item.split(" | "))
        elif "tuple" in encoded:
            yield f"Sequence[{self.format(encoded['tuple'][0], name, prefix)}]"
        elif "dict" in encoded:
            yield f"dict[str, {self.format(encoded['dict'], name, prefix)}]"
        else:
            struct = self.structs[encoded["struct"]]
            words = [struct["tag"]] if struct["tag"] else []
            words += struct["presets"]
            yield from ([f"Literal[{', '.join(map(json.dumps, words))}]"] if words else [])
            yield from (f"{prefix}{_struct_class(encoded['struct'])}", "Config")

    def format_module(self) -> str:
        """The typed dictionaries of all tables that a recipe may contain, and the aliases."""
        blocks = [
            "# ruff: noqa",
            "from __future__ import annotations",
            "",
            "import os",
            "from collections.abc import Iterable, Mapping, Sequence",
            "from typing import Any, Literal, Protocol, Required, TypedDict",
            "",
            "from .config import Config",
            "",
            "StrPath = str | os.PathLike[str]",
            *DATA_FRAME.splitlines(),
        ]
        fields = [field for struct in self.structs.values() for field in struct["fields"].values()]
        tables = {name for field in fields for name in iter_structs(field["type"])}
        blocks += [self._format_dict(name) for name in sorted(tables, key=_struct_class)]
        blocks += ["", *(f"\n{alias} = {annotation}" for alias, annotation in sorted(self.aliases.items()))]
        return "\n".join(blocks) + "\n"

    def _format_dict(self, name: str) -> str:
        struct = self.structs[name]
        lines = ["", "", f"class {_struct_class(name)}(TypedDict, total=False):"]
        if struct["tag"]:
            lines += [f'    kind: Required[Literal["{struct["tag"]}"]]']
        for key, field in struct["fields"].items():
            annotation = self.format(field["type"], key, "")
            lines.append(f"    {key}: {annotation}" if "default" in field else f"    {key}: Required[{annotation}]")
            lines += textwrap.wrap(f'"""{field["help"]}"""', WIDTH, initial_indent="    ", subsequent_indent="    ")
        return "\n".join(lines if len(lines) > 3 else [*lines, "    pass"])


def _struct_class(name: str) -> str:
    return name.rpartition(".")[2]


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_"))


def write_files() -> None:
    """Write all generated files."""
    SCHEMA_FILE.write_text(generate_schema(), encoding="utf-8", newline="\n")
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    stages, types = generate_stages(schema)
    files = {STAGES_FILE: stages, TYPES_FILE: types, **generate_pages(schema, FUNCTIONS)}
    for path, text in files.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    print(f"written: {', '.join(str(path) for path in (SCHEMA_FILE, *files))}")


if __name__ == "__main__":
    write_files()
