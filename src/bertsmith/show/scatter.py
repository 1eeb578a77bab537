"""A cloud of points in a square: each says what it is when it is pointed at, and shows which others are nearest to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .page import Html, element

SIDE, EDGE = 300, 14
SAME = 1e-6  # of the spread: points nearer than this are one


@dataclass(frozen=True)
class Mark:
    """How a point is drawn, and what it says."""

    tone: str
    said: str
    near: tuple[int, ...] = ()  # the numbers of its neighbours, the nearest first


def flattened(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(points, 2): along the two directions in which they lie furthest apart (principal components).

    Signs are fixed, so that a page is the same each time; points that are all one stay at (0, 0).
    """
    middle = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    if not len(middle) or np.abs(middle).max(initial=0) <= SAME * max(1.0, float(np.abs(vectors).max(initial=0))):
        return np.zeros((len(middle), 2))
    left, sizes, right = np.linalg.svd(middle, full_matrices=False)
    count = min(2, len(sizes))
    signs = np.sign(right[np.arange(count), np.abs(right[:count]).argmax(1)])
    flat = np.zeros((len(middle), 2))
    flat[:, :count] = left[:, :count] * sizes[:count] * signs
    return flat


def cloud(title: str, words: str, places: NDArray[np.float64], marks: Sequence[Mark]) -> Html:
    """One figure; `words` stand small beside the title. Where all points are one, it says how many they are."""
    spots = _within(places)
    square = element("rect", x=0.5, y=0.5, width=SIDE - 1, height=SIDE - 1, rx=8, class_="panel")
    drawn = [_point(number, spots, mark) for number, mark in enumerate(marks)]
    if len(marks) > 1 and not np.ptp(spots, axis=0).any():
        middle = element("text", f"all {len(marks)} are one point", x=SIDE / 2, y=SIDE / 2 + 26, text_anchor="middle")
        drawn.append(middle)
    svg = element("svg", square, *drawn, viewBox=f"0 0 {SIDE} {SIDE}", role="img", aria_label=title)
    return element("figure", element("figcaption", title, element("small", words)), svg)


def _within(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """On the square, both ways to one scale; a far-off few are put on its edge rather than squeeze the rest."""
    if not len(places):
        return places
    low, high = np.quantile(places, 0.01, axis=0), np.quantile(places, 0.99, axis=0)
    span = float((high - low).max()) or 1.0
    shares = np.clip((places - (low + high) / 2) / span + 0.5, -0.02, 1.02)
    return EDGE + shares * (SIDE - 2 * EDGE)


def _point(number: int, spots: NDArray[np.float64], mark: Mark) -> Html:
    x, y = spots[number]
    links = [element("line", x1=x, y1=y, x2=spots[n][0], y2=spots[n][1], class_=f"link {mark.tone}") for n in mark.near]
    dot = element("circle", element("title", mark.said), cx=x, cy=y, r=4.2, class_=f"dot {mark.tone}")
    return element("g", *links, dot, class_="point")
