"""A model card: card.md, written from facts, so that every model is told of in the same sections."""

from collections.abc import Sequence
from json import dumps
from typing import Annotated

from msgspec import Meta

from ..config import Config, Positive

SECTIONS = ("Use", "Data", "Training", "Scores", "Limits", "Licence")

Filled = Sequence[tuple[str, Sequence[str]]]  # texts with a mask, and what the model puts there, likeliest first


class Source(Config, frozen=True):
    """Some of the text that a model learnt from."""

    licence: Annotated[str, "of the text"]
    about: Annotated[str, "what it is, and how much of it"]


class Facts(Config, frozen=True):
    """What a card says that the model's folder does not know: a TOML file of these."""

    summary: Annotated[str, Meta(min_length=1, pattern=r"^[^\n]*$"), "one line: what the model is"]
    language: Annotated[str, "of its text"]
    data: Annotated[dict[str, Source], Meta(min_length=1), "by name: the licence of a source, and what it is"]
    recipe: Annotated[str, "the command, or recipe file, that makes it again"]
    minutes: Annotated[Positive, "how long it was trained"]
    machine: Annotated[str, "on what"]
    scores: Annotated[dict[str, dict[str, float]], "by task: the score of this model, and of others beside it"]
    scored: Annotated[str, "how the scores were measured: sets, seeds, the command"]
    limits: Annotated[tuple[str, ...], Meta(min_length=1), "what it cannot do, and should not be used for"]
    licence: Annotated[str, "of the weights"]
    examples: Annotated[tuple[str, ...], "texts with a [MASK]; the card shows how the model fills them"] = ()


def written(name: str, facts: Facts, about: dict[str, str], filled: Filled = ()) -> str:
    """The card as Markdown; `about` are rows that the folder itself knows: parameters, layers, size."""
    bodies = {
        "Use": _use(name, filled),
        "Data": _table(("source", "licence", "what"), [(one, s.licence, s.about) for one, s in facts.data.items()]),
        "Training": f"{facts.minutes:g} minutes on {facts.machine}, by `{facts.recipe}`.",
        "Scores": "\n\n".join([*_scores(facts.scores), facts.scored]),
        "Limits": "\n".join(f"- {one}" for one in facts.limits),
        "Licence": facts.licence,
    }
    head = f"# {name}: {facts.summary}\n\n{_table(('', ''), [('language', facts.language), *about.items()])}"
    return "\n\n".join([head, *(f"## {title}\n{bodies[title]}" for title in SECTIONS)]) + "\n"


def _use(name: str, filled: Filled) -> str:
    text = filled[0][0] if filled else "..."
    lines = (f'model = bertsmith.load("{name}")', f"model.fill({dumps(text, ensure_ascii=False)})",
             'model.embed(["one text", "another"])')  # fmt: skip
    code = "\n".join(["import bertsmith", "", *lines])
    shell = f"bertsmith finetune model={name} task=classify data.train=train.tsv data.dev=dev.tsv out=out/mine"
    blocks = [f"```python\n{code}\n```", f"```\n{shell}\n```"]
    return "\n".join([*blocks, *(["", _table(("text", "filled with"), _answers(filled))] if filled else [])])


def _answers(filled: Filled) -> list[tuple[str, ...]]:
    return [(text, ", ".join(words)) for text, words in filled]


def _scores(scores: dict[str, dict[str, float]]) -> list[str]:
    """A row a task, a column a model, in the order in which they are first named."""
    if not scores:
        return []
    models = list(dict.fromkeys(model for row in scores.values() for model in row))
    rows = [(task, *(f"{row[model]:.1f}" if model in row else "" for model in models)) for task, row in scores.items()]
    return [_table(("task", *models), rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(_row, [head, ["---"] * len(head), *rows]))


def _row(cells: Sequence[str]) -> str:
    """A line of a table: what would end a cell or the line is written so that it does not."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
