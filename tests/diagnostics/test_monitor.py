"""A run warns, while it trains and at its end, of what `bertsmith doctor` would find in its log; a healthy one does not."""

import json
import logging

import numpy as np
import pytest

import bertsmith
from bertsmith.diagnostics.monitor import RunMonitor
from bertsmith.diagnostics.run_log import RunSettings
from tests.support.cli import FAST, run_cli
from tests.support.diagnostics import MODEL, generate_text, prepare_corpus, pretrain_recipe, run_pretraining
from tests.support.models import save_model
from tests.support.rows import classification_row, regression_row, write_jsonl

OBJECTIVES = {"mlm": {"kind": "mlm", "mlm_probability": 0.2}, "clm": {"kind": "clm"}}
ELMO = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": {"kind": "lstm", "directions": "apart"}, "feedforward": "none",
        "norm": "none", "residual": "between", "position_embedding_type": "none", "embedding_norm": False,
        "initializer_range": 0.08}  # fmt: skip


@pytest.fixture
def warnings(capfd):
    """The warnings of a run so far, without their prefix."""

    def read():
        return [line.removeprefix("warning: ") for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]

    return read


def pretrain(corpus_folder, out, **settings):
    bertsmith.pretrain(quiet=True, **pretrain_recipe(corpus_folder, out, **settings))


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_healthy_pretraining_does_not_warn(corpus_folder, tmp_path, warnings, objective):
    mixer = {**MODEL["mixer"], "causal": objective == "clm"}
    pretrain(corpus_folder, tmp_path / "run", steps=220, objective=OBJECTIVES[objective], model={"mixer": mixer})
    assert warnings() == []


def test_loss_at_the_unigram_baseline_is_told_once(tmp_path, warnings):
    """Independent words: there is nothing to learn but their frequencies."""
    corpus = prepare_corpus(tmp_path, generate_text(200, ordered=False))
    pretrain(corpus, tmp_path / "run", steps=160)
    (line,) = warnings()
    step = int(line.split()[1].rstrip(":"))
    assert 120 <= step <= 160 and "loss at the unigram baseline: " in line


def test_collapse_of_a_bilm_is_told_while_it_trains(corpus_folder, tmp_path, warnings):
    """ELMo's layers at a learning rate at which the loss rises and stays above the unigram baseline."""
    settings = {"objective": {"kind": "bilm"}, "steps": 120, "warmup_steps": 0.3, "max_grad_norm": 0.0, "log_every": 2}
    bertsmith.pretrain(quiet=True, **pretrain_recipe(corpus_folder, tmp_path / "low", **settings) | {"model": ELMO})
    assert not [line for line in warnings() if "learning rate too high" in line]
    high = pretrain_recipe(corpus_folder, tmp_path / "high", **settings, learning_rate=30.0) | {"model": ELMO}
    bertsmith.pretrain(quiet=True, **high)
    first, *_ = warnings()
    assert "learning rate too high: peak learning rate 30: the loss rose from" in first
    assert int(first.split()[1].rstrip(":")) < 120 and "(train.learning_rate=0." in first


def test_short_runs_are_not_judged(corpus_folder, tmp_path, warnings):
    pretrain(corpus_folder, tmp_path / "run", steps=20)
    assert warnings() == []


def test_resumed_run_does_not_repeat_earlier_checks(tmp_path):
    rows = [{"step": 10 * n, "mlm_loss": 4.0, "loss": 4.0, "learning_rate": 1e-3, "grad_norm": 1.0} for n in range(1, 31)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = RunSettings("pretrain", {"train": {"learning_rate": 1e-3}})
    monitor = RunMonitor(tmp_path, settings, unigram_entropy=4.0)
    assert [list(monitor.check(fraction)) for fraction in (0.2, 0.4, 0.6)] == [[], [], []]  # a healthy model may be there, too
    assert len(list(monitor.check(0.8))) == 1
    assert list(monitor.finish()) == []  # told once
    resumed = RunMonitor(tmp_path, settings, unigram_entropy=4.0)
    assert list(resumed.check(0.8)) == list(resumed.check(0.9)) == []
    assert len(list(resumed.finish())) == 1


def test_long_run_at_the_unigram_baseline_is_told_early(tmp_path):
    rows = [{"step": 500 * n, "mlm_loss": 4.0, "loss": 4.0, "learning_rate": 1e-3, "grad_norm": 1.0} for n in range(1, 31)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monitor = RunMonitor(tmp_path, RunSettings("pretrain", {"train": {"learning_rate": 1e-3}}), unigram_entropy=4.0)
    assert [len(list(monitor.check(fraction))) for fraction in (0.2, 0.26)] == [0, 1]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.mark.parametrize(("task", "row"), [("classify", classification_row), ("regress", regression_row)])
@pytest.mark.parametrize("learning_rate", [3e-3, 0.3])
def test_constant_predictions_are_told(bert, tmp_path, task, row, learning_rate):
    rng = np.random.default_rng(0)
    train, dev = (write_jsonl(tmp_path / f"{name}.jsonl", [row(rng) for _ in range(60)]) for name in ("train", "dev"))
    output = run_cli("finetune", f"task={task}", f"model={bert}", f"data.train={train}", f"data.dev={dev}",
                    f"out={tmp_path / 'out'}", *FAST, "train.epochs=30", "train.batch_tokens=256",
                    f"train.learning_rate={learning_rate}", "train.lr_scheduler_type=constant")  # fmt: skip
    told = [line for line in output.stderr.splitlines() if "for each of 60 dev examples" in line]
    assert len(told) == (learning_rate > 0.1)


def test_warnings_go_through_logging(corpus_folder, tmp_path, caplog):
    """A program that has set up logging receives those at the end, too."""
    with caplog.at_level(logging.WARNING, "bertsmith"):
        run_pretraining(corpus_folder, tmp_path / "run", steps=110, learning_rate=1e-7)
    assert any("learning rate too low" in record.getMessage() for record in caplog.records)
