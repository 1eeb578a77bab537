"""MLM with NSP or SOP: the loss computed only at output_indices equals that from all rows."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import MaskedLM, NextSentenceMLM, SentenceOrderMLM, SentencePairMLM
from bertsmith.train.objective import Batch

POST_NORM = {"num_hidden_layers": 2, "hidden_size": 16, "mixer": {"num_attention_heads": 2},
             "feedforward": {"intermediate_size": 24}, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
             "initializer_range": 0.3}  # fmt: skip
MODERN = {
    **POST_NORM,
    "norm": "pre",
    "norm_bias": False,
    "position_embedding_type": "none",
    "mixer": {"num_attention_heads": 2, "rope_theta": 50.0, "bias": False},
    "feedforward": {"intermediate_size": 24, "glu": True, "bias": False},
}
every_objective = pytest.mark.parametrize("objective", [MaskedLM(), NextSentenceMLM(), SentenceOrderMLM()], ids=repr)
every_encoder = pytest.mark.parametrize("encoder", [POST_NORM, MODERN], ids=["plain", "modern"])


def build_test_model(corpus, encoder, objective):
    sizes = {"vocab_size": len(Corpus.open(corpus).tokenizer), "heads": objective.heads()}
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, encoder), **sizes), 0).train()


def build_test_batch(corpus, objective):
    loader = objective.build_batches(Corpus.open(corpus), np.arange(60), 64, 1 << 12, 0)
    index, epoch = loader.select_samples(0)
    return objective.to_batch(loader.collator(index.select(np.arange(12)), epoch))


def reference_loss(model, batch):
    """Loss and number of correct predictions from all hidden states."""
    hidden_states, targets = model(batch.inputs), batch.targets
    logits = {"mlm": model.compute_logits("lm", hidden_states)[targets["output_indices"]]}
    labels = {"mlm": targets["target_ids"]}
    if "pair_labels" in targets:
        first_token = batch.inputs.layout.lengths.cumsum(0) - batch.inputs.layout.lengths
        pair_task = next(name for name in batch.target_counts if name != "mlm")
        logits[pair_task], labels[pair_task] = (
            model.compute_logits(pair_task, hidden_states[first_token]),
            targets["pair_labels"],
        )
    parts = {name: F.cross_entropy(part_logits, labels[name], reduction="sum") for name, part_logits in logits.items()}
    return parts, {name: (part_logits.argmax(-1) == labels[name]).sum() for name, part_logits in logits.items()}


@every_objective
@every_encoder
def test_mlm_loss_and_grads_match_full_output(corpus, objective, encoder):
    model, batch = build_test_model(corpus, encoder, objective), build_test_batch(corpus, objective)
    assert 0 < batch.target_counts["mlm"] < batch.num_tokens / 4 and batch.inputs.output_indices is None
    loss, (parts, num_correct) = objective.compute_loss(model, batch), reference_loss(model, batch)
    assert loss.parts.keys() == parts.keys() == batch.target_counts.keys()
    for name, part in parts.items():
        assert_close(loss.parts[name], part, rtol=1e-5, atol=1e-4)
    assert set(parts) == {"mlm", *([objective.pair_task] if isinstance(objective, SentencePairMLM) else [])}
    counts = {name: loss.metrics[f"{name}_accuracy"] for name in parts}
    assert {name: int(count) for name, (count, _) in counts.items()} == {
        name: int(count) for name, count in num_correct.items()
    }
    assert {name: num_targets for name, (_, num_targets) in counts.items()} == batch.target_counts
    weights = [weight for name, weight in model.named_parameters() if "pooler" not in name or len(parts) > 1]
    for grad, expected in zip(
        torch.autograd.grad(sum(loss.parts.values()), weights), torch.autograd.grad(sum(parts.values()), weights), strict=True
    ):
        assert_close(grad, expected, rtol=1e-4, atol=1e-3)


@every_objective
def test_mlm_last_layer_computes_only_output_indices(corpus, objective):
    model, batch = build_test_model(corpus, MODERN, objective), build_test_batch(corpus, objective)
    num_rows = []
    for block in model.encoder.stack.layers:
        block.feedforward.register_forward_hook(lambda part, args, out: num_rows.append(len(out)))
    objective.compute_loss(model, batch)
    assert num_rows == [batch.num_tokens, sum(batch.target_counts.values())]


def test_mlm_nsp_without_pair_targets_has_only_mlm_loss(corpus):
    model, batch = build_test_model(corpus, MODERN, NextSentenceMLM()), build_test_batch(corpus, NextSentenceMLM())
    mlm_batch = Batch(
        batch.inputs,
        {name: batch.targets[name] for name in ("output_indices", "target_ids")},
        {"mlm": batch.target_counts["mlm"]},
    )
    loss, full_loss = NextSentenceMLM().compute_loss(model, mlm_batch), NextSentenceMLM().compute_loss(model, batch)
    assert loss.parts.keys() == {"mlm"} and loss.metrics.keys() == {"mlm_accuracy"}
    assert_close(loss.parts["mlm"], full_loss.parts["mlm"])


@every_encoder
def test_mlm_loss_is_zero_without_masked_tokens(corpus, encoder):
    model, batch = build_test_model(corpus, encoder, MaskedLM()), build_test_batch(corpus, MaskedLM())
    empty = torch.empty(0, dtype=torch.long)
    loss = MaskedLM().compute_loss(model, Batch(batch.inputs, {"output_indices": empty, "target_ids": empty}, {"mlm": 0}))
    assert loss.parts["mlm"] == 0
    loss.parts["mlm"].backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
