"""Task heads: a transformers class with id2label and problem_type as our task and head, and back."""

from typing import Any

from ...errors import UserError
from ...model.heads import SequenceHeadConfig, TokenHeadConfig
from ...tasks import MultipleChoice, QuestionAnswering, TaskConfig, TextClassification, TextRegression, TokenClassification
from ...tasks.base import LossKind
from .family import Architecture, Family, HeadType

PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
PROBLEM_TYPE_OF_LOSS: dict[LossKind, str] = dict(
    zip(("mse", "cross_entropy", "binary_cross_entropy"), PROBLEM_TYPES, strict=True)
)
# How ElectraForMultipleChoice pools a sequence; other values are a model that we do not have.
ELECTRA_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def task_from_hf(architecture: Architecture, config: dict[str, Any], num_outputs: int, source: str) -> TaskConfig | None:
    """Our task for a class with that many outputs; None if we have no such task."""
    if architecture.head_type == "span":
        return QuestionAnswering() if num_outputs == 2 else None
    if architecture.head_type == "choice":
        differs = architecture.pooler_module == "sequence_summary.summary" and any(
            config.get(key, value) != value for key, value in ELECTRA_SUMMARY.items()
        )
        return MultipleChoice() if num_outputs == 1 and not differs else None
    if architecture.head_type == "token":
        return TokenClassification(labels=_read_labels(config, num_outputs, source))
    problem_type = config.get("problem_type") or (PROBLEM_TYPES[0] if num_outputs == 1 else PROBLEM_TYPES[1])
    if problem_type == PROBLEM_TYPES[0]:
        return TextRegression() if num_outputs == 1 else None
    if problem_type not in PROBLEM_TYPES or (problem_type == PROBLEM_TYPES[1] and num_outputs == 1):
        return None
    return TextClassification(labels=_read_labels(config, num_outputs, source), multi_label=problem_type == PROBLEM_TYPES[2])


def export_head_type(task: TaskConfig) -> HeadType | None:
    """The kind of transformers' head for a task; None if it has none."""
    if task.head_type == "embedding" or task.head_type == "lm":
        return None
    return "choice" if task.loss == "choice" else task.head_type


def head_from_hf(
    family: Family, architecture: Architecture, config: dict[str, Any], num_outputs: int
) -> SequenceHeadConfig | TokenHeadConfig:
    """Our head for a class, with its dropout."""
    config = {**family.defaults, **config}
    dropout = config.get(architecture.dropout_key) if architecture.dropout_key else 0.0
    dropout = config.get(family.config_keys["hidden_dropout_prob"], 0.1) if dropout is None else dropout
    head_class = SequenceHeadConfig if architecture.head_type in ("text", "choice") else TokenHeadConfig
    return head_class(outputs=num_outputs, dropout=float(dropout))


def task_to_hf(task: TaskConfig, architecture: Architecture, head_dropout: float, hidden_dropout: float) -> dict[str, Any]:
    """Keys of config.json for a task: id2label, label2id, problem_type, and the head's dropout if it has a key of its own."""
    values: dict[str, Any] = {}
    if labels := task.labels or (("LABEL_0",) if task.loss == "mse" else ()):
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    if task.head_type == "text" and task.loss in PROBLEM_TYPE_OF_LOSS:
        values["problem_type"] = PROBLEM_TYPE_OF_LOSS[task.loss]
    no_own_key = architecture.dropout_key in (None, "dropout", "hidden_dropout_prob") or (
        architecture.dropout_key == "classifier_dropout" and head_dropout == hidden_dropout
    )
    return values if no_own_key else {**values, str(architecture.dropout_key): head_dropout}


def _read_labels(config: dict[str, Any], num_outputs: int, source: str) -> tuple[str, ...]:
    """Labels of id2label in order of their ids, or transformers' default names."""
    names = config.get("id2label") or {number: f"LABEL_{number}" for number in range(num_outputs)}
    try:
        labels = tuple(str(label) for _, label in sorted((int(number), label) for number, label in names.items()))
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{source}: id2label in config.json must map numbers to labels") from None
    if len(labels) != num_outputs or len(set(labels)) != num_outputs:
        raise UserError(f"{source}: the head has {num_outputs} outputs, but id2label in config.json names "
                       f"{len(set(labels))} different labels; correct config.json")  # fmt: skip
    return labels
