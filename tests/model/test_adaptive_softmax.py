"""Adaptive softmax and input: equal to torch's own, to the whole table of chances, and tied where asked."""

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
from tests.journeys.test_pretraining import answer

WORDS, WIDTH, CUTS = 200, 32, (20, 60, 150)


def model_of(tied=False, bias=False, front=True):
    encoder = EncoderConfig(
        layers=1, width=WIDTH, mixer=TransformerXL(heads=2), feedforward=FeedForwardConfig(inner=32), table=False, segments=0,
        embedding_norm=False, dropout=0.0, deviation=0.4, pooler="none",
        front=AdaptiveInputConfig(cutoffs=CUTS, shrink=2.0) if front else None,
    )  # fmt: skip
    head = AdaptiveSoftmaxHeadConfig(cutoffs=CUTS, shrink=2.0, tied=tied, bias=bias)
    return build_model(ModelConfig(encoder=encoder, vocabulary=WORDS, heads={"words": head}), 0)


def torchs_own(model):
    head, theirs = model.heads["words"], torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, WORDS, list(CUTS), div_value=2.0)
    tables = head.tables if len(head.tables) else model.encoder.front.tables
    theirs.head.weight.data = torch.cat([tables[0].weight, head.rare.weight]).detach()
    for number, tail in enumerate(theirs.tail):
        tail[0].weight.data, tail[1].weight.data = head.narrow[number].weight.detach(), tables[number + 1].weight.detach()
    return theirs


def asked(count=400):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, WIDTH, generator=dice), torch.randint(0, WORDS, (count,), generator=dice)


@pytest.mark.parametrize("tied", [True, False])
def test_losses_chances_and_slopes_are_torchs_own(tied):
    model, (rows, answers) = model_of(tied), asked()
    theirs = torchs_own(model)
    mine, right = model.cross_entropy("words", rows, answers)
    out = theirs(rows, answers)
    assert_close(mine, out.loss * len(rows), atol=1e-3, rtol=1e-5)
    assert_close(model.compute_logits("words", rows), theirs.log_prob(rows), atol=1e-5, rtol=1e-5)
    assert int(right) == int((theirs.predict(rows) == answers).sum())
    mine.backward()
    (out.loss * len(rows)).backward()
    head = model.heads["words"]
    assert_close(head.rare.weight.grad, theirs.head.weight.grad[CUTS[0] :], atol=1e-3, rtol=1e-4)
    for number, tail in enumerate(theirs.tail):
        assert_close(head.narrow[number].weight.grad, tail[0].weight.grad, atol=1e-3, rtol=1e-4)


def test_answers_that_come_first_are_counted_exactly():
    """The likeliest words as answers: most come first, also rare ones."""
    model, (rows, _) = model_of(bias=True), asked(600)
    torch.nn.init.normal_(model.heads["words"].bias, std=2.0)
    torch.nn.init.constant_(model.heads["words"].rare.bias, 4.0)
    answers = model.compute_logits("words", 2 * rows).argmax(-1)
    answers[::3] = (answers[::3] + 1) % WORDS
    total, right = model.cross_entropy("words", 2 * rows, answers)
    scores = model.compute_logits("words", 2 * rows)
    assert int(right) == int((scores.argmax(-1) == answers).sum()) == 400
    assert (model.heads["words"].clusters.owner(answers) > 0).sum() > 50
    assert_close(total, F.cross_entropy(scores, answers, reduction="sum"), atol=1e-2, rtol=1e-5)
    assert_close(scores.exp().sum(-1), torch.ones(len(rows)))


def test_a_word_is_its_row_widened():
    model = model_of()
    front, ids = model.encoder.front, torch.tensor([0, 19, 20, 59, 60, 149, 150, 199])
    found = front(ids, Layout.from_lengths([8]), None)
    assert [table.weight.shape for table in front.tables] == [(20, 32), (40, 16), (90, 8), (50, 4)]
    for row, word in zip(found, ids.tolist(), strict=True):
        cluster = sum(word >= cut for cut in CUTS)
        own = front.tables[cluster].weight[word - (0, *CUTS)[cluster]]
        assert_close(row, own if cluster == 0 else front.widen[cluster - 1].weight @ own)


def test_tied_tables_are_one_tensor_and_every_weight_learns():
    model = model_of(tied=True, bias=True)
    assert not [name for name in model.state_dict() if name.startswith("heads.words.tables")]
    ids = torch.arange(WORDS)
    total, _ = model.cross_entropy("words", model(Inputs(ids, Layout.from_lengths([WORDS]))), ids.roll(-1))
    total.backward()
    unmoved = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    assert not unmoved


@pytest.mark.parametrize("cutoffs", [(20, 20), (0,), (200,), (30, 20)])
def test_cutoffs_that_cut_nothing_are_refused(cutoffs):
    with pytest.raises(UserError, match="rising ids"):
        Clusters.from_cutoffs(cutoffs, 4.0, 32, WORDS)


def test_a_tied_head_wants_a_front_of_the_same_clusters():
    with pytest.raises(UserError, match="same cutoffs"):
        model_of(tied=True, front=False)


def test_a_language_model_of_many_words_is_trained_and_read_again(corpus, tmp_path):
    cuts = "cutoffs=[30,80]"
    words = [f"corpus={corpus}", "model=transformer-xl", "model.layers=1", "model.width=32", "model.mixer.heads=2",
             "model.feedforward.inner=32", "model.front=by-rarity", f"model.front.{cuts}", "objective=causal",
             "objective.head=by-rarity", f"objective.head.{cuts}", "objective.head.tied=true", "objective.view=streams",
             "length=24", "train.batch_tokens=192", "train.steps=30", "train.rate=3e-3", "held_out=0.1",
             "train.device=cpu"]  # fmt: skip
    made = answer("pretrain", *words, f"out={tmp_path / 'xl'}")
    assert made["valid_loss"] < made["unigram_entropy"] * 1.3
    model, _, _ = checkpoint.load(tmp_path / "xl")
    assert model.config.heads["words"].tied and len(model.encoder.front.tables) == 3
    planned = answer("plan", *words, f"out={tmp_path / 'p'}", "seconds=0.1")
    assert planned["parameters"]["all"] == made["parameters"]
