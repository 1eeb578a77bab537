"""Words in place of masks, and how likely a text is, by a model that was pre-trained on hidden words."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..tasks.base import encode_texts
from ..tokenization.tokenizer import Tokenizer
from .runtime import Ints, Runtime

Predictions = list[dict[str, Any]]


class FillMask:
    """What the head for words says of hidden places."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer, max_length: int) -> None:
        self.runtime, self.tokenizer, self.max_length = runtime, tokenizer, max_length
        if runtime.model.config.encoder.is_causal:
            raise UserError("this model reads from left to right, and was never asked for what is hidden; it writes on, by "
                           "`bertsmith predict` or .generate")  # fmt: skip
        if runtime.model.decoder is not None:
            raise UserError("this model answers texts by texts, and fills no masks; ask it by `bertsmith predict`")
        if "words" not in runtime.model.heads:
            there = ", ".join(runtime.model.heads) or "none"
            raise UserError(f"this model has no head for words (its heads: {there}); one that `pretrain` made fills masks")

    def fill(self, text: str, top_k: int) -> list[Predictions]:
        """For each mask the likeliest words, the others staying masked."""
        ids, where = self._encode_masked_text(text, top_k)
        return [self._top_predictions(row, top_k) for row in self._log_probs_at(ids, where)]

    def fill_jointly(self, text: str, top_k: int) -> list[Predictions]:
        """For each mask the likeliest words, given those already filled: the surest mask first, a pass for each."""
        ids, where = self._encode_masked_text(text, top_k)
        found: dict[int, Predictions] = {}
        while left := [place for place in where if place not in found]:
            rows = self._log_probs_at(ids, left)
            surest = int(rows.max(-1).values.argmax())
            ids[left[surest]] = int(rows[surest].argmax())
            found[left[surest]] = self._top_predictions(rows[surest], top_k)
        return [found[place] for place in where]

    def score_candidates(self, text: str, candidates: Sequence[str]) -> Predictions:
        """The candidates for the one mask of a text, the likeliest first, `score` adding up to 1 over all of them.

        `log` is the logarithm of a candidate's probability. One of several pieces gets as many masks, filled from left to
        right; the sum (not the mean, by which rare words of predictable endings would win) is its probability by the
        chain rule, on one scale with that of a single piece.
        """
        listed = isinstance(candidates, Sequence) and not isinstance(candidates, str)
        if not listed or not all(isinstance(one, str) for one in candidates):
            raise UserError(f'candidates={str(candidates)[:80]} is not a list of texts; give one, such as ["wet", "dry"]')
        copies, where, wanted, owner = self._candidate_inputs(text, candidates)
        logs = torch.zeros(len(candidates), dtype=torch.float64)
        for number, row in self._iter_log_probs(copies, where):
            logs[owner[number]] += float(row[0, wanted[number]])
        shares = logs.softmax(0).tolist()
        found = [{"word": word, "score": round(share, 6), "log": round(log, 4)}
                 for word, share, log in zip(candidates, shares, logs.tolist(), strict=True)]  # fmt: skip
        return sorted(found, key=lambda one: -float(one["log"]))

    def pseudo_log_likelihood(self, texts: Sequence[str], batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """Pseudo-log-likelihoods (Salazar et al. 2020): the sum over tokens of how likely each is, hidden alone.

        A text is cut at the model's length; unknown pieces are in sight, but not asked for.
        """
        special, continues = self.tokenizer.is_special, self.tokenizer.is_continuation
        ids = [self._add_special_tokens(one[: self.max_length - 2]) for one in encode_texts(texts, self.tokenizer)]
        places = [np.flatnonzero(~special[one]) for one in ids]
        owner = np.repeat(np.arange(len(ids)), [len(one) for one in places])
        where = np.concatenate(places) if places else np.zeros(0, np.int64)
        totals = np.zeros(len(ids))
        lengths = np.array([len(one) for one in ids], np.int64)[owner]
        for chosen in self.runtime.batch_by_length(lengths, batch_tokens):
            copies = [self._mask_position(ids[owner[i]], where[i]) for i in chosen]
            for number, row in self._iter_log_probs(copies, [where[i : i + 1] for i in chosen], int(lengths[chosen].sum())):
                mine = owner[chosen[number]]
                totals[mine] += float(row[0, ids[mine][where[chosen[number]]]])
        words = [int((~continues[one[some[1:]]]).sum()) + min(len(some), 1) for one, some in zip(ids, places, strict=True)]
        return [
            format_likelihood(total, len(some), count)
            for total, some, count in zip(totals.tolist(), places, words, strict=True)
        ]

    def _encode_masked_text(self, text: str, top_k: int = 1) -> tuple[Ints, list[int]]:
        if not isinstance(text, str):
            raise UserError(f"{str(text)[:80]} is not a text; give one text with a mask")
        if not isinstance(top_k, int) or top_k < 1:
            raise UserError(f"top={top_k}: that is no number of words; ask for one or more")
        ids = self._add_special_tokens(self.tokenizer.encode_with_mask(text))
        where = np.flatnonzero(ids == self.tokenizer.mask_token_id).tolist()
        if not where:
            mask = self.tokenizer.id_to_token[self.tokenizer.mask_token_id]
            raise UserError(f"there is no {mask} in {text[:80]!r} to fill, and the model was not fine-tuned for a task")
        return ids, where

    def _add_special_tokens(self, ids: Sequence[int]) -> Ints:
        return np.array([self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id], np.int64)

    def _mask_position(self, ids: Ints, position: int) -> Ints:
        copy = ids.copy()
        copy[position] = self.tokenizer.mask_token_id
        return copy

    def _candidate_inputs(self, text: str, candidates: Sequence[str]) -> tuple[list[Ints], list[Ints], list[int], list[int]]:
        """A copy of the text for each piece of each candidate, the pieces before it filled; where; which; whose."""
        ids, where = self._encode_masked_text(text)
        if len(where) > 1 or not candidates:
            raise UserError(f"candidates are for a text with one mask, and one or more of them; here are {len(where)} masks "
                           f"and {len(candidates)} candidates")  # fmt: skip
        copies, places, wanted, owner = list[Ints](), list[Ints](), list[int](), list[int]()
        before, after = ids[: where[0]], ids[where[0] + 1 :]
        for number, pieces in enumerate(self._candidate_ids(text, candidates)):
            for place, piece in enumerate(pieces):
                masks = [self.tokenizer.mask_token_id] * (len(pieces) - place)
                copies.append(np.concatenate([before, np.array([*pieces[:place], *masks], np.int64), after]))
                places.append(np.array([len(before) + place]))
                wanted.append(piece)
                owner.append(number)
        return copies, places, wanted, owner

    def _candidate_ids(self, text: str, candidates: Sequence[str]) -> list[list[int]]:
        mask = self.tokenizer.id_to_token[self.tokenizer.mask_token_id]
        spaced = self.tokenizer.has_space_prefixed_tokens and text.partition(mask)[0].endswith(" ")
        found = encode_texts([f" {one}" if spaced else one for one in candidates], self.tokenizer)
        for word, ids in zip(candidates, found, strict=True):
            if not ids or self.tokenizer.unk_token_id in ids:
                raise UserError(f"the candidate {word!r} has {'unknown pieces' if ids else 'no pieces'}; it cannot be scored")
        return found

    def _log_probs_at(self, ids: Ints, positions: Sequence[int]) -> Tensor:
        """(places, words) log-probabilities."""
        return next(iter(self._iter_log_probs([ids], [np.array(positions)])))[1]

    def _iter_log_probs(
        self, ids: Sequence[Ints], positions: Sequence[Ints], batch_tokens: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """For each sequence by number, in the order of batches: the log-probability of every word at its places."""
        model, known = self.runtime.model, len(self.tokenizer)  # a table may be padded beyond its words
        for chosen in self.runtime.batch_by_length(np.array([len(one) for one in ids]), batch_tokens):
            with self.runtime.inference_context():
                hidden, layout = self.runtime.compute_hidden_states([ids[i] for i in chosen])
                starts = layout.cu_seqlens[:-1].tolist()
                rows = np.concatenate([start + positions[i] for start, i in zip(starts, chosen, strict=True)])
                scores = model.compute_logits("words", hidden[torch.from_numpy(rows).to(hidden.device)])
                logs = scores[:, :known].float().log_softmax(-1).cpu()
            yield from zip(chosen.tolist(), logs.split([len(positions[i]) for i in chosen]), strict=True)

    def _top_predictions(self, log_probs: Tensor, top_k: int) -> Predictions:
        found, pieces = log_probs.exp().topk(min(top_k, len(log_probs))), self.tokenizer.id_to_token
        pairs = zip(found.values.tolist(), found.indices.tolist(), strict=True)
        return [{"word": pieces[number], "score": round(value, 6)} for value, number in pairs]


def format_likelihood(log_likelihood: float, num_tokens: int, num_words: int) -> dict[str, Any]:
    """Means are absent where there is nothing to take them over."""
    per = (
        {"per_token": log_likelihood / num_tokens, "per_word": log_likelihood / num_words}
        if num_tokens
        else {"per_token": None, "per_word": None}
    )
    return {"total": log_likelihood, **per, "tokens": num_tokens, "words": num_words}
