"""Texts that go on, on this CPU: with and without the cache, and against transformers' generate on the same weights."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from bertsmith.convert.fit import fitted
from bertsmith.convert.names import FAMILIES
from bertsmith.model.cached import Continuing, Rereading
from bertsmith.model.generate import Greedy, Stepper, written
from bertsmith.model.laid import by_columns
from bertsmith.model.model import Model

from .material import Material
from .sides import seconds

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 5000},
    "small": {"n_layer": 4, "n_embd": 512, "n_head": 8, "vocab_size": 20_000},
    "base": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50_257},
}
PROMPT = 16
BATCHES = {"one text": (PROMPT,), "eight texts of 4 to 60 tokens": (4, 60, 12, 33, 8, 21, 47, 16)}

Row = tuple[str, str, str, str, str]


def run(stuff: Material) -> list[Row]:
    """Random weights: what is written means nothing, and takes as long."""
    tokens, rounds = stuff.number("tokens", 256), stuff.number("rounds", 3)
    rows: list[Row] = []
    for name in stuff.given.get("sizes", "tiny,small,base").split(","):
        ours, theirs = pair(SIZES[name])
        rows.append(_cached(name, ours, tokens))
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
    return by_columns(model), theirs


def _cached(name: str, model: Model, tokens: int) -> Row:
    prompts, found = made((PROMPT,)), dict[str, Any]()
    fast, slow = (lambda: found.update(fast=said(Continuing(model, tokens), prompts, tokens)),
                  lambda: found.update(slow=said(Rereading(model), prompts, tokens)))  # fmt: skip
    mine, other = seconds(fast, slow, rounds=1, warm=0)  # the slow one takes minutes
    what = f"generate {tokens} tokens, {name}, one text ({'the same' if found['fast'] == found['slow'] else 'ANOTHER'} text)"
    return what, f"cached: {tokens / mine:,.1f} tokens/s", f"uncached: {tokens / other:,.1f}", f"{other / mine:.1f}x", "10x"


def _beside(what: str, ours: Model, theirs: Any, lengths: Sequence[int], tokens: int, rounds: int) -> Row:
    prompts, count = made(lengths), tokens * len(lengths)
    ids, mask = left(prompts)

    def peer() -> list[list[int]]:
        with torch.inference_mode():
            out = theirs.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return out[:, ids.shape[1] :].tolist()

    alike = np.mean(np.array(said(Continuing(ours, tokens), prompts, tokens)) == np.array(peer()))
    mine, other = seconds(lambda: said(Continuing(ours, tokens), prompts, tokens), peer, rounds=rounds, warm=0)
    name = f"generate {tokens} tokens, {what} ({alike:.0%} of the tokens alike)"
    return name, f"{count / mine:,.1f} tokens/s", f"transformers: {count / other:,.1f}", f"{other / mine:.2f}x", "1x"


@torch.inference_mode()
def said(stepper: Stepper, prompts: Sequence[Any], tokens: int) -> list[list[int]]:
    return [one.tokens for one in written(stepper, prompts, Greedy(tokens=tokens))]


def made(lengths: Sequence[int]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 5000, length) for length in lengths]


def left(prompts: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers wants prompts of several lengths: padding before them."""
    longest = max(len(one) for one in prompts)
    ids = np.stack([np.pad(one, (longest - len(one), 0)) for one in prompts])
    mask = np.stack([np.arange(longest) >= longest - len(one) for one in prompts])
    return torch.from_numpy(ids), torch.from_numpy(mask).long()
