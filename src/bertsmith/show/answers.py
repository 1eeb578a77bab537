"""Filled masks: each text with the words a model would put in, and how sure it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .data import share_bar
from .page import Html, element, note, section, table


def answers(filled: Iterable[tuple[str, Sequence[Sequence[Mapping[str, Any]]]]], title: str = "Filled masks") -> Html:
    """Takes texts with what `Predictor.fill` gave for them."""
    blocks = [_block(text, guesses) for text, guesses in filled]
    return section(title, note("The model's likeliest words for each [MASK]."), element("div", *blocks, class_="pair"))


def _block(text: str, guesses: Sequence[Sequence[Mapping[str, Any]]]) -> Html:
    tables = [table([(g["word"], f"{g['score']:.1%}", share_bar(g["score"])) for g in mask]) for mask in guesses]
    return element("div", element("p", text, class_="question"), *tables, class_="answers")
