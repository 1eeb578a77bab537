"""`bertsmith plan`: estimates of a run, settings that fit in memory, and no files written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.commands import plan
from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.planning import report, time
from bertsmith.planning.benchmark import _extrapolate
from bertsmith.planning.machines import MACHINES
from bertsmith.planning.time import Throughput
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_recipe
from bertsmith.train.config import TrainConfig
from tests.support.texts import make_english_text

H200: dict[str, Any] = {"machine": "h200", "quiet": True}
BASE = {"model": "bert-small", "train": {"steps": 100, "batch_tokens": 65_536, "precision": "bf16", "compile": True}}


def with_train(**changes: Any) -> dict[str, Any]:
    return {**BASE, "train": {**BASE["train"], **changes}}  # type: ignore[dict-item]


def test_plan_prints_tables_and_json(capsys):
    assert main(["plan", "model=bert-tiny", "train.steps=100", "machine=h200", "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["machine"] == "h200" and result["fits"] and result["time"]["steps"] == 100 and not result["measured"]
    for word in ("parameters", "memory on h200", "time on h200 (estimated)", "disk", "4,385,920"):
        assert word in output.err
    columns = {line.rindex("  ") for line in output.err.splitlines() if line.startswith("  encoder.")}
    assert result["parameters"]["encoder"] == 4_385_920 and len(columns) == 1


def test_every_key_of_pretrain_is_a_key_of_plan():
    ours, theirs = ({field.name for field in msgspec.structs.fields(kind)} for kind in (plan.Recipe, PretrainRecipe))
    assert ours - theirs == {"vocab_size", "machine", "seconds"} and theirs <= ours


def test_plan_machines_are_those_of_the_table():
    assert set(get_args(get_type_hints(plan.Recipe)["machine"])) == {"this", *MACHINES}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"epochs": 2}}, "train.epochs needs a corpus"),
        ({"train": {}}, "no duration is set"),
        ({"train": {"steps": 1}, "machine": "h20"}, "did you mean 'h200'?"),
        ({"train": {"steps": 1}, "corpus": "absent"}, "there is no folder absent; create one with `bertsmith prepare"),
        ({"train": {"steps": 1}, "max_length": [128, 512], "phase_fractions": [0.5]}, "does not match max_length"),
    ],
)
def test_plan_rejects_bad_settings(settings, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        bertsmith.plan(**settings)


def test_plan_suggests_settings_that_fit(capsys):
    wide = {
        "num_hidden_layers": 3,
        "hidden_size": 1024,
        "mixer": {"kind": "attention", "num_attention_heads": 16},
        "feedforward": {"intermediate_size": 4096},
    }
    settings: dict[str, Any] = {"model": wide, "max_length": 512, "train": {"steps": 10, "batch_tokens": 1 << 20}}
    result = bertsmith.plan(**settings, machine="h200")
    assert not result["fits"] and result["memory"]["peak"] > MACHINES["h200"].memory and len(result["suggestions"]) == 2
    assert "warning: the run needs" in capsys.readouterr().err
    for way in result["suggestions"]:
        changes = {name.removeprefix("train."): value for name, value in way["settings"].items()}
        again = bertsmith.plan(**{**settings, "train": {**settings["train"], **changes}}, **H200)
        assert again["fits"] and again["memory"]["peak"] == way["peak"]
        assert again["time"]["tokens"] == result["time"]["tokens"]  # the same updates, in smaller micro-batches


def test_plan_gradient_checkpointing_trades_memory_for_time():
    plain, checkpointed = (
        bertsmith.plan(**with_train(), **H200),
        bertsmith.plan(**with_train(gradient_checkpointing=True), **H200),
    )
    assert checkpointed["memory"]["peak"] < 0.7 * plain["memory"]["peak"]
    assert 1.1 < checkpointed["time"]["training"] / plain["time"]["training"] < 1.5
    assert (plain["memory"]["toggled_peak"], checkpointed["memory"]["toggled_peak"]) == (
        checkpointed["memory"]["peak"],
        plain["memory"]["peak"],
    )


def test_plan_activations_scale_with_precision_and_batch_size():
    full, half = bertsmith.plan(**with_train(precision="fp32"), **H200), bertsmith.plan(**with_train(), **H200)
    assert 0.35 < half["memory"]["activations"] / full["memory"]["activations"] < 0.7
    quarter = bertsmith.plan(**with_train(batch_tokens=16_384, gradient_accumulation_steps=4), **H200)
    assert 0.2 < quarter["memory"]["activations"] / half["memory"]["activations"] < 0.3
    assert quarter["time"]["tokens"] == half["time"]["tokens"]


def test_plan_longer_sequences_and_larger_models_are_slower():
    speeds = [bertsmith.plan(**{**BASE, **changes}, **H200)["time"]["tokens_per_second"]
              for changes in ({}, {"max_length": 512}, {"model": "bert-medium"}, {"model": "bert-mini"})]  # fmt: skip
    assert speeds[2] < speeds[1] < speeds[0] < speeds[3] and 1.5 < speeds[0] / speeds[2] < 2.5


def test_plan_steps_and_minutes_agree():
    minutes = bertsmith.plan(**with_train(steps=None, minutes=20), **H200)["time"]
    steps = bertsmith.plan(**with_train(steps=minutes["steps"]), **H200)["time"]
    assert steps["seconds"] == pytest.approx(1200, rel=0.02) == minutes["seconds"]


def test_estimate_time_of_phases():
    fast, slow = (time.Phase(n, fraction, Throughput(update, 1000, 2.0, 0.001, 0), batches_per_epoch)
                  for n, fraction, update, batches_per_epoch in ((128, 0.9, 1.0, 50), (512, 0.1, 3.0, 20)))  # fmt: skip
    by_steps = time.estimate_time(from_dict(TrainConfig, {"steps": 100}), [fast, slow], 5000, 10, 30)
    assert by_steps.training == pytest.approx(90 * 1 + 10 * 3) and by_steps.epochs == pytest.approx(90 / 50 + 10 / 20)
    assert by_steps.seconds == pytest.approx(2 + 120 + 5) and by_steps.tokens == 100_000
    by_time = time.estimate_time(from_dict(TrainConfig, {"minutes": 60, "save_every": 10**6}), [fast, slow], 0, 10, 30)
    assert by_time.steps == pytest.approx(3598 * (0.9 / 1 + 0.1 / 3), abs=1)  # with minutes, phases are fractions of the time


def test_estimate_time_counts_evaluations_and_checkpoints():
    train = from_dict(TrainConfig, {"steps": 100, "eval_every": 30, "save_every": 30})
    estimate = time.estimate_time(train, [time.Phase(128, 1.0, Throughput(1.0, 1000, 0, 0.001, 0.01), None)], 2000, 10, 30)
    assert estimate.evaluation == pytest.approx(4 * 2) and estimate.saving == pytest.approx(4 * 0.3) and estimate.epochs is None


def test_throughput_extrapolates_linearly():
    """One second for the optimizer, and one millisecond per token."""
    small, larger = (Throughput(1 + n / 1000, n, 0, 0, 0) for n in (1000, 3000))
    extrapolated = _extrapolate(larger, small, 10)
    assert extrapolated.update_tokens == 30_000 and extrapolated.update_seconds == pytest.approx(31)
    assert _extrapolate(larger, None, 2).update_seconds == pytest.approx(8)


def test_plan_formats_durations_and_sizes():
    assert [report.format_duration(s) for s in (3.14, 299.8, 18_120, 964_800)] == [
        "3.1 s",
        "5 min 00 s",
        "5 h 02 min",
        "11 d 4 h",
    ]
    assert [report.format_bytes(n) for n in (12, 2500, 3.2e6, 1.5e9)] == ["12 bytes", "2.50 kB", "3.20 MB", "1.50 GB"]


def test_plan_measures_this_machine_and_leaves_no_files(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    settings: dict[str, Any] = {
        "model": {"num_hidden_layers": 1, "hidden_size": 64, "mixer": {"kind": "attention", "num_attention_heads": 2}},
        "max_length": 32,
    }
    train = {"epochs": 2, "batch_tokens": 256, "workers": 1, "device": "cpu"}
    result = bertsmith.plan(corpus=str(corpus), out=str(tmp_path / "out"), train=train, seconds=0.2, quiet=True, **settings)
    assert result["measured"] and result["time"]["epochs"] == pytest.approx(2, rel=0.1) and result["time"]["seconds"] > 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["scratch"]


@pytest.mark.slow
def test_planned_time_and_tokens_match_run(tmp_path, vocabulary):
    """Within 15% in one of three attempts, since the machine may have other work."""
    from tests.support.corpora import prepare_test_corpus

    (tmp_path / "text.txt").write_text(make_english_text(1500, sentences=30), encoding="utf-8")
    corpus_path = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    errors = []
    for attempt in range(3):
        settings: dict[str, Any] = {"model": "bert-mini", "corpus": str(corpus_path), "out": str(tmp_path / f"run{attempt}")}
        settings |= {"train": {"steps": 40, "batch_tokens": 2048, "device": "cpu"}, "eval_tokens": 4096, "quiet": True}
        planned, actual = bertsmith.plan(**settings, seconds=8)["time"], bertsmith.pretrain(**settings)
        assert planned["tokens"] == pytest.approx(actual["tokens"], rel=0.05)
        errors.append(planned["seconds"] / actual["seconds"] - 1)
        if abs(errors[-1]) < 0.15:
            return
    pytest.fail(f"planned seconds missed by {errors}")


RESIDENT = """
import sys, torch
from bertsmith.recipes import read_recipe
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
def resident(key): return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(key + ":"))
small, *words = sys.argv[1:]
pretrain(read_recipe(PretrainRecipe, None, [*words, "model=bert-tiny", "train.batch_tokens=512", small]), True)
before = resident("VmRSS")
pretrain(read_recipe(PretrainRecipe, None, words), True)
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")
@pytest.mark.parametrize("gradient_checkpointing", ["false", "true"])
def test_planned_peak_memory_matches_resident_memory(tmp_path, corpus, gradient_checkpointing):
    """Measured after a small run that loads the libraries, with an allocator that returns freed memory."""
    overrides = f"""corpus={corpus} model=bert-small max_length=128 train.batch_tokens=4096 train.steps=3 eval_tokens=2048
        train.gradient_checkpointing={gradient_checkpointing} train.device=cpu""".split()
    planned = plan.run(read_recipe(plan.Recipe, None, [*overrides, "seconds=0.1"]), quiet=True)["memory"]["estimated_peak"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RESIDENT, f"out={tmp_path / 'tiny'}", *overrides, f"out={tmp_path / 'bert'}"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert int(process.stdout.split()[-1]) == pytest.approx(planned, rel=0.15)
