"""Recipes: trees of frozen msgspec structs, read from TOML with `key=value` overrides, written as JSON.

A struct derives from `Config`; alternatives of a union derive from `Variant` and are chosen by `kind`. `read_recipe`,
`from_user`, `from_dict` and `to_dict` convert; `iter_keys` lists the keys for `--help`. The command line reads and checks
values against the structs of `schema.py` before it imports a stage, with the same functions.
"""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .errors import UserError
from .synonyms import find_key, find_kind

T = TypeVar("T")

# Numbers with bounds, checked when a recipe is read.
PosInt = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
NonNegInt = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, lt=1)]
NonNegFloat = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PosFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


def to_kebab_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe: frozen, keyword-only, unknown keys are errors.

    The help text of a field is the string in its annotation, `Annotated[int, "number of layers"]`; `--help` prints it.
    """

    presets: ClassVar[dict[str, Any]] = {}  # values of this type that a recipe may give by name

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


def read_recipe(config_type: type[T], path: Path | None = None, overrides: Iterable[str] = ()) -> T:
    """Read and convert a recipe: a TOML file, then overrides."""
    return from_user(config_type, *read_values(config_type, path, overrides))


def read_values(config_type: Any, path: Path | None = None, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """The values of a recipe before conversion, and their source for error messages.

    `overrides` are dotted assignments such as `train.steps=4` or `model=bert-mini`. Tables are assigned before their keys,
    whatever the order given: `model.num_hidden_layers=4 model=bert-mini` has four layers.
    """
    values, overrides = _expand_shorthand(config_type, _read_toml(path) if path else {}), list(overrides)
    for names, literal in sorted(
        map(_parse_override, overrides), key=lambda override: len(override[0]) - (override[0][-1] == "kind")
    ):
        _assign(config_type, values, names, literal)
    sources = [str(path)] * (path is not None) + ["the command line"] * (path is None or bool(overrides))
    return values, " and ".join(sources)


def from_user(config_type: type[T], values: Any, source: str = "recipe") -> T:
    """`from_dict` for values that a user set, followed by `Config.validate` with these values."""
    values = _expand_shorthand(config_type, values)
    config = from_dict(config_type, values, source)
    if isinstance(config, Config):
        config.validate(values)
    return config


def from_dict(config_type: type[T], values: Any, source: str = "recipe") -> T:
    """Convert dictionaries, lists and scalars to a config; an error names the key and suggests the closest valid one."""
    values = _expand_shorthand(config_type, values)
    try:
        return msgspec.convert(values, config_type)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{source}: {_explain_error(config_type, values, str(error))}") from None


def to_dict(config: object) -> Any:
    """A config as dictionaries, lists and scalars that JSON can represent."""
    return msgspec.to_builtins(config)


def iter_keys(config_type: Any, prefix: str = "") -> Iterator[KeyHelp]:
    """Every key of a recipe, depth first; keys of a union are listed for each kind as `key[kind].`"""
    members = list(struct_types(config_type))
    if len(members) > 1:
        yield KeyHelp(f"{prefix}kind", _format_type(config_type), "required", "which of these")
        for member in members:
            yield from iter_keys(member, f"{prefix}[{member.__struct_config__.tag}].")
        return
    hints = get_type_hints(members[0], include_extras=True)
    for field in msgspec.structs.fields(members[0]):
        annotation, description = split_annotated(hints[field.name])
        name, nested = prefix + field.name, list(struct_types(annotation))
        yield KeyHelp(
            name,
            _format_type(annotation),
            "required" if field.required else _format_default(field_default(field), nested),
            description,
        )
        for member in nested:
            yield from iter_keys(member, f"{name}[{member.__struct_config__.tag}]." if len(nested) > 1 else f"{name}.")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with or without a byte order mark
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}; a recipe is a TOML file, a setting is key=value") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None


def _parse_override(override: str) -> tuple[list[str], str]:
    dotted, equals, literal = override.partition("=")
    names = [name.strip() for name in dotted.split(".")]
    if not equals or not all(names):
        raise RecipeError(f"{override!r} is not key=value; write for example `train.steps=1000`")
    return names, literal.strip()


def _parse_literal(literal: str, annotation: Any) -> Any:
    """A TOML value; a bare word is a string (`model.norm=pre`), and so is a number where only text is valid (`out=2024`)."""
    try:
        parsed = tomllib.loads(f"x = {literal}")
    except tomllib.TOMLDecodeError as error:
        if literal[:1] + literal[-1:] in ("[]", "{}", '""', "''"):
            raise RecipeError(f'{literal} is not TOML: {error}; words inside brackets want quotes: \'["a", "b"]\'') from None
        return literal
    value = parsed["x"]
    if len(parsed) > 1 or (not isinstance(value, str | list | dict) and all(map(_is_text, _union_members(annotation)))):
        return literal
    return value


def _assign(annotation: Any, values: dict[str, Any], names: list[str], literal: str, prefix: str = "") -> None:
    """Set a dotted key in place. A missing table starts from its default; a new `kind` drops the keys of the old one."""
    name, *rest = names
    field = _struct_fields(annotation, values).get(name)
    inner = field.type if field else Any
    if not rest:
        value = _parse_literal(literal, inner)
        if name == "kind" and field is None and values.get("kind", value) != value:
            values.clear()
        values[name] = value
        return
    if field and values.get(name) is None:
        default, members = non_default_values(field_default(field)), _union_members(inner)
        is_choice = isinstance(default, bool) or (isinstance(default, str) and str not in members)  # not a table
        values[name] = {} if is_choice and any(map(_is_table, members)) else default or {}
    table = _expand_shorthand(inner, values.setdefault(name, {}))
    if not isinstance(table, dict) or not (inner is Any or any(map(_is_table, _union_members(inner)))):
        raise RecipeError(f"{prefix}{name} takes {_format_type(inner)}: there is no {rest[0]!r} inside")
    values[name] = table
    _assign(inner, table, rest, literal, f"{prefix}{name}.")


def _expand_shorthand(annotation: Any, value: Any, default: Any = None) -> Any:
    """Expand short forms: a preset's name, a variant's bare kind (missing: the default's), a scalar for a list of one."""
    members, parts = list(struct_types(annotation)), _union_members(annotation)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value in (presets := {n: p for m in members for n, p in m.presets.items()}):  # type: ignore[attr-defined]
        return to_dict(presets[value])
    if value == "none" and _is_optional(annotation) and str not in parts and value not in _list_choices(annotation):
        return None  # TOML has no null
    if isinstance(value, str) and str not in parts and any(member.__struct_config__.tag for member in members):
        return {"kind": value}
    if isinstance(value, dict) and members:
        if isinstance(default, Variant) and "kind" not in value:
            value = {"kind": default.__struct_config__.tag, **value}
        fields = _struct_fields(annotation, value)
        return {
            n: _expand_shorthand(fields[n].type, v, field_default(fields[n])) if n in fields else v for n, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_expand_shorthand(Any, item) for item in value]
    is_scalar = isinstance(value, str | int | float) and type(value) not in parts
    return [value] if is_scalar and any(get_origin(part) in (list, tuple) for part in parts) else value


def _explain_error(config_type: Any, values: Any, message: str) -> str:
    """msgspec's message rewritten with the dotted key, the value and the closest valid name."""
    problem, _, location = message.partition(" - at ")
    key_path = location.strip("`").removeprefix("$").removeprefix(".")
    path = re.findall(r"[^.\[\]]+", key_path)
    annotation, value = _lookup(config_type, values, path)
    if match := re.search(r"(unknown|missing required) field `(.*)`", problem):
        dotted = ".".join([*path, match[2]])
        if match[1] == "unknown":
            fields = sorted(_struct_fields(annotation, value))
            suggestion = (
                _suggest_synonym(config_type, dotted, fields)
                or _suggest_other_table(config_type, dotted)
                or suggest(match[2], fields)
            )
            return f"{dotted} is not known; {suggestion}"
        known = _list_choices(_lookup(config_type, values, [*path, match[2]])[0]) or (
            _list_choices(annotation) if match[2] == "kind" else []
        )
        return f"{dotted} is missing" + (f"; known: {', '.join(known)}" if known else " and has no default")
    if problem.startswith("Invalid value"):  # of `kind`: report the table instead
        key_path, annotation = ".".join(path[:-1]) or "kind", _lookup(config_type, values, path[:-1])[0]
    subject = f"{key_path or 'the recipe'}" + (f" = {value!r}" if isinstance(value, str | int | float) else "")
    known = _list_choices(annotation) if isinstance(value, str) else []
    return f"{subject} is not known; {suggest(value, known)}" if known else f"{subject}: {problem[0].lower()}{problem[1:]}"


def _suggest_synonym(config_type: Any, dotted_key: str, fields: Collection[str]) -> str | None:
    """Suggest our key for another library's name of it: `num_train_epochs` -> `train.epochs`. `fields`: of its table."""
    key = find_key(dotted_key, {re.sub(r"\[.*?\]", "", key.name) for key in iter_keys(config_type)})
    if key is None or (key.rpartition(".")[0] == dotted_key.rpartition(".")[0] and key.rpartition(".")[2] not in fields):
        return None  # none, or one of another kind
    return f"did you mean {key!r}?"


def _suggest_other_table(config_type: Any, dotted_key: str) -> str | None:
    """Suggest a key of the same name in another table: `steps` -> `train.steps`."""
    keys, name = list(iter_keys(config_type)), dotted_key.rpartition(".")[2]
    default_kinds = {f"{key.name}[{key.default}]" for key in keys}  # of a union, only keys of the default kind are suggested
    matches = [key.name for key in keys if key.name.endswith(f".{name}")]
    matches = [key for key in matches if all(key[: end.end()] in default_kinds for end in re.finditer(r"\]", key))]
    candidates = [re.sub(r"\[.*?\]", "", key) for key in matches]
    candidates = [key for key in candidates if key != dotted_key]  # the key exists for another kind
    return f"did you mean {min(candidates, key=lambda key: key.count('.'))!r}?" if candidates else None


def _lookup(annotation: Any, value: Any, path: list[str]) -> tuple[Any, Any]:
    """Type annotation and value at a path of keys and list indices."""
    for name in path:
        if isinstance(value, list):
            element = next((get_args(part)[0] for part in _union_members(annotation) if get_origin(part) in (list, tuple)), Any)
            annotation, value = element, value[int(name)]
        else:
            field = _struct_fields(annotation, value).get(name)
            annotation, value = field.type if field else Any, value.get(name) if isinstance(value, dict) else None
    return annotation, value


def _list_choices(annotation: Any) -> list[str]:
    """Valid words for a field: its literals, the kinds of its union, its presets."""
    literals = [str(word) for part in _union_members(annotation) if get_origin(part) is Literal for word in get_args(part)]
    tags = [str(m.__struct_config__.tag) for m in struct_types(annotation) if m.__struct_config__.tag]
    return literals + tags + [name for m in struct_types(annotation) for name in m.presets]  # type: ignore[attr-defined]


def suggest(word: Any, choices: list[str]) -> str:
    synonym = find_kind(str(word), choices)
    matches = [synonym] if synonym else get_close_matches(str(word), choices, n=1, cutoff=0.5)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(choices) or 'none, it has no keys'}"


def _union_members(annotation: Any) -> list[Any]:
    """The members of a union without None, or the type itself as the only member."""
    annotation, _ = split_annotated(annotation)
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [member for member in members if member is not NoneType]


def _is_optional(annotation: Any) -> bool:
    return NoneType in get_args(split_annotated(annotation)[0])


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) in (list, tuple):
        return _is_text(get_args(annotation)[0])
    return annotation is str or (
        get_origin(annotation) is Literal and all(isinstance(word, str) for word in get_args(annotation))
    )


def _is_table(annotation: Any) -> bool:
    return dict in (annotation, get_origin(annotation)) or (
        isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    )


def struct_types(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    for member in _union_members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            yield member


def _struct_fields(annotation: Any, values: Any) -> dict[str, Any]:
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


def _format_type(annotation: Any) -> str:
    annotation, _ = split_annotated(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(str(word) for word in get_args(annotation))
    if len(parts := _union_members(annotation)) > 1 or parts[0] is not annotation:
        return " | ".join(map(_format_type, parts))
    if get_origin(annotation) in (list, tuple):
        return f"list of {_format_type(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        preset_names = " | ".join(annotation.presets) if issubclass(annotation, Config) else ""
        return str(annotation.__struct_config__.tag or preset_names or "table")
    if dict in (annotation, get_origin(annotation)):
        return "table"
    return {str: "text", int: "number", float: "number", bool: "true | false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


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
        preset_names = [name for m in members for name, value in getattr(m, "presets", {}).items() if value == default]
        return str(preset_names[0] if preset_names else _format_struct(default) if default.__struct_config__.tag else "")
    if isinstance(default, list | tuple):
        items = (json.dumps(item, ensure_ascii=False) if isinstance(item, str) else _format_default(item) for item in default)
        return f"[{', '.join(items)}]"
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
