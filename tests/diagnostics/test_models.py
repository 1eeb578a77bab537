"""`bertsmith doctor` on models: positions, attention heads and hidden states, healthy and broken."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bertsmith.artifacts import write_manifest
from bertsmith.corpus.store import Corpus
from bertsmith.diagnostics.model_checks import compute_cosine_distances, find_dead_heads
from bertsmith.diagnostics.probe import build_probe
from bertsmith.model import checkpoint
from bertsmith.objectives.base import to_inputs
from tests.support.diagnostics import doctor_findings, doctor_problems, run_pretraining


@pytest.fixture
def break_weights(healthy_run, tmp_path):
    """A function that copies the healthy run and changes its weights."""

    def apply_change(change) -> Path:
        run = shutil.copytree(healthy_run, tmp_path / "run")
        weights = checkpoint.load_weights(run)
        change(weights)
        checkpoint.save_weights(run, weights)
        write_manifest(run)
        return run

    return apply_change


def load_probe(folder, corpus_folder):
    recipe = json.loads((folder / "config.json").read_text())["recipe"]
    return build_probe(checkpoint.load(folder)[0], Corpus.open(corpus_folder), recipe, None)


def test_probe_forward_equals_model_forward(healthy_run, corpus_folder):
    probe = load_probe(healthy_run, corpus_folder)
    hidden_states, block_inputs, records = probe.forward_outputs
    with torch.inference_mode():
        expected = probe.model(to_inputs(probe.batch))
    torch.testing.assert_close(hidden_states, expected)
    assert len(records) == 2 and len(block_inputs) == 3 and probe.has_mlm
    assert probe.compute_mlm_loss(hidden_states) < probe.compute_mlm_loss(probe.shuffled_hidden_states)
    assert (probe.shuffled_hidden_states - hidden_states).norm() > 0.1 * hidden_states.norm()


def test_probe_shuffles_words_between_special_tokens_only(healthy_run, corpus_folder):
    probe = load_probe(healthy_run, corpus_folder)
    order = probe._shuffle_order.numpy()
    shuffled = probe.batch.input_ids[order]
    is_special = ~probe.text_mask.numpy()
    assert (shuffled[is_special] == probe.batch.input_ids[is_special]).all() and (shuffled != probe.batch.input_ids).any()
    ends = probe.batch.lengths.cumsum()
    for start, end in zip(ends - probe.batch.lengths, ends, strict=True):
        assert sorted(shuffled[start:end]) == sorted(probe.batch.input_ids[start:end])


def test_model_without_positions_is_a_problem(corpus_folder, tmp_path):
    findings = doctor_findings(run_pretraining(corpus_folder, tmp_path / "bag", {"position_embedding_type": "none"}, steps=120))
    assert (
        findings["word order ignored"]["setting"] == "model.position_embedding_type=absolute"
        and findings["word order ignored"]["severity"] == "problem"
    )


def test_rope_counts_as_positions(corpus_folder, tmp_path):
    rope = {"kind": "attention", "num_attention_heads": 2, "rope_theta": 10000}
    glu = {"intermediate_size": 64, "glu": True}
    run = run_pretraining(
        corpus_folder, tmp_path / "rotary", {"position_embedding_type": "none", "mixer": rope, "feedforward": glu}, steps=20
    )
    assert not {"word order ignored", "positions untrained", "dead heads"} & doctor_findings(run).keys()


def test_zero_position_embeddings_are_a_problem(break_weights):
    run = break_weights(lambda weights: weights["encoder.position_embeddings.weight"].zero_())
    assert "word order ignored" in doctor_problems(run)


def test_untrained_position_embeddings_are_noted(corpus_folder, tmp_path):
    finding = doctor_findings(run_pretraining(corpus_folder, tmp_path / "run", {"max_position_embeddings": 64}, steps=40))[
        "positions untrained"
    ]
    assert (
        finding["severity"] == "note"
        and "32 of 64 position embeddings" in finding["observation"]
        and finding["setting"] == "max_length='[32, 64]'"
    )


def zero_queries(weights):
    """Zero queries: all heads have uniform attention."""
    for layer in (0, 1):
        weights[f"encoder.stack.layers.{layer}.mixer.projections.qkv.weight"][:32] = 0
        weights[f"encoder.stack.layers.{layer}.mixer.projections.qkv.bias"][:32] = 0


def zero_outputs(weights):
    """Zero output projections: no head has an output."""
    for layer in (0, 1):
        weights[f"encoder.stack.layers.{layer}.mixer.projections.output.weight"].zero_()


@pytest.mark.parametrize(("change", "observation"), [(zero_queries, "4 uniform"), (zero_outputs, "4 without output")])
def test_dead_heads_are_a_problem(break_weights, change, observation):
    finding = doctor_findings(break_weights(change))["dead heads"]
    assert (
        finding["severity"] == "problem"
        and observation in finding["observation"]
        and "4 of 4 attention heads" in finding["observation"]
    )


def test_dead_head_with_single_token_attention_is_noted(break_weights, corpus_folder):
    def change(weights):
        """The second head of the first layer attends to [SEP] only."""
        table, name = weights["encoder.word_embeddings.weight"], "encoder.stack.layers.0.mixer.projections.qkv"
        sep = table[3] - table.mean(0)
        weights[f"{name}.bias"][16:32] = 30.0
        weights[f"{name}.weight"][48:64] = 30 * sep / sep.norm()
        table[3] += 20 * sep / sep.norm()

    run = break_weights(change)
    assert (0, 1) in find_dead_heads(load_probe(run, corpus_folder))[1]
    assert doctor_findings(run)["dead heads"]["severity"] == "note"


def test_healthy_model_has_no_dead_heads(healthy_run, corpus_folder):
    assert find_dead_heads(load_probe(healthy_run, corpus_folder)) == ([], [], [], 4)


def test_collapsed_hidden_states_are_a_problem(break_weights, healthy_run, corpus_folder):
    def change(weights):
        weights["encoder.stack.final_norm.weight"].mul_(1e-6)
        weights["encoder.stack.final_norm.bias"].add_(1)

    assert "collapsed hidden states" in doctor_problems(break_weights(change))
    text_distance, token_distance = compute_cosine_distances(load_probe(healthy_run, corpus_folder))
    assert text_distance > 0.01 and token_distance > 0.1
