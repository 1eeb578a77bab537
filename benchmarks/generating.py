"""Text generation with and without a KV cache, and against transformers' `generate` with the same weights.

`sizes=base` is GPT-2's own, and takes some minutes on a CPU. On a GPU
both sides compute in bfloat16, and the cache is also measured with 64 texts, since one does not keep a GPU busy.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from bertsmith.convert.huggingface.mapping import convert_from_hf
from bertsmith.convert.huggingface.names import FAMILIES
from bertsmith.model.generation.config import Greedy
from bertsmith.model.generation.incremental import KVCacheDecoder, UncachedDecoder
from bertsmith.model.generation.search import generate
from bertsmith.model.linear import use_small_linear
from bertsmith.model.model import Model

from .inputs import BenchmarkInputs
from .timing import median_seconds

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 5000},
    "small": {"n_layer": 4, "n_embd": 512, "n_head": 8, "vocab_size": 20_000},
    "base": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50_257},
}
PROMPT_LENGTH, WARMUP_TOKENS = 16, 8
BATCH_LENGTHS = {"one text": (PROMPT_LENGTH,), "eight texts of 4 to 60 tokens": (4, 60, 12, 33, 8, 21, 47, 16)}

Row = tuple[str, str, str, str, str]


def run(bench: BenchmarkInputs) -> list[Row]:
    """Weights are random; that does not change the speed."""
    tokens, rounds, device = (
        bench.int_option("max_new_tokens", 256),
        bench.int_option("rounds", 3),
        bench.options.get("device", "cpu"),
    )
    rows: list[Row] = []
    for name in bench.options.get("sizes", "tiny,small").split(","):
        ours, theirs = (model.to(device) for model in build_models(SIZES[name]))
        rows += [_compare_cache(name, ours, tokens, batch_size) for batch_size in ((1, 64) if device != "cpu" else (1,))]
        rows += [
            _compare_transformers(f"{name}, {label}", ours, theirs, lengths, tokens, rounds)
            for label, lengths in BATCH_LENGTHS.items()
        ]
    return rows


def build_models(sizes: dict[str, Any]) -> tuple[Model, Any]:
    """The same GPT-2 in bertsmith and in transformers."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    model = convert_from_hf(FAMILIES["gpt2"], config.to_dict(), deepcopy(dict(theirs.state_dict())), "benchmark").model
    return use_small_linear(model), theirs


def _compare_cache(name: str, model: Model, max_new_tokens: int, batch_size: int) -> Row:
    prompts, generated = random_prompts((PROMPT_LENGTH,) * batch_size), dict[str, Any]()

    def cached() -> None:
        generated["cached"] = generate_ours(KVCacheDecoder(model, max_new_tokens), prompts, max_new_tokens)

    def uncached() -> None:
        generated["uncached"] = generate_ours(UncachedDecoder(model), prompts, max_new_tokens)

    # a short warm-up: a full one would take minutes on a CPU
    for decoder in (KVCacheDecoder(model, WARMUP_TOKENS), UncachedDecoder(model)):
        generate_ours(decoder, prompts, WARMUP_TOKENS)
    cached_seconds, uncached_seconds = (
        seconds / batch_size for seconds in median_seconds(cached, uncached, rounds=1, warmup=0)
    )
    agreement = np.mean(np.array(generated["cached"]) == np.array(generated["uncached"]))
    texts = f"{batch_size} text{'s' * (batch_size > 1)}"
    label = f"generate {max_new_tokens} tokens, {name}, {texts} ({agreement:.0%} identical tokens)"
    return (
        label,
        f"cached: {max_new_tokens / cached_seconds:,.1f} tokens/s",
        f"uncached: {max_new_tokens / uncached_seconds:,.1f}",
        f"{uncached_seconds / cached_seconds:.1f}x",
        "10x",
    )


def _compare_transformers(
    label: str, ours: Model, theirs: Any, lengths: Sequence[int], max_new_tokens: int, rounds: int
) -> Row:
    prompts, num_tokens = random_prompts(lengths), max_new_tokens * len(lengths)
    ids, mask = (tensor.to(theirs.device) for tensor in pad_left(prompts))

    def generate_theirs() -> list[list[int]]:
        with torch.inference_mode(), autocast(theirs.device):
            out = theirs.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()

    agreement = np.mean(
        np.array(generate_ours(KVCacheDecoder(ours, max_new_tokens), prompts, max_new_tokens)) == np.array(generate_theirs())
    )
    our_seconds, their_seconds = median_seconds(
        lambda: generate_ours(KVCacheDecoder(ours, max_new_tokens), prompts, max_new_tokens),
        generate_theirs,
        rounds=rounds,
        warmup=0,
    )
    name = f"generate {max_new_tokens} tokens, {label} ({agreement:.0%} identical tokens)"
    return (
        name,
        f"{num_tokens / our_seconds:,.1f} tokens/s",
        f"transformers: {num_tokens / their_seconds:,.1f}",
        f"{their_seconds / our_seconds:.2f}x",
        "1x",
    )


def generate_ours(decoder: KVCacheDecoder | UncachedDecoder, prompts: Sequence[Any], max_new_tokens: int) -> list[list[int]]:
    with torch.inference_mode(), autocast(next(decoder.model.parameters()).device):
        return [result.tokens for result in generate(decoder, prompts, Greedy(max_new_tokens=max_new_tokens))]


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def random_prompts(lengths: Sequence[int]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 5000, length) for length in lengths]


def pad_left(prompts: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and attention mask, both (batch, max length), padded on the left as transformers' `generate` expects."""
    max_length = max(len(prompt) for prompt in prompts)
    ids = np.stack([np.pad(prompt, (max_length - len(prompt), 0)) for prompt in prompts])
    mask = np.stack([np.arange(max_length) >= max_length - len(prompt) for prompt in prompts])
    return torch.from_numpy(ids), torch.from_numpy(mask).long()
