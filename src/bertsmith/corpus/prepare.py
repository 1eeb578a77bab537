"""The `prepare` stage: builds a corpus folder from text files and prints its data card."""

from typing import Any

from ..artifacts import read_object
from ..console import Console
from ..writing import resolve_output
from .build import Prepare as Recipe
from .build import build_corpus, is_interrupted

__all__ = ["Recipe", "run"]


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Build the corpus folder, resume an interrupted build, or report that it already exists."""
    console = Console(quiet)
    if is_interrupted(resolve_output(recipe.out)):
        console.info(f"resuming the interrupted build of {recipe.out}")
    with console.progress_bar("preparing", "bytes") as bar:
        folder, was_built = build_corpus(recipe, bar)
    card = read_object(folder / "card.json")
    for warning in card["warnings"]:
        console.warn(warning)
    if not was_built:
        console.info(f"{folder} already exists, prepared from the same texts with the same settings")
    shown = ("documents", "sentences", "tokens", "unknown_rate", "unigram_entropy", "max_sentence_length", "duplicates")
    console.print_table(str(folder), [(name, _format_value(card[name])) for name in shown])
    return {"out": str(folder), "created": was_built, **{name.replace(" ", "_"): card[name] for name in (*shown, "warnings")}}


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count:,} {name}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
