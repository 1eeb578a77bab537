"""Fill-mask predictions and pseudo-log-likelihoods (Salazar et al. 2020) of a model with a masked-LM head."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..model.heads import LM_HEAD
from ..tasks.base import encode_texts
from ..tokenization.tokenizer import Tokenizer
from .runtime import Ints, Runtime

Predictions = list[dict[str, Any]]


class FillMask:
    """Masked-LM inference; requires a bidirectional encoder with a language modeling head."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer, max_length: int) -> None:
        self.runtime, self.tokenizer, self.max_length = runtime, tokenizer, max_length
        if runtime.model.config.encoder.is_causal:
            raise UserError("this model reads from left to right, and was never asked for what is hidden; it writes on, by "
                           "`bertsmith predict` or .generate")  # fmt: skip
        if runtime.model.decoder is not None:
            raise UserError("this model answers texts by texts, and fills no masks; ask it by `bertsmith predict`")
        if LM_HEAD not in runtime.model.heads:
            head_names = ", ".join(runtime.model.heads) or "none"
            raise UserError(f"this model has no head for words (its heads: {head_names}); one that `pretrain` made fills masks")

    def fill(self, text: str, top_k: int) -> list[Predictions]:
        """For each mask the `top_k` most probable tokens, with the other masks left in place."""
        ids, positions = self._encode_masked_text(text, top_k)
        return [self._top_predictions(row, top_k) for row in self._log_probs_at(ids, positions)]

    def fill_jointly(self, text: str, top_k: int) -> list[Predictions]:
        """For each mask the `top_k` most probable tokens, filled greedily: each pass fills the most confident mask left."""
        ids, positions = self._encode_masked_text(text, top_k)
        predictions: dict[int, Predictions] = {}
        while remaining := [position for position in positions if position not in predictions]:
            log_probs = self._log_probs_at(ids, remaining)
            best = int(log_probs.max(-1).values.argmax())
            ids[remaining[best]] = int(log_probs[best].argmax())
            predictions[remaining[best]] = self._top_predictions(log_probs[best], top_k)
        return [predictions[position] for position in positions]

    def score_candidates(self, text: str, candidates: Sequence[str]) -> Predictions:
        """The candidates for the single mask of a text, most probable first; `score` is the softmax over the candidates.

        `log` is the log-probability of a candidate. A candidate of several subwords gets as many masks, filled from left
        to right: the sum of their log-probabilities (chain rule) is comparable with that of a single subword, while the
        mean would favour rare words with predictable endings.
        """
        is_list = isinstance(candidates, Sequence) and not isinstance(candidates, str)
        if not is_list or not all(isinstance(candidate, str) for candidate in candidates):
            raise UserError(f'candidates={str(candidates)[:80]} is not a list of texts; give one, such as ["wet", "dry"]')
        inputs, positions, targets, candidate_index = self._candidate_inputs(text, candidates)
        log_probs = torch.zeros(len(candidates), dtype=torch.float64)
        for i, row in self._iter_log_probs(inputs, positions):
            log_probs[candidate_index[i]] += float(row[0, targets[i]])
        probs = log_probs.softmax(0).tolist()
        predictions = [{"word": word, "score": round(prob, 6), "log": round(log_prob, 4)}
                       for word, prob, log_prob in zip(candidates, probs, log_probs.tolist(), strict=True)]  # fmt: skip
        return sorted(predictions, key=lambda prediction: -float(prediction["log"]))

    def pseudo_log_likelihood(self, texts: Sequence[str], batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """Pseudo-log-likelihood, sum over t of log p(x_t | x without x_t) (Salazar et al. 2020, eq. 1): one mask at a time.

        A text is truncated to the model's length; [UNK] tokens are context but are not scored.
        """
        is_special, is_continuation = self.tokenizer.is_special, self.tokenizer.is_continuation
        ids = [self._add_special_tokens(text_ids[: self.max_length - 2]) for text_ids in encode_texts(texts, self.tokenizer)]
        positions = [np.flatnonzero(~is_special[text_ids]) for text_ids in ids]
        text_index = np.repeat(np.arange(len(ids)), [len(text_positions) for text_positions in positions])
        flat_positions = np.concatenate(positions) if positions else np.zeros(0, np.int64)
        totals = np.zeros(len(ids))
        lengths = np.array([len(text_ids) for text_ids in ids], np.int64)[text_index]
        for batch in self.runtime.batch_by_length(lengths, batch_tokens):
            masked_inputs = [self._mask_position(ids[text_index[i]], flat_positions[i]) for i in batch]
            for row_index, log_probs in self._iter_log_probs(
                masked_inputs, [flat_positions[i : i + 1] for i in batch], int(lengths[batch].sum())
            ):
                text = text_index[batch[row_index]]
                totals[text] += float(log_probs[0, ids[text][flat_positions[batch[row_index]]]])
        word_counts = [
            int((~is_continuation[text_ids[text_positions[1:]]]).sum()) + min(len(text_positions), 1)
            for text_ids, text_positions in zip(ids, positions, strict=True)
        ]
        return [
            format_likelihood(total, len(text_positions), count)
            for total, text_positions, count in zip(totals.tolist(), positions, word_counts, strict=True)
        ]

    def _encode_masked_text(self, text: str, top_k: int = 1) -> tuple[Ints, list[int]]:
        if not isinstance(text, str):
            raise UserError(f"{str(text)[:80]} is not a text; give one text with a mask")
        if not isinstance(top_k, int) or top_k < 1:
            raise UserError(f"top_k={top_k}: that is no number of words; ask for one or more")
        ids = self._add_special_tokens(self.tokenizer.encode_with_mask(text))
        positions = np.flatnonzero(ids == self.tokenizer.mask_token_id).tolist()
        if not positions:
            mask_token = self.tokenizer.id_to_token[self.tokenizer.mask_token_id]
            raise UserError(f"there is no {mask_token} in {text[:80]!r} to fill, and the model was not fine-tuned for a task")
        return ids, positions

    def _add_special_tokens(self, ids: Sequence[int]) -> Ints:
        return np.array([self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id], np.int64)

    def _mask_position(self, ids: Ints, position: int) -> Ints:
        copy = ids.copy()
        copy[position] = self.tokenizer.mask_token_id
        return copy

    def _candidate_inputs(self, text: str, candidates: Sequence[str]) -> tuple[list[Ints], list[Ints], list[int], list[int]]:
        """One input per subword of each candidate, with the subwords before it filled in.

        Returns, per input: the ids, the position of the mask, the target id, the index of the candidate.
        """
        ids, mask_positions = self._encode_masked_text(text)
        if len(mask_positions) > 1 or not candidates:
            raise UserError(f"candidates are for a text with one mask, and one or more of them; here are {len(mask_positions)} "
                           f"masks and {len(candidates)} candidates")  # fmt: skip
        inputs, positions, targets, candidate_index = list[Ints](), list[Ints](), list[int](), list[int]()
        before, after = ids[: mask_positions[0]], ids[mask_positions[0] + 1 :]
        for index, subwords in enumerate(self._candidate_ids(text, candidates)):
            for offset, subword in enumerate(subwords):
                masks = [self.tokenizer.mask_token_id] * (len(subwords) - offset)
                inputs.append(np.concatenate([before, np.array([*subwords[:offset], *masks], np.int64), after]))
                positions.append(np.array([len(before) + offset]))
                targets.append(subword)
                candidate_index.append(index)
        return inputs, positions, targets, candidate_index

    def _candidate_ids(self, text: str, candidates: Sequence[str]) -> list[list[int]]:
        mask_token = self.tokenizer.id_to_token[self.tokenizer.mask_token_id]
        add_space = self.tokenizer.has_space_prefixed_tokens and text.partition(mask_token)[0].endswith(" ")
        encoded = encode_texts([f" {candidate}" if add_space else candidate for candidate in candidates], self.tokenizer)
        for candidate, ids in zip(candidates, encoded, strict=True):
            if not ids or self.tokenizer.unk_token_id in ids:
                raise UserError(
                    f"the candidate {candidate!r} has {'unknown pieces' if ids else 'no pieces'}; it cannot be scored"
                )
        return encoded

    def _log_probs_at(self, ids: Ints, positions: Sequence[int]) -> Tensor:
        """(positions, vocabulary) log-probabilities of one sequence."""
        return next(iter(self._iter_log_probs([ids], [np.array(positions)])))[1]

    def _iter_log_probs(
        self, ids: Sequence[Ints], positions: Sequence[Ints], batch_tokens: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (index of the sequence, (positions, vocabulary) log-probabilities), in the order of the batches."""
        model, vocab_size = self.runtime.model, len(self.tokenizer)  # the embedding table may be padded beyond the vocabulary
        for batch in self.runtime.batch_by_length(np.array([len(sequence) for sequence in ids]), batch_tokens):
            with self.runtime.inference_context():
                hidden, layout = self.runtime.compute_hidden_states([ids[i] for i in batch])
                starts = layout.cu_seqlens[:-1].tolist()
                rows = np.concatenate([start + positions[i] for start, i in zip(starts, batch, strict=True)])
                logits = model.compute_logits(LM_HEAD, hidden[torch.from_numpy(rows).to(hidden.device)])
                log_probs = logits[:, :vocab_size].float().log_softmax(-1).cpu()
            yield from zip(batch.tolist(), log_probs.split([len(positions[i]) for i in batch]), strict=True)

    def _top_predictions(self, log_probs: Tensor, top_k: int) -> Predictions:
        top, tokens = log_probs.exp().topk(min(top_k, len(log_probs))), self.tokenizer.id_to_token
        pairs = zip(top.values.tolist(), top.indices.tolist(), strict=True)
        return [{"word": tokens[token_id], "score": round(prob, 6)} for prob, token_id in pairs]


def format_likelihood(log_likelihood: float, num_tokens: int, num_words: int) -> dict[str, Any]:
    """Log-likelihood in total, per token and per word (None for a text without tokens), with both counts."""
    means = (
        {"per_token": log_likelihood / num_tokens, "per_word": log_likelihood / num_words}
        if num_tokens
        else {"per_token": None, "per_word": None}
    )
    return {"total": log_likelihood, **means, "tokens": num_tokens, "words": num_words}
