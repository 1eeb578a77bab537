"""Segment-level recurrence over batches: memories of the same text only, resumed exactly; the span loss."""

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.cli import main
from bertsmith.console import Console
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
from bertsmith.pretraining.setup import PretrainRecipe, PretrainSetup
from bertsmith.runs import Run
from bertsmith.train import TrainConfig, Trainer
from bertsmith.train.setup import prepare
from tests.support.cli import kill_cli_when_exists, run_cli

BATCH_SIZE, MAX_LENGTH = 4, 24
XL = TransformerXL(num_attention_heads=2, mem_len=20)
SMALL = """
model=transformer-xl model.num_hidden_layers=2 model.hidden_size=32 model.mixer.num_attention_heads=2 model.mixer.mem_len=20
model.feedforward.intermediate_size=64 objective=clm objective.packing=streams max_length=24 train.batch_tokens=192
train.learning_rate=3e-3 train.log_every=5 validation_split=0.1
eval_tokens=2048 train.steps=40 train.save_every=10 train.device=cpu
""".split()  # noqa: SIM905


def build_setup(corpus, mixer=XL, objective=None, **options):
    opened = Corpus.open(corpus)
    objective = objective or CausalLM(packing=Streams())
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=32, mixer=mixer, feedforward=FeedForwardConfig(intermediate_size=64),
        position_embedding_type="none", type_vocab_size=0, hidden_dropout_prob=0.0,
        max_position_embeddings=4096, initializer_range=0.1, **options,
    )  # fmt: skip
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(opened.tokenizer), heads=objective.heads()), 0).eval()
    batches = objective.build_batches(
        opened, np.arange(len(opened.document_offsets) - 1), MAX_LENGTH, BATCH_SIZE * MAX_LENGTH, 3
    )
    return model, objective, [objective.to_batch(batches(k)) for k in range(batches.batches_per_epoch)]


@pytest.mark.parametrize(
    ("mixer", "objective"),
    [(XL, CausalLM(packing=Streams())),
     (TransformerXL(num_attention_heads=2, mem_len=20, causal=False), MaskedLM(packing=Streams())),
     (AdaptiveSpan(num_attention_heads=2, max_span=64, span_ramp=8, causal=True, init_span=0.2), CausalLM(packing=Streams()))],
    ids=["xl", "bidirectional", "adaptive"],
)  # fmt: skip
@torch.no_grad()
def test_recurrent_state_matches_memory_kept_per_sequence(corpus, mixer, objective):
    """The same loss as for each sequence alone, with its memory kept by hand and reset where a document begins."""
    model, objective, batches = build_setup(corpus, mixer, objective)
    recurrent_state, memories, num_resets = (), {}, 0
    for batch in batches[:12]:
        loss = objective.compute_loss(model, batch, recurrent_state)
        part = objective.token_loss.removesuffix("_loss")
        recurrent_state, states = loss.recurrent_state, []
        for row, ids in enumerate(batch.inputs.input_ids.split(batch.inputs.layout.lengths.tolist())):
            segment_end, previous_end = batch.targets["stream_positions"][row].tolist()
            memory = memories.pop(previous_end, None) or SegmentMemory.empty(1, ids.device)
            num_resets += previous_end == -1
            states.append(model(Inputs(ids, Layout.from_lengths([len(ids)]), state=memory)))
            memories[segment_end] = memory.advance(Layout.from_lengths([len(ids)]))
        hidden_states = torch.cat(states)[batch.targets["output_indices"]]
        assert_close(
            loss.parts[part], model.cross_entropy("lm", hidden_states, batch.targets["target_ids"])[0], atol=1e-3, rtol=1e-5
        )
    assert num_resets > 3 and recurrent_state
    loss_without_state = objective.compute_loss(model, batches[11]).parts[part]
    assert abs(loss_without_state - loss.parts[part]) > 1e-3  # otherwise the memory had no effect


@torch.no_grad()
def test_recurrent_state_is_reset_after_a_gap(corpus):
    model, objective, batches = build_setup(corpus)
    recurrent_state = objective.compute_loss(model, batches[0]).recurrent_state
    assert_close(
        objective.compute_loss(model, batches[2], recurrent_state).parts["lm"],
        objective.compute_loss(model, batches[2]).parts["lm"],
    )
    continued = objective.compute_loss(model, batches[1], recurrent_state).parts["lm"]
    assert not torch.allclose(continued, objective.compute_loss(model, batches[1]).parts["lm"])


def test_recurrent_state_is_empty_without_memory(corpus):
    model, objective, batches = build_setup(corpus, Attention(num_attention_heads=2, causal=True))
    assert objective.compute_loss(model, batches[0]).recurrent_state == ()


def train_two_steps(corpus, folder, span_loss, accumulate=1):
    model, objective, batches = build_setup(
        corpus, AdaptiveSpan(num_attention_heads=2, max_span=64, span_ramp=8, causal=True, init_span=0.5, span_loss=span_loss)
    )
    config = TrainConfig(
        steps=2,
        learning_rate=1e-3,
        warmup_steps=0,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0,
        weight_decay=0.0,
        log_every=1,
        device="cpu",
    )
    setup, grads = prepare(model, config), []
    setup.optimizer.register_step_pre_hook(
        lambda *_: grads.append(torch.stack([block.mixer.span.grad.clone() for block in model.encoder.stack.layers]))
    )
    Trainer(setup, objective, Run(folder, console=Console(quiet=True)), 0).fit(lambda k, done: batches[k])
    return grads[0], json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_span_loss_is_added_once_per_update(corpus, tmp_path, accumulate):
    grad_without, row_without = train_two_steps(corpus, tmp_path / "free", 0.0, accumulate)
    grad_with, row_with = train_two_steps(corpus, tmp_path / "paid", 1e-2, accumulate)
    assert_close(grad_with - grad_without, torch.full_like(grad_without, 1e-2 * 64 / 2), atol=1e-4, rtol=1e-4)
    assert row_with["penalty"] == pytest.approx(2 * 1e-2 * 32) and row_with["loss"] == pytest.approx(row_without["loss"])


@pytest.mark.parametrize("options", [(), ("train.workers=2", "train.gradient_accumulation_steps=2")], ids=["one", "several"])
def test_transformer_xl_run_resumes_exactly(corpus, tmp_path, options):
    for name in ("whole", "killed"):
        command = ["pretrain", f"corpus={corpus}", f"out={tmp_path / name}", *SMALL, *options]
        if name == "killed":
            kill_cli_when_exists(*command, until=tmp_path / name / "state" / "step-20")
            assert list((tmp_path / name / "state").glob("step-*/recurrent_state.safetensors"))
        process = run_cli(*command)
    assert "resuming from step" in process.stderr
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes(), file


def test_lost_recurrent_state_changes_loss(corpus, tmp_path):
    """Otherwise the test above would prove too little."""
    model, objective, batches = build_setup(corpus)
    losses = []
    for drop_state in (False, True):
        recurrent_state = ()
        for batch in batches[:3]:
            loss = objective.compute_loss(model, batch, recurrent_state)
            recurrent_state = () if drop_state else loss.recurrent_state
        losses.append(loss.parts["lm"].item())
    assert losses[0] != losses[1]


def test_streams_need_one_process(corpus, tmp_path, monkeypatch):
    """With several ranks, the next segment of a stream is on another rank."""
    recipe = PretrainRecipe(
        corpus=str(corpus), out=str(tmp_path), objective=CausalLM(packing=Streams()), model=EncoderConfig(mixer=XL)
    )
    opened = Corpus.open(corpus)
    assert PretrainSetup.from_recipe(recipe, opened).build_loader(24).batches_per_epoch > 0
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="several processes"):
        PretrainSetup.from_recipe(recipe, opened)


def test_streams_need_objective_with_recurrent_state(corpus, tmp_path):
    recipe = PretrainRecipe(
        corpus=str(corpus), out=str(tmp_path), objective=ReplacedTokenDetection(packing=Streams()), model=EncoderConfig()
    )
    with pytest.raises(UserError, match=r"objective\.packing=streams is not supported by objective=rtd.*objective\.packing"):
        PretrainSetup.from_recipe(recipe, Corpus.open(corpus))


@pytest.mark.parametrize("sampler", ["streams", "windows"])
def test_transformer_xl_without_streams_warns(corpus, tmp_path, capsys, sampler):
    overrides = [override for override in SMALL if not override.startswith(("train.steps", "objective.packing"))]
    assert (
        main(
            [
                "pretrain",
                f"corpus={corpus}",
                f"out={tmp_path / 'out'}",
                *overrides,
                f"objective.packing={sampler}",
                "train.steps=1",
            ]
        )
        == 0
    )
    assert ("set objective.packing=streams" in " ".join(capsys.readouterr().err.split())) == (sampler == "windows")
