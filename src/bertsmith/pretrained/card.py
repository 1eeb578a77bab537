"""A model card: card.md, written from facts, so that every model is told of in the same sections."""

from collections.abc import Sequence
from json import dumps
from typing import Annotated

from msgspec import Meta

from ..config import Config, PosFloat

SECTIONS = ("Use", "Data", "Training", "Scores", "Limits", "Licence")

FillExamples = Sequence[tuple[str, Sequence[str]]]  # texts with a mask, and what the model puts there, likeliest first


class DataSource(Config, frozen=True):
    """Some of the text that a model learnt from."""

    licence: Annotated[str, "of the text"]
    about: Annotated[str, "what it is, and how much of it"]


class CardFacts(Config, frozen=True):
    """What a card says that the model's folder does not know: a TOML file of these."""

    summary: Annotated[str, Meta(min_length=1, pattern=r"^[^\n]*$"), "one line: what the model is"]
    language: Annotated[str, "of its text"]
    data: Annotated[dict[str, DataSource], Meta(min_length=1), "by name: the licence of a source, and what it is"]
    recipe: Annotated[str, "the command, or recipe file, that makes it again"]
    minutes: Annotated[PosFloat, "how long it was trained"]
    machine: Annotated[str, "on what"]
    scores: Annotated[dict[str, dict[str, float]], "by task: the score of this model, and of others beside it"]
    scored: Annotated[str, "how the scores were measured: sets, seeds, the command"]
    limits: Annotated[tuple[str, ...], Meta(min_length=1), "what it cannot do, and should not be used for"]
    licence: Annotated[str, "of the weights"]
    examples: Annotated[tuple[str, ...], "texts with a [MASK]; the card shows how the model fills them"] = ()


def render_card(name: str, facts: CardFacts, model_rows: dict[str, str], fill_examples: FillExamples = ()) -> str:
    """The card as Markdown; `about` are rows that the folder itself knows: parameters, layers, size."""
    bodies = {
        "Use": _usage_section(name, fill_examples),
        "Data": _markdown_table(("source", "licence", "what"), [(one, s.licence, s.about) for one, s in facts.data.items()]),
        "Training": f"{facts.minutes:g} minutes on {facts.machine}, by `{facts.recipe}`.",
        "Scores": "\n\n".join([*_score_tables(facts.scores), facts.scored]),
        "Limits": "\n".join(f"- {one}" for one in facts.limits),
        "Licence": facts.licence,
    }
    head = f"# {name}: {facts.summary}\n\n{_markdown_table(('', ''), [('language', facts.language), *model_rows.items()])}"
    return "\n\n".join([head, *(f"## {title}\n{bodies[title]}" for title in SECTIONS)]) + "\n"


def _usage_section(name: str, fill_examples: FillExamples) -> str:
    text = fill_examples[0][0] if fill_examples else "..."
    lines = (f'model = bertsmith.load("{name}")', f"model.fill({dumps(text, ensure_ascii=False)})",
             'model.embed(["one text", "another"])')  # fmt: skip
    code = "\n".join(["import bertsmith", "", *lines])
    shell = f"bertsmith finetune model={name} task=classify data.train=train.tsv data.dev=dev.tsv out=out/mine"
    blocks = [f"```python\n{code}\n```", f"```\n{shell}\n```"]
    return "\n".join(
        [*blocks, *(["", _markdown_table(("text", "filled with"), _fill_rows(fill_examples))] if fill_examples else [])]
    )


def _fill_rows(fill_examples: FillExamples) -> list[tuple[str, ...]]:
    return [(text, ", ".join(words)) for text, words in fill_examples]


def _score_tables(scores: dict[str, dict[str, float]]) -> list[str]:
    """A row a task, a column a model, in the order in which they are first named."""
    if not scores:
        return []
    models = list(dict.fromkeys(model for row in scores.values() for model in row))
    rows = [(task, *(f"{row[model]:.1f}" if model in row else "" for model in models)) for task, row in scores.items()]
    return [_markdown_table(("task", *models), rows)]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(_markdown_row, [header, ["---"] * len(header), *rows]))


def _markdown_row(cells: Sequence[str]) -> str:
    """A line of a table: what would end a cell or the line is written so that it does not."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
