"""Recipes: a tree of frozen structs, read from TOML, reached by dotted names, written to JSON."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .errors import UserError

T = TypeVar("T")

# Numbers with limits; a recipe that leaves them is refused by name.
PosInt = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
NonNegInt = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, lt=1)]
NonNegFloat = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PosFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


def to_kebab_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a recipe: frozen, by keyword only, and strict about unknown keys.

    A field says what it means as `Annotated[int, "layers, one above another"]`; `--help` reads it there.
    """

    presets: ClassVar[dict[str, Any]] = {}  # whole values a recipe may name by one word

    def validate(self, user_values: dict[str, Any]) -> None:
        """Refuses what contradicts itself; `said` is what somebody typed, without what is there if nothing is said."""


class Variant(Config, frozen=True, tag_field="kind", tag=to_kebab_case):
    """One member of a union, named in a recipe by its class: `kind = "long-short"` is `LongShort`."""


class RecipeError(UserError):
    """A recipe names something that does not exist, or gives it a value it cannot take."""


@dataclass(frozen=True)
class KeyHelp:
    """One line of `--help`: a dotted name, what it takes, what it is if left out, and what it means."""

    name: str
    type_name: str
    default: str
    description: str


def read_recipe(config_type: type[T], path: Path | None = None, overrides: Iterable[str] = ()) -> T:
    """Read a recipe; `overrides` are dotted assignments such as `train.steps=4` or `model=bert-mini`.

    Whatever their order, a whole is said before its parts: `model.layers=4 model=bert-mini` has four layers.
    """
    values, overrides = _expand_shorthand(config_type, _read_toml(path) if path else {}), list(overrides)
    for names, literal in sorted(map(_parse_override, overrides), key=lambda one: len(one[0]) - (one[0][-1] == "kind")):
        _assign(config_type, values, names, literal)
    sources = [str(path)] * (path is not None) + ["the command line"] * (path is None or bool(overrides))
    return from_user(config_type, values, " and ".join(sources))


def from_user(config_type: type[T], values: Any, source: str = "recipe") -> T:
    """What somebody says, as `parse` reads it; the recipe hears what was said, and what was not."""
    values = _expand_shorthand(config_type, values)
    found = from_dict(config_type, values, source)
    if isinstance(found, Config):
        found.validate(values)
    return found


def from_dict(config_type: type[T], values: Any, source: str = "recipe") -> T:
    """Plain values to a recipe, or an error that names the key and the nearest right one."""
    values = _expand_shorthand(config_type, values)
    try:
        return msgspec.convert(values, config_type)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{source}: {_explain_error(config_type, values, str(error))}") from None


def to_dict(config: object) -> Any:
    """A recipe as dictionaries, lists, numbers and words: what JSON holds."""
    return msgspec.to_builtins(config)


def iter_keys(config_type: Any, prefix: str = "") -> Iterator[KeyHelp]:
    """Every key of a recipe with its default and meaning; unions are listed by their kinds."""
    members = list(_struct_types(config_type))
    if len(members) > 1:
        yield KeyHelp(f"{prefix}kind", _format_type(config_type), "required", "which of these")
        for member in members:
            yield from iter_keys(member, f"{prefix}[{member.__struct_config__.tag}].")
        return
    hints = get_type_hints(members[0], include_extras=True)
    for field in msgspec.structs.fields(members[0]):
        takes, meaning = _split_annotated(hints[field.name])
        name, inside = prefix + field.name, list(_struct_types(takes))
        yield KeyHelp(
            name, _format_type(takes), "required" if field.required else _format_default(_field_default(field), inside), meaning
        )
        for member in inside:
            yield from iter_keys(member, f"{name}[{member.__struct_config__.tag}]." if len(inside) > 1 else f"{name}.")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with or without Windows' mark
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
    """TOML, or a bare word as it stands: `model.norm=before`; so does a number, where only text is taken: `out=2024`."""
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
    """A table the recipe left out begins as its default; another `kind` begins as that kind's defaults."""
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
        default = _non_default_values(_field_default(field))
        values[name] = {} if isinstance(default, bool) and any(map(_is_table, _union_members(inner))) else default or {}
    table = _expand_shorthand(inner, values.setdefault(name, {}))
    if not isinstance(table, dict) or not (inner is Any or any(map(_is_table, _union_members(inner)))):
        raise RecipeError(f"{prefix}{name} takes {_format_type(inner)}: there is no {rest[0]!r} inside")
    values[name] = table
    _assign(inner, table, rest, literal, f"{prefix}{name}.")


def _expand_shorthand(annotation: Any, value: Any, default: Any = None) -> Any:
    """Short forms written out: a preset's name, a variant's kind (or none, for the default's), one thing for a list of one."""
    members, parts = list(_struct_types(annotation)), _union_members(annotation)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and value in (presets := {n: p for m in members for n, p in m.presets.items()}):  # type: ignore[attr-defined]
        return to_dict(presets[value])
    if (
        value == "none" and _is_optional(annotation) and str not in parts and value not in _list_choices(annotation)
    ):  # TOML has no word for nothing
        return None
    if isinstance(value, str) and str not in parts and any(member.__struct_config__.tag for member in members):
        return {"kind": value}
    if isinstance(value, dict) and members:
        if isinstance(default, Variant) and "kind" not in value:
            value = {"kind": default.__struct_config__.tag, **value}
        fields = _struct_fields(annotation, value)
        return {
            n: _expand_shorthand(fields[n].type, v, _field_default(fields[n])) if n in fields else v for n, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_expand_shorthand(Any, one) for one in value]
    alone = isinstance(value, str | int | float) and type(value) not in parts
    return [value] if alone and any(get_origin(part) in (list, tuple) for part in parts) else value


def _explain_error(config_type: Any, values: Any, message: str) -> str:
    """msgspec's message in our words: the dotted place, the value, and the nearest right name."""
    what, _, at = message.partition(" - at ")
    place = at.strip("`").removeprefix("$").removeprefix(".")
    path = re.findall(r"[^.\[\]]+", place)
    here, value = _lookup(config_type, values, path)
    if named := re.search(r"(unknown|missing required) field `(.*)`", what):
        dotted = ".".join([*path, named[2]])
        if named[1] == "unknown":
            other = _suggest_other_table(config_type, dotted) or _suggest(named[2], sorted(_struct_fields(here, value)))
            return f"{dotted} is not known; {other}"
        known = _list_choices(_lookup(config_type, values, [*path, named[2]])[0]) or (
            _list_choices(here) if named[2] == "kind" else []
        )
        return f"{dotted} is missing" + (f"; known: {', '.join(known)}" if known else " and has no default")
    if what.startswith("Invalid value"):  # of `kind`: the word stands for its table
        place, here = ".".join(path[:-1]) or "kind", _lookup(config_type, values, path[:-1])[0]
    told = f"{place or 'the recipe'}" + (f" = {value!r}" if isinstance(value, str | int | float) else "")
    known = _list_choices(here) if isinstance(value, str) else []
    return f"{told} is not known; {_suggest(value, known)}" if known else f"{told}: {what[0].lower()}{what[1:]}"


def _suggest_other_table(config_type: Any, dotted_key: str) -> str | None:
    """For a key of another table: `steps`, where `train.steps` is meant."""
    every, name = list(iter_keys(config_type)), dotted_key.rpartition(".")[2]
    usual = {f"{key.name}[{key.default}]" for key in every}  # of several kinds, the one that is there anyway
    named = [key.name for key in every if key.name.endswith(f".{name}")]
    found = [re.sub(r"\[.*?\]", "", one) for one in named if all(one[: end.end()] in usual for end in re.finditer(r"\]", one))]
    found = [one for one in found if one != dotted_key]  # it is there for another kind
    return f"did you mean {min(found, key=lambda one: one.count('.'))!r}?" if found else None


def _lookup(annotation: Any, value: Any, path: list[str]) -> tuple[Any, Any]:
    """What is taken at a place, and what stands there."""
    for name in path:
        if isinstance(value, list):
            element = next((get_args(part)[0] for part in _union_members(annotation) if get_origin(part) in (list, tuple)), Any)
            annotation, value = element, value[int(name)]
        else:
            field = _struct_fields(annotation, value).get(name)
            annotation, value = field.type if field else Any, value.get(name) if isinstance(value, dict) else None
    return annotation, value


def _list_choices(annotation: Any) -> list[str]:
    """The words a field knows: those it lists, the kinds of its union, its presets."""
    listed = [str(word) for part in _union_members(annotation) if get_origin(part) is Literal for word in get_args(part)]
    tags = [str(m.__struct_config__.tag) for m in _struct_types(annotation) if m.__struct_config__.tag]
    return listed + tags + [name for m in _struct_types(annotation) for name in m.presets]  # type: ignore[attr-defined]


def _suggest(word: Any, choices: list[str]) -> str:
    near = get_close_matches(str(word), choices, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices) or 'none, it has no keys'}"


def _union_members(annotation: Any) -> list[Any]:
    """The members of a union, or the one type there is; never None."""
    annotation, _ = _split_annotated(annotation)
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [member for member in members if member is not NoneType]


def _is_optional(annotation: Any) -> bool:
    return NoneType in get_args(_split_annotated(annotation)[0])


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


def _struct_types(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    for member in _union_members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            yield member


def _struct_fields(annotation: Any, values: Any) -> dict[str, Any]:
    """The fields of a struct, or of the member of a union that `values` chooses."""
    members = list(_struct_types(annotation))
    chosen = [m for m in members if isinstance(values, dict) and m.__struct_config__.tag == values.get("kind")]
    return {field.name: field for member in (chosen or members[:1]) for field in msgspec.structs.fields(member)}


def _field_default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def _split_annotated(annotation: Any) -> tuple[Any, str]:
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        return kind, next((note for note in notes if isinstance(note, str)), "")
    return annotation, ""


def _format_type(annotation: Any) -> str:
    annotation, _ = _split_annotated(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(str(word) for word in get_args(annotation))
    if len(parts := _union_members(annotation)) > 1 or parts[0] is not annotation:
        return " | ".join(map(_format_type, parts))
    if get_origin(annotation) in (list, tuple):
        return f"list of {_format_type(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        named = " | ".join(annotation.presets) if issubclass(annotation, Config) else ""
        return str(annotation.__struct_config__.tag or named or "table")
    if dict in (annotation, get_origin(annotation)):
        return "table"
    return {str: "text", int: "number", float: "number", bool: "true | false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _non_default_values(value: Any) -> Any:
    """A default as plain values; a struct by its kind, if it has one, and by what it has that its kind has not."""
    if not isinstance(value, msgspec.Struct):
        return to_dict(value)
    told = {"kind": value.__struct_config__.tag} if value.__struct_config__.tag else {}
    fields = {field.name: _field_default(field) for field in msgspec.structs.fields(value)}
    return told | {name: to_dict(getattr(value, name)) for name, usual in fields.items() if getattr(value, name) != usual}


def _format_struct(struct: msgspec.Struct) -> str:
    told = _non_default_values(struct)
    if len(told) == 1:
        return str(told["kind"])
    return "{" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in told.items()) + "}"


def _format_default(default: Any, members: Iterable[type] = ()) -> str:
    """A default as somebody would type it."""
    if isinstance(default, msgspec.Struct):
        named = [name for m in members for name, value in getattr(m, "presets", {}).items() if value == default]
        return str(named[0] if named else _format_struct(default) if default.__struct_config__.tag else "")
    if isinstance(default, list | tuple):
        return f"[{', '.join(json.dumps(one, ensure_ascii=False) if isinstance(one, str) else _format_default(one) for one in default)}]"
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
