"""What shows when a model reads its own text: positions, heads and hidden states, sound and broken."""

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
from tests.diagnostics.builders import found, problems, trained


@pytest.fixture
def broken(healthy, tmp_path):
    """The healthy run, its weights changed by hand."""

    def made(change) -> Path:
        run = shutil.copytree(healthy, tmp_path / "run")
        weights = checkpoint.load_weights(run)
        change(weights)
        checkpoint.save_weights(run, weights)
        write_manifest(run)
        return run

    return made


def probed(folder, text):
    told = json.loads((folder / "config.json").read_text())["recipe"]
    return build_probe(checkpoint.load(folder)[0], Corpus.open(text), told, None)


def test_the_probe_reads_as_the_model_does(healthy, text):
    one = probed(healthy, text)
    hidden, kept, seen = one.forward_outputs
    with torch.inference_mode():
        plain = one.model(to_inputs(one.batch))
    torch.testing.assert_close(hidden, plain)
    assert len(seen) == 2 and len(kept) == 3 and one.has_mlm
    assert one.compute_mlm_loss(hidden) < one.compute_mlm_loss(one.shuffled_hidden_states)
    assert (one.shuffled_hidden_states - hidden).norm() > 0.1 * hidden.norm()


def test_stirring_moves_words_between_marks_only(healthy, text):
    one = probed(healthy, text)
    order = one._shuffle_order.numpy()
    stirred = one.batch.input_ids[order]
    marks = ~one.text_mask.numpy()
    assert (stirred[marks] == one.batch.input_ids[marks]).all() and (stirred != one.batch.input_ids).any()
    ends = one.batch.lengths.cumsum()
    for begin, end in zip(ends - one.batch.lengths, ends, strict=True):
        assert sorted(stirred[begin:end]) == sorted(one.batch.input_ids[begin:end])


def test_a_model_without_positions_is_told(text, tmp_path):
    one = found(trained(text, tmp_path / "bag", {"table": False}, steps=120))
    assert one["positions unused"]["setting"] == "model.table=true" and one["positions unused"]["severity"] == "problem"


def test_rotary_positions_are_positions(text, tmp_path):
    rotary = {"kind": "dense", "heads": 2, "rotary": 10000}
    gated = {"inner": 64, "gated": True}
    run = trained(text, tmp_path / "rotary", {"table": False, "mixer": rotary, "feedforward": gated}, steps=20)
    assert not {"positions unused", "positions untrained", "dead heads"} & found(run).keys()


def test_a_table_of_zeros_is_told(broken):
    run = broken(lambda weights: weights["encoder.positions.weight"].zero_())
    assert "positions unused" in problems(run)


def test_positions_no_text_has_reached_are_noted(text, tmp_path):
    one = found(trained(text, tmp_path / "run", {"positions": 64}, steps=40))["positions untrained"]
    assert one["severity"] == "note" and "32 of 64 positions" in one["seen"] and one["setting"] == "length='[32, 64]'"


def even(weights):
    """Queries of all heads are zero: every token looks at all alike."""
    for layer in (0, 1):
        weights[f"encoder.stack.blocks.{layer}.mixer.project.qkv.weight"][:32] = 0
        weights[f"encoder.stack.blocks.{layer}.mixer.project.qkv.bias"][:32] = 0


def silent(weights):
    """What the heads find does not come out."""
    for layer in (0, 1):
        weights[f"encoder.stack.blocks.{layer}.mixer.project.out.weight"].zero_()


@pytest.mark.parametrize(("change", "told"), [(even, "4 look at all tokens alike"), (silent, "4 give nothing back")])
def test_dead_heads_are_told(broken, change, told):
    one = found(broken(change))["dead heads"]
    assert one["severity"] == "problem" and told in one["seen"] and "4 of 4 heads" in one["seen"]


def test_a_head_that_looks_at_one_token_only_is_noted(broken, text):
    def change(weights):
        """The second head of the first layer asks for what [SEP] alone answers."""
        table, name = weights["encoder.tokens.weight"], "encoder.stack.blocks.0.mixer.project.qkv"
        sep = table[3] - table.mean(0)
        weights[f"{name}.bias"][16:32] = 30.0
        weights[f"{name}.weight"][48:64] = 30 * sep / sep.norm()
        table[3] += 20 * sep / sep.norm()

    run = broken(change)
    assert (0, 1) in find_dead_heads(probed(run, text))[1]
    assert found(run)["dead heads"]["severity"] == "note"


def test_no_head_of_a_healthy_model_is_dead(healthy, text):
    assert find_dead_heads(probed(healthy, text)) == ([], [], [], 4)


def test_hidden_states_that_are_all_alike_are_told(broken, healthy, text):
    def change(weights):
        weights["encoder.stack.norm.weight"].mul_(1e-6)
        weights["encoder.stack.norm.bias"].add_(1)

    assert "collapsed hidden states" in problems(broken(change))
    texts, tokens = compute_cosine_distances(probed(healthy, text))
    assert texts > 0.01 and tokens > 0.1
