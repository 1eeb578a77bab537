"""Model cards (Mitchell et al. 2019): card.md rendered from a TOML file of facts, with the same sections for every model."""

from collections.abc import Sequence
from json import dumps
from typing import Annotated

from msgspec import Meta

from ..config import Config, PosFloat

SECTIONS = ("Use", "Data", "Training", "Scores", "Limits", "Licence")

FillExamples = Sequence[tuple[str, Sequence[str]]]  # (text with a mask, predicted tokens by decreasing probability)


class DataSource(Config, frozen=True):
    """A source of the training text."""

    licence: Annotated[str, "licence of the text"]
    about: Annotated[str, "description and size of the source"]


class CardFacts(Config, frozen=True):
    """Contents of a card that the checkpoint does not contain, read from a TOML file."""

    summary: Annotated[str, Meta(min_length=1, pattern=r"^[^\n]*$"), "one-line description of the model"]
    language: Annotated[str, "language of the training text"]
    data: Annotated[dict[str, DataSource], Meta(min_length=1), "training data: licence and description of each source, by name"]
    recipe: Annotated[str, "command or recipe file that reproduces the model"]
    minutes: Annotated[PosFloat, "training time in minutes"]
    machine: Annotated[str, "hardware it was trained on"]
    scores: Annotated[dict[str, dict[str, float]], "scores by task and model: this model and others for comparison"]
    scored: Annotated[str, "how the scores were measured: datasets, seeds, command"]
    limits: Annotated[tuple[str, ...], Meta(min_length=1), "known limitations and uses to avoid"]
    licence: Annotated[str, "licence of the weights"]
    examples: Annotated[tuple[str, ...], "texts with [MASK]; the card shows the model's predictions for them"] = ()


def render_card(name: str, facts: CardFacts, model_rows: dict[str, str], fill_examples: FillExamples = ()) -> str:
    """The card as Markdown; `model_rows` are facts read from the checkpoint: parameters, layers, size."""
    bodies = {
        "Use": _usage_section(name, fill_examples),
        "Data": _markdown_table(
            ("source", "licence", "what"), [(source, s.licence, s.about) for source, s in facts.data.items()]
        ),
        "Training": f"{facts.minutes:g} minutes on {facts.machine}, by `{facts.recipe}`.",
        "Scores": "\n\n".join([*_score_tables(facts.scores), facts.scored]),
        "Limits": "\n".join(f"- {limit}" for limit in facts.limits),
        "Licence": facts.licence,
    }
    head = f"# {name}: {facts.summary}\n\n{_markdown_table(('', ''), [('language', facts.language), *model_rows.items()])}"
    return "\n\n".join([head, *(f"## {title}\n{bodies[title]}" for title in SECTIONS)]) + "\n"


def _usage_section(name: str, fill_examples: FillExamples) -> str:
    lines = [f'model = bertsmith.load("{name}")']
    lines += [f"model.fill({dumps(text, ensure_ascii=False)})" for text, _ in fill_examples[:1]]
    lines += ['model.embed(["one text", "another"])']
    code = "\n".join(["import bertsmith", "", *lines])
    shell = f"bertsmith finetune model={name} task=classify data.train=train.tsv data.dev=dev.tsv out=out/mine"
    if not fill_examples:  # a model of embeddings
        shell = f"bertsmith embed model={name} data=queries.txt documents=texts.txt top_k=5 out=out/hits.jsonl"
    blocks = [f"```python\n{code}\n```", f"```\n{shell}\n```"]
    return "\n".join(
        [*blocks, *(["", _markdown_table(("text", "filled with"), _fill_rows(fill_examples))] if fill_examples else [])]
    )


def _fill_rows(fill_examples: FillExamples) -> list[tuple[str, ...]]:
    return [(text, ", ".join(words)) for text, words in fill_examples]


def _score_tables(scores: dict[str, dict[str, float]]) -> list[str]:
    """One row per task, one column per model, in order of first appearance."""
    if not scores:
        return []
    models = list(dict.fromkeys(model for row in scores.values() for model in row))
    rows = [(task, *(f"{row[model]:.1f}" if model in row else "" for model in models)) for task, row in scores.items()]
    return [_markdown_table(("task", *models), rows)]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(_markdown_row, [header, ["---"] * len(header), *rows]))


def _markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table; whitespace is collapsed and `|` escaped."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
