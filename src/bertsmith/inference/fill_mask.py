"""Fill-mask predictions and pseudo-log-likelihoods (Salazar et al. 2020) of a model with a masked-LM head."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..tasks.sequences import encode_texts
from ..tokenization.tokenizer import Tokenizer
from .engines.base import LM_HEAD, Engine, Floats, Ints

Predictions = list[dict[str, Any]]
FilledMasks = Predictions | list[Predictions]  # of one mask; of several


class FillMask:
    """Masked-LM inference; requires a bidirectional encoder with a language modeling head."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, max_length: int) -> None:
        self.engine, self.tokenizer, self.max_length = engine, tokenizer, max_length
        if engine.facts.is_causal:
            raise UserError("this model is causal and cannot fill masks; continue a text with .generate or `bertsmith predict`")
        if engine.facts.has_decoder:
            raise UserError("this model is an encoder-decoder and cannot fill masks; use `bertsmith predict` to generate text")
        if LM_HEAD not in engine.facts.heads:
            head_names = ", ".join(engine.facts.heads) or "none"
            raise UserError(
                f"this model has no language-model head (its heads: {head_names}); use a model pre-trained with objective=mlm"
            )

    def fill(self, text: str, top_k: int) -> FilledMasks:
        """The `top_k` most probable tokens of each mask, with the other masks left in place: the output of transformers'
        fill-mask pipeline.

        One row is `{"score": 0.71, "token": 3007, "token_str": "capital", "sequence": "paris is the capital of france."}`:
        `score` is the probability of the token over the vocabulary, `token` its id, `sequence` the text with the token filled
        in (with several masks, the others and [CLS] and [SEP] stay in it). The result is a list of rows for one mask, a list of
        such lists for several.
        """
        ids, positions = self._encode_masked_text(text, top_k)
        log_probs = self._log_probs_at(ids, positions)
        rows = [
            self._top_predictions(ids, position, mask_log_probs, top_k, len(positions) == 1)
            for position, mask_log_probs in zip(positions, log_probs, strict=True)
        ]
        return rows[0] if len(rows) == 1 else rows

    def fill_jointly(self, text: str, top_k: int) -> FilledMasks:
        """As `fill`, but one mask after another: each pass fills the most confident mask left with its most probable token."""
        ids, positions = self._encode_masked_text(text, top_k)
        predictions: dict[int, Predictions] = {}
        while remaining := [position for position in positions if position not in predictions]:
            log_probs = self._log_probs_at(ids, remaining)
            best = int(log_probs.max(-1).argmax())
            position = remaining[best]
            predictions[position] = self._top_predictions(ids, position, log_probs[best], top_k, len(positions) == 1)
            ids[position] = int(log_probs[best].argmax())
        rows = [predictions[position] for position in positions]
        return rows[0] if len(rows) == 1 else rows

    def score_candidates(self, text: str, candidates: Sequence[str]) -> Predictions:
        """The candidates for the single mask of a text, most probable first.

        One row is `{"score": 0.9, "token_str": "New York", "log_prob": -4.1, "sequence": "..."}`: `score` is the softmax over
        the candidates, `log_prob` the natural log-probability of a candidate. A candidate of several subwords gets as many
        masks, filled from left to right: the sum of their log-probabilities (chain rule) is comparable with that of a single
        subword, while the mean would favour rare words with predictable endings.
        """
        is_list = isinstance(candidates, Sequence) and not isinstance(candidates, str)
        if not is_list or not all(isinstance(candidate, str) for candidate in candidates):
            raise UserError(f'candidates={str(candidates)[:80]} is not a list of texts; give one, such as ["wet", "dry"]')
        ids, mask_positions = self._encode_masked_text(text)
        if len(mask_positions) > 1 or not candidates:
            counts = f"{len(mask_positions)} masks and {len(candidates)} candidates"
            raise UserError(f"candidates need a text with one mask, but {text[:80]!r} has {counts}")
        before, after = ids[: mask_positions[0]], ids[mask_positions[0] + 1 :]
        candidate_ids = self._candidate_ids(text, candidates)
        inputs, positions, targets, candidate_index = self._candidate_inputs(before, after, candidate_ids)
        log_probs = np.zeros(len(candidates))
        for i, row in self._iter_log_probs(inputs, positions):
            log_probs[candidate_index[i]] += float(row[0, targets[i]])
        scores = zip(np.exp(log_softmax(log_probs)).tolist(), candidates, log_probs.tolist(), candidate_ids, strict=True)
        predictions = [
            {"score": score, "token_str": candidate, "log_prob": log_prob, "sequence": self._decode([*before, *tokens, *after])}
            for score, candidate, log_prob, tokens in scores
        ]
        return sorted(predictions, key=lambda prediction: -float(prediction["log_prob"]))

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
        for batch in self.engine.batch_by_length(lengths, batch_tokens):
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
            raise UserError(f"top_k={top_k} is not a number of tokens; give 1 or more")
        mask_token = self.tokenizer.id_to_token[self.tokenizer.mask_token_id]
        if mask_token not in text:  # before a long text is encoded, which takes memory
            raise UserError(f"{text[:80]!r} has no {mask_token} to fill, and the model was not fine-tuned for a task")
        ids = self._add_special_tokens(self.tokenizer.encode_with_mask(text))
        return ids, np.flatnonzero(ids == self.tokenizer.mask_token_id).tolist()

    def _add_special_tokens(self, ids: Sequence[int]) -> Ints:
        return np.array([self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id], np.int64)

    def _mask_position(self, ids: Ints, position: int) -> Ints:
        copy = ids.copy()
        copy[position] = self.tokenizer.mask_token_id
        return copy

    def _candidate_inputs(
        self, before: Ints, after: Ints, candidate_ids: Sequence[list[int]]
    ) -> tuple[list[Ints], list[Ints], list[int], list[int]]:
        """One input per subword of each candidate, with the subwords before it filled in.

        Returns, per input: the ids, the position of the mask, the target id, the index of the candidate.
        """
        inputs, positions, targets, candidate_index = list[Ints](), list[Ints](), list[int](), list[int]()
        for index, subwords in enumerate(candidate_ids):
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
                problem = "contains [UNK]" if ids else "has no tokens"
                raise UserError(f"candidate {candidate!r} {problem} in this model's vocabulary; leave it out")
        return encoded

    def _log_probs_at(self, ids: Ints, positions: Sequence[int]) -> Floats:
        """(positions, vocabulary) log-probabilities of one sequence."""
        return next(iter(self._iter_log_probs([ids], [np.array(positions)])))[1]

    def _iter_log_probs(
        self, ids: Sequence[Ints], positions: Sequence[Ints], batch_tokens: int | None = None
    ) -> Iterator[tuple[int, Floats]]:
        """Yields (index of the sequence, (positions, vocabulary) log-probabilities), in the order of the batches."""
        vocab_size = len(self.tokenizer)  # the embedding table may be padded beyond the vocabulary
        for batch in self.engine.batch_by_length(np.array([len(sequence) for sequence in ids]), batch_tokens):
            logits = self.engine.lm_logits([ids[i] for i in batch], [positions[i] for i in batch])
            yield from zip(batch.tolist(), (log_softmax(rows[:, :vocab_size]) for rows in logits), strict=True)

    def _top_predictions(self, ids: Ints, position: int, log_probs: Floats, top_k: int, is_single: bool) -> Predictions:
        sequence, rows = ids.copy(), Predictions()
        top = np.argpartition(-log_probs, min(top_k, len(log_probs)) - 1)[:top_k]
        for token in top[np.argsort(-log_probs[top], kind="stable")].tolist():
            score = float(np.exp(log_probs[token]))
            sequence[position] = token
            text = self._decode(sequence, skip_special_tokens=is_single)
            rows.append({"score": score, "token": token, "token_str": self.tokenizer.decode([token]), "sequence": text})
        return rows

    def _decode(self, ids: Sequence[int] | Ints, skip_special_tokens: bool = True) -> str:
        is_special = self.tokenizer.is_special
        return self.tokenizer.decode([int(i) for i in ids if not (skip_special_tokens and is_special[i])])


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Log-probabilities along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def group_by_mask(filled: FilledMasks) -> list[Predictions]:
    """The result of `fill` as a list of rows per mask, also for a single mask."""
    return [filled] if isinstance(filled[0], dict) else filled


def format_likelihood(log_prob: float, num_tokens: int, num_words: int) -> dict[str, Any]:
    """Natural log-probability of a text, its means per token and per word (None for a text without tokens), and both counts."""
    return {
        "log_prob": log_prob,
        "log_prob_per_token": log_prob / num_tokens if num_tokens else None,
        "log_prob_per_word": log_prob / num_words if num_tokens else None,
        "num_tokens": num_tokens,
        "num_words": num_words,
    }
