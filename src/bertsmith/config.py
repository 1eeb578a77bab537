"""Recipes as values: trees of frozen msgspec structs, converted from dictionaries and written as JSON.

A struct derives from `Config`; alternatives of a union derive from `Variant` and are chosen by `kind`. `from_user`,
`from_dict` and `to_dict` convert; `iter_keys` lists the keys for `--help`; `recipes` reads TOML files and `key=value`. The
command line checks values against the structs of `schema.py` before it imports a stage, with the same functions.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from . import hub_names
from .errors import NOT_UTF8, UserError
from .synonyms import TASK_COMMANDS, find_key, find_kind

T = TypeVar("T")

# Numbers with bounds, checked when a recipe is read.
PosInt = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
NonNegInt = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
NumProcesses = Annotated[int, msgspec.Meta(ge=1, le=1024)]
NumWorkers = Annotated[int, msgspec.Meta(ge=0, le=1024)]  # 0 has a meaning of its own
NumLayers = Annotated[int, msgspec.Meta(ge=0, le=10_000)]  # each is built, one after another
NumMicroBatches = Annotated[int, msgspec.Meta(ge=1, le=2**20)]  # all of an update are fetched before it
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, lt=1)]
NonNegFloat = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PosFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
MaxLength = Annotated[int, msgspec.Meta(ge=8, le=2**31)]  # in tokens; less leaves no room for text between [CLS] and [SEP]


def to_kebab_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe: frozen, keyword-only, unknown keys are errors.

    The help text of a field is the string in its annotation, `Annotated[int, "number of layers"]`; `--help` prints it.
    """

    @classmethod
    def presets(cls) -> dict[str, Any]:
        """Values of this type that a recipe may give by name."""
        return {}

    def validate(self, user_values: dict[str, Any]) -> None:
        """Raise for settings that contradict each other; `user_values` holds only the keys that were set, without defaults."""


class Variant(Config, frozen=True, tag_field="kind", tag=to_kebab_case):
    """One alternative of a union; `kind` in a recipe is the class name in kebab case, unless the class sets another tag."""


class RecipeError(UserError):
    """A recipe has an unknown key or an invalid value."""


@dataclass(frozen=True)
class KeyHelp:
    """One line of `--help`: dotted key, accepted type or values, default, description."""

    name: str
    type_name: str
    default: str
    description: str


def from_user(config_type: type[T], values: Any, source: str = "") -> T:
    """`from_dict` for values that a user set, followed by `Config.validate` with these values."""
    values = expand_shorthand(config_type, values)
    config = from_dict(config_type, values, source)
    if isinstance(config, Config):
        config.validate(values)
    return config


def from_dict(config_type: type[T], values: Any, source: str = "") -> T:
    """Convert dictionaries, lists and scalars to a config; an error names the key and suggests the closest valid one.

    `source`: where the values come from (a file, a function), named in errors; empty for the command line.
    """
    values = expand_shorthand(config_type, values)
    try:
        return msgspec.convert(values, config_type)
    except msgspec.ValidationError as error:
        message = _explain_error(config_type, values, str(error))
        raise RecipeError(f"{source}: {message}" if source else message) from None
    except UnicodeEncodeError as error:  # a word that is compared with choices
        raise RecipeError(f"{error.object[:200]!a} {NOT_UTF8}") from None


def to_dict(config: object) -> Any:
    """A config as dictionaries, lists and scalars that JSON can represent."""
    return msgspec.to_builtins(config)


def iter_keys(config_type: Any, prefix: str = "") -> Iterator[KeyHelp]:
    """Every key of a recipe, depth first; keys of a union are listed for each kind as `key[kind].`"""
    members = list(struct_types(config_type))
    if len(members) > 1:
        yield KeyHelp(f"{prefix}kind", format_type(config_type), "required", "which of these")
        for member in members:
            yield from iter_keys(member, f"{prefix}[{member.__struct_config__.tag}].")
        return
    hints = get_type_hints(members[0], include_extras=True)
    for field in msgspec.structs.fields(members[0]):
        annotation, description = split_annotated(hints[field.name])
        name, nested = prefix + field.name, list(struct_types(annotation))
        yield KeyHelp(
            name,
            format_type(annotation),
            "required" if field.required else _format_default(field_default(field), nested),
            description,
        )
        for member in nested:
            yield from iter_keys(member, f"{name}[{member.__struct_config__.tag}]." if len(nested) > 1 else f"{name}.")


def expand_shorthand(annotation: Any, value: Any, default: Any = None) -> Any:
    """Expand short forms: a preset's name, a variant's bare kind (missing: the default's), a scalar for a list of one."""
    members, parts = list(struct_types(annotation)), union_members(annotation)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and str in parts and os.path.exists(value):
        return value  # of a folder and a preset of the same name, the folder, as for shipped models
    if isinstance(value, str) and value in (presets := {n: p for m in members for n, p in m.presets().items()}):  # type: ignore[attr-defined]
        return to_dict(presets[value])
    if value == "none" and is_optional(annotation) and str not in parts and value not in list_choices(annotation):
        return None  # TOML has no null
    tags = [member.__struct_config__.tag for member in members if member.__struct_config__.tag]
    if isinstance(value, str) and (value in tags if str in parts else tags):
        return {"kind": value}
    if isinstance(value, dict) and members:
        if isinstance(default, Variant) and "kind" not in value:
            value = {"kind": default.__struct_config__.tag, **value}
        fields = struct_fields(annotation, value)
        return {
            n: expand_shorthand(fields[n].type, v, field_default(fields[n])) if n in fields else v for n, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [expand_shorthand(Any, item) for item in value]
    is_scalar = isinstance(value, str | int | float) and type(value) not in parts and value not in list_choices(annotation)
    return [value] if is_scalar and any(is_list(part) for part in parts) else value


def _explain_error(config_type: Any, values: Any, message: str) -> str:
    """msgspec's message rewritten with the dotted key, the value and the closest valid name."""
    problem, _, location = message.partition(" - at ")
    key_path = location.strip("`").removeprefix("$").removeprefix(".")
    path = re.findall(r"[^.\[\]]+", key_path)
    annotation, value = _lookup(config_type, values, path)
    if match := re.search(r"(unknown|missing required) field `(.*)`", problem):
        dotted = ".".join([*path, match[2]])
        explain = _explain_unknown if match[1] == "unknown" else _explain_missing
        return explain(config_type, values, dotted)
    if problem.startswith("Invalid value"):  # of `kind`: report the table instead
        key_path, annotation = ".".join(path[:-1]) or "kind", _lookup(config_type, values, path[:-1])[0]
    elif not problem.startswith(("Expected", "Invalid")):  # raised by the struct itself
        return f"{key_path}: {problem}" if key_path else problem
    choices = list_choices(annotation) if isinstance(value, str) else []
    key = key_path or "the recipe"
    if choices:
        is_hub_name = (preset := hub_names.find_preset(value)) in choices and hub_names.find_repo_id(value) is not None
        hint = suggest(value, choices)
        if is_hub_name:  # an architecture to be trained was expected; pre-trained weights are given as `init`
            hint = f"did you mean {preset!r}? For its weights, {hub_names.import_hint(value, 'init')}"
        return f"{key} = {value!r} is not valid; {hint}"
    given = f", not {value!r}" if isinstance(value, str | int | float) else ""
    if limit := _explain_limit(problem):
        return f"{key} {limit}{given}"
    example = _format_example(config_type, values, path)
    return f"{key} takes {describe_type(annotation)}{given}" + (f"; for example {example}" if example else "")


def _explain_unknown(config_type: Any, values: Any, dotted_key: str) -> str:
    table, _, name = dotted_key.rpartition(".")
    fields = sorted(struct_fields(*_lookup(config_type, values, re.findall(r"[^.\[\]]+", table))))
    key = (
        _find_synonym(config_type, dotted_key, fields)
        or _find_in_other_table(config_type, values, dotted_key)
        or next((f"{table}.{match}".strip(".") for match in get_close_matches(name, fields, n=1, cutoff=0.5)), None)
    )
    if key:
        return f"unknown key {dotted_key!r}; did you mean {key!r}?"
    return f"unknown key {dotted_key!r}; " + (f"keys of {table}: " if table else "keys: ") + (", ".join(fields) or "none")


def _explain_missing(config_type: Any, values: Any, dotted_key: str) -> str:
    table, _, name = dotted_key.rpartition(".")
    annotation, value = _lookup(config_type, values, re.findall(r"[^.\[\]]+", table))
    field = struct_fields(annotation, value).get(name)
    choices = list_choices(field.type if field else annotation)
    meaning = _description(annotation, value, name)
    return f"{dotted_key} is required" + (f": {meaning}" if meaning else f"; one of: {', '.join(choices)}" if choices else "")


def _description(annotation: Any, values: Any, name: str) -> str:
    """The help text of a key."""
    for member in struct_types(annotation):
        hints = get_type_hints(member, include_extras=True)
        if name in hints and name in struct_fields(annotation, values):
            return split_annotated(hints[name])[1]
    return ""


def _format_example(config_type: Any, values: Any, path: list[str]) -> str:
    """A valid setting for a key with a value of the wrong type, as typed: `data.train=d.tsv`; empty if there is none."""
    if not path or any(name.isdigit() for name in path):
        return ""
    (table, table_values), (annotation, value) = (_lookup(config_type, values, part) for part in (path[:-1], path))
    key = ".".join(path)
    if struct := next(struct_types(annotation), None):
        fields = msgspec.structs.fields(struct)
        field = next((field for field in fields if field.required), fields[0])
        takes_value = isinstance(value, str) and str in union_members(field.type)
        return f"{key}.{field.name}={value if takes_value else '...'}"
    if isinstance(value, str) and (number := re.fullmatch(r"([0-9.]+)([kKmM])", value)):  # 10k
        return f"{key}={float(number[1]) * {'k': 1e3, 'm': 1e6}[number[2].lower()]:.0f}"
    default = (
        field_default(struct_fields(table, table_values)[path[-1]]) if path[-1] in struct_fields(table, table_values) else None
    )
    return f"{key}={_format_default(default)}" if default not in (None, "", ()) else ""


LIMIT_WORDS = {">=": "must be at least", ">": "must be greater than", "<=": "must be at most", "<": "must be less than"}


def _explain_limit(problem: str) -> str:
    """`Expected `int` >= 1` -> `must be at least 1`; empty for other problems."""
    if match := re.fullmatch(r"Expected `(?:int|float)[^`]*` ([<>]=?) (\S+)", problem):
        return f"{LIMIT_WORDS[match[1]]} {match[2].removesuffix('.0')}"
    if match := re.fullmatch(r"Expected `array` of length (\d+), got (\d+)", problem):
        return f"takes {match[1]} values, not {match[2]}"
    if re.fullmatch(r"Expected `\w+` of length >= 1", problem):
        return "must not be empty"
    if match := re.fullmatch(r"Expected `str` matching regex '(.*)'", problem):
        return f"must match the pattern {match[1]}"
    return ""


def _find_synonym(config_type: Any, dotted_key: str, fields: Collection[str]) -> str | None:
    """Our key for another library's name of it: `num_train_epochs` -> `train.epochs`. `fields`: of its table."""
    key = find_key(dotted_key, {re.sub(r"\[.*?\]", "", key.name) for key in iter_keys(config_type)})
    table, _, field = (key or "").partition("=")[0].rpartition(".")
    if key is None or (table == dotted_key.rpartition(".")[0] and field not in fields):
        return None  # none, or one of another kind
    return key


def _find_in_other_table(config_type: Any, values: Any, dotted_key: str) -> str | None:
    """A key of the same name in another table: `steps` -> `train.steps`."""
    keys, name = list(iter_keys(config_type)), dotted_key.rpartition(".")[2]
    # of a union, only keys of the kind that is set are suggested, or else of the default kind
    kinds = {key.name: key.default for key in keys} | dict(_set_kinds(values))
    kind_prefixes = {f"{key}[{kind}]" for key, kind in kinds.items()}
    matches = [key.name for key in keys if key.name.endswith(f".{name}")]
    if dotted_key in (re.sub(r"\[.*?\]", "", key) for key in matches):
        return None  # the key exists for another kind of its own table
    matches = [key for key in matches if all(key[: end.end()] in kind_prefixes for end in re.finditer(r"\]", key))]
    candidates = [re.sub(r"\[.*?\]", "", key) for key in matches]
    return min(candidates, key=lambda key: key.count("."), default=None)


def _set_kinds(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, kind) of every table with a kind in these values, keys as `iter_keys` writes them."""
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict):
            kind = value.get("kind")
            if kind is not None:
                yield f"{prefix}{name}", kind
            yield from _set_kinds(value, f"{prefix}{name}[{kind}]." if kind is not None else f"{prefix}{name}.")


def _lookup(annotation: Any, value: Any, path: list[str]) -> tuple[Any, Any]:
    """Type annotation and value at a path of keys and list indices."""
    for name in path:
        if isinstance(value, list):
            element = next((get_args(part)[0] for part in union_members(annotation) if is_list(part)), Any)
            annotation, value = element, value[int(name)]
        else:
            field = struct_fields(annotation, value).get(name)
            annotation, value = field.type if field else Any, value.get(name) if isinstance(value, dict) else None
    return annotation, value


def list_choices(annotation: Any) -> list[str]:
    """Valid words for a field: its literals, the kinds of its union, its presets."""
    literals = [str(word) for part in union_members(annotation) if get_origin(part) is Literal for word in get_args(part)]
    tags = [str(m.__struct_config__.tag) for m in struct_types(annotation) if m.__struct_config__.tag]
    return literals + tags + [name for m in struct_types(annotation) for name in m.presets()]  # type: ignore[attr-defined]


def suggest(word: Any, choices: list[str]) -> str:
    """The end of an error message: the valid word that a user may have meant, or all of them."""
    synonym = find_kind(str(word), choices)
    if not synonym and (command := TASK_COMMANDS.get(str(word).lower())) and "classify" in choices:
        return f"it needs no fine-tuning: run `{command}`; tasks: {', '.join(choices)}"
    matches = [synonym] if synonym else get_close_matches(str(word), choices, n=1, cutoff=0.5)
    return f"did you mean {matches[0]!r}?" if matches else f"choose from {', '.join(choices)}"


def union_members(annotation: Any) -> list[Any]:
    """The members of a union without None, or the type itself as the only member; without limits and help texts."""
    annotation, _ = split_annotated(annotation)
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [split_annotated(member)[0] for member in members if member is not NoneType]


def is_optional(annotation: Any) -> bool:
    return NoneType in get_args(split_annotated(annotation)[0])


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple)


def is_table(annotation: Any) -> bool:
    return dict in (annotation, get_origin(annotation)) or (
        isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    )


def struct_types(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    for member in union_members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            yield member


def struct_fields(annotation: Any, values: Any) -> dict[str, Any]:
    """The fields of a struct, or of the member of a union that `values` chooses."""
    members = list(struct_types(annotation))
    chosen = [m for m in members if isinstance(values, dict) and m.__struct_config__.tag == values.get("kind")]
    return {field.name: field for member in (chosen or members[:1]) for field in msgspec.structs.fields(member)}


def field_default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def split_annotated(annotation: Any) -> tuple[Any, str]:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return inner, next((item for item in metadata if isinstance(item, str)), "")
    return annotation, ""


def format_type(annotation: Any) -> str:
    annotation, _ = split_annotated(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(str(word) for word in get_args(annotation))
    if len(parts := union_members(annotation)) > 1 or parts[0] is not annotation:
        return " | ".join(map(format_type, parts))
    if is_list(annotation):
        return f"list of {format_type(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        preset_names = " | ".join(annotation.presets()) if issubclass(annotation, Config) else ""
        return str(annotation.__struct_config__.tag or preset_names or "table")
    if dict in (annotation, get_origin(annotation)):
        return "table"
    return {str: "text", int: "number", float: "number", bool: "true | false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def describe_type(annotation: Any) -> str:
    """The accepted type or values in a sentence: `a whole number`, `true or false`, `a list of text`."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "any value"}
    words = []
    for member in union_members(annotation):
        if is_list(member):
            item = describe_type(get_args(member)[0]).removeprefix("a ")
            words.append(f"a list of {item}" + "s" * item.endswith(("number", "table")))
        elif is_table(member):
            words.append("a table")
        else:
            words.append(names.get(member) or format_type(member))
    return " or ".join(dict.fromkeys(words))


def non_default_values(value: Any) -> Any:
    """A default as plain values; for a struct, its kind and the fields that differ from that kind's defaults."""
    if not isinstance(value, msgspec.Struct):
        return to_dict(value)
    kind = {"kind": value.__struct_config__.tag} if value.__struct_config__.tag else {}
    fields = {field.name: field_default(field) for field in msgspec.structs.fields(value)}
    return kind | {name: to_dict(getattr(value, name)) for name, default in fields.items() if getattr(value, name) != default}


def _format_struct(struct: msgspec.Struct) -> str:
    values = non_default_values(struct)
    if len(values) == 1:
        return str(values["kind"])
    return "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + "}"


def _format_default(default: Any, members: Iterable[type] = ()) -> str:
    """A default as a user would type it: a preset's name, a kind, or TOML."""
    if isinstance(default, msgspec.Struct):
        presets = {name: value for m in members if issubclass(m, Config) for name, value in m.presets().items()}
        preset_names = [name for name, value in presets.items() if value == default]
        return str(preset_names[0] if preset_names else _format_struct(default) if default.__struct_config__.tag else "")
    if isinstance(default, list | tuple):
        items = (json.dumps(item, ensure_ascii=False) if isinstance(item, str) else _format_default(item) for item in default)
        return f"[{', '.join(items)}]"
    if isinstance(default, float):
        return _format_float(default)
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _format_float(value: float) -> str:
    """The shortest form that reads as the same number: 0.1, 5e-5, 1e15."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    scientific = f"{float(mantissa):g}e{int(exponent)}"
    return min(repr(value), scientific, key=len) if float(scientific) == value else repr(value)
