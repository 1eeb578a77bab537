"""The recipes of all stages as data, `schema.json`: help and usage errors come from it, without importing torch.

The structs of a recipe are defined beside the torch modules they configure, and importing those takes seconds.
`make schema` (`codegen`) writes the structs to the file: fields, types, limits, defaults, help texts,
kinds, presets. `load_stage_schema` builds msgspec structs with the same fields from it, without their methods, so the
functions of `config` read, check and list them as they do the originals.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from .commands import STAGES, load_stage
from .config import Config, Variant, field_default, non_default_values, split_annotated, struct_types

SCHEMA_FILE = Path(__file__).with_name("schema.json")
SCALARS: dict[Any, str] = {int: "int", float: "float", str: "str", bool: "bool", NoneType: "null", Any: "any"}
LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length")


@cache
def load_stage_schema(name: str) -> type[Config]:
    """A struct with the fields of the stage's `Recipe`, without its methods, for checks before the stage is imported."""
    schema = msgspec.json.decode(SCHEMA_FILE.read_bytes())
    return _StructBuilder(schema["structs"]).build(schema["stages"][name])


class _StructBuilder:
    """Builds structs from their entries in the schema, each after the structs that its fields refer to."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self.entries = entries
        self.structs: dict[str, type[Config]] = {}

    def build(self, name: str) -> type[Config]:
        if name not in self.structs:
            entry, presets = self.entries[name], dict[str, Any]()
            struct: Any = msgspec.defstruct(
                name.rpartition(".")[2],
                [self._decode_field(field_name, field) for field_name, field in entry["fields"].items()],
                bases=(Variant if entry["tag"] else Config,),
                namespace={"presets": classmethod(lambda cls: dict(presets))},
                tag=entry["tag"],
                module=__name__,
                frozen=True,
                kw_only=True,
            )
            presets.update({preset: msgspec.convert(values, struct) for preset, values in entry["presets"].items()})
            self.structs[name] = struct
        return self.structs[name]

    def _decode_field(self, name: str, field: dict[str, Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
        annotation: Any = Annotated[self._decode_type(field["type"]), field["help"]]
        if "default" not in field:
            return name, annotation
        default = field["default"]
        return name, annotation, msgspec.convert(default, annotation) if isinstance(default, list | dict) else default

    def _decode_type(self, encoded: Any) -> Any:
        if isinstance(encoded, str):
            return next(scalar for scalar, name in SCALARS.items() if name == encoded)
        if isinstance(encoded, list):
            return Union[tuple(map(self._decode_type, encoded))]  # noqa: UP007
        match encoded:
            case {"type": inner}:
                limits: Any = {name: limit for name, limit in encoded.items() if name in LIMITS}
                return Annotated[self._decode_type(inner), msgspec.Meta(**limits)]
            case {"struct": name}:
                return self.build(name)
            case {"literal": values}:
                return Literal[tuple(values)]
            case {"list": item}:
                return tuple[self._decode_type(item), ...]  # type: ignore[misc]
            case {"tuple": items}:
                return tuple[tuple(map(self._decode_type, items))]  # type: ignore[misc]
            case {"dict": value}:
                return dict[str, self._decode_type(value)]  # type: ignore[misc]
        raise TypeError(f"{SCHEMA_FILE.name} has an unknown type: {encoded}")


def generate_schema() -> str:
    """The text of schema.json from the structs themselves; imports every stage. One field per line."""
    modules = {name: load_stage(name) for name in STAGES}
    structs: dict[str, Any] = {}
    stages = {}
    for name, module in modules.items():
        _add_struct(structs, module.Recipe)
        stages[name] = _struct_name(module.Recipe)
    return f'{{"stages": {_format_lines(stages, 1)},\n"structs": {_format_lines(dict(sorted(structs.items())), 3)}}}\n'


def iter_structs(encoded: Any) -> Iterator[str]:
    """Names of the structs that a type in the schema refers to."""
    if isinstance(encoded, list):
        for member in encoded:
            yield from iter_structs(member)
    elif isinstance(encoded, dict):
        if "struct" in encoded:
            yield encoded["struct"]
        for key in ("type", "list", "tuple", "dict"):
            yield from iter_structs(encoded.get(key, []))


def _add_struct(structs: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Add a struct, and those that its fields refer to, to the entries by name."""
    if not issubclass(struct, Config):
        raise TypeError(f"{struct.__qualname__} is part of a recipe and must derive from Config or Variant")
    if _struct_name(struct) in structs:
        return
    hints = get_type_hints(struct, include_extras=True)
    fields: dict[str, Any] = {}
    structs[_struct_name(struct)] = {
        "tag": struct.__struct_config__.tag,
        "presets": {name: non_default_values(preset) for name, preset in struct.presets().items()},
        "fields": fields,
    }
    for field in msgspec.structs.fields(struct):
        annotation, help_text = split_annotated(hints[field.name])
        fields[field.name] = {"type": _encode_type(hints[field.name]), "help": help_text}
        if not field.required:
            fields[field.name]["default"] = non_default_values(field_default(field))
        for member in struct_types(annotation):
            _add_struct(structs, member)


def _struct_name(struct: type) -> str:
    return f"{struct.__module__.removeprefix('bertsmith.')}.{struct.__qualname__}"


def _encode_type(annotation: Any) -> Any:
    """A type as JSON: a name, a list (union), or a dictionary that `_StructBuilder` decodes."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner, *metadata = args
        limits = {
            name: limit
            for meta in metadata if isinstance(meta, msgspec.Meta)
            for name in LIMITS if (limit := getattr(meta, name)) is not None
        }  # fmt: skip
        return {"type": _encode_type(inner), **limits} if limits else _encode_type(inner)
    if origin in (Union, UnionType):
        return [_encode_type(member) for member in args]
    if origin is Literal:
        return {"literal": list(args)}
    if origin is tuple:
        return {"list": _encode_type(args[0])} if args[-1] is ... else {"tuple": [_encode_type(item) for item in args]}
    if origin is dict and args[0] is str:
        return {"dict": _encode_type(args[1])}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return {"struct": _struct_name(annotation)}
    if annotation in SCALARS:
        return SCALARS[annotation]
    raise TypeError(f"{annotation} in a recipe is not supported: add it to _encode_type and _decode_type in {__name__}")


def _format_lines(value: Any, depth: int) -> str:
    """JSON with a line for each item of the outer `depth` levels of dictionaries."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    items = (f"{json.dumps(key)}: {_format_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + "}"
