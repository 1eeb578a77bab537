"""Texts that go on: with and without the cache, and against transformers' generate on the same weights.

Keys: sizes=tiny,small tokens=256 rounds=3 device=cpu. sizes=base is GPT-2's own, and takes some minutes on a CPU. On a GPU
both sides multiply in bfloat16, and the cache is also measured with 64 texts: one alone keeps no GPU busy.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from bertsmith.convert.huggingface.mapping import fitted
from bertsmith.convert.huggingface.names import FAMILIES
from bertsmith.model.generation.kv_cache import Continuing, Rereading
from bertsmith.model.generation.search import Greedy, written
from bertsmith.model.model import Model
from bertsmith.model.small_matmul import thinned

from .material import Material
from .sides import seconds

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 5000},
    "small": {"n_layer": 4, "n_embd": 512, "n_head": 8, "vocab_size": 20_000},
    "base": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50_257},
}
PROMPT, WARM = 16, 8
BATCHES = {"one text": (PROMPT,), "eight texts of 4 to 60 tokens": (4, 60, 12, 33, 8, 21, 47, 16)}

Row = tuple[str, str, str, str, str]


def run(stuff: Material) -> list[Row]:
    """Random weights: what is written means nothing, and takes as long."""
    tokens, rounds, device = stuff.number("tokens", 256), stuff.number("rounds", 3), stuff.given.get("device", "cpu")
    rows: list[Row] = []
    for name in stuff.given.get("sizes", "tiny,small").split(","):
        ours, theirs = (side.to(device) for side in pair(SIZES[name]))
        rows += [_cached(name, ours, tokens, count) for count in ((1, 64) if device != "cpu" else (1,))]
        rows += [_beside(f"{name}, {what}", ours, theirs, lengths, tokens, rounds) for what, lengths in BATCHES.items()]
    return rows


def pair(sizes: dict[str, Any]) -> tuple[Model, Any]:
    """One model, ours and theirs."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=None, pad_token_id=0, **sizes)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    model = fitted(FAMILIES["gpt2"], config.to_dict(), deepcopy(dict(theirs.state_dict())), "benchmark").model
    return thinned(model), theirs


def _cached(name: str, model: Model, tokens: int, texts: int) -> Row:
    prompts, found = made((PROMPT,) * texts), dict[str, Any]()
    fast, slow = (lambda: found.update(fast=said(Continuing(model, tokens), prompts, tokens)),
                  lambda: found.update(slow=said(Rereading(model), prompts, tokens)))  # fmt: skip
    for stepper in (Continuing(model, WARM), Rereading(model)):  # the whole would take minutes on a CPU
        said(stepper, prompts, WARM)
    mine, other = (one / texts for one in seconds(fast, slow, rounds=1, warm=0))
    alike = np.mean(np.array(found["fast"]) == np.array(found["slow"]))
    what = f"generate {tokens} tokens, {name}, {texts} text{'s' * (texts > 1)} ({alike:.0%} of the tokens alike)"
    return what, f"cached: {tokens / mine:,.1f} tokens/s", f"uncached: {tokens / other:,.1f}", f"{other / mine:.1f}x", "10x"


def _beside(what: str, ours: Model, theirs: Any, lengths: Sequence[int], tokens: int, rounds: int) -> Row:
    prompts, count = made(lengths), tokens * len(lengths)
    ids, mask = (side.to(theirs.device) for side in left(prompts))

    def peer() -> list[list[int]]:
        with torch.inference_mode(), halves(theirs.device):
            out = theirs.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()

    alike = np.mean(np.array(said(Continuing(ours, tokens), prompts, tokens)) == np.array(peer()))
    mine, other = seconds(lambda: said(Continuing(ours, tokens), prompts, tokens), peer, rounds=rounds, warm=0)
    name = f"generate {tokens} tokens, {what} ({alike:.0%} of the tokens alike)"
    return name, f"{count / mine:,.1f} tokens/s", f"transformers: {count / other:,.1f}", f"{other / mine:.2f}x", "1x"


def said(stepper: Continuing | Rereading, prompts: Sequence[Any], tokens: int) -> list[list[int]]:
    with torch.inference_mode(), halves(next(stepper.model.parameters()).device):
        return [one.tokens for one in written(stepper, prompts, Greedy(tokens=tokens))]


def halves(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def made(lengths: Sequence[int]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 5000, length) for length in lengths]


def left(prompts: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers wants prompts of several lengths: padding before them."""
    longest = max(len(one) for one in prompts)
    ids = np.stack([np.pad(one, (longest - len(one), 0)) for one in prompts])
    mask = np.stack([np.arange(longest) >= longest - len(one) for one in prompts])
    return torch.from_numpy(ids), torch.from_numpy(mask).long()
