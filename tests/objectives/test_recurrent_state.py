"""What is remembered from batch to batch: of the same text alone, carried exactly, and priced once."""

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.cli import main
from bertsmith.corpus.sampling import Streams
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention, TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import SegmentMemory
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import CausalLM, MaskedLM, ReplacedTokenDetection
from bertsmith.pretraining.setup import PretrainRecipe, build_batches, build_model_config
from bertsmith.train import TrainConfig, Trainer
from tests.journeys.test_pretraining import killed_command, ran

ROWS, LENGTH = 4, 24
XL = TransformerXL(heads=2, remembers=20)
SMALL = """
model=transformer-xl model.layers=2 model.width=32 model.mixer.heads=2 model.mixer.remembers=20 model.feedforward.inner=64
objective=causal objective.view=streams length=24 train.batch_tokens=192 train.rate=3e-3 train.log_every=5 held_out=0.1
eval_tokens=2048 train.steps=40 train.save_every=10 train.device=cpu
""".split()  # noqa: SIM905


def setting(corpus, mixer=XL, objective=None, **more):
    text = Corpus.open(corpus)
    objective = objective or CausalLM(view=Streams())
    encoder = EncoderConfig(
        layers=2, width=32, mixer=mixer, feedforward=FeedForwardConfig(inner=64), table=False, segments=0, dropout=0.0,
        positions=4096, deviation=0.1, **more,
    )  # fmt: skip
    model = build_model(ModelConfig(encoder=encoder, vocabulary=len(text.tokenizer), heads=objective.heads()), 0).eval()
    batches = objective.build_batches(text, np.arange(len(text.document_offsets) - 1), LENGTH, ROWS * LENGTH, 3)
    return model, objective, [objective.to_batch(batches(k)) for k in range(batches.batches_per_epoch)]


@pytest.mark.parametrize(
    ("mixer", "objective"),
    [(XL, CausalLM(view=Streams())), (TransformerXL(heads=2, remembers=20, causal=False), MaskedLM(view=Streams())),
     (AdaptiveSpan(heads=2, longest=64, ramp=8, causal=True, begin=0.2), CausalLM(view=Streams()))],
    ids=["xl", "both ways", "adaptive"],
)  # fmt: skip
@torch.no_grad()
def test_a_sequence_remembers_exactly_what_it_goes_on_from(corpus, mixer, objective):
    """Every row by itself, its memory kept by hand and emptied where its document begins, costs the same."""
    model, objective, batches = setting(corpus, mixer, objective)
    carry, memories, anew = (), {}, 0
    for batch in batches[:12]:
        loss = objective.compute_loss(model, batch, carry)
        carry, rows = loss.recurrent_state, []
        for row, ids in enumerate(batch.inputs.input_ids.split(batch.inputs.layout.lengths.tolist())):
            number, before = batch.targets["flow"][row].tolist()
            memory = memories.pop(before, None) or SegmentMemory.empty(1, ids.device)
            anew += before == -1
            rows.append(model(Inputs(ids, Layout.from_lengths([len(ids)]), memory=memory)))
            memories[number] = memory.advance(Layout.from_lengths([len(ids)]))
        hidden = torch.cat(rows)[batch.targets["where"]]
        assert_close(loss.parts["words"], model.cross_entropy("words", hidden, batch.targets["words"])[0], atol=1e-3, rtol=1e-5)
    assert anew > 3 and carry
    lost = objective.compute_loss(model, batches[11]).parts["words"]
    assert abs(lost - loss.parts["words"]) > 1e-3  # or nothing was remembered


@torch.no_grad()
def test_after_a_gap_memories_begin_anew(corpus):
    model, objective, batches = setting(corpus)
    carry = objective.compute_loss(model, batches[0]).recurrent_state
    assert_close(
        objective.compute_loss(model, batches[2], carry).parts["words"],
        objective.compute_loss(model, batches[2]).parts["words"],
    )
    going_on = objective.compute_loss(model, batches[1], carry).parts["words"]
    assert not torch.allclose(going_on, objective.compute_loss(model, batches[1]).parts["words"])


def test_models_that_remember_nothing_carry_nothing(corpus):
    model, objective, batches = setting(corpus, Attention(heads=2, causal=True))
    assert objective.compute_loss(model, batches[0]).recurrent_state == ()


def trained(corpus, folder, price, accumulate=1):
    model, objective, batches = setting(corpus, AdaptiveSpan(heads=2, longest=64, ramp=8, causal=True, begin=0.5, price=price))
    config = TrainConfig(steps=2, rate=1e-3, warmup=0, accumulate=accumulate, clip=0.0, decay=0.0, log_every=1, device="cpu")
    trainer = Trainer(model, objective, config, folder, seed=0, quiet=True)
    slopes, applied = [], trainer.update_step.apply

    def apply(rate):
        slopes.append(torch.stack([block.mixer.span.grad.clone() for block in model.encoder.stack.blocks]))
        applied(rate)

    trainer.update_step.apply = apply
    trainer.fit(lambda k, done: batches[k])
    return slopes[0], json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_update_pays_the_price_once_however_it_is_cut(corpus, tmp_path, accumulate):
    free, row = trained(corpus, tmp_path / "free", 0.0, accumulate)
    paid, told = trained(corpus, tmp_path / "paid", 1e-2, accumulate)
    assert_close(paid - free, torch.full_like(free, 1e-2 * 64 / 2), atol=1e-4, rtol=1e-4)
    assert told["price"] == pytest.approx(2 * 1e-2 * 32) and told["loss"] == pytest.approx(row["loss"])


@pytest.mark.parametrize("more", [(), ("train.workers=2", "train.accumulate=2")], ids=["one", "several"])
def test_a_run_that_remembers_may_be_killed(corpus, tmp_path, more):
    for name in ("whole", "killed"):
        words = ["pretrain", f"corpus={corpus}", f"out={tmp_path / name}", *SMALL, *more]
        if name == "killed":
            killed_command(*words, until=tmp_path / name / "state" / "step-20")
            assert list((tmp_path / name / "state").glob("step-*/carry.safetensors"))
        told = ran(*words)
    assert "going on from step" in told.stderr
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes(), file


def test_a_lost_carry_would_be_seen(corpus, tmp_path):
    """Otherwise the test above would show too little."""
    model, objective, batches = setting(corpus)
    losses = []
    for forget in (False, True):
        carry = ()
        for batch in batches[:3]:
            loss = objective.compute_loss(model, batch, carry)
            carry = () if forget else loss.recurrent_state
        losses.append(loss.parts["words"].item())
    assert losses[0] != losses[1]


def test_a_stream_is_read_by_one_process(corpus, tmp_path, monkeypatch):
    """Row b of the next batch is another process's: nothing would ever be remembered."""
    recipe = PretrainRecipe(
        corpus=str(corpus), out=str(tmp_path), objective=CausalLM(view=Streams()), model=EncoderConfig(mixer=XL)
    )
    text = Corpus.open(corpus)
    config = build_model_config(recipe, text)
    assert build_batches(recipe, text, np.arange(5), 24, config).batches_per_epoch > 0
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        build_batches(recipe, text, np.arange(5), 24, config)


def test_an_objective_that_carries_nothing_reads_no_streams(corpus, tmp_path):
    recipe = PretrainRecipe(
        corpus=str(corpus), out=str(tmp_path), objective=ReplacedTokenDetection(view=Streams()), model=EncoderConfig()
    )
    text = Corpus.open(corpus)
    with pytest.raises(UserError, match=r"objective=replaced carries no memory.*objective\.view"):
        build_batches(recipe, text, np.arange(5), 24, build_model_config(recipe, text))


@pytest.mark.parametrize("view", ["streams", "windows"])
def test_a_model_that_could_remember_and_does_not_is_told_so(corpus, tmp_path, capsys, view):
    words = [word for word in SMALL if not word.startswith(("train.steps", "objective.view"))]
    assert (
        main(["pretrain", f"corpus={corpus}", f"out={tmp_path / 'out'}", *words, f"objective.view={view}", "train.steps=1"])
        == 0
    )
    assert ("set objective.view=streams" in " ".join(capsys.readouterr().err.split())) == (view == "windows")
