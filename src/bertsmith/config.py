"""Recipes: a tree of frozen structs, read from TOML, reached by dotted names, written to JSON."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .errors import BadInput

T = TypeVar("T")


def kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a recipe: frozen, by keyword only, and strict about unknown keys.

    A field says what it means as `Annotated[int, "layers, one above another"]`; `--help` reads it there.
    """

    presets: ClassVar[dict[str, "Config"]] = {}  # whole values a recipe may name by one word


class Variant(Config, frozen=True, tag_field="kind", tag=kebab):
    """One member of a union, named in a recipe by its class: `kind = "long-short"` is `LongShort`."""


class RecipeError(BadInput):
    """A recipe names something that does not exist, or gives it a value it cannot take."""


@dataclass(frozen=True)
class Key:
    """One line of `--help`: a dotted name, what it takes, what it is if left out, and what it means."""

    name: str
    takes: str
    default: str
    meaning: str


def read(kind: type[T], path: Path | None = None, overrides: Iterable[str] = ()) -> T:
    """Read a recipe; `overrides` are dotted assignments such as `train.steps=4` or `model=bert-mini`."""
    values = _toml(path) if path else {}
    source = str(path) if path else "the command line"
    values = _expanded(kind, values)
    for override in overrides:
        dotted, equals, literal = override.partition("=")
        if not equals:
            raise RecipeError(f"{override!r} is not key=value; write for example `train.steps=1000`")
        _assign(kind, values, dotted.strip().split("."), _value(literal), source)
    return parse(kind, values, source)


def parse(kind: type[T], values: Any, source: str = "recipe") -> T:
    """Plain values to a recipe, or an error that names the key and the nearest right one."""
    values = _expanded(kind, values)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{source}: {_explained(kind, values, str(error))}") from None


def plain(recipe: object) -> Any:
    """A recipe as dictionaries, lists, numbers and words: what JSON holds."""
    return msgspec.to_builtins(recipe)


def keys(kind: type, prefix: str = "") -> Iterator[Key]:
    """Every key of a recipe with its default and meaning; unions are listed by their kinds."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]
        takes, meaning = _meaning(hints[field.name])
        default, name = _default(field), prefix + field.name
        members = list(_structs(takes))
        shown = "required" if field.required else _shown(default, members)
        yield Key(name, _takes(takes), shown, meaning)
        tagged = [m for m in members if m.__struct_config__.tag]
        inside = type(default) if isinstance(default, msgspec.Struct) else members[0] if members and not tagged else None
        for member in tagged or ([inside] if inside else []):
            mark = f"{name}[{member.__struct_config__.tag}]." if len(tagged) > 1 else f"{name}."
            yield from keys(member, mark)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}; a recipe is a TOML file, a setting is key=value") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}") from None


def _value(literal: str) -> Any:
    try:
        return tomllib.loads(f"x = {literal}")["x"]
    except tomllib.TOMLDecodeError:
        return literal  # a bare word is a string: model.mixer.kind=window


def _assign(kind: Any, values: dict[str, Any], names: list[str], value: Any, source: str) -> None:
    """A table the recipe left out begins as its default; a new `kind` begins as that kind's defaults."""
    name, *rest = names
    if not rest:
        if name == "kind":
            values.clear()
        values[name] = value
        return
    field = _fields(kind, values).get(name)
    if name not in values and field is not None and not field.required and _default(field) is not None:
        values[name] = plain(_default(field))
    inner = field.type if field else Any
    table = _expanded(inner, values.setdefault(name, {}))
    if not isinstance(table, dict):
        raise RecipeError(f"{source}: {name} is {table!r}, which has no {rest[0]!r} inside")
    values[name] = table
    _assign(inner, table, rest, value, source)


def _expanded(kind: Any, value: Any) -> Any:
    """Short forms written out: a preset's name, a variant's kind, one word where a list is taken."""
    kind, _ = _meaning(kind)
    members = list(_structs(kind))
    if isinstance(value, str):
        for member in members:
            if value in member.presets:  # type: ignore[attr-defined]
                return plain(member.presets[value])  # type: ignore[attr-defined]
        tags = [m.__struct_config__.tag for m in members if m.__struct_config__.tag]
        if tags and str not in get_args(kind):
            return {"kind": value}
        return [value] if _is_list(kind) else value
    if isinstance(value, dict) and members:
        fields = _fields(kind, value)
        return {name: _expanded(fields[name].type, v) if name in fields else v for name, v in value.items()}
    return value


def _is_list(kind: Any) -> bool:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return any(get_origin(k) in (list, tuple) for k in kinds) and str not in kinds


def _explained(kind: Any, values: Any, message: str) -> str:
    """msgspec's message, with the dotted place and the nearest right name."""
    what, _, at = message.partition(" - at ")
    path = [name for name in at.strip("`").removeprefix("$").strip(".").split(".") if name]
    wrong = re.search(r"unknown field `(.+)`|Invalid value '(.+)'", what) if "enum" not in what else None
    if wrong is None:
        return f"{'.'.join(path) or 'the recipe'}: {_choices(kind, values, path) or what[0].lower() + what[1:]}"
    word = str(wrong[1] or wrong[2])
    for name in path if wrong[1] else path[:-1]:
        kind, values = getattr(_fields(kind, values).get(name), "type", Any), values.get(name, {})
    named = [str(name) for m in _structs(kind) for name in m.presets]  # type: ignore[attr-defined]
    known = sorted(_fields(kind, values)) if wrong[1] else [str(s.__struct_config__.tag) for s in _structs(kind)] + named
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    place = ".".join([*path, word]) if wrong[1] else f"{'.'.join(path[:-1])} = {word!r}"
    return f"{place} is not known; {guess}"


def _choices(kind: Any, values: Any, path: list[str]) -> str | None:
    """For a word that is none of a field's words, or a preset that does not exist: what would do."""
    field = None
    for name in path:
        field = _fields(kind, values).get(name) if isinstance(values, dict) else None
        kind, values = getattr(field, "type", Any), values.get(name, {}) if isinstance(values, dict) else {}
    if field is None or not isinstance(values, str):
        return None
    kind, _ = _meaning(kind)
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    known = [str(w) for part in parts if get_origin(part) is Literal for w in get_args(part)]
    known += [name for m in _structs(kind) for name in m.presets]  # type: ignore[attr-defined]
    if not known:
        return None
    near = get_close_matches(values, known, n=1, cutoff=0.5)
    return f"{values!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    kind, _ = _meaning(kind)
    for member in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            yield member


def _fields(kind: Any, values: Any) -> dict[str, Any]:
    """The fields of a struct, or of the member of a union that `values` chooses."""
    members = list(_structs(kind))
    chosen = [m for m in members if isinstance(values, dict) and m.__struct_config__.tag == values.get("kind")]
    return {field.name: field for member in (chosen or members[:1]) for field in msgspec.structs.fields(member)}


def _default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def _meaning(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return kind, next((note for note in notes if isinstance(note, str)), "")
    return hint, ""


def _takes(kind: Any) -> str:
    kind, _ = _meaning(kind)
    if get_origin(kind) is Literal:
        return " | ".join(str(word) for word in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(_takes(part) for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) in (list, tuple):
        return f"list of {_takes(get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        named = " | ".join(kind.presets) if issubclass(kind, Config) else ""
        return str(kind.__struct_config__.tag or named or "table")
    return {str: "text", int: "number", float: "number", bool: "true | false"}.get(kind, getattr(kind, "__name__", str(kind)))


def _shown(default: Any, members: list[type]) -> str:
    if isinstance(default, msgspec.Struct):
        named = [name for m in members for name, value in getattr(m, "presets", {}).items() if value == default]
        return str(named[0] if named else default.__struct_config__.tag or "")
    return "" if default is None else {True: "true", False: "false"}.get(default, str(default)) if isinstance(default, bool) else str(default)
