"""Batched text generation: targets of sequence-to-sequence tasks, and continuations and likelihoods of causal models."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from ..model.generation.config import Beam, GenerationConfig, Greedy, Sample
from ..model.generation.incremental import IncrementalDecoder, build_incremental_decoder, build_seq2seq_decoder
from ..model.generation.search import GeneratedSequence, generate, number_copies, stream
from ..model.linear import use_small_linear
from ..tasks import Seq2Seq
from ..tasks.seq2seq import Seq2SeqExample, TextDecoder
from ..tasks.sequences import encode_texts
from ..tokenization.tokenizer import Tokenizer
from .engines.base import LM_HEAD, Ints
from .engines.torch import TorchEngine
from .fill_mask import format_likelihood
from .search_config import build_search_config


def generate_targets(
    engine: TorchEngine, tokenizer: Tokenizer, task: Seq2Seq, source_ids: Sequence[Ints],
    search: GenerationConfig | None = None, batch_tokens: int | None = None,
) -> list[Ints]:  # fmt: skip
    """Generated ids [CLS] ... [SEP] for each source, in order; `search` defaults to the task's decoding settings.

    Sources of similar length share a batch.
    """
    model, outputs, search = engine.model, dict[int, Ints](), search or build_search_config(task)
    copy_numbers = number_copies(source_ids)
    max_positions = model.config.encoder.max_position_embeddings
    for batch in engine.batch_by_length(np.array([len(sequence) for sequence in source_ids], np.int64), batch_tokens):
        sources = [source_ids[i] for i in batch]
        max_lengths = [max_positions - (len(sequence) if model.decoder is None else 0) for sequence in sources]
        with engine.inference_context():
            sequences = generate(
                build_seq2seq_decoder(model, search.max_new_tokens, tokenizer.cls_token_id),
                sources,
                search,
                tokenizer.sep_token_id,
                max_lengths,
                [copy_numbers[i] for i in batch],
            )
        outputs |= {int(i): np.array(sequence.tokens, np.int64) for i, sequence in zip(batch, sequences, strict=True)}
    return [outputs[index] for index in range(len(source_ids))]


def stream_target(
    engine: TorchEngine, tokenizer: Tokenizer, task: Seq2Seq, source: str, max_length: int, search: GenerationConfig
) -> Iterator[str]:
    """The target of one source as `generate_targets` gives it, in pieces of text."""
    model, (source_ids,) = engine.model, task.encode([Seq2SeqExample(source)], tokenizer, max_length).input_ids
    room = model.config.encoder.max_position_embeddings - (len(source_ids) if model.decoder is None else 0)
    decoder = build_seq2seq_decoder(model, search.max_new_tokens, tokenizer.cls_token_id)
    arguments = (decoder, source_ids, check_streamable(search), tokenizer.sep_token_id, min(search.max_new_tokens, room))
    return stream_text(engine, stream(*arguments), TextDecoder(tokenizer))


def check_streamable(search: GenerationConfig) -> Greedy | Sample:
    if isinstance(search, Beam):
        raise UserError("beam search knows its text only at the end; stream with kind=greedy or kind=sample, or do not stream")
    return search


def stream_text(
    engine: TorchEngine, sequences: Iterator[GeneratedSequence], decode: Callable[[list[int]], str]
) -> Iterator[str]:
    """Pieces of text whose concatenation is `decode` of all tokens.

    A character may need several tokens of a byte-level vocabulary: until it is complete it is decoded as U+FFFD, and held back.
    """
    emitted = text = ""
    while True:
        with engine.inference_context():  # not around `yield`: it would hold for the caller, too
            sequence = next(sequences, None)
        if sequence is None:
            break
        text = decode(sequence.tokens)
        complete = text.rstrip("\ufffd")
        if len(complete) > len(emitted) and complete.startswith(emitted):
            yield complete[len(emitted) :]
            emitted = complete
    if len(text) > len(emitted):
        yield text[len(emitted) :]


class CausalGenerator:
    """Generation and log-likelihoods with a causal language model."""

    def __init__(self, engine: TorchEngine, tokenizer: Tokenizer) -> None:
        if not engine.facts.is_causal_lm:
            problem = "has no language-model head" if engine.facts.is_causal else "is not causal"
            raise UserError(f"this model {problem} and cannot generate text; use a model pre-trained with objective=clm, or an "
                           "imported GPT")  # fmt: skip
        self.engine, self.model, self.tokenizer = engine, engine.model, tokenizer

    def generate(self, texts: Sequence[str], search: GenerationConfig, batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """The continuation of each text, without the text itself.

        `{"generated_text": " and so on", "token_ids": [...], "log_prob": -12.3, "finish_reason": "length"}`: `log_prob` is the
        sum of the tokens' natural log-probabilities under the model, end token included; `finish_reason` is "eos_token" where
        the model ended the text, "length" where max_new_tokens or the model's positions did.
        """
        prompts, max_positions = self._encode_prompts(texts), self.model.config.encoder.max_position_embeddings
        max_new_tokens = [min(search.max_new_tokens, max_positions - len(prompt)) for prompt in prompts]
        lengths = np.array(
            [len(prompt) + new_tokens for prompt, new_tokens in zip(prompts, max_new_tokens, strict=True)], np.int64
        )
        outputs: dict[int, GeneratedSequence] = {}
        copy_numbers = number_copies(prompts)
        # outside inference mode: it re-lays weights, which may be trained later
        decoder = self._build_decoder(search.max_new_tokens)
        for batch in self.engine.batch_by_length(lengths, batch_tokens):
            with self.engine.inference_context():
                sequences = generate(decoder, [prompts[i] for i in batch], search, self.tokenizer.sep_token_id,
                               [max_new_tokens[i] for i in batch], [copy_numbers[i] for i in batch])  # fmt: skip
            outputs |= dict(zip(batch.tolist(), sequences, strict=True))
        return [self._format_output(prompt, outputs[index]) for index, prompt in enumerate(prompts)]

    def stream(self, text: str, search: GenerationConfig) -> Iterator[str]:
        """The `generated_text` of `generate`, in pieces as they are generated."""
        (prompt,), config = self._encode_prompts([text]), check_streamable(search)
        room = self.model.config.encoder.max_position_embeddings - len(prompt)
        decoder, max_new_tokens = self._build_decoder(search.max_new_tokens), min(search.max_new_tokens, room)
        sequences = stream(decoder, prompt, config, self.tokenizer.sep_token_id, max_new_tokens)
        return stream_text(self.engine, sequences, lambda tokens: self._decode_continuation(prompt, tokens))

    def log_likelihood(self, texts: Sequence[str], batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """Log-likelihood of each text by the chain rule, in one forward pass; texts are truncated to the model's length."""
        max_positions, vocab_size = self.model.config.encoder.max_position_embeddings, len(self.tokenizer)
        ids = [
            np.array([self.tokenizer.cls_token_id, *text_ids], np.int64)[:max_positions]
            for text_ids in encode_texts(texts, self.tokenizer)
        ]
        totals = np.zeros(len(ids))
        for batch in self.engine.batch_by_length(np.array([len(text_ids) for text_ids in ids], np.int64), batch_tokens):
            with self.engine.inference_context():
                hidden, layout = self.engine.compute_hidden_states([ids[i] for i in batch])
                targets = torch.from_numpy(np.concatenate([ids[i] for i in batch])).to(hidden.device)[1:]
                logits = self.model.compute_logits(LM_HEAD, hidden[:-1])[:, :vocab_size].float()
                log_probs = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
                same_sequence = layout.seq_id[1:] == layout.seq_id[:-1]
                sums = torch.zeros(len(batch), dtype=torch.float64, device=hidden.device)
                totals[batch] = (
                    sums.index_add(0, layout.seq_id[1:][same_sequence], log_probs[same_sequence].double()).cpu().numpy()
                )
        starts_word, has_cls = ~self.tokenizer.is_continuation, self.tokenizer.cls_token_id != self.tokenizer.unk_token_id
        word_counts = [
            int(starts_word[text_ids[2:]].sum()) + int(len(text_ids) > 1 and (has_cls or starts_word[text_ids[1]]))
            for text_ids in ids
        ]
        return [
            format_likelihood(total, len(text_ids) - 1, count)
            for total, text_ids, count in zip(totals.tolist(), ids, word_counts, strict=True)
        ]

    def _encode_prompts(self, texts: Sequence[str]) -> list[Ints]:
        """[CLS] and the text; without [CLS] if the vocabulary has none, unless the text is empty."""
        has_cls, max_positions = (
            self.tokenizer.cls_token_id != self.tokenizer.unk_token_id,
            self.model.config.encoder.max_position_embeddings,
        )
        prompts = [np.array([self.tokenizer.cls_token_id, *text_ids] if has_cls or not text_ids else text_ids, np.int64)
                   for text_ids in encode_texts(texts, self.tokenizer)]  # fmt: skip
        for text, prompt in zip(texts, prompts, strict=True):
            if len(prompt) >= max_positions:
                raise UserError(f"{text[:40]!r} has {len(prompt):,} tokens and the model {max_positions:,} positions: there is "
                               "no room for new tokens; shorten the text")  # fmt: skip
        return prompts

    def _build_decoder(self, max_new_tokens: int) -> IncrementalDecoder:
        use_small_linear(self.model)
        # the embedding table may be padded beyond the vocabulary
        return build_incremental_decoder(self.model, max_new_tokens, len(self.tokenizer))

    def _format_output(self, prompt: Ints, output: GeneratedSequence) -> dict[str, Any]:
        text = self._decode_continuation(prompt, output.tokens)
        finish_reason = "eos_token" if output.is_finished else "length"
        return {
            "generated_text": text, "token_ids": output.tokens, "log_prob": output.log_prob, "finish_reason": finish_reason
        }  # fmt: skip

    def _decode_continuation(self, prompt: Ints, tokens: list[int]) -> str:
        """The text of the tokens after the prompt, with the space between both."""
        prompt_text, full_text = self.tokenizer.decode([*prompt]), self.tokenizer.decode([*prompt, *tokens])
        return full_text.removeprefix(prompt_text) if full_text.startswith(prompt_text) else self.tokenizer.decode(tokens)
