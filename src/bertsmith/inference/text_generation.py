"""Answers in words: what a model writes to each source, many at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from ..model.generation.kv_cache import KVCacheDecoder, SegmentMemoryDecoder, UncachedDecoder, supports_segment_memory
from ..model.generation.search import Beam, GeneratedSequence, GenerationConfig, Greedy, IncrementalDecoder, generate
from ..model.generation.seq2seq import build_incremental_decoder
from ..model.mixers import Attention
from ..model.model import Model
from ..model.small_matmul import use_small_linear
from ..tasks import Seq2Seq
from ..tasks.base import encode_texts
from ..tokenization.tokenizer import Tokenizer
from .fill_mask import format_likelihood
from .runtime import Ints, Runtime


def generate_targets(
    runtime: Runtime, tokenizer: Tokenizer, task: Seq2Seq, source_ids: Sequence[Ints], search: GenerationConfig | None = None,
    batch_tokens: int | None = None,
) -> list[Ints]:  # fmt: skip
    """The ids written for each source, [CLS] ... [SEP], in order, searched for as the task says if nobody says otherwise.

    Sources of like length share a batch.
    """
    model, found, search = runtime.model, dict[int, Ints](), search or build_search_config(task)
    room = model.config.encoder.positions
    for chosen in runtime.batch_by_length(np.array([len(one) for one in source_ids], np.int64), batch_tokens):
        some = [source_ids[i] for i in chosen]
        left = [room - (len(one) if model.decoder is None else 0) for one in some]
        with runtime.inference_context():
            said = generate(
                build_incremental_decoder(model, tokenizer.cls_token_id, search.tokens),
                some,
                search,
                tokenizer.sep_token_id,
                left,
            )
        found |= {int(i): np.array(one.tokens, np.int64) for i, one in zip(chosen, said, strict=True)}
    return [found[number] for number in range(len(source_ids))]


def build_search_config(task: Seq2Seq) -> GenerationConfig:
    if task.beam == 1:
        return Greedy(tokens=task.longest)
    return Beam(tokens=task.longest, size=task.beam, alpha=task.alpha)


def is_causal_lm(model: Model) -> bool:
    """It can be asked for the next token."""
    return model.config.encoder.is_causal and model.config.decoder is None and "words" in model.heads


class CausalGenerator:
    """What the head for words says of the token behind a text."""

    def __init__(self, runtime: Runtime, tokenizer: Tokenizer) -> None:
        if not is_causal_lm(runtime.model):
            told = "has no head for words" if runtime.model.config.encoder.is_causal else "sees what follows"
            raise UserError(f"this model {told}; one that `pretrain` made with objective=causal, or an imported GPT, writes on")
        self.runtime, self.model, self.tokenizer = runtime, runtime.model, tokenizer

    def generate(self, texts: Sequence[str], search: GenerationConfig, batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """The continuation of each text: `{"text": " and so on", "tokens": [...], "log": -12.3, "ended": False}`."""
        prompts, limit = self._encode_prompts(texts), self.model.config.encoder.positions
        room = [min(search.tokens, limit - len(prompt)) for prompt in prompts]
        sizes = np.array([len(prompt) + left for prompt, left in zip(prompts, room, strict=True)], np.int64)
        found: dict[int, GeneratedSequence] = {}
        stepper = self._build_stepper(search.tokens)  # out of inference: it lays weights down anew, which may be trained later
        for chosen in self.runtime.batch_by_length(sizes, batch_tokens):
            with self.runtime.inference_context():
                some = generate(stepper, [prompts[i] for i in chosen], search, self.tokenizer.sep_token_id,
                               [room[i] for i in chosen])  # fmt: skip
            found |= dict(zip(chosen.tolist(), some, strict=True))
        return [self._format_output(prompt, found[number]) for number, prompt in enumerate(prompts)]

    def log_likelihood(self, texts: Sequence[str], batch_tokens: int | None = None) -> list[dict[str, Any]]:
        """The logarithm of each text's probability, by the chain rule, from one reading; cut at the model's length."""
        limit, known = self.model.config.encoder.positions, len(self.tokenizer)
        ids = [np.array([self.tokenizer.cls_token_id, *one], np.int64)[:limit] for one in encode_texts(texts, self.tokenizer)]
        totals = np.zeros(len(ids))
        for chosen in self.runtime.batch_by_length(np.array([len(one) for one in ids], np.int64), batch_tokens):
            with self.runtime.inference_context():
                hidden, layout = self.runtime.compute_hidden_states([ids[i] for i in chosen])
                words = torch.from_numpy(np.concatenate([ids[i] for i in chosen])).to(hidden.device)[1:]
                scores = self.model.compute_logits("words", hidden[:-1])[:, :known].float()
                logs = scores.log_softmax(-1).gather(1, words[:, None]).squeeze(1)
                inside = layout.seq_id[1:] == layout.seq_id[:-1]
                sums = torch.zeros(len(chosen), dtype=torch.float64, device=hidden.device)
                totals[chosen] = sums.index_add(0, layout.seq_id[1:][inside], logs[inside].double()).cpu().numpy()
        begins, own = ~self.tokenizer.is_continuation, self.tokenizer.cls_token_id != self.tokenizer.unk_token_id
        counts = [int(begins[one[2:]].sum()) + int(len(one) > 1 and (own or begins[one[1]])) for one in ids]
        return [
            format_likelihood(total, len(one) - 1, count)
            for total, one, count in zip(totals.tolist(), ids, counts, strict=True)
        ]

    def _encode_prompts(self, texts: Sequence[str]) -> list[Ints]:
        """[CLS] and the text; of a vocabulary that has no such token only the text, unless it is empty."""
        own, limit = self.tokenizer.cls_token_id != self.tokenizer.unk_token_id, self.model.config.encoder.positions
        prompts = [np.array([self.tokenizer.cls_token_id, *one] if own or not one else one, np.int64)
                   for one in encode_texts(texts, self.tokenizer)]  # fmt: skip
        for text, prompt in zip(texts, prompts, strict=True):
            if len(prompt) >= limit:
                raise UserError(f"{text[:40]!r} has {len(prompt):,} tokens, and the model's {limit:,} positions leave no room "
                               "behind it; cut it at its beginning")  # fmt: skip
        return prompts

    def _build_stepper(self, max_new_tokens: int) -> IncrementalDecoder:
        encoder = self.model.config.encoder
        cached = isinstance(encoder.mixer, Attention) and encoder.others is None and encoder.front is None
        known = len(self.tokenizer)  # a table may be padded beyond its words
        use_small_linear(self.model)
        if cached:
            return KVCacheDecoder(self.model, max_new_tokens, known)
        return (
            SegmentMemoryDecoder(self.model, known)
            if supports_segment_memory(self.model)
            else UncachedDecoder(self.model, known)
        )

    def _format_output(self, prompt: Ints, output: GeneratedSequence) -> dict[str, Any]:
        before, whole = self.tokenizer.decode([*prompt]), self.tokenizer.decode([*prompt, *output.tokens])
        text = whole.removeprefix(before) if whole.startswith(before) else self.tokenizer.decode(output.tokens)
        return {"text": text, "tokens": output.tokens, "log": round(output.log_prob, 4), "ended": output.is_finished}
