"""docs/configuration.md: the keys of every stage, from the schema."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from ..commands import POSITIONAL, STAGES
from ..help import STAGE_HELP
from ..schema import iter_structs
from .markdown import NOTE, PACKAGE, code_cell, escape, escape_cell, heading_anchor, link, parse_module

MANY_PRESETS = 5  # more of them get a table of their own
NO_LIMIT = 1e9  # limits from here on only keep numbers representable
TYPE_NAMES = {"int": "integer", "float": "number", "str": "text", "any": "any value"}
SIZE_KEYS = {  # columns of the table of presets
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "mixer.num_attention_heads": "heads",
    "feedforward.intermediate_size": "intermediate size",
    "max_position_embeddings": "positions",
}

Fields = dict[str, dict[str, Any]]  # of a struct in the schema: name -> type, help, default

INTRODUCTION = """
Every key of every stage, with its type, default and meaning. The same keys work on the command line, in a recipe (a TOML file)
and as arguments in [Python](python.md):

```
bertsmith pretrain corpus=out/corpus model=bert-mini train.steps=20000 out=out/bert
bertsmith pretrain recipe.toml train.steps=30000
```

```toml
corpus = "out/corpus"
out = "out/bert"
model = "bert-mini"

[train]
steps = 20000
```

```python
bertsmith.pretrain(corpus="out/corpus", model="bert-mini", train={"steps": 20000}, out="out/bert")
```

- Arguments override the recipe. A key inside a table has a dotted name; `model=bert-mini model.norm=pre` changes one key of a
  preset.
- Some tables come in kinds: `model.mixer=longformer` chooses one, and `model.mixer.attention_window=[256]` sets a key of it. In
  TOML: `mixer = { kind = "longformer", attention_window = [256] }`.
- A list takes `[1, 2]`, `1,2` or a single value. `none` is the value of a key that is not set.
- A misspelt key, or a key of another library (`num_train_epochs`), is answered with the right one.

`bertsmith STAGE --help all` prints the keys of a stage on the terminal.
"""


def generate_configuration(schema: dict[str, Any]) -> str:
    """The text of docs/configuration.md: the keys of every stage, and each table that stages share once."""
    structs = schema["structs"]
    fields = {stage: structs[schema["stages"][stage]]["fields"] for stage in STAGES}
    tables = _Tables(structs)
    for stage in STAGES:
        tables.add(fields[stage], "", stage)
    lines = [
        "# Configuration reference",
        "",
        NOTE,
        "",
        INTRODUCTION.strip(),
        "",
        "**Stages**: " + ", ".join(link(stage, f"bertsmith {stage}") for stage in STAGES),
        "",
        "**Tables**: " + ", ".join(link(name, name) for name in tables.sections),
        "",
        "**Model presets**: [sizes and settings](#model-presets)",
        "",
        "## Stages",
    ]
    for stage in STAGES:
        lines += _format_stage(stage, fields, tables)
    lines += ["", "## Tables"]
    for section in tables.sections.values():
        lines += _format_section(section, tables)
    return "\n".join(lines) + "\n"


@dataclass
class _Section:
    """A table of a recipe: one struct, or the kinds of a union."""

    heading: str  # the dotted key where it occurs first, with the stage if another table has the same key
    structs: list[str] = field(default_factory=list)
    base: str | None = None  # struct of the other table with the same key

    @property
    def key(self) -> str:
        return self.heading.partition(" ")[0]


class _Tables:
    """A section for every struct that the stages refer to, in the order of first occurrence, depth first."""

    def __init__(self, structs: dict[str, Any]) -> None:
        self.structs = structs
        self.sections: dict[str, _Section] = {}
        self.headings: dict[str, str] = {}  # struct -> heading above its keys

    def add(self, fields: Fields, prefix: str, stage: str) -> None:
        for name, values in fields.items():
            new = [struct for struct in iter_structs(values["type"]) if struct not in self.headings]
            for struct in new:
                self._add_to_section(struct, prefix + name, stage)
            for struct in new:
                self.add(self.structs[struct]["fields"], f"{prefix}{name}.", stage)

    def _add_to_section(self, struct: str, key: str, stage: str) -> None:
        tag, other = self.structs[struct]["tag"], self.sections.get(key)
        section = other or _Section(key)
        if other and not tag:
            section = _Section(f"{key} in {stage}", base=other.structs[0])
        self.sections[section.heading] = section
        section.structs.append(struct)
        self.headings[struct] = f"{section.heading}={tag}" if tag else section.heading

    def link(self, struct: str) -> str:
        tag, presets, anchor = self.structs[struct]["tag"], self.structs[struct]["presets"], self.headings[struct]
        if tag:
            return link(tag, anchor)
        names = ["[preset](#model-presets)"] if len(presets) > MANY_PRESETS else [f"`{preset}`" for preset in presets]
        return " or ".join([*names, f"[table](#{heading_anchor(anchor)})"])


def _format_stage(stage: str, fields: dict[str, Fields], tables: _Tables) -> list[str]:
    positional = [f"`{key}`" for key in POSITIONAL.get(stage, ())]
    lines = ["", f"### bertsmith {stage}", "", escape(STAGE_HELP[stage].summary), ""]
    lines += ["```", *STAGE_HELP[stage].examples, "```", ""]
    if positional:
        lines += [f"You may give {' and '.join(positional)} by position, without the name.", ""]
    extended = next((other for other in fields if other != stage and fields[other].keys() < fields[stage].keys()), None)
    if not extended:
        return lines + _format_keys(fields[stage], "", tables)
    changed = {name: values for name, values in fields[stage].items() if fields[extended].get(name) != values}
    lines += [f"It has the keys of {link(f'bertsmith {extended}', f'bertsmith {extended}')}, except:", ""]
    return lines + _format_keys(changed, "", tables)


def _format_section(section: _Section, tables: _Tables) -> list[str]:
    lines = ["", f"### `{section.heading}`", ""]
    first = tables.structs[section.structs[0]]
    if first["tag"]:
        return lines + _format_kinds(section, tables)
    fields = first["fields"]
    lines += [escape(_describe(section.structs[0])), ""]
    if section.base:
        base = tables.structs[section.base]["fields"]
        lines += [f"It has the keys of {link(section.key, tables.headings[section.base])}, except:", ""]
        fields = {name: values for name, values in fields.items() if base.get(name) != values}
    lines += _format_keys(fields, f"{section.key}.", tables)
    if len(first["presets"]) > MANY_PRESETS:
        return lines + _format_presets(first, tables.structs)
    if first["presets"]:
        settings = [f"`{section.key}={name}` is `{_format_value(values)}`" for name, values in first["presets"].items()]
        lines += ["", f"Presets: {'; '.join(settings)}."]
    return lines


def _format_kinds(section: _Section, tables: _Tables) -> list[str]:
    kinds = {tables.structs[struct]["tag"]: struct for struct in section.structs}
    lines = [f"Choose a kind, such as `{section.key}={next(iter(kinds))}`.", "", "| kind | meaning |", "|---|---|"]
    lines += [f"| {tables.link(struct)} | {escape_cell(_describe(struct))} |" for struct in kinds.values()]
    for kind, struct in kinds.items():
        fields = tables.structs[struct]["fields"]
        lines += ["", f"#### `{section.heading}={kind}`", "", escape(_describe(struct)), ""]
        lines += _format_keys(fields, f"{section.key}.", tables) if fields else ["It has no keys."]
    return lines


def _format_keys(fields: Fields, prefix: str, tables: _Tables) -> list[str]:
    """A Markdown table with one row per key."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, values in fields.items():
        cells = (_format_type(values["type"], tables), _format_default(values), escape_cell(values["help"]))
        lines.append(f"| `{prefix}{name}` | {' | '.join(cells)} |")
    return lines


def _format_type(encoded: Any, tables: _Tables) -> str:
    """A type in words, with links to the tables it allows."""
    words = list(dict.fromkeys(_iter_type_words(encoded, tables)))
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def _iter_type_words(encoded: Any, tables: _Tables) -> Iterator[str]:
    match encoded:
        case "null":
            return
        case "bool":
            yield from ("`true`", "`false`")
        case str():
            yield TYPE_NAMES[encoded]
        case list():
            for member in encoded:
                yield from _iter_type_words(member, tables)
        case {"type": inner}:
            yield _format_type(inner, tables) + _format_limits(encoded)
        case {"struct": name}:
            yield tables.link(name)
        case {"literal": words}:
            yield from (f"`{word}`" for word in words)
        case {"list": item}:
            yield f"list of {_plural(_format_type(item, tables))}"
        case {"tuple": items}:
            yield f"pair of {_plural(_format_type(items[0], tables))}" if len(items) == 2 else "list"
        case {"dict": _}:
            yield "table"


def _plural(words: str) -> str:
    for name in ("integer", "number", "pair", "list"):
        if words == name or words.startswith(f"{name} "):
            return words.replace(name, f"{name}s", 1)
    return words


def _format_limits(encoded: dict[str, Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "&lt;"}
    limits = [f"{sign} {encoded[name]:,}" for name, sign in signs.items() if name in encoded and encoded[name] < NO_LIMIT]
    return f" {' and '.join(limits)}" if limits else ""


def _format_default(values: dict[str, Any]) -> str:
    if "default" not in values:
        return "**required**"
    default = values["default"]
    if default in ({}, []):
        return ""
    return code_cell(default["kind"] if isinstance(default, dict) and list(default) == ["kind"] else _format_value(default))


def _format_value(value: Any) -> str:
    """A value as one writes it on the command line."""
    return value if isinstance(value, str) else _format_toml(value)


def _format_toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_format_toml(item)}" for name, item in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _format_presets(struct: dict[str, Any], structs: dict[str, Any]) -> list[str]:
    """The presets of a model, by family: their sizes, and what else differs from the defaults."""
    lines = [
        "",
        "### Model presets",
        "",
        "`model=NAME` takes a preset, and `model.KEY=value` changes a key of it. The last column lists the other keys of "
        f"{link('model', 'model')} in which it differs from the defaults, those of BERT-base. A folder "
        "in the working directory that is named like a preset or a shipped model is what the name means; rename the folder to "
        "use the other.",
        "",
        f"| preset | {' | '.join(SIZE_KEYS.values())} | other settings |",
        "|---|" + "---:|" * len(SIZE_KEYS) + "---|",
    ]
    for _, names in groupby(struct["presets"], key=lambda name: name.partition("-")[0]):
        for name in names:
            differences = dict(_iter_differences(struct["presets"][name], struct, structs))
            sizes = [_preset_size(differences, key, struct, structs) for key in SIZE_KEYS]
            others = ", ".join(
                code_cell(f"{key}={_format_value(value)}") for key, value in differences.items() if key not in SIZE_KEYS
            )
            lines.append(f"| `{name}` | {' | '.join(sizes)} | {others} |")
    return lines


def _preset_size(differences: dict[str, Any], key: str, struct: dict[str, Any], structs: dict[str, Any]) -> str:
    """The value of a size: of the preset, or else the default; empty where the preset has no such part."""
    table, _, name = key.rpartition(".")
    fields = struct["fields"]
    if table:
        default = fields[table]["default"]
        kind = differences.get(table, default.get("kind"))
        members = {structs[member]["tag"]: structs[member]["fields"] for member in iter_structs(fields[table]["type"])}
        fields = members.get(kind, {})
    if name not in fields or differences.get(table, "") is None or (differences.get("num_hidden_layers") == 0 and table):
        return ""
    return f"{differences.get(key, fields[name]['default']):,}"


def _iter_differences(
    values: dict[str, Any], struct: dict[str, Any], structs: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values that differ from the defaults of the struct; another kind comes under the key of its table."""
    for name, value in values.items():
        if name not in struct["fields"] or value == struct["fields"][name].get("default"):
            continue
        members = {structs[member]["tag"]: structs[member] for member in iter_structs(struct["fields"][name]["type"])}
        if not isinstance(value, dict):
            yield prefix + name, value
            continue
        default, kind = struct["fields"][name].get("default"), value.get("kind")
        if kind and not (isinstance(default, dict) and default.get("kind") == kind):
            yield prefix + name, kind
        inner = list(_iter_differences(value, members[kind], structs, f"{prefix}{name}."))
        if inner or kind or isinstance(default, dict):
            yield from inner
        else:  # a table with its own defaults where there is none by default
            yield prefix + name, {key: item for key, item in value.items() if item is not None}


def _describe(struct: str) -> str:
    """The first paragraph of the docstring of a struct, or else of its module."""
    module, _, name = struct.rpartition(".")
    tree = _parse_struct_module(module)
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return " ".join((ast.get_docstring(node) or ast.get_docstring(tree) or "").partition("\n\n")[0].split())


@cache
def _parse_struct_module(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split("."))
    return parse_module(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
