"""Labelled texts: of files of your own (`short=`, `long=`), or made of this machine's words in lengths like theirs."""

import random
from pathlib import Path

from bertsmith.tasks import Classify
from bertsmith.tasks.classification import Text

from .material import Material

# (words in the middle, deviation of their logarithm): sentences of film reviews, and documents
LIKE = {"short": (8, 0.8), "long": (300, 0.5)}


MADE = 4000


def labelled(stuff: Material, kind: str) -> list[Text]:
    """All texts of a file, in an order that says nothing."""
    path = stuff.given.get(kind)
    found = _read(stuff, kind, Path(path)) if path else _made(stuff, kind)
    random.Random(0).shuffle(found)
    return found


def _read(stuff: Material, kind: str, path: Path) -> list[Text]:
    named = {name: stuff.given[f"{kind}.{name}"] for name in ("text", "label") if f"{kind}.{name}" in stuff.given}
    return list(Classify(columns=named).read(path))


def _made(stuff: Material, kind: str) -> list[Text]:
    words, dice = stuff.texts[0].read_text(encoding="utf-8").split(), random.Random(1)
    middle, deviation = LIKE[kind]
    made = []
    for number in range(MADE):
        size = max(1, round(middle * dice.lognormvariate(0, deviation)))
        start = dice.randrange(max(1, len(words) - size))
        made.append(Text(" ".join(words[start : start + size]), label=str(number % 2)))
    return made
