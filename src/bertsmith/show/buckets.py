"""Whom the hashes of every layer bring together."""

from typing import NamedTuple

from .page import Html, element, note, section, tiles


class Layer(NamedTuple):
    """A number for each head."""

    met: list[float]  # others that a token meets
    alone: list[float]  # share of the tokens that meet nobody
    caught: list[float]  # share of the attention that falls on those met


def buckets(layers: list[Layer], length: int) -> Html:
    """For every head the share of attention that hashing caught, a row a layer; `length` is that of the texts looked at."""
    met, alone, caught = (_mean(parts) for parts in zip(*layers, strict=True))
    facts = [("attention caught", f"{caught:.1%}", "of the weight that one bucket for all would give, on those met"),
             ("others met", met, f"by a token in all rounds together, of {length - 1:,} in the longest text"),
             ("alone", f"{alone:.1%}", "of the tokens met nobody, and looked at themselves")]  # fmt: skip
    words = "Each cell: of all that a head would look at, how much its hashes brought before it; darker is more."
    return section("Buckets", tiles(facts), note(words), _heads(layers))


def _mean(parts: tuple[list[float], ...]) -> float:
    every = [value for part in parts for value in part]
    return sum(every) / len(every)


def _heads(layers: list[Layer]) -> Html:
    heads = range(1, max(len(layer.caught) for layer in layers) + 1)
    names = ["layer", *(f"head {number}" for number in heads), "met", "alone"]
    rows = [element("tr", element("th", str(number)), *map(_cell, layer.caught),
                    element("td", f"{sum(layer.met) / len(layer.met):,.1f}", class_="right"),
                    element("td", f"{sum(layer.alone) / len(layer.alone):.1%}", class_="right"))
            for number, layer in enumerate(layers, 1)]  # fmt: skip
    head = element("thead", element("tr", *(element("th", name) for name in names)))
    return element("div", element("table", head, element("tbody", *rows), class_="heat"), class_="table")


def _cell(share: float) -> Html:
    return element("td", f"{share:.0%}", class_="right", style=f"--heat: {90 * share:.0f}")
