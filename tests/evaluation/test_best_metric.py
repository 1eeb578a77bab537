"""The best checkpoint and seed are chosen by the primary metric of the task, or by `metric_for_best_model`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bertsmith.tasks import QuestionAnswering, TextClassification, TextRegression
from tests.support.cli import run_cli_json
from tests.support.rows import regression_row, squad_paragraph, write_jsonl
from tests.support.texts import WORDS

FAST = ["max_length=32", "train.batch_tokens=512", "train.learning_rate=1e-3"]


def write_questions(path, count):
    path = path.with_suffix(".json")
    paragraphs = [squad_paragraph(np.random.default_rng(i), i) for i in range(count)]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def write_multi_label(path, count):
    rng, labels = np.random.default_rng(0), ["a|b", "b", "a|c"]
    rows = [{"text": " ".join(rng.choice(WORDS, 5)), "label": labels[i % 3]} for i in range(count)]
    return write_jsonl(path.with_suffix(".jsonl"), rows)


def write_regression(path, count):
    return write_jsonl(path.with_suffix(".jsonl"), [regression_row(np.random.default_rng(i)) for i in range(count)])


# The task, its command line, its files, the metric it lists first, and its primary metric.
KINDS = {
    "answer": (QuestionAnswering, ["task=answer"], write_questions, "exact", "f1"),
    "many": (TextClassification, ["task=classify", "task.multi_label=true"], write_multi_label, "accuracy", "f1_micro"),
    "error": (TextRegression, ["task=regress"], write_regression, "pearson", "pearson"),
}
every_kind = pytest.mark.parametrize("kind", ["answer", "many"])


@pytest.fixture
def finetune_command(kind, tiny_model, tmp_path):
    """The command line of a fine-tuning run."""
    _, settings, write, *_ = KINDS[kind]
    train, dev = write(tmp_path / "train", 60), write(tmp_path / "dev", 10)
    return [
        "finetune",
        *settings,
        f"model={tiny_model}",
        f"data.train={train}",
        f"data.dev={dev}",
        f"out={tmp_path / 'out'}",
        *FAST,
    ]


def script_dev_scores(monkeypatch, kind, values):
    """Replaces the scores of successive evaluations on the dev file by (first metric, primary metric) of `values`."""
    task, _, _, first, primary = KINDS[kind]
    scores = (dict(zip((first, primary), pair, strict=True)) for pair in values)
    monkeypatch.setattr(task, "compute_metrics", lambda *_: next(scores))
    monkeypatch.setattr(task, "compute_selection_score", lambda self, metric, *_: next(scores)[metric])


@every_kind
@pytest.mark.parametrize("is_named", [False, True])
def test_early_stopping_restores_best_checkpoint_by_primary_metric(monkeypatch, finetune_command, kind, is_named):
    first, primary = KINDS[kind][-2:]
    values = [
        (0.9, 0.1),
        (0.5, 0.8),
        (0.1, 0.2),
        (0.1, 0.2),
        (0.1, 0.2),
    ]  # at steps 2, 4, 6, 8, and at the end
    script_dev_scores(monkeypatch, kind, values if not is_named else [*values[:3], values[-1]])
    result = run_cli_json(
        *finetune_command,
        "train.steps=20",
        "train.eval_every=2",
        "train.early_stopping_patience=2",
        *([f"metric_for_best_model={first}"] if is_named else []),
    )
    assert (result["best_step"], result["step"], result["metric"]) == ((2, 6, first) if is_named else (4, 8, primary))


@every_kind
@pytest.mark.parametrize("is_named", [False, True])
def test_best_seed_is_chosen_by_primary_metric(monkeypatch, finetune_command, kind, is_named):
    first, primary = KINDS[kind][-2:]
    script_dev_scores(monkeypatch, kind, [(0.5, 0.1), (0.9, 0.3), (0.1, 0.8)])
    result = run_cli_json(
        *finetune_command, "train.steps=1", "seeds=[4,5,6]", *([f"metric_for_best_model={first}"] if is_named else [])
    )
    assert (result["seed"], result["metric"]) == ((5, first) if is_named else (6, primary))
    assert result["dev"] == result["seeds"][str(result["seed"])]
    assert result["mean"] == pytest.approx({first: 0.5, primary: 0.4})


def compute_errors(monkeypatch, task, values):
    """The metrics of the task are errors, and their values on the dev file those of successive evaluations."""
    errors, shown = iter(values), []

    def evaluate(compute):
        def evaluate_next(*args):
            shown.append(next(errors))
            return compute(*args)

        return evaluate_next

    def compute_metric_results(*args):
        error = shown[-1]
        return {
            name: replace(result, metric=lambda *_: error, lower_is_better=True)
            for name, result in compute_results(*args).items()
        }

    compute_results = task.compute_metric_results
    monkeypatch.setattr(task, "compute_metric_results", compute_metric_results)
    for name in ("compute_metrics", "compute_selection_score"):
        monkeypatch.setattr(task, name, evaluate(getattr(task, name)))


@pytest.mark.parametrize("kind", ["error"])
def test_early_stopping_restores_checkpoint_of_the_lowest_error(monkeypatch, finetune_command):
    compute_errors(monkeypatch, TextRegression, [0.8, 0.2, 0.9, 0.5, 0.3])  # at steps 2, 4, 6, 8, and at the end
    result = run_cli_json(*finetune_command, "train.steps=20", "train.eval_every=2", "train.early_stopping_patience=2")
    assert (result["best_step"], result["step"]) == (4, 8) and result["lower_is_better"] == ["pearson", "spearman"]


@pytest.mark.parametrize("kind", ["error"])
def test_best_seed_is_that_of_the_lowest_error(monkeypatch, finetune_command):
    compute_errors(monkeypatch, TextRegression, [0.5, 0.2, 0.8])
    assert run_cli_json(*finetune_command, "train.steps=1", "seeds=[4,5,6]")["seed"] == 5


@pytest.mark.parametrize("kind", ["many"])
def test_best_metric_is_absent_without_dev_file(finetune_command, kind):
    command = [argument for argument in finetune_command if not argument.startswith("data.dev")]
    result = run_cli_json(*command, "data.validation_split=0", "train.steps=1")
    assert result["dev"] == {} and "metric" not in result
