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
    """Runs one stage; 0 only if its work is done, 1 if a stage finds that all is not well, 2 for bad input, in one line."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except Interrupted as stopped:
        print(f"stopped: {stopped}", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
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
        near = get_close_matches(name, STAGES, n=1, cutoff=0.5)
        raise UserError(
            f"there is no stage {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(STAGES)}")
        )
    if "--help" in rest or "-h" in rest:
        print(_format_stage_help(name))
        return 0
    return _run_stage(name, rest)


def _run_stage(name: str, args: list[str]) -> int:
    for word in args:
        if word.startswith("-") and word not in FLAGS:
            raise UserError(f"there is no option {word}; settings are key=value, options are --json, --quiet, --help")
    plain = [word for word in args if not word.startswith("-")]
    recipes = [word for word in plain if "=" not in word]
    if len(recipes) > 1:
        raise UserError(f"{recipes[1]!r} is not key=value, and there is a recipe already ({recipes[0]}); usage: {USAGE}")
    settings = [word for word in plain if "=" in word]
    module = load_stage(name)
    first = getattr(module, "FIRST", "kind" if hasattr(module, "KINDS") else None)
    if recipes and not recipes[0].endswith(".toml") and first:
        settings, recipes = [f"{first}={recipes[0]}", *settings], []  # `show masks corpus=...`, `doctor out/bert`
    recipe = read_recipe(module.Recipe, Path(recipes[0]) if recipes else None, settings)
    result = module.run(recipe, "--quiet" in args)
    if "--json" in args:
        print(msgspec.json.encode(result).decode())  # what is no number becomes null, as JSON wants it
    return module.code(result) if hasattr(module, "code") else 0


def _format_overview() -> str:
    size = max(map(len, STAGES))
    stages = "\n".join(f"  {name.ljust(size)}  {meaning}" for name, meaning in STAGES.items())
    return f"usage: {USAGE}\n\nstages:\n{stages}\n\n`bertsmith STAGE --help` lists the keys of a stage."


def _format_stage_help(name: str) -> str:
    """Every key with what it takes, its default and its meaning, in columns."""
    rows = [(key.name, key.type_name, key.default, key.description) for key in iter_keys(load_stage(name).Recipe)]
    first, second = (min(max(len(row[i]) for row in rows), 44) for i in (0, 2))
    lines = [f"  {key.ljust(first)}  {default.ljust(second)}  {meaning}{f' ({takes})' if takes else ''}"
             for key, takes, default, meaning in rows]  # fmt: skip
    head = f"usage: {USAGE.replace('STAGE', name)}\n\n{STAGES[name]}\n"
    return "\n".join([head, f"  {'key'.ljust(first)}  {'default'.ljust(second)}  meaning", *lines])


if __name__ == "__main__":
    sys.exit(main())
