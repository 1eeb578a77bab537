"""Reading recipes: a TOML file, then `key=value` settings by dotted name, as values for the structs of `config`.

The type of a key decides how its value is read: a text key takes its value as it stands (`text=[MASK] is "here"`), a list
takes `a,b` or TOML, a table takes TOML, a preset's name or a kind. `True`, `yes` and `on` are true; `1e4` is a whole number.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from .config import (
    RecipeError,
    describe_type,
    expand_shorthand,
    field_default,
    from_user,
    is_list,
    is_optional,
    is_table,
    non_default_values,
    struct_fields,
    union_members,
)
from .errors import UserError
from .reading import parse_toml, read_toml

T = TypeVar("T")
SHIPPED_FOLDER = Path(__file__).with_name("recipe_files")  # in the repository a link to recipes/
BOOLEAN_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
UNSET = "none"  # what a user types for a key without a value; TOML has no null


def read_recipe(config_type: type[T], path: Path | None = None, overrides: Iterable[str] = ()) -> T:
    """Read and convert a recipe: a TOML file, then overrides."""
    return from_user(config_type, *read_values(config_type, path, overrides))


def read_values(config_type: Any, path: Path | None = None, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], str]:
    """The values of a recipe before conversion, and the file they come from, for error messages.

    `overrides` are dotted assignments such as `train.steps=4` or `model=bert-mini`. Tables are assigned before their keys,
    whatever the order given: `model.num_hidden_layers=4 model=bert-mini` has four layers.
    """
    values = expand_shorthand(config_type, _read_toml(path) if path else {})
    for names, literal in sorted(map(_split_override, overrides), key=lambda pair: len(pair[0]) - (pair[0][-1] == "kind")):
        _assign(config_type, values, names, literal)
    return values, str(path) if path else ""


def list_shipped() -> list[str]:
    """File names of the recipes that come with the package."""
    return sorted(path.name for path in SHIPPED_FOLDER.glob("*.toml"))


def _read_toml(path: Path) -> dict[str, Any]:
    """A recipe file; `lora.toml` and `recipes/lora.toml` are the shipped recipe of that name where there is no such file."""
    if not path.exists() and path.parent in (Path("."), Path("recipes")) and path.name in list_shipped():
        path = SHIPPED_FOLDER / path.name
    try:
        return read_toml(path)
    except FileNotFoundError:
        matches = get_close_matches(path.stem, [name.removesuffix(".toml") for name in list_shipped()], n=1, cutoff=0.7)
        hint = f" (shipped: {matches[0]}.toml)" if matches else ""
        raise RecipeError(
            f"there is no recipe file {path}{hint}; a recipe is a TOML file, settings are written key=value"
        ) from None
    except UserError as error:
        raise RecipeError(str(error)) from None
    except ValueError as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from None


def _split_override(override: str) -> tuple[list[str], str]:
    dotted, equals, literal = override.partition("=")
    names = [name.strip() for name in dotted.split(".")]
    if not equals or not all(names):
        raise RecipeError(f"{override!r} is not a setting; settings are written key=value, for example train.steps=1000")
    return names, literal


def _assign(annotation: Any, values: dict[str, Any], names: list[str], literal: str, prefix: str = "") -> None:
    """Set a dotted key in place. A missing table starts from its default; a new `kind` drops the keys of the old one."""
    name, *rest = names
    field = struct_fields(annotation, values).get(name)
    inner = field.type if field else _dict_value_type(annotation)
    if not rest:
        value = _parse_literal(literal, inner, prefix + name)
        if name == "kind" and field is None and values.get("kind", value) != value:
            values.clear()
        values[name] = value
        return
    if field and values.get(name) is None:
        default, members = non_default_values(field_default(field)), union_members(inner)
        is_choice = isinstance(default, bool) or (isinstance(default, str) and str not in members)  # not a table
        values[name] = {} if is_choice and any(map(is_table, members)) else default or {}
    table = expand_shorthand(inner, values.setdefault(name, {}))
    if not isinstance(table, dict) or not (inner is Any or any(map(is_table, union_members(inner)))):
        raise RecipeError(f"{prefix}{name} takes {describe_type(inner)}; it has no key {rest[0]!r}")
    values[name] = table
    _assign(inner, table, rest, literal, f"{prefix}{name}.")


def _parse_literal(literal: str, annotation: Any, key: str) -> Any:
    """The value that a literal has for a key of this type; a word that fits no other type stays a string."""
    members = union_members(annotation)
    if members == [str]:
        return literal
    literal = literal.strip()
    if literal == UNSET and annotation is not Any and is_optional(annotation) and str not in members:
        return UNSET
    if any(map(is_list, members)) and (value := _parse_list(literal, members, key)) is not None:
        return value
    if annotation is Any or (any(map(is_table, members)) and literal.startswith("{")):
        return _parse_toml(literal, key)
    if (int in members or float in members) and (number := _parse_number(literal)) is not None:
        return int(number) if float not in members and isinstance(number, float) and number.is_integer() else number  # 1e4
    if bool in members and literal.lower() in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[literal.lower()]
    return next((word for word in _literal_values(members) if str(word) == literal), literal)


def _parse_list(literal: str, members: list[Any], key: str) -> list[Any] | None:
    """`a,b` or TOML; None for a single value where one is valid without a list (`max_length=128`, `eval=3` of `int | list`)."""
    item = next(get_args(member)[0] for member in members if is_list(member))
    if literal.startswith("["):
        try:
            return parse_toml(f"x = {literal}")["x"]
        except ValueError as error:
            if any(map(is_text, members)) or (is_text(item) and not literal.endswith("]")):
                return [literal]  # a glob such as [ab]*.txt
            raise RecipeError(f'{key}: {literal} is not a list ({error}); write a,b or \'["a", "b"]\'') from None
    if literal == "":
        return []
    if "," not in literal and any(not is_list(member) for member in members):
        return None
    return [_parse_literal(part.strip(), item, key) for part in literal.split(",")]


def _parse_toml(literal: str, key: str) -> Any:
    """A TOML value; a bare word is a string."""
    try:
        parsed = parse_toml(f"x = {literal}")
    except ValueError as error:
        if literal[:1] + literal[-1:] in ("[]", "{}", '""', "''"):
            raise RecipeError(f'{key}: {literal} is not valid TOML ({error}); quote text inside brackets: ["a", "b"]') from None
        return literal
    return parsed["x"] if len(parsed) == 1 else literal  # a line break must not add a key


def _parse_number(literal: str) -> int | float | None:
    try:
        parsed = parse_toml(f"x = {literal}")
    except ValueError:
        return None
    value = parsed["x"]
    return value if len(parsed) == 1 and isinstance(value, int | float) and not isinstance(value, bool) else None


def _dict_value_type(annotation: Any) -> Any:
    return next((get_args(member)[1] for member in union_members(annotation) if get_origin(member) is dict), Any)


def _literal_values(members: list[Any]) -> list[Any]:
    return [word for member in members if get_origin(member) is Literal for word in get_args(member)]


def is_text(annotation: Any) -> bool:
    return annotation is str or (
        get_origin(annotation) is Literal and all(isinstance(word, str) for word in get_args(annotation))
    )
