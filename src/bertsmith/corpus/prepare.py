"""Text files to a corpus folder, with a data card."""

from typing import Any

from ..artifacts import named, read_json
from ..console import Screen
from .build import Prepare as Recipe
from .build import begun, prepare

__all__ = ["Recipe", "run"]


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Makes the folder, goes on with one that was interrupted, or says that it is there already."""
    screen = Screen(quiet)
    if begun(named(recipe.out, "out")):
        screen.say(f"{recipe.out} was begun before; going on")
    with screen.bar("preparing", "bytes") as bar:
        folder, made = prepare(recipe, bar)
    card = read_json(folder / "card.json")
    for warning in card["warnings"]:
        screen.warn(warning)
    if not made:
        screen.say(f"{folder} is there already, made from the same text by the same settings")
    facts = ("documents", "sentences", "tokens", "unknown rate", "unigram entropy", "longest sentence", "duplicates")
    screen.table(str(folder), [(name, _words(card[name])) for name in facts])
    return {"out": str(folder), "made": made, **{name.replace(" ", "_"): card[name] for name in (*facts, "warnings")}}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {name}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
