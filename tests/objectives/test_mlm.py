"""What pre-training costs: asked of the rows that count, it is what all rows would have told."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.corpus.sampling import SentenceOrder
from bertsmith.corpus.store import Corpus
from bertsmith.model.batch import Batch
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import MaskedLM, SentencePairMLM

PLAIN = {"layers": 2, "width": 16, "mixer": {"heads": 2}, "feedforward": {"inner": 24}, "positions": 64, "dropout": 0.0,
         "deviation": 0.3}  # fmt: skip
MODERN = {**PLAIN, "norm": "before", "norm_bias": False, "table": False, "mixer": {"heads": 2, "rotary": 50.0, "bias": False},
          "feedforward": {"inner": 24, "gated": True, "bias": False}}  # fmt: skip
every_objective = pytest.mark.parametrize(
    "objective", [MaskedLM(), SentencePairMLM(), SentencePairMLM(pairs=SentenceOrder())], ids=repr
)
every_encoder = pytest.mark.parametrize("encoder", [PLAIN, MODERN], ids=["plain", "modern"])


def model(corpus, encoder, objective):
    sizes = {"vocabulary": len(Corpus.open(corpus).tokenizer), "heads": objective.heads()}
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, encoder), **sizes), 0).train()


def batch(corpus, objective):
    reading = objective.batches(Corpus.open(corpus), np.arange(60), 64, 1 << 12, 0)
    plan, epoch = reading.rows(0)
    return objective.batch(reading.maker(plan.chosen(np.arange(12)), epoch))


def from_all_rows(made, given):
    """Every hidden state first; then those that are asked for."""
    hidden, targets = made(given.inputs), given.targets
    scores = {"words": made.scores("words", hidden)[targets["where"]]}
    if "next" in targets:
        firsts = given.inputs.layout.lengths.cumsum(0) - given.inputs.layout.lengths
        scores["next"] = made.scores("next", hidden[firsts])
    parts = {name: F.cross_entropy(score, targets[name], reduction="sum") for name, score in scores.items()}
    return parts, {name: (score.argmax(-1) == targets[name]).sum() for name, score in scores.items()}


@every_objective
@every_encoder
def test_the_loss_and_its_slopes_are_those_of_all_rows(corpus, objective, encoder):
    made, given = model(corpus, encoder, objective), batch(corpus, objective)
    assert 0 < given.counts["words"] < given.tokens / 4 and given.inputs.wanted is None
    loss, (parts, right) = objective.loss(made, given), from_all_rows(made, given)
    assert loss.parts.keys() == parts.keys() == given.counts.keys()
    for name, part in parts.items():
        assert_close(loss.parts[name], part, rtol=1e-5, atol=1e-4)
    counts = {
        name: loss.metrics[kind] for name, kind in (("words", "mlm_accuracy"), ("next", "next_accuracy")) if name in parts
    }
    assert {name: int(got) for name, (got, _) in counts.items()} == {name: int(got) for name, got in right.items()}
    assert {name: seen for name, (_, seen) in counts.items()} == given.counts
    used = [weight for name, weight in made.named_parameters() if "pooler" not in name or "next" in parts]
    for ours, theirs in zip(
        torch.autograd.grad(sum(loss.parts.values()), used), torch.autograd.grad(sum(parts.values()), used), strict=True
    ):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@every_objective
def test_only_the_rows_asked_for_leave_the_last_block(corpus, objective):
    made, given = model(corpus, MODERN, objective), batch(corpus, objective)
    seen = []
    for block in made.encoder.stack.blocks:
        block.feedforward.register_forward_hook(lambda part, args, out: seen.append(len(out)))
    objective.loss(made, given)
    assert seen == [given.tokens, sum(given.counts.values())]


def test_pairs_asked_for_their_words_alone_say_nothing_of_pairs(corpus):
    made, given = model(corpus, MODERN, SentencePairMLM()), batch(corpus, SentencePairMLM())
    alone = Batch(
        given.inputs, {name: given.targets[name] for name in ("where", "words")}, {"words": given.target_counts["words"]}
    )
    loss, whole = SentencePairMLM().compute_loss(made, alone), SentencePairMLM().compute_loss(made, given)
    assert loss.parts.keys() == {"words"} and loss.metrics.keys() == {"mlm_accuracy"}
    assert_close(loss.parts["words"], whole.parts["words"])


@every_encoder
def test_a_batch_with_nothing_hidden_costs_nothing(corpus, encoder):
    made, given = model(corpus, encoder, MaskedLM()), batch(corpus, MaskedLM())
    none = torch.empty(0, dtype=torch.long)
    loss = MaskedLM().compute_loss(made, Batch(given.inputs, {"where": none, "words": none}, {"words": 0}))
    assert loss.parts["words"] == 0
    loss.parts["words"].backward()
    assert not [name for name, weight in made.named_parameters() if weight.grad is not None and weight.grad.any()]
