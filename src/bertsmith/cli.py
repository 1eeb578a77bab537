"""The command line: `bertsmith STAGE [RECIPE.toml] [key=value ...] [--json] [--quiet] [--help]`."""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import msgspec

from . import __version__
from .commands import STAGES, load_stage
from .config import from_user, read_values
from .errors import Interrupted, UserError
from .help import USAGE, format_overview, format_stage_help
from .schema import load_stage_schema

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
        print(format_overview())
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
        print(format_stage_help(name, rest))
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
    schema = load_stage_schema(name)
    if recipes and not recipes[0].endswith(".toml") and schema.first_key:
        overrides, recipes = [f"{schema.first_key}={recipes[0]}", *overrides], []  # `show masks corpus=...`, `doctor out/bert`
    values, source = read_values(schema.recipe, Path(recipes[0]) if recipes else None, overrides)
    from_user(schema.recipe, values, source)  # usage errors, before the stage and torch are imported
    module = load_stage(name)
    recipe = from_user(module.Recipe, values, source)
    result = module.run(recipe, "--quiet" in args)
    if "--json" in args:
        print(msgspec.json.encode(result).decode())  # NaN becomes null, which is valid JSON
    return module.code(result) if hasattr(module, "code") else 0


if __name__ == "__main__":
    sys.exit(main())
