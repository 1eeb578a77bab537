"""What every head attends to, seen as it happens: a layout that watches, whatever is done to queries and keys before."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.collate import Arrays
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.batch import Inputs
from ..model.model import Model
from ..model.packing import Layout
from ..objectives import Masked, ObjectiveConfig
from ..objectives.base import packed
from ..rng import Stream, bits

SHORT = 4  # tokens: in texts that are no longer, every pattern looks like every other


@dataclass(frozen=True)
class Attended:
    """One call of attention, by head."""

    uneven: Tensor  # (heads,): distance from looking at all tokens alike, 0 to 1
    single: Tensor  # (heads,): share that goes to one and the same token of a text, or to its [SEP]s
    given: Tensor  # (tokens, heads, width of a head): what each token got


@dataclass(frozen=True, kw_only=True)
class Watched(Layout):
    """Attends as ever, and notes how in `seen`; attention with other borders than a text's own is not looked at."""

    seen: list[Attended]
    marks: NDArray[np.bool_]  # (tokens,): [CLS] and [SEP]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *more: Any, **others: Any) -> Tensor:
        if q.shape[0] == k.shape[0] and not more and not others.get("causal") and others.get("keys") is None:
            self.seen.append(self._looked(q.float(), k.float(), v.float()))
        return super().attend(q, k, v, *more, **others)

    def _looked(self, q: Tensor, k: Tensor, v: Tensor) -> Attended:
        uneven, single, given = [], [], []
        for a, b in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True):
            weights = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]).mul(q.shape[-1] ** -0.5).softmax(-1)
            given.append(torch.einsum("hqk,khd->qhd", weights, v[a:b]))
            if b - a <= SHORT:
                continue
            by_all = weights.mean(1)  # (heads, keys): what each token gets of everybody's attention
            ends = torch.from_numpy(np.flatnonzero(self.marks[a:b])[1:])
            uneven.append((weights - 1 / (b - a)).abs().sum(-1).mean(-1) / 2)
            single.append(torch.maximum(by_all.max(-1).values, by_all[:, ends].sum(-1)))
        if not uneven:  # too short to tell: neither even nor single
            uneven, single = [torch.ones(q.shape[1])], [torch.zeros(q.shape[1])]
        return Attended(torch.stack(uneven).mean(0), torch.stack(single).mean(0), torch.cat(given))


TOKENS = 4096  # read at once: enough for means, and seconds on a CPU
LENGTH = 128


@dataclass(frozen=True)
class Probe:
    model: Model
    corpus: Corpus
    arrays: Arrays

    @cached_property
    def read(self) -> tuple[Tensor, list[Tensor], list[Attended]]:
        """Hidden states, what went into each block, and what each attended to."""
        inputs = packed(self.arrays)
        kept: list[Tensor] = []
        seen: list[Attended] = []
        layout = Watched(**{f.name: getattr(inputs.layout, f.name) for f in fields(Layout)}, seen=seen, marks=self._marks)
        with torch.inference_mode():
            hidden = self.model(Inputs(inputs.tokens, layout, inputs.segments), kept)
        return hidden, kept, seen

    @cached_property
    def stirred(self) -> Tensor:
        """The hidden state of each token, in the order of the text, when it was read with its words in another order."""
        order = self._order
        inputs = packed(self.arrays)
        with torch.inference_mode():
            hidden = self.model(Inputs(inputs.tokens[order], inputs.layout, inputs.segments))
        back = torch.empty_like(hidden)
        back[order] = hidden
        return back

    @property
    def layout(self) -> Layout:
        return packed(self.arrays).layout

    @cached_property
    def hidden_words(self) -> NDArray[np.int64]:
        """(words,): which targets were shown as [MASK]: the others stand in sight, or were swapped."""
        return np.flatnonzero(self.arrays.tokens[self.arrays.where] == self.corpus.tokenizer.mask)

    @property
    def asked(self) -> bool:
        """There are hidden words, and a head that guesses them."""
        return len(self.hidden_words) > 0 and "words" in self.model.heads

    def cost(self, hidden: Tensor) -> float:
        """Nats for each hidden word."""
        where, words = (torch.from_numpy(some[self.hidden_words]) for some in (self.arrays.where, self.arrays.words))
        with torch.inference_mode():
            return float(torch.nn.functional.cross_entropy(self.model.scores("words", hidden[where]).float(), words))

    @cached_property
    def ordinary(self) -> Tensor:
        """(tokens,) bool: text, neither [CLS] nor [SEP]."""
        return torch.from_numpy(~self._marks)

    @cached_property
    def _marks(self) -> NDArray[np.bool_]:
        return np.isin(self.arrays.tokens, (self.corpus.tokenizer.cls, self.corpus.tokenizer.sep))

    @cached_property
    def _order(self) -> Tensor:
        """Words change places between two marks, so that segments and lengths stay."""
        stretch = 2 * self._marks.cumsum() - self._marks
        return torch.from_numpy(np.lexsort([bits(0, Stream.SHUFFLED_WORDS, np.arange(len(stretch))), stretch]))


def probe(model: Model, corpus: Corpus, recipe: dict[str, Any], objective: ObjectiveConfig | None) -> Probe:
    """On the first samples that training read, masks as it drew them; plain ones, where there was no training."""
    objective, seed = objective or Masked(), recipe.get("seed", 0)
    length = min([LENGTH, model.config.encoder.positions, max(recipe.get("length") or [LENGTH])])
    held_out = 0.0 if recipe.get("valid") else recipe.get("held_out", 0.0)
    try:
        documents, _ = corpus.split(held_out, seed, objective.least)
        arrays = objective.batches(corpus, documents, length, TOKENS, seed)(0)
    except BadInput:  # no pairs, or no documents to spare, which has a finding of its own
        every = np.arange(len(corpus.documents) - 1)
        arrays = Masked().batches(corpus, every, length, TOKENS, seed)(0)
    return Probe(model, corpus, arrays)
