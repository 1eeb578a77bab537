"""A class with a task's head as our task, with its labels, and our task as what their config.json says of it."""

from typing import Any

from ...errors import UserError
from ...model.heads import SequenceHeadConfig, TokenHeadConfig
from ...tasks import MultipleChoice, QuestionAnswering, TaskConfig, TextClassification, TextRegression, TokenClassification
from .names import Architecture, Family, HeadType

HEAD_TYPES: dict[type, HeadType] = {
    TextClassification: "text",
    TextRegression: "text",
    TokenClassification: "token",
    QuestionAnswering: "span",
    MultipleChoice: "choice",
}
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# How ELECTRA makes one row of a text's, for a choice; other values are another model.
ELECTRA_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def task_from_hf(architecture: Architecture, config: dict[str, Any], num_outputs: int, source: str) -> TaskConfig | None:
    """What a class of this form answers with that many scores; None where none of our tasks says it."""
    if architecture.head_type == "span":
        return QuestionAnswering() if num_outputs == 2 else None
    if architecture.head_type == "choice":
        odd = architecture.pooler_module == "sequence_summary.summary" and any(
            config.get(key, told) != told for key, told in ELECTRA_SUMMARY.items()
        )
        return MultipleChoice() if num_outputs == 1 and not odd else None
    if architecture.head_type == "token":
        return TokenClassification(labels=_read_labels(config, num_outputs, source))
    problem = config.get("problem_type") or (PROBLEM_TYPES[0] if num_outputs == 1 else PROBLEM_TYPES[1])
    if problem == PROBLEM_TYPES[0]:
        return TextRegression() if num_outputs == 1 else None
    if problem not in PROBLEM_TYPES or (problem == PROBLEM_TYPES[1] and num_outputs == 1):
        return None
    return TextClassification(labels=_read_labels(config, num_outputs, source), many=problem == PROBLEM_TYPES[2])


def head_from_hf(
    family: Family, architecture: Architecture, config: dict[str, Any], num_outputs: int
) -> SequenceHeadConfig | TokenHeadConfig:
    """Our head for it, with its dropout."""
    config = {**family.defaults, **config}
    dropout = config.get(architecture.dropout_key) if architecture.dropout_key else 0.0
    dropout = config.get(family.config_keys["dropout"], 0.1) if dropout is None else dropout
    kind = SequenceHeadConfig if architecture.head_type in ("text", "choice") else TokenHeadConfig
    return kind(outputs=num_outputs, dropout=float(dropout))


def task_to_hf(task: TaskConfig, architecture: Architecture, head_dropout: float, hidden_dropout: float) -> dict[str, Any]:
    """What config.json says of a task: labels, kind of problem, dropout of the head where it is not that of the blocks."""
    out: dict[str, Any] = {}
    if isinstance(task, TextClassification | TokenClassification):
        out["id2label"] = {str(number): label for number, label in enumerate(task.labels)}
        out["label2id"] = {label: number for number, label in enumerate(task.labels)}
    if isinstance(task, TextRegression):
        out |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": PROBLEM_TYPES[0]}
    if isinstance(task, TextClassification):
        out["problem_type"] = PROBLEM_TYPES[2 if task.many else 1]
    plain = architecture.dropout_key in (None, "dropout", "hidden_dropout_prob") or (
        architecture.dropout_key == "classifier_dropout" and head_dropout == hidden_dropout
    )
    return out if plain else {**out, str(architecture.dropout_key): head_dropout}


def _read_labels(config: dict[str, Any], num_outputs: int, source: str) -> tuple[str, ...]:
    """Those of id2label in the order of the scores, or transformers' own names for them."""
    names = config.get("id2label") or {number: f"LABEL_{number}" for number in range(num_outputs)}
    try:
        labels = tuple(str(label) for _, label in sorted((int(number), label) for number, label in names.items()))
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{source}: id2label in its config.json is no table of labels by their numbers") from None
    if len(labels) != num_outputs or len(set(labels)) != num_outputs:
        raise UserError(f"{source}: its head gives {num_outputs} scores, but id2label in its config.json names {len(set(labels))} "
                       "different labels; correct it there")  # fmt: skip
    return labels
