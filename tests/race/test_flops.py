"""What learning costs is counted as torch counts it, for members of every make, and by formulas where torch cannot."""

import pytest
import torch
from msgspec.structs import replace
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import MaskedLM
from bertsmith.planning.step import make_synthetic_batch
from bertsmith.pretraining.setup import PretrainRecipe, build_batches, build_model_config, split_corpus
from bertsmith.race.budget import FLOPS_PER_MINUTE, fit_to_budget, measure_step_flops
from bertsmith.race.flops import TRAIN_FORWARD_RATIO, forward_flops, train_flops_per_token

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
    recipe, opened = from_dict(PretrainRecipe, settings), Corpus.open(corpus)
    config = build_model_config(recipe, opened)
    learn, _, _ = split_corpus(recipe, opened)
    batch = recipe.objective.to_batch(build_batches(recipe, opened, learn, 32, config)(0))
    model = build_model(config, 0)
    model.attach_tokenizer(opened.tokenizer)
    return recipe, opened, model, batch


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_costs_what_torch_counts_there_and_back(corpus, name):
    recipe, _, model, batch = begun(corpus, *MEMBERS[name])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as torches:  # the only attention that it counts here
        parts = recipe.objective.compute_loss(model.train(), batch).parts
        torch.stack(list(parts.values())).sum().backward()
    ours = train_flops_per_token(model, recipe.objective, batch) * batch.num_tokens
    # A recurrence begins with zeros, which have no gradient: torch does less there, by a step in about thirty.
    apart = 0.04 if MEMBERS[name][0]["mixer"]["kind"] == "lstm" else 1e-9
    assert ours == pytest.approx(torches.get_total_flops(), rel=apart)


def test_a_transformer_costs_what_the_formula_says():
    model = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocabulary=100, heads=MaskedLM().heads()), 0)
    batch, length, width = make_synthetic_batch(MaskedLM(), 64, 16, 100), 16, 32
    asked, tokens = batch.target_counts["words"], batch.num_tokens
    block = 4 * width * width + 2 * length * width + 2 * width * 64  # projections, scores and sums, feed-forward: multiply-adds
    spared = (tokens - asked) * 2 * width * 64  # in the last block only those asked for go on behind attention
    head = asked * (width * width + width * 100)
    assert forward_flops(model, MaskedLM(), batch) == 2 * (2 * tokens * block - spared + head)


def test_a_recurrent_layer_costs_its_weights_for_every_token(corpus):
    recipe, opened, model, batch = begun(corpus, LSTM, "causal")
    asked = batch.target_counts["words"]
    weights = sum(part.numel() for name, part in model.named_parameters() if "mixer" in name and "weight" in name)
    assert forward_flops(model, recipe.objective, batch) == 2 * (
        batch.num_tokens * weights + asked * 32 * len(opened.tokenizer)
    )


def test_a_step_costs_as_much_as_its_tokens_do(corpus):
    small, opened, _, _ = begun(corpus, SMALL, "masked")
    twice, _, _, _ = begun(corpus, SMALL, "masked", train={"steps": 1, "batch_tokens": 256, "accumulate": 2})
    (each, an_epoch), (more, fewer) = measure_step_flops(small, opened), measure_step_flops(twice, opened)
    assert more == pytest.approx(2 * each) and fewer == an_epoch / 2


def test_phases_of_several_lengths_cost_their_mean(corpus):
    phases = {"length": [16, 32], "shares": [0.75, 0.25]}
    (both, opened, *_), (short, *_), (long, *_) = (
        begun(corpus, SMALL, "masked", **changes) for changes in (phases, {"length": 16}, {"length": 32})
    )
    (mean, updates), (few, an_epoch), (more, _) = (measure_step_flops(one, opened) for one in (both, short, long))
    assert mean == pytest.approx(0.75 * few + 0.25 * more) and few != more and updates == an_epoch


def test_members_are_saved_about_once_a_minute(corpus):
    recipe, opened, *_ = begun(corpus, SMALL, "masked", train={"steps": 1, "batch_tokens": 256, "save_every": 10**9})
    step, _ = measure_step_flops(recipe, opened)
    assert fit_to_budget(recipe, opened, 1e9, None)[0].train.save_every == FLOPS_PER_MINUTE["cpu"] // step
    averaged = replace(recipe, train=replace(recipe.train, average=2, save_every=5))
    assert fit_to_budget(averaged, opened, 1e9, None)[0].train.save_every == 5


def test_counting_leaves_the_model_as_it_was(corpus):
    recipe, _, model, batch = begun(corpus, SMALL, "masked")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    assert train_flops_per_token(model, recipe.objective, batch) * batch.num_tokens == TRAIN_FORWARD_RATIO * forward_flops(
        model, recipe.objective, batch
    )
    assert model.training and all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_what_is_remembered_costs_too(corpus):
    """Once its memory is full, every token of a segment of 32 meets 64 more."""
    recurrent = CAUSAL | {"table": False, "mixer": {"kind": "recurrent", "heads": 2, "remembers": 0}}
    long = recurrent | {"mixer": recurrent["mixer"] | {"remembers": 64}}
    streams = {"kind": "causal", "view": {"kind": "streams", "across": True}}
    (none, opened, *_), (some, *_) = (begun(corpus, model, streams) for model in (recurrent, long))
    (few, _), (more, _) = measure_step_flops(none, opened), measure_step_flops(some, opened)
    tokens, width = 256, 32
    assert more - few > TRAIN_FORWARD_RATIO * 2 * 2 * tokens * 64 * 2 * width  # layers, scores and sums; distances come on top
