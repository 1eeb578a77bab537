"""What learning costs is counted as torch counts it, for members of every make, and by formulas where torch cannot."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.config import parse
from bertsmith.corpus.store import Corpus
from bertsmith.model.encoder import EncoderConfig
from bertsmith.model.model import ModelConfig, built
from bertsmith.objectives import Masked
from bertsmith.plan.batches import made_up
from bertsmith.race.flops import LEARNING, forward, per_token
from bertsmith.stages import pretrain
from bertsmith.stages.costs import cost

SMALL = {"layers": 2, "width": 32, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 64}, "dropout": 0.0}
CAUSAL = SMALL | {"mixer": {"kind": "dense", "heads": 2, "causal": True}}
LSTM = {"layers": 2, "width": 32, "mixer": {"kind": "lstm", "directions": "forward"}, "feedforward": None, "norm": "none",
        "table": False, "segments": 0, "embedding_norm": False, "dropout": 0.0}  # fmt: skip
MEMBERS = {
    "pairs": (SMALL, "pairs"),
    "masked": (SMALL, "masked"),
    "causal": (CAUSAL, "causal"),
    "shared-blocks": (SMALL | {"groups": 1, "embedding": 16}, "masked"),
    "gated-rotary": (SMALL | {"table": False, "norm": "before", "feedforward": {"inner": 48, "gated": True},
                              "mixer": {"kind": "dense", "heads": 2, "rotary": 10000.0}}, "masked"),
    "lstm": (LSTM, "causal"),
    "both-ways": (LSTM | {"mixer": {"kind": "lstm"}}, "masked"),
    "grams": (LSTM | {"layers": 0, "width": 44, "front": {"kind": "grams", "order": 4, "numbers": 8, "inner": 20}},
              {"kind": "causal", "head": {"transform": False, "tied": False, "bias": True}}),
    "characters": (LSTM | {"mixer": {"kind": "lstm", "directions": "apart", "hidden": 24}, "residual": "between",
                           "front": {"kind": "characters", "letters": 12, "filters": [[2, 8]]}}, "both-ways"),
    "filters": (SMALL | {"mixer": {"kind": "convolution", "widths": [3, 5]}}, "masked"),
}  # fmt: skip


def begun(corpus, model, objective, **changes):
    settings = {"corpus": str(corpus), "out": "-", "model": model, "objective": objective, "length": 32,
                "train": {"steps": 1, "batch_tokens": 256}, **changes}  # fmt: skip
    recipe, opened = parse(pretrain.Recipe, settings), Corpus.open(corpus)
    config = pretrain.model_config(recipe, opened)
    learn, _, _ = pretrain.split(recipe, opened)
    batch = recipe.objective.batch(pretrain.reading(recipe, opened, learn, 32, config)(0))
    model = built(config, 0)
    model.meet(opened.tokenizer)
    return recipe, opened, model, batch


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_costs_what_torch_counts_there_and_back(corpus, name):
    recipe, _, model, batch = begun(corpus, *MEMBERS[name])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torches:  # the only attention that it counts here
        parts = recipe.objective.loss(model.train(), batch).parts
        torch.stack(list(parts.values())).sum().backward()
    ours = per_token(model, recipe.objective, batch) * batch.tokens
    # A recurrence begins with zeros, which have no gradient: torch does less there, by a step in about thirty.
    apart = 0.04 if MEMBERS[name][0]["mixer"]["kind"] == "lstm" else 1e-9
    assert ours == pytest.approx(torches.get_total_flops(), rel=apart)


def test_a_transformer_costs_what_the_formula_says():
    model = built(ModelConfig(encoder=parse(EncoderConfig, SMALL), vocabulary=100, heads=Masked().heads()), 0)
    batch, length, width = made_up(Masked(), 64, 16, 100), 16, 32
    asked, tokens = batch.counts["words"], batch.tokens
    block = 4 * width * width + 2 * length * width + 2 * width * 64  # projections, scores and sums, feed-forward: multiply-adds
    spared = (tokens - asked) * 2 * width * 64  # in the last block only those asked for go on behind attention
    head = asked * (width * width + width * 100)
    assert forward(model, Masked(), batch) == 2 * (2 * tokens * block - spared + head)


def test_a_recurrent_layer_costs_its_weights_for_every_token(corpus):
    recipe, opened, model, batch = begun(corpus, LSTM, "causal")
    asked = batch.counts["words"]
    weights = sum(part.numel() for name, part in model.named_parameters() if "mixer" in name and "weight" in name)
    assert forward(model, recipe.objective, batch) == 2 * (batch.tokens * weights + asked * 32 * len(opened.tokenizer))


def test_a_step_costs_as_much_as_its_tokens_do(corpus):
    small, opened, _, _ = begun(corpus, SMALL, "masked")
    twice, _, _, _ = begun(corpus, SMALL, "masked", train={"steps": 1, "batch_tokens": 256, "accumulate": 2})
    (each, an_epoch), (more, fewer) = cost(small, opened), cost(twice, opened)
    assert more == pytest.approx(2 * each) and fewer == an_epoch / 2


def test_counting_leaves_the_model_as_it_was(corpus):
    recipe, _, model, batch = begun(corpus, SMALL, "masked")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    assert per_token(model, recipe.objective, batch) * batch.tokens == LEARNING * forward(model, recipe.objective, batch)
    assert model.training and all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
