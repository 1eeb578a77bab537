"""Texts, or a file of any size, to answers, one JSON a line, in order."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import islice
from typing import Annotated, Any, TextIO

import msgspec

from ..artifacts import named
from ..config import Config, Count, plain
from ..errors import BadInput
from ..predict import Predictor, load
from ..screen import Screen

AT_ONCE = 1024  # examples: sorted by length among themselves, and all that is held in memory
TRUTHS = ("label", "tags", "answers")


class Recipe(Config, frozen=True):
    model: Annotated[str, "the folder `finetune` made"]
    text: Annotated[str | None, "one text to answer"] = None
    text_b: Annotated[str | None, "the second text of a pair"] = None
    data: Annotated[str | None, "a file to answer, in the format of the task; labels in it are not looked at"] = None
    columns: Annotated[dict[str, str], "what text, text_b ... are called in it; as in training, if none"] = msgspec.field(
        default_factory=dict
    )
    out: Annotated[str | None, "a .jsonl file for the answers; without one they go to the terminal"] = None
    batch_tokens: Annotated[Count, "tokens of one batch"] = 8192


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Answers as they come; a file is written under another name until it is whole."""
    if (recipe.text is None) == (recipe.data is None):
        raise BadInput("give text=... or data=FILE, one of the two")
    screen, predictor = Screen(quiet), load(recipe.model)
    out = named(recipe.out, "out") if recipe.out else None
    part = out.with_name(out.name + ".part") if out else None
    count = 0
    with part.open("w", encoding="utf-8") if part else nullcontext(sys.stdout) as file:
        for answer in _answers(recipe, predictor):
            _write(file, answer)
            count += 1
    if part and out:
        part.replace(out)
        screen.say(f"{count:,} answers in {out}")
    return {"model": recipe.model, "answers": count, "out": recipe.out}


def _answers(recipe: Recipe, predictor: Predictor) -> Iterator[Any]:
    if recipe.text is not None:
        yield predictor(recipe.text, recipe.text_b, recipe.batch_tokens)
        return
    task = predictor.taught()
    if recipe.columns and hasattr(task, "columns"):
        task = predictor.task = msgspec.structs.replace(task, columns=recipe.columns)
    rows: Iterator[Any] = iter(task.read(named(str(recipe.data), "data")))
    while some := [_asked(example) for example in islice(rows, AT_ONCE)]:
        yield from map(plain, predictor.answers(some, recipe.batch_tokens))


def _asked(example: Any) -> Any:
    """Without what the file says the answer is."""
    return replace(example, **{field.name: None for field in fields(example) if field.name in TRUTHS})


def _write(file: TextIO, answer: Any) -> None:
    file.write(json.dumps(answer, ensure_ascii=False) + "\n")
