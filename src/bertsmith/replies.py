"""Answers in words: what a model writes to each source, many at a time."""

from collections.abc import Sequence

import numpy as np

from .model.generate import Beam, Greedy, SearchConfig, written
from .model.seq2seq import stepper
from .runtime import Ints, Runtime
from .tasks import Generate
from .text.tokenizer import Tokenizer


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
