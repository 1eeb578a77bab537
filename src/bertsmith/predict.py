"""A predictor: a folder's tokenizer and model behind one call, ready to answer."""

from pathlib import Path
from typing import Any

import torch

from .artifacts import named
from .errors import BadInput
from .model import checkpoint
from .model.layout import Layout
from .model.model import Model
from .model.types import Inputs
from .text.tokenizer import Tokenizer


class Predictor:
    """What `bertsmith.load` gives: it knows its tokenizer and its heads from the folder alone."""

    def __init__(self, model: Model, tokenizer: Tokenizer, card: dict[str, Any]) -> None:
        self.model, self.tokenizer, self.card = model.eval(), tokenizer, card

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
        """For each [MASK] in the text, the likeliest words: `[[{"word": "capital", "score": 0.71}, ...], ...]`."""
        ids = [self.tokenizer.cls, *self.tokenizer.encode_marked(text), self.tokenizer.sep]
        where = [place for place, number in enumerate(ids) if number == self.tokenizer.mask]
        if not where:
            raise BadInput(f"there is no {self.tokenizer.pieces[self.tokenizer.mask]} in {text!r} to fill")
        hidden = self.model(Inputs(torch.tensor(ids), Layout.of([len(ids)])))
        scores = self.model.scores("words", hidden[where]).softmax(-1).topk(min(top, len(self.tokenizer)))
        return [self._words(values, numbers) for values, numbers in zip(scores.values, scores.indices, strict=True)]

    def _words(self, values: torch.Tensor, numbers: torch.Tensor) -> list[dict[str, Any]]:
        pieces = self.tokenizer.pieces
        return [{"word": pieces[n], "score": round(v, 6)} for v, n in zip(values.tolist(), numbers.tolist(), strict=True)]


def load(folder: str | Path) -> Predictor:
    """The model in a checkpoint folder, ready to answer."""
    return Predictor(*checkpoint.load(named(folder, "folder")))
