"""Words in place of masks, and how likely a text is, by a model that was pre-trained on hidden words."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput
from ..tasks.base import ids_of
from ..tokenization.tokenizer import Tokenizer
from .runtime import Ints, Runtime

Found = list[dict[str, Any]]


class Words:
    """What the head for words says of hidden places."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer, length: int) -> None:
        self.runtime, self.tokenizer, self.length = runtime, tokenizer, length
        if runtime.model.config.encoder.causal:
            raise BadInput("this model reads from left to right, and was never asked for what is hidden; it writes on, by "
                           "`bertsmith predict` or .generate")  # fmt: skip
        if runtime.model.decoder is not None:
            raise BadInput("this model answers texts by texts, and fills no masks; ask it by `bertsmith predict`")
        if "words" not in runtime.model.heads:
            there = ", ".join(runtime.model.heads) or "none"
            raise BadInput(f"this model has no head for words (its heads: {there}); one that `pretrain` made fills masks")

    def fill(self, text: str, top: int) -> list[Found]:
        """For each mask the likeliest words, the others staying masked."""
        ids, where = self._marked(text, top)
        return [self._best(row, top) for row in self._asked(ids, where)]

    def together(self, text: str, top: int) -> list[Found]:
        """For each mask the likeliest words, given those already filled: the surest mask first, a pass for each."""
        ids, where = self._marked(text, top)
        found: dict[int, Found] = {}
        while left := [place for place in where if place not in found]:
            rows = self._asked(ids, left)
            surest = int(rows.max(-1).values.argmax())
            ids[left[surest]] = int(rows[surest].argmax())
            found[left[surest]] = self._best(rows[surest], top)
        return [found[place] for place in where]

    def choose(self, text: str, candidates: Sequence[str]) -> Found:
        """The candidates for the one mask of a text, the likeliest first, `score` adding up to 1 over all of them.

        `log` is the logarithm of a candidate's probability. One of several pieces gets as many masks, filled from left to
        right; the sum (not the mean, by which rare words of predictable endings would win) is its probability by the
        chain rule, on one scale with that of a single piece.
        """
        listed = isinstance(candidates, Sequence) and not isinstance(candidates, str)
        if not listed or not all(isinstance(one, str) for one in candidates):
            raise BadInput(f'candidates={str(candidates)[:80]} is not a list of texts; give one, such as ["wet", "dry"]')
        copies, where, wanted, owner = self._copies(text, candidates)
        logs = torch.zeros(len(candidates), dtype=torch.float64)
        for number, row in self._each(copies, where):
            logs[owner[number]] += float(row[0, wanted[number]])
        shares = logs.softmax(0).tolist()
        found = [{"word": word, "score": round(share, 6), "log": round(log, 4)}
                 for word, share, log in zip(candidates, shares, logs.tolist(), strict=True)]  # fmt: skip
        return sorted(found, key=lambda one: -float(one["log"]))

    def likelihood(self, texts: Sequence[str], tokens: int | None = None) -> list[dict[str, Any]]:
        """Pseudo-log-likelihoods (Salazar et al. 2020): the sum over tokens of how likely each is, hidden alone.

        A text is cut at the model's length; unknown pieces are in sight, but not asked for.
        """
        special, continues = self.tokenizer.special, self.tokenizer.continues
        ids = [self._framed(one[: self.length - 2]) for one in ids_of(texts, self.tokenizer)]
        places = [np.flatnonzero(~special[one]) for one in ids]
        owner = np.repeat(np.arange(len(ids)), [len(one) for one in places])
        where = np.concatenate(places) if places else np.zeros(0, np.int64)
        totals = np.zeros(len(ids))
        lengths = np.array([len(one) for one in ids], np.int64)[owner]
        for chosen in self.runtime.batches(lengths, tokens):
            copies = [self._without(ids[owner[i]], where[i]) for i in chosen]
            for number, row in self._each(copies, [where[i : i + 1] for i in chosen], int(lengths[chosen].sum())):
                mine = owner[chosen[number]]
                totals[mine] += float(row[0, ids[mine][where[chosen[number]]]])
        words = [int((~continues[one[some[1:]]]).sum()) + min(len(some), 1) for one, some in zip(ids, places, strict=True)]
        return [likely(total, len(some), count) for total, some, count in zip(totals.tolist(), places, words, strict=True)]

    def _marked(self, text: str, top: int = 1) -> tuple[Ints, list[int]]:
        if not isinstance(text, str):
            raise BadInput(f"{str(text)[:80]} is not a text; give one text with a mask")
        if not isinstance(top, int) or top < 1:
            raise BadInput(f"top={top}: that is no number of words; ask for one or more")
        ids = self._framed(self.tokenizer.encode_marked(text))
        where = np.flatnonzero(ids == self.tokenizer.mask).tolist()
        if not where:
            mask = self.tokenizer.pieces[self.tokenizer.mask]
            raise BadInput(f"there is no {mask} in {text[:80]!r} to fill, and the model was not fine-tuned for a task")
        return ids, where

    def _framed(self, ids: Sequence[int]) -> Ints:
        return np.array([self.tokenizer.cls, *ids, self.tokenizer.sep], np.int64)

    def _without(self, ids: Ints, place: int) -> Ints:
        copy = ids.copy()
        copy[place] = self.tokenizer.mask
        return copy

    def _copies(self, text: str, candidates: Sequence[str]) -> tuple[list[Ints], list[Ints], list[int], list[int]]:
        """A copy of the text for each piece of each candidate, the pieces before it filled; where; which; whose."""
        ids, where = self._marked(text)
        if len(where) > 1 or not candidates:
            raise BadInput(f"candidates are for a text with one mask, and one or more of them; here are {len(where)} masks "
                           f"and {len(candidates)} candidates")  # fmt: skip
        copies, places, wanted, owner = list[Ints](), list[Ints](), list[int](), list[int]()
        before, after = ids[: where[0]], ids[where[0] + 1 :]
        for number, pieces in enumerate(self._pieces(text, candidates)):
            for place, piece in enumerate(pieces):
                masks = [self.tokenizer.mask] * (len(pieces) - place)
                copies.append(np.concatenate([before, np.array([*pieces[:place], *masks], np.int64), after]))
                places.append(np.array([len(before) + place]))
                wanted.append(piece)
                owner.append(number)
        return copies, places, wanted, owner

    def _pieces(self, text: str, candidates: Sequence[str]) -> list[list[int]]:
        mask = self.tokenizer.pieces[self.tokenizer.mask]
        spaced = self.tokenizer.joins_spaces and text.partition(mask)[0].endswith(" ")
        found = ids_of([f" {one}" if spaced else one for one in candidates], self.tokenizer)
        for word, ids in zip(candidates, found, strict=True):
            if not ids or self.tokenizer.unk in ids:
                raise BadInput(f"the candidate {word!r} has {'unknown pieces' if ids else 'no pieces'}; it cannot be scored")
        return found

    def _asked(self, ids: Ints, where: Sequence[int]) -> Tensor:
        """(places, words) log-probabilities."""
        return next(iter(self._each([ids], [np.array(where)])))[1]

    def _each(self, ids: Sequence[Ints], where: Sequence[Ints], tokens: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """For each sequence by number, in the order of batches: the log-probability of every word at its places."""
        model, known = self.runtime.model, len(self.tokenizer)  # a table may be padded beyond its words
        for chosen in self.runtime.batches(np.array([len(one) for one in ids]), tokens):
            with self.runtime.answering():
                hidden, layout = self.runtime.hidden([ids[i] for i in chosen])
                starts = layout.starts[:-1].tolist()
                rows = np.concatenate([start + where[i] for start, i in zip(starts, chosen, strict=True)])
                scores = model.scores("words", hidden[torch.from_numpy(rows).to(hidden.device)])
                logs = scores[:, :known].float().log_softmax(-1).cpu()
            yield from zip(chosen.tolist(), logs.split([len(where[i]) for i in chosen]), strict=True)

    def _best(self, row: Tensor, top: int) -> Found:
        found, pieces = row.exp().topk(min(top, len(row))), self.tokenizer.pieces
        pairs = zip(found.values.tolist(), found.indices.tolist(), strict=True)
        return [{"word": pieces[number], "score": round(value, 6)} for value, number in pairs]


def likely(total: float, tokens: int, words: int) -> dict[str, Any]:
    """Means are absent where there is nothing to take them over."""
    per = {"per_token": total / tokens, "per_word": total / words} if tokens else {"per_token": None, "per_word": None}
    return {"total": total, **per, "tokens": tokens, "words": words}
