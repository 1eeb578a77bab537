"""A predictor: a folder's tokenizer, task and model behind one call, ready to answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .artifacts import named, read_json
from .config import parse, plain
from .errors import BadInput
from .model import checkpoint
from .model.layout import Layout
from .model.model import Model
from .model.types import Inputs
from .objectives.reading import Reading, batch
from .objectives.supervised import Supervised
from .tasks import Classify, Regress, TaskConfig
from .tasks.base import Encoded
from .tasks.classify import Text
from .tasks.regress import Rated
from .text.tokenizer import Tokenizer


class Predictor:
    """What `bertsmith.load` gives: it knows its tokenizer, task, labels and thresholds from the folder alone."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, card: dict[str, Any], task: TaskConfig | None = None, length: int = 0
    ) -> None:
        self.model, self.tokenizer, self.card, self.task = model.eval(), tokenizer, card, task
        self.length = length or model.config.encoder.positions

    def __call__(self, texts: str | Sequence[str], text_b: str | Sequence[str] | None = None, batch_tokens: int = 8192) -> Any:
        """The answer to one text, or a list of answers to several, as plain values."""
        task = self.taught()
        if not isinstance(task, Classify | Regress):
            raise BadInput(f"a {task.__struct_config__.tag} model is asked with a file: predict model=... data=...")
        one, kind = isinstance(texts, str), Text if isinstance(task, Classify) else Rated
        firsts: Sequence[str] = [texts] if isinstance(texts, str) else texts
        seconds: Sequence[str | None] = [text_b] if isinstance(text_b, str) else text_b or [None] * len(firsts)
        made = [kind(first, second) for first, second in zip(firsts, seconds, strict=True)]
        answers = [plain(answer) for answer in self.answers(made, batch_tokens)]
        return answers[0] if one else answers

    def answers(self, examples: Sequence[Any], batch_tokens: int = 8192) -> list[Any]:
        """One answer an example, in order; sequences of like length share a batch."""
        task = self.taught()
        if not examples:
            return []
        encoded = task.encode(examples, self.tokenizer, self.length)
        return task.decode(self.scores(encoded, batch_tokens), encoded, examples)

    @torch.inference_mode()
    def scores(self, encoded: Encoded, batch_tokens: int = 8192) -> list[np.ndarray]:
        """What the task's head says of each sequence (of each example, where its windows are joined)."""
        task = self.taught()
        bare = Encoded(encoded.ids, encoded.segments, encoded.example, {}, encoded.facts)
        reading, objective = Reading(task, bare, batch_tokens, 0, shuffle=False), Supervised(task)
        device, found = next(self.model.parameters()).device, dict[int, np.ndarray]()
        for chosen in reading.cut(0):
            units = [reading.units[i] for i in chosen]
            made = batch(task, bare, units, reading.joined)
            rows = objective.scores(self.model, made.to(device)).float().cpu()
            numbers = [unit[0] for unit in units] if reading.joined else np.concatenate(units)
            parts = rows.split(made.inputs.layout.lengths.tolist()) if task.head != "text" else rows
            found |= {int(number): part.numpy() for number, part in zip(numbers, parts, strict=True)}
        return [found[number] for number in sorted(found)]

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
        """For each [MASK] in the text, the likeliest words: `[[{"word": "capital", "score": 0.71}, ...], ...]`."""
        ids = [self.tokenizer.cls, *self.tokenizer.encode_marked(text), self.tokenizer.sep]
        where = [place for place, number in enumerate(ids) if number == self.tokenizer.mask]
        if not where:
            raise BadInput(f"there is no {self.tokenizer.pieces[self.tokenizer.mask]} in {text!r} to fill")
        hidden = self.model(Inputs(torch.tensor(ids), Layout.of([len(ids)])))
        known = self.model.scores("words", hidden[where])[:, : len(self.tokenizer)]  # a table may be padded beyond its words
        scores = known.softmax(-1).topk(min(top, len(self.tokenizer)))
        return [self._words(values, numbers) for values, numbers in zip(scores.values, scores.indices, strict=True)]

    def _words(self, values: Tensor, numbers: Tensor) -> list[dict[str, Any]]:
        pieces = self.tokenizer.pieces
        return [{"word": pieces[n], "score": round(v, 6)} for v, n in zip(values.tolist(), numbers.tolist(), strict=True)]

    def taught(self) -> TaskConfig:
        """Its task; a model that was only pre-trained has none."""
        if self.task is None:
            raise BadInput(
                "this model was not fine-tuned for a task; `bertsmith finetune` does that, and .fill fills its masks"
            )
        return self.task


def load(folder: str | Path) -> Predictor:
    """The model in a checkpoint folder, ready to answer."""
    path = named(folder, "folder")
    parts = checkpoint.load(path)
    record = read_json(path / "config.json")
    task = parse(TaskConfig, record["task"], str(path / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    return Predictor(*parts, task, record.get("length", 0))
