"""Adaptive softmax and adaptive input: equal to torch's AdaptiveLogSoftmaxWithLoss and to the full softmax; weight tying."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.embeddings import AdaptiveInputConfig
from bertsmith.model.embeddings.adaptive import AdaptiveSoftmaxHeadConfig, Clusters
from bertsmith.model.mixers import TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.cli import run_cli_json

VOCAB_SIZE, HIDDEN_SIZE, CUTOFFS = 200, 32, (20, 60, 150)


def build_small_model(tied=False, bias=False, front=True):
    encoder = EncoderConfig(
        num_hidden_layers=1,
        hidden_size=HIDDEN_SIZE,
        mixer=TransformerXL(num_attention_heads=2),
        feedforward=FeedForwardConfig(intermediate_size=32),
        position_embedding_type="none",
        type_vocab_size=0,
        embedding_norm=False,
        hidden_dropout_prob=0.0,
        initializer_range=0.4,
        pooler_act="none",
        embeddings=AdaptiveInputConfig(cutoffs=CUTOFFS, div_value=2.0) if front else None,
    )
    head = AdaptiveSoftmaxHeadConfig(cutoffs=CUTOFFS, div_value=2.0, tied=tied, bias=bias)
    return build_model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads={"lm": head}), 0)


def build_torch_adaptive_softmax(model):
    head, reference = (
        model.heads["lm"],
        torch.nn.AdaptiveLogSoftmaxWithLoss(HIDDEN_SIZE, VOCAB_SIZE, list(CUTOFFS), div_value=2.0),
    )
    tables = head.output_embeddings if len(head.output_embeddings) else model.encoder.input_embeddings.embeddings
    reference.head.weight.data = torch.cat([tables[0].weight, head.cluster_classifier.weight]).detach()
    for i, tail in enumerate(reference.tail):
        tail[0].weight.data, tail[1].weight.data = head.projections[i].weight.detach(), tables[i + 1].weight.detach()
    return reference


def random_rows_and_labels(count=400):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, HIDDEN_SIZE, generator=generator), torch.randint(0, VOCAB_SIZE, (count,), generator=generator)


@pytest.mark.parametrize("tied", [True, False])
def test_adaptive_softmax_loss_and_grads_match_torch(tied):
    model, (rows, labels) = build_small_model(tied), random_rows_and_labels()
    reference = build_torch_adaptive_softmax(model)
    loss, num_correct = model.cross_entropy("lm", rows, labels)
    expected = reference(rows, labels)
    assert_close(loss, expected.loss * len(rows), atol=1e-3, rtol=1e-5)
    assert_close(model.compute_logits("lm", rows), reference.log_prob(rows), atol=1e-5, rtol=1e-5)
    assert int(num_correct) == int((reference.predict(rows) == labels).sum())
    loss.backward()
    (expected.loss * len(rows)).backward()
    head = model.heads["lm"]
    assert_close(head.cluster_classifier.weight.grad, reference.head.weight.grad[CUTOFFS[0] :], atol=1e-3, rtol=1e-4)
    for i, tail in enumerate(reference.tail):
        assert_close(head.projections[i].weight.grad, tail[0].weight.grad, atol=1e-3, rtol=1e-4)


def test_adaptive_softmax_top1_count_is_exact():
    """Labels that are mostly the top-1 words, rare words among them."""
    model, (rows, _) = build_small_model(bias=True), random_rows_and_labels(600)
    torch.nn.init.normal_(model.heads["lm"].bias, std=2.0)
    torch.nn.init.constant_(model.heads["lm"].cluster_classifier.bias, 4.0)
    labels = model.compute_logits("lm", 2 * rows).argmax(-1)
    labels[::3] = (labels[::3] + 1) % VOCAB_SIZE
    total, num_correct = model.cross_entropy("lm", 2 * rows, labels)
    log_probs = model.compute_logits("lm", 2 * rows)
    assert int(num_correct) == int((log_probs.argmax(-1) == labels).sum()) == 400
    assert (model.heads["lm"].clusters.cluster_of(labels) > 0).sum() > 50
    assert_close(total, F.cross_entropy(log_probs, labels, reduction="sum"), atol=1e-2, rtol=1e-5)
    assert_close(log_probs.exp().sum(-1), torch.ones(len(rows)))


def test_adaptive_input_projects_rows_of_clusters():
    model = build_small_model()
    embedding, ids = model.encoder.input_embeddings, torch.tensor([0, 19, 20, 59, 60, 149, 150, 199])
    embedded = embedding(ids, Layout.from_lengths([8]), None)
    assert [table.weight.shape for table in embedding.embeddings] == [(20, 32), (40, 16), (90, 8), (50, 4)]
    for row, word in zip(embedded, ids.tolist(), strict=True):
        cluster = sum(word >= cutoff for cutoff in CUTOFFS)
        table_row = embedding.embeddings[cluster].weight[word - (0, *CUTOFFS)[cluster]]
        assert_close(row, table_row if cluster == 0 else embedding.projections[cluster - 1].weight @ table_row)


def test_adaptive_softmax_tied_tables_are_stored_once_and_all_weights_get_grads():
    model = build_small_model(tied=True, bias=True)
    assert not [name for name in model.state_dict() if name.startswith("heads.lm.output_embeddings")]
    ids = torch.arange(VOCAB_SIZE)
    total, _ = model.cross_entropy("lm", model(Inputs(ids, Layout.from_lengths([VOCAB_SIZE]))), ids.roll(-1))
    total.backward()
    without_grad = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert not without_grad


@pytest.mark.parametrize("cutoffs", [(20, 20), (0,), (200,), (30, 20)])
def test_adaptive_cutoffs_must_be_increasing_and_inside_the_vocabulary(cutoffs):
    with pytest.raises(UserError, match="increasing token ids"):
        Clusters.from_cutoffs(cutoffs, 4.0, 32, VOCAB_SIZE)


def test_adaptive_softmax_tied_needs_adaptive_input_with_same_cutoffs():
    with pytest.raises(UserError, match="same cutoffs"):
        build_small_model(tied=True, front=False)


def test_adaptive_softmax_language_model_trains_and_loads(corpus, tmp_path):
    cutoffs = "cutoffs=[30,80]"
    args = [
        f"corpus={corpus}",
        "model=transformer-xl",
        "model.num_hidden_layers=1",
        "model.hidden_size=32",
        "model.mixer.num_attention_heads=2",
        "model.feedforward.intermediate_size=32",
        "model.embeddings=adaptive",
        f"model.embeddings.{cutoffs}",
        "objective=clm",
        "objective.head=adaptive",
        f"objective.head.{cutoffs}",
        "objective.head.tied=true",
        "objective.packing=streams",
        "max_length=24",
        "train.batch_tokens=192",
        "train.steps=30",
        "train.learning_rate=3e-3",
        "validation_split=0.1",
        "train.device=cpu",
    ]
    result = run_cli_json("pretrain", *args, f"out={tmp_path / 'xl'}")
    assert result["valid_loss"] < result["unigram_entropy"] * 1.3
    model, _, _ = checkpoint.load(tmp_path / "xl")
    assert model.config.heads["lm"].tied and len(model.encoder.input_embeddings.embeddings) == 3
    plan = run_cli_json("plan", *args, f"out={tmp_path / 'p'}", "seconds=0.1")
    assert plan["parameters"]["total"] == result["parameters"]
