"""Several seeds: mean and standard deviation, and the best model published."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.finetuning.recipe import FinetuneRecipe
from bertsmith.finetuning.seeds import compute_mean_and_std, run_seeds
from bertsmith.model import checkpoint
from bertsmith.runs import Run
from tests.support.models import TASKS, save_model

scores = st.floats(-1, 1)


@given(st.lists(st.tuples(scores, scores), min_size=2, max_size=6))
def test_mean_and_std_over_seeds_match_numpy(rows):
    result = compute_mean_and_std([{"f1": f1, "accuracy": accuracy} for f1, accuracy in rows])
    assert list(result["mean"].values()) == pytest.approx(np.mean(rows, 0).tolist(), abs=1e-12)
    assert list(result["std"].values()) == pytest.approx(np.std(rows, 0, ddof=1).tolist(), abs=1e-9)


def test_std_of_one_seed_is_zero():
    assert compute_mean_and_std([{"f1": 0.5}]) == {"mean": {"f1": 0.5}, "std": {"f1": 0.0}}


def recipe_of(folder):
    return from_dict(
        FinetuneRecipe, {"task": "classify", "model": "m", "data": {"train": "t"}, "out": str(folder), "seeds": [3, 4, 5]}
    )


def train_with_score(score_by_seed, trained):
    def run_seed(seed, folder):
        save_model(folder, TASKS["classify"])
        (folder / "metrics.jsonl").write_text(json.dumps({"step": seed}) + "\n")
        trained.append(seed)
        return {"out": str(folder), "created": True, "metric": "f1", "dev": {"f1": score_by_seed[seed], "accuracy": 0.5}}

    return run_seed


def test_best_seed_by_an_error_has_the_lowest_and_undefined_errors_are_worst(tmp_path):
    run, trained = Run(tmp_path / "out", "identity", Console(quiet=True)), []
    train = train_with_score({3: None, 4: 0.7, 5: 0.2}, trained)
    result = run_seeds(recipe_of(run.folder), run, [3, 4, 5], lambda *args: train(*args) | {"lower_is_better": ["f1"]})
    assert result["seed"] == 5 and result["dev"]["f1"] == 0.2


def test_best_seed_is_published_and_undefined_scores_are_lowest(tmp_path):
    trained = []
    run = Run(tmp_path / "out", "identity", Console(quiet=True))
    result = run_seeds(recipe_of(run.folder), run, [3, 4, 5], train_with_score({3: None, 4: 0.7, 5: 0.2}, trained))
    assert trained == [3, 4, 5] and result["seed"] == 4 and result["dev"] == {"f1": 0.7, "accuracy": 0.5}
    assert math.isnan(result["mean"]["f1"]) and result["std"]["accuracy"] == 0
    assert json.loads((run.folder / "metrics.jsonl").read_text()) == {"step": 4}
    assert not (run.folder / "seeds").exists()
    _, _, card = checkpoint.load(run.folder)
    assert card["identity"] == "identity" and card["result"]["seed"] == 4


@pytest.mark.parametrize(
    ("seeds", "environment", "message"),
    [
        ([3, 4, 3], {}, r"seeds=\[3, 4, 3\] contains duplicates; give each seed once"),
        ([3, 4], {"RANK": "0", "WORLD_SIZE": "2"}, "several seeds do not work with several processes"),
    ],
)
def test_seeds_are_checked_before_training(tmp_path, monkeypatch, seeds, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    trained = []
    with pytest.raises(UserError, match=message):
        run_seeds(recipe_of(tmp_path), Run(tmp_path), seeds, train_with_score({3: 0.1, 4: 0.2}, trained))
    assert not trained


def test_scores_on_the_test_file_get_mean_and_deviation_over_seeds(tmp_path, capsys):
    run = Run(tmp_path / "out", "identity", Console())
    train = train_with_score({3: 0.2, 4: 0.9, 5: 0.4}, [])
    test = {3: 0.6, 4: 0.3, 5: None}
    result = run_seeds(
        recipe_of(run.folder), run, [3, 4, 5], lambda seed, out: train(seed, out) | {"test": {"f1": test[seed], "exact": seed}}
    )
    assert result["seed"] == 4 and result["test"] == {"f1": 0.3, "exact": 4}  # the seed is chosen on dev
    assert result["test_seeds"]["3"] == {"f1": 0.6, "exact": 3}
    assert result["test_mean"]["exact"] == 4 and result["test_std"]["exact"] == 1 and math.isnan(result["test_mean"]["f1"])
    assert "test exact  4.0000 ± 1.0000" in capsys.readouterr().err
    assert checkpoint.load(run.folder)[2]["result"]["test_std"]["exact"] == 1
