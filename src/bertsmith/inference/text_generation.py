"""Answers in words: what a model writes to each source, many at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import BadInput
from ..model.generation.kv_cache import Continuing, Remembering, Rereading, steps
from ..model.generation.search import Beam, Greedy, SearchConfig, Stepper, Written, written
from ..model.generation.seq2seq import stepper
from ..model.mixers import Dense
from ..model.model import Model
from ..model.small_matmul import thinned
from ..tasks import Generate
from ..tasks.base import ids_of
from ..tokenization.tokenizer import Tokenizer
from .fill_mask import likely
from .runtime import Ints, Runtime


def replied(
    runtime: Runtime, tokenizer: Tokenizer, task: Generate, sources: Sequence[Ints], search: SearchConfig | None = None,
    batch_tokens: int | None = None,
) -> list[Ints]:  # fmt: skip
    """The ids written for each source, [CLS] ... [SEP], in order, searched for as the task says if nobody says otherwise.

    Sources of like length share a batch.
    """
    model, found, search = runtime.model, dict[int, Ints](), search or searched(task)
    room = model.config.encoder.positions
    for chosen in runtime.batches(np.array([len(one) for one in sources], np.int64), batch_tokens):
        some = [sources[i] for i in chosen]
        left = [room - (len(one) if model.decoder is None else 0) for one in some]
        with runtime.answering():
            said = written(stepper(model, tokenizer.cls, search.tokens), some, search, tokenizer.sep, left)
        found |= {int(i): np.array(one.tokens, np.int64) for i, one in zip(chosen, said, strict=True)}
    return [found[number] for number in range(len(sources))]


def searched(task: Generate) -> SearchConfig:
    if task.beam == 1:
        return Greedy(tokens=task.longest)
    return Beam(tokens=task.longest, size=task.beam, alpha=task.alpha)


def continues(model: Model) -> bool:
    """It can be asked for the next token."""
    return model.config.encoder.causal and model.config.decoder is None and "words" in model.heads


class Continuations:
    """What the head for words says of the token behind a text."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer) -> None:
        if not continues(runtime.model):
            told = "has no head for words" if runtime.model.config.encoder.causal else "sees what follows"
            raise BadInput(f"this model {told}; one that `pretrain` made with objective=causal, or an imported GPT, writes on")
        self.runtime, self.model, self.tokenizer = runtime, runtime.model, tokenizer

    def write(self, texts: Sequence[str], search: SearchConfig, tokens: int | None = None) -> list[dict[str, Any]]:
        """The continuation of each text: `{"text": " and so on", "tokens": [...], "log": -12.3, "ended": False}`."""
        prompts, limit = self._begun(texts), self.model.config.encoder.positions
        room = [min(search.tokens, limit - len(prompt)) for prompt in prompts]
        sizes = np.array([len(prompt) + left for prompt, left in zip(prompts, room, strict=True)], np.int64)
        found: dict[int, Written] = {}
        stepper = self._stepper(search.tokens)  # out of inference: it lays weights down anew, which may be trained later
        for chosen in self.runtime.batches(sizes, tokens):
            with self.runtime.answering():
                some = written(stepper, [prompts[i] for i in chosen], search, self.tokenizer.sep,
                               [room[i] for i in chosen])  # fmt: skip
            found |= dict(zip(chosen.tolist(), some, strict=True))
        return [self._told(prompt, found[number]) for number, prompt in enumerate(prompts)]

    def likelihood(self, texts: Sequence[str], tokens: int | None = None) -> list[dict[str, Any]]:
        """The logarithm of each text's probability, by the chain rule, from one reading; cut at the model's length."""
        limit, known = self.model.config.encoder.positions, len(self.tokenizer)
        ids = [np.array([self.tokenizer.cls, *one], np.int64)[:limit] for one in ids_of(texts, self.tokenizer)]
        totals = np.zeros(len(ids))
        for chosen in self.runtime.batches(np.array([len(one) for one in ids], np.int64), tokens):
            with self.runtime.answering():
                hidden, layout = self.runtime.hidden([ids[i] for i in chosen])
                words = torch.from_numpy(np.concatenate([ids[i] for i in chosen])).to(hidden.device)[1:]
                scores = self.model.scores("words", hidden[:-1])[:, :known].float()
                logs = scores.log_softmax(-1).gather(1, words[:, None]).squeeze(1)
                inside = layout.owner[1:] == layout.owner[:-1]
                sums = torch.zeros(len(chosen), dtype=torch.float64, device=hidden.device)
                totals[chosen] = sums.index_add(0, layout.owner[1:][inside], logs[inside].double()).cpu().numpy()
        begins, own = ~self.tokenizer.continues, self.tokenizer.cls != self.tokenizer.unk
        counts = [int(begins[one[2:]].sum()) + int(len(one) > 1 and (own or begins[one[1]])) for one in ids]
        return [likely(total, len(one) - 1, count) for total, one, count in zip(totals.tolist(), ids, counts, strict=True)]

    def _begun(self, texts: Sequence[str]) -> list[Ints]:
        """[CLS] and the text; of a vocabulary that has no such token only the text, unless it is empty."""
        own, limit = self.tokenizer.cls != self.tokenizer.unk, self.model.config.encoder.positions
        prompts = [np.array([self.tokenizer.cls, *one] if own or not one else one, np.int64)
                   for one in ids_of(texts, self.tokenizer)]  # fmt: skip
        for text, prompt in zip(texts, prompts, strict=True):
            if len(prompt) >= limit:
                raise BadInput(f"{text[:40]!r} has {len(prompt):,} tokens, and the model's {limit:,} positions leave no room "
                               "behind it; cut it at its beginning")  # fmt: skip
        return prompts

    def _stepper(self, tokens: int) -> Stepper:
        encoder = self.model.config.encoder
        cached = isinstance(encoder.mixer, Dense) and encoder.others is None and encoder.front is None
        known = len(self.tokenizer)  # a table may be padded beyond its words
        thinned(self.model)
        if cached:
            return Continuing(self.model, tokens, known)
        return Remembering(self.model, known) if steps(self.model) else Rereading(self.model, known)

    def _told(self, prompt: Ints, found: Written) -> dict[str, Any]:
        before, whole = self.tokenizer.decode([*prompt]), self.tokenizer.decode([*prompt, *found.tokens])
        text = whole.removeprefix(before) if whole.startswith(before) else self.tokenizer.decode(found.tokens)
        return {"text": text, "tokens": found.tokens, "log": round(found.log, 4), "ended": found.ended}
