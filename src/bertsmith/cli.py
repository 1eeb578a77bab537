"""The command line: `bertsmith STAGE [RECIPE.toml] [key=value ...] [--json] [--quiet]`."""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from . import __version__
from .commands import STAGES, load_stage
from .config import iter_keys, read_recipe
from .errors import Interrupted, UserError

USAGE = "bertsmith STAGE [RECIPE.toml] [key=value ...] [--json] [--quiet]"
FLAGS = ("--json", "--quiet", "--help", "-h")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage. Exit status: 0 done, 1 problems found (`doctor`), 2 bad input (one-line error), 130 interrupted."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except Interrupted as interruption:
        print(f"stopped: {interruption}", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        filename = f" {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{filename}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: run the same command again to go on", file=sys.stderr)
        return 130


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("--help", "-h"):
        print(_format_overview())
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    name, *rest = args
    if name not in STAGES:
        matches = get_close_matches(name, STAGES, n=1, cutoff=0.5)
        raise UserError(
            f"there is no stage {name!r}; " + (f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(STAGES)}")
        )
    if "--help" in rest or "-h" in rest:
        print(_format_stage_help(name))
        return 0
    return _run_stage(name, rest)


def _run_stage(name: str, args: list[str]) -> int:
    for arg in args:
        if arg.startswith("-") and arg not in FLAGS:
            raise UserError(f"there is no option {arg}; settings are key=value, options are --json, --quiet, --help")
    positional = [arg for arg in args if not arg.startswith("-")]
    recipes = [arg for arg in positional if "=" not in arg]
    if len(recipes) > 1:
        raise UserError(f"{recipes[1]!r} is not key=value, and there is a recipe already ({recipes[0]}); usage: {USAGE}")
    overrides = [arg for arg in positional if "=" in arg]
    module = load_stage(name)
    first_key = getattr(module, "FIRST", "kind" if hasattr(module, "KINDS") else None)
    if recipes and not recipes[0].endswith(".toml") and first_key:
        overrides, recipes = [f"{first_key}={recipes[0]}", *overrides], []  # `show masks corpus=...`, `doctor out/bert`
    recipe = read_recipe(module.Recipe, Path(recipes[0]) if recipes else None, overrides)
    result = module.run(recipe, "--quiet" in args)
    if "--json" in args:
        print(msgspec.json.encode(result).decode())  # NaN becomes null, which is valid JSON
    return module.code(result) if hasattr(module, "code") else 0


def _format_overview() -> str:
    name_width = max(map(len, STAGES))
    stages = "\n".join(f"  {name.ljust(name_width)}  {description}" for name, description in STAGES.items())
    return f"usage: {USAGE}\n\nstages:\n{stages}\n\n`bertsmith STAGE --help` lists the keys of a stage."


def _format_stage_help(name: str) -> str:
    """A table of every recipe key: name, default, description (type)."""
    rows = [(key.name, key.type_name, key.default, key.description) for key in iter_keys(load_stage(name).Recipe)]
    key_width, default_width = (min(max(len(row[i]) for row in rows), 44) for i in (0, 2))
    lines = [f"  {key.ljust(key_width)}  {default.ljust(default_width)}  {description}{f' ({type_name})' if type_name else ''}"
             for key, type_name, default, description in rows]  # fmt: skip
    head = f"usage: {USAGE.replace('STAGE', name)}\n\n{STAGES[name]}\n"
    return "\n".join([head, f"  {'key'.ljust(key_width)}  {'default'.ljust(default_width)}  meaning", *lines])


if __name__ == "__main__":
    sys.exit(main())
