"""A class with a task's head as our task, with its labels, and our task as what their config.json says of it."""

from typing import Any

from ...errors import BadInput
from ...model.heads import TextHead, TokenHead
from ...tasks import Answering, Choose, Classify, Regress, Tag, TaskConfig
from .names import Family, Form, Shape

SHAPES: dict[type, Shape] = {Classify: "text", Regress: "text", Tag: "token", Answering: "span", Choose: "choice"}
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
# How ELECTRA makes one row of a text's, for a choice; other values are another model.
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def task_of(form: Form, config: dict[str, Any], outputs: int, source: str) -> TaskConfig | None:
    """What a class of this form answers with that many scores; None where none of our tasks says it."""
    if form.shape == "span":
        return Answering() if outputs == 2 else None
    if form.shape == "choice":
        odd = form.pooler == "sequence_summary.summary" and any(config.get(key, told) != told for key, told in SUMMARY.items())
        return Choose() if outputs == 1 and not odd else None
    if form.shape == "token":
        return Tag(labels=_labels(config, outputs, source))
    problem = config.get("problem_type") or (PROBLEMS[0] if outputs == 1 else PROBLEMS[1])
    if problem == PROBLEMS[0]:
        return Regress() if outputs == 1 else None
    if problem not in PROBLEMS or (problem == PROBLEMS[1] and outputs == 1):
        return None
    return Classify(labels=_labels(config, outputs, source), many=problem == PROBLEMS[2])


def head_of(family: Family, form: Form, config: dict[str, Any], outputs: int) -> TextHead | TokenHead:
    """Our head for it, with its dropout."""
    config = {**family.defaults, **config}
    dropout = config.get(form.dropout) if form.dropout else 0.0
    dropout = config.get(family.sizes["dropout"], 0.1) if dropout is None else dropout
    kind = TextHead if form.shape in ("text", "choice") else TokenHead
    return kind(outputs=outputs, dropout=float(dropout))


def told(task: TaskConfig, form: Form, dropout: float, hidden: float) -> dict[str, Any]:
    """What config.json says of a task: labels, kind of problem, dropout of the head where it is not that of the blocks."""
    out: dict[str, Any] = {}
    if isinstance(task, Classify | Tag):
        out["id2label"] = {str(number): label for number, label in enumerate(task.labels)}
        out["label2id"] = {label: number for number, label in enumerate(task.labels)}
    if isinstance(task, Regress):
        out |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": PROBLEMS[0]}
    if isinstance(task, Classify):
        out["problem_type"] = PROBLEMS[2 if task.many else 1]
    plain = form.dropout in (None, "dropout", "hidden_dropout_prob") or (
        form.dropout == "classifier_dropout" and dropout == hidden
    )
    return out if plain else {**out, str(form.dropout): dropout}


def _labels(config: dict[str, Any], outputs: int, source: str) -> tuple[str, ...]:
    """Those of id2label in the order of the scores, or transformers' own names for them."""
    names = config.get("id2label") or {number: f"LABEL_{number}" for number in range(outputs)}
    try:
        labels = tuple(str(label) for _, label in sorted((int(number), label) for number, label in names.items()))
    except (AttributeError, TypeError, ValueError):
        raise BadInput(f"{source}: id2label in its config.json is no table of labels by their numbers") from None
    if len(labels) != outputs or len(set(labels)) != outputs:
        raise BadInput(f"{source}: its head gives {outputs} scores, but id2label in its config.json names {len(set(labels))} "
                       "different labels; correct it there")  # fmt: skip
    return labels
