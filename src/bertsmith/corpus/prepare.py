"""Text files to a corpus folder, with a data card."""

from typing import Any

from ..artifacts import read_json, resolve_path
from ..console import Console
from .build import Prepare as Recipe
from .build import build_corpus, is_interrupted

__all__ = ["Recipe", "run"]


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Makes the folder, goes on with one that was interrupted, or says that it is there already."""
    screen = Console(quiet)
    if is_interrupted(resolve_path(recipe.out, "out")):
        screen.info(f"{recipe.out} was begun before; going on")
    with screen.progress_bar("preparing", "bytes") as bar:
        folder, made = build_corpus(recipe, bar)
    card = read_json(folder / "card.json")
    for warning in card["warnings"]:
        screen.warn(warning)
    if not made:
        screen.info(f"{folder} is there already, made from the same text by the same settings")
    facts = ("documents", "sentences", "tokens", "unknown rate", "unigram entropy", "longest sentence", "duplicates")
    screen.print_table(str(folder), [(name, _format_value(card[name])) for name in facts])
    return {"out": str(folder), "made": made, **{name.replace(" ", "_"): card[name] for name in (*facts, "warnings")}}


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {name}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
