"""Training FLOPs equal torch's FlopCounterMode for every kind of model, and formulas where torch does not count."""

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
from bertsmith.pretraining.setup import PretrainRecipe, PretrainSetup
from bertsmith.racing.budget import FLOPS_PER_MINUTE, fit_to_budget, measure_step_flops
from bertsmith.racing.flops import TRAIN_FORWARD_RATIO, forward_flops, train_flops_per_token

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "mixer": {"kind": "attention", "num_attention_heads": 2},
    "feedforward": {"intermediate_size": 64},
    "hidden_dropout_prob": 0.0,
}
CAUSAL = SMALL | {"mixer": {"kind": "attention", "num_attention_heads": 2, "causal": True}}
LSTM = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": {"kind": "lstm", "directions": "forward"}, "feedforward": None,
        "norm": "none", "position_embedding_type": "none", "type_vocab_size": 0, "embedding_norm": False,
        "hidden_dropout_prob": 0.0}  # fmt: skip
MEMBERS = {
    "mlm-nsp": (SMALL, "mlm-nsp"),
    "mlm": (SMALL, "mlm"),
    "clm": (CAUSAL, "clm"),
    "shared-blocks": (SMALL | {"num_hidden_groups": 1, "embedding_size": 16}, "mlm"),
    "gated-rotary": (SMALL | {"position_embedding_type": "none", "norm": "pre",
                              "feedforward": {"intermediate_size": 48, "glu": True},
                              "mixer": {"kind": "attention", "num_attention_heads": 2, "rope_theta": 10000.0}}, "mlm"),
    "lstm": (LSTM, "clm"),
    "bilstm": (LSTM | {"mixer": {"kind": "lstm"}}, "mlm"),
    "grams": (LSTM | {"num_hidden_layers": 0, "hidden_size": 44,
                      "embeddings": {"kind": "ngram", "order": 4, "embedding_size": 8, "intermediate_size": 20}},
              {"kind": "clm", "head": {"transform": False, "tied": False, "bias": True}}),
    "characters": (LSTM | {"mixer": {"kind": "lstm", "directions": "apart", "cell_size": 24}, "residual": "between",
                           "embeddings": {"kind": "char-cnn", "max_characters_per_token": 12, "filters": [[2, 8]]}}, "bilm"),
    "filters": (SMALL | {"mixer": {"kind": "cnn", "kernel_sizes": [3, 5]}}, "mlm"),
}  # fmt: skip


def setup_training(corpus, model, objective, **changes):
    settings = {"corpus": str(corpus), "out": "-", "model": model, "objective": objective, "max_length": 32,
                "train": {"steps": 1, "batch_tokens": 256}, **changes}  # fmt: skip
    recipe, open_corpus = from_dict(PretrainRecipe, settings), Corpus.open(corpus)
    setup = PretrainSetup.from_recipe(recipe, open_corpus)
    batch = recipe.objective.to_batch(setup.build_loader(32)(0))
    return recipe, open_corpus, setup.build_untrained_model(), batch


@pytest.mark.parametrize("name", MEMBERS)
def test_train_flops_match_torch_flop_counter(corpus, name):
    recipe, _, model, batch = setup_training(corpus, *MEMBERS[name])
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):  # the only attention backend it counts on a CPU
        losses = recipe.objective.compute_loss(model.train(), batch).parts
        torch.stack(list(losses.values())).sum().backward()
    ours = train_flops_per_token(model, recipe.objective, batch) * batch.num_tokens
    # An LSTM's initial state has no gradient, so torch does less at the first of about thirty time steps.
    tolerance = 0.04 if MEMBERS[name][0]["mixer"]["kind"] == "lstm" else 1e-9
    assert ours == pytest.approx(counter.get_total_flops(), rel=tolerance)


def test_transformer_forward_flops_match_formula():
    model = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocab_size=100, heads=MaskedLM().heads()), 0)
    batch, length, width = make_synthetic_batch(MaskedLM(), 64, 16, 100), 16, 32
    num_predicted, tokens = batch.target_counts["mlm"], batch.num_tokens
    block = 4 * width * width + 2 * length * width + 2 * width * 64  # multiply-adds of projections, attention and feed-forward
    skipped = (tokens - num_predicted) * 2 * width * 64  # after the last attention, only predicted positions are computed
    head = num_predicted * (width * width + width * 100)
    assert forward_flops(model, MaskedLM(), batch) == 2 * (2 * tokens * block - skipped + head)


def test_lstm_forward_flops_are_weights_per_token(corpus):
    recipe, open_corpus, model, batch = setup_training(corpus, LSTM, "clm")
    num_predicted = batch.target_counts["lm"]
    weights = sum(part.numel() for name, part in model.named_parameters() if "mixer" in name and "weight" in name)
    assert forward_flops(model, recipe.objective, batch) == 2 * (
        batch.num_tokens * weights + num_predicted * 32 * len(open_corpus.tokenizer)
    )


def test_step_flops_scale_with_gradient_accumulation(corpus):
    single, open_corpus, _, _ = setup_training(corpus, SMALL, "mlm")
    accumulated, _, _, _ = setup_training(
        corpus, SMALL, "mlm", train={"steps": 1, "batch_tokens": 256, "gradient_accumulation_steps": 2}
    )
    (single_flops, single_updates), (accumulated_flops, accumulated_updates) = (
        measure_step_flops(single, open_corpus),
        measure_step_flops(accumulated, open_corpus),
    )
    assert accumulated_flops == pytest.approx(2 * single_flops) and accumulated_updates == single_updates / 2


def test_step_flops_of_phases_are_their_weighted_mean(corpus):
    phases = {"max_length": [16, 32], "phase_fractions": [0.75, 0.25]}
    (both, open_corpus, *_), (short, *_), (long, *_) = (
        setup_training(corpus, SMALL, "mlm", **changes) for changes in (phases, {"max_length": 16}, {"max_length": 32})
    )
    (mean_flops, updates), (short_flops, short_updates), (long_flops, _) = (
        measure_step_flops(recipe, open_corpus) for recipe in (both, short, long)
    )
    assert (
        mean_flops == pytest.approx(0.75 * short_flops + 0.25 * long_flops)
        and short_flops != long_flops
        and updates == short_updates
    )


def test_race_save_interval_is_about_a_minute(corpus):
    recipe, open_corpus, *_ = setup_training(corpus, SMALL, "mlm", train={"steps": 1, "batch_tokens": 256, "save_every": 10**9})
    step_flops, _ = measure_step_flops(recipe, open_corpus)
    assert fit_to_budget(recipe, open_corpus, 1e9, None)[0].train.save_every == FLOPS_PER_MINUTE["cpu"] // step_flops
    averaged = replace(recipe, train=replace(recipe.train, average_checkpoints=2, save_every=5))
    assert fit_to_budget(averaged, open_corpus, 1e9, None)[0].train.save_every == 5


def test_counting_flops_leaves_model_unchanged(corpus):
    recipe, _, model, batch = setup_training(corpus, SMALL, "mlm")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    assert train_flops_per_token(model, recipe.objective, batch) * batch.num_tokens == TRAIN_FORWARD_RATIO * forward_flops(
        model, recipe.objective, batch
    )
    assert model.training and all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_step_flops_include_transformer_xl_memory(corpus):
    """With a full memory, every token of a segment of 32 attends to 64 more."""
    without_memory = CAUSAL | {
        "position_embedding_type": "none",
        "mixer": {"kind": "transformer-xl", "num_attention_heads": 2, "mem_len": 0},
    }
    with_memory = without_memory | {"mixer": without_memory["mixer"] | {"mem_len": 64}}
    streams = {"kind": "clm", "packing": {"kind": "streams", "across": True}}
    (plain, open_corpus, *_), (remembering, *_) = (
        setup_training(corpus, model, streams) for model in (without_memory, with_memory)
    )
    (plain_flops, _), (memory_flops, _) = measure_step_flops(plain, open_corpus), measure_step_flops(remembering, open_corpus)
    tokens, width = 256, 32
    assert (
        memory_flops - plain_flops > TRAIN_FORWARD_RATIO * 2 * 2 * tokens * 64 * 2 * width
    )  # layers, scores and values; relative positions come on top
