"""The recipes of the repository: each begins with its command, which passes all checks of keys and values."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith import cli
from bertsmith.commands import STAGES, load_stage
from bertsmith.recipes import read_recipe

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
COMMAND = re.compile(r"bertsmith ([\w-]+) (recipes/[\w-]+\.toml)( [^;#]*)?")


def read_command(recipe: Path) -> tuple[str, list[str]]:
    """The stage and arguments of the command in the comment at the top of a recipe."""
    header = re.match(r"(#.*\n)+", recipe.read_text(encoding="utf-8"))
    commands = [match for match in COMMAND.finditer(header[0]) if match[2] == f"recipes/{recipe.name}"] if header else []
    assert commands, f"{recipe.name} does not begin with its command"
    return commands[0][1], shlex.split(re.split(r" {2,}", commands[0][3] or "")[0])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_begins_with_a_command_that_is_valid(recipe, monkeypatch, capsys):
    stage, args = read_command(recipe)
    assert stage in STAGES
    module = load_stage(stage)
    read_recipe(module.Recipe, recipe, args)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cli, "load_stage", lambda name: SimpleNamespace(Recipe=module.Recipe, run=lambda recipe, quiet: {}))
    assert cli.main([stage, f"recipes/{recipe.name}", *args]) == 0
