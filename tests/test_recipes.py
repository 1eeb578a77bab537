"""The recipes of the repository: each begins with its command, which passes all checks of keys and values."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith import cli
from bertsmith.commands import STAGES, load_stage
from bertsmith.config import RecipeError
from bertsmith.recipes import list_shipped, read_recipe
from bertsmith.schema import load_stage_schema

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


def test_shipped_recipes_are_those_of_the_repository():
    assert list_shipped() == [recipe.name for recipe in RECIPES]


@pytest.mark.parametrize("name", ["lora.toml", "recipes/lora.toml", "./lora.toml"])
def test_shipped_recipe_is_found_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema = load_stage_schema("finetune")
    assert read_recipe(schema, Path(name)) == read_recipe(schema, ROOT / "recipes" / "lora.toml")


def test_file_takes_precedence_over_shipped_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lora.toml").write_text('task = "tag"\nmodel = "m"\nout = "mine"\n[data]\ntrain = "t"\n')
    schema = load_stage_schema("finetune")
    assert read_recipe(schema, Path("lora.toml")).out == "mine"
    assert read_recipe(schema, Path("recipes/lora.toml")).out == "out/lora"


@pytest.mark.parametrize(
    "name", ["other/lora.toml", "/absent/lora.toml", "../lora.toml", "lora", "absent.toml", "recipes/lra.toml"]
)
def test_missing_recipe_is_an_error(name, tmp_path, monkeypatch):
    """Only `NAME.toml` and `recipes/NAME.toml` name shipped recipes, so that a wrong path is not taken for another file."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=f"there is no recipe file {name}") as error:
        read_recipe(load_stage_schema("finetune"), Path(name))
    assert ("(shipped: lora.toml)" in str(error.value)) == (name != "absent.toml")
