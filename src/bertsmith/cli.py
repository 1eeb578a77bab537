"""The command line: `bertsmith STAGE [RECIPE.toml] [key=value ...] [--json] [--quiet] [--help]`."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from . import __version__
from .commands import POSITIONAL, STAGES, load_stage, recipe_type, report_same_names
from .config import from_user, list_choices, suggest
from .console import escape_unencodable, log_to_stderr, print_line, print_result
from .cores import sleep_between_operations
from .errors import NOT_UTF8, SURROGATE, Interrupted, UserError, explain_limit, explain_missing_torch
from .help import USAGE, format_overview, format_stage_help
from .recipes import read_values
from .schema import load_stage_schema
from .signals import EXIT_STATUS, RESUME_HINT, raise_on_stop
from .synonyms import find_kind

FLAGS = ("--json", "--quiet", "--help", "-h")
OVERRIDE = re.compile(r"\s*([A-Za-z_]\w*)[\w.]*\s*=")  # key=value, with the first name of a dotted key


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage. Exit status: 0 done, 1 problems found (`doctor`), 2 bad input (one-line error), 130 interrupted."""
    try:
        escape_unencodable(sys.stdout)
        with log_to_stderr():
            status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a closed pipe is noticed here
        return status
    except Interrupted as interruption:
        print_line(f"interrupted: {interruption}", keep_lines=False)
        return EXIT_STATUS
    except UserError as error:
        print_line(f"error: {error}", keep_lines=False)
        return 2
    except BrokenPipeError:  # the reader of stdout is gone: `bertsmith predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        return 141
    except KeyboardInterrupt:
        print_line(f"interrupted: {RESUME_HINT}")
        return EXIT_STATUS
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if (problem := explain_limit(error)) is None:
            raise
        print_line(f"error: {problem}", keep_lines=False)
        return 2


def _dispatch(args: list[str]) -> int:
    if args and args[0] == "help":  # `bertsmith help finetune`, as git and pip have it
        args = [*args[1:2], "--help", *args[2:]]
    if not args or args[0] in ("--help", "-h"):
        print_result(format_overview())
        return 0
    if args[0] in ("--version", "-V", "version"):
        print_result(__version__)
        return 0
    name, *rest = args
    if name not in STAGES:
        raise UserError(_explain_unknown_stage(name))
    if "--help" in rest or "-h" in rest:
        print_result(format_stage_help(name, rest))
        return 0
    return _run_stage(name, rest)


def _run_stage(name: str, args: list[str]) -> int:
    schema = load_stage_schema(name)
    arguments = _parse_arguments(args, schema.__struct_fields__, POSITIONAL.get(name, ()))
    values, source = read_values(schema, arguments.recipe, arguments.overrides)
    checked = from_user(schema, values, source)  # usage errors, before the stage and torch are imported
    sleep_between_operations()
    with explain_missing_torch():
        module = load_stage(name)
        recipe = from_user(recipe_type(module, checked), values, source)
        report_same_names(recipe, "--quiet" in args)
        is_interactive = sys.stdout.isatty() and "--json" not in args
        run = getattr(module, "run_on_terminal", module.run) if is_interactive else module.run
        with raise_on_stop():
            result = run(recipe, "--quiet" in args)
    if "--json" in args:
        print_result(msgspec.json.encode(result).decode())  # NaN becomes null, which is valid JSON
    return module.code(result) if hasattr(module, "code") else 0


class Arguments(NamedTuple):
    """The arguments of a stage, without its flags."""

    recipe: Path | None
    overrides: list[str]  # key=value; positional arguments first


def _parse_arguments(args: list[str], keys: Sequence[str], positional_keys: Sequence[str]) -> Arguments:
    """Sort arguments into a recipe, `key=value` settings and, for some stages, values by position."""
    recipe: Path | None = None
    overrides: list[str] = []
    positional: list[str] = []
    for arg in args:
        if arg in FLAGS:
            continue
        if SURROGATE.search(arg):  # what Python makes of other bytes; no record could hold it
            raise UserError(f"the argument {arg[:200]!a} {NOT_UTF8}")
        if re.match(r"--?[A-Za-z]", arg):
            name, _, value = arg.lstrip("-").partition("=")
            raise UserError(
                f"unknown option {arg}; settings are written key=value ({name.replace('-', '_')}={value or '...'}), "
                "and the options are --json, --quiet and --help"
            )
        if _is_override(arg, keys, bool(positional_keys)):
            overrides.append(arg)
        elif recipe is None and not positional and (arg.endswith(".toml") or (not positional_keys and Path(arg).is_file())):
            recipe = Path(arg)
        elif len(positional) < len(positional_keys):
            positional.append(f"{positional_keys[len(positional)]}={arg}")
        elif OVERRIDE.match(arg):
            overrides.append(arg)  # no text is expected here: an unknown key
        else:
            raise UserError(_explain_unexpected(arg, args, keys))
    return Arguments(recipe, [*positional, *overrides])


def _is_override(arg: str, keys: Sequence[str], takes_text: bool) -> bool:
    """Whether an argument is `key=value`; a text given by position may contain `=`, too."""
    match = OVERRIDE.match(arg)
    if not takes_text:
        return "=" in arg
    return match is not None and (match[1] in keys or " " not in arg)


def _explain_unknown_stage(name: str) -> str:
    if name.startswith("-"):
        return f"unknown option {name}; usage: {USAGE}"
    if name == "train":
        return "unknown stage 'train'; `bertsmith pretrain` trains on raw text, `bertsmith finetune` on a task"
    if not find_kind(name, STAGES) and (task := _find_task(name)):
        return f"unknown stage {name!r}; did you mean `bertsmith finetune task={task}`?"
    return f"unknown stage {name!r}; {suggest(name, list(STAGES))}"


def _find_task(name: str) -> str | None:
    """The task of this name, or of another library's name for it."""
    tasks = list_choices(load_stage_schema("finetune").__annotations__["task"])
    return name if name in tasks else find_kind(name, tasks)


def _explain_unexpected(arg: str, args: Sequence[str], keys: Sequence[str]) -> str:
    """An argument that is neither a setting nor a recipe: what may have been meant."""
    before = args[: args.index(arg)]
    last = before[-1] if before else ""
    problem = f"unexpected argument {arg!r}; settings are written key=value"
    if arg == "=" or arg.partition(".")[0] in keys or last.endswith("="):
        return f"{problem}, without spaces around ="
    if "task" in keys and (task := _find_task(arg)):
        return f"{problem}: did you mean task={task}?"
    if re.fullmatch(r"[\w.]+=\S+", last):
        return f"{problem}, with quotes around spaces ('{last} {arg}') and commas between the items of a list ({last},{arg})"
    return f"{problem}, and a recipe is a TOML file; usage: {USAGE}"
