"""The teacher: a checkpoint with its task, whose weights are not trained."""

from dataclasses import dataclass
from typing import Any

from ...artifacts import resolve_path
from ...config import from_dict
from ...errors import UserError
from ...model import checkpoint
from ...model.folder import read_config
from ...model.heads import LM_HEAD
from ...model.model import Model
from ...tasks import Task, TaskConfig
from ...tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Teacher:
    """A loaded checkpoint."""

    name: str  # as the recipe gives it
    model: Model
    tokenizer: Tokenizer
    card: dict[str, Any]
    config: dict[str, Any]  # what config.json records beside the model
    task: Task | None  # None: pre-trained only

    @classmethod
    def load(cls, name: str) -> "Teacher":
        folder = resolve_path(name, "teacher")
        model, tokenizer, card = checkpoint.load(folder)
        config = read_config(folder)
        task = from_dict(TaskConfig, config["task"], str(folder / "config.json")) if "task" in config else None  # type: ignore[arg-type]
        if model.config.decoder is not None:
            raise UserError(f"teacher={name} has a decoder; distillation is for encoders and causal models")
        return cls(name, model.requires_grad_(False), tokenizer, card, config, task)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(getattr(self.task, "labels", ()))

    @property
    def max_length(self) -> int:
        """Maximum length of its texts, in tokens."""
        return int(self.config.get("max_length") or self.model.config.encoder.max_position_embeddings)

    def require_task(self) -> Task:
        """Its task, if a student can learn it."""
        if self.task is None:
            raise UserError(f"teacher={self.name} was not fine-tuned for a task; fine-tune it first with `bertsmith finetune`, "
                           "or distill it on text with corpus=FOLDER")  # fmt: skip
        if self.task.head_type == "lm":
            raise UserError("task=generate cannot be distilled; the tasks that can be are classify, regress, tag, answer, "
                           "choose and similar")  # fmt: skip
        return self.task

    def check_language_model(self) -> None:
        """Raises a UserError for a teacher that predicts no tokens."""
        if LM_HEAD not in self.model.config.heads:
            raise UserError(f"teacher={self.name} has no language modelling head, and so no soft labels on text; set "
                           "loss.soft_labels=0, and teach by its inner states, such as loss=minilm")  # fmt: skip
