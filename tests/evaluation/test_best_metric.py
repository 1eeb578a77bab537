"""Weights and seeds are chosen by the score that tells models of a task apart, not by the one that happens to be told first."""

import json

import numpy as np
import pytest

from bertsmith.tasks import QuestionAnswering, TextClassification
from tests.conftest import WORDS
from tests.journeys.test_finetuning import asked, written
from tests.journeys.test_pretraining import answer

FAST = ["length=32", "train.batch_tokens=512", "train.rate=1e-3"]


def questions(path, count):
    path = path.with_suffix(".json")
    paragraphs = [asked(np.random.default_rng(i), i) for i in range(count)]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


def topics(path, count):
    rng, labels = np.random.default_rng(0), ["a|b", "b", "a|c"]
    rows = [{"text": " ".join(rng.choice(WORDS, 5)), "label": labels[i % 3]} for i in range(count)]
    return written(path.with_suffix(".jsonl"), rows)


# The task, how it is asked for, its files, the score it tells first, and its headline.
KINDS = {
    "answer": (QuestionAnswering, ["task=answer"], questions, "exact", "f1"),
    "many": (TextClassification, ["task=classify", "task.many=true"], topics, "accuracy", "f1_micro"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def given(kind, tiny, tmp_path):
    """The words of a run that teaches it."""
    _, words, make, *_ = KINDS[kind]
    train, dev = make(tmp_path / "train", 60), make(tmp_path / "dev", 10)
    return ["finetune", *words, f"model={tiny}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]


def scripted(monkeypatch, kind, values):
    """The dev file is judged as these say, one after another: (first score, headline)."""
    task, _, _, first, main = KINDS[kind]
    told = iter(values)
    monkeypatch.setattr(task, "judge", lambda *_: dict(zip((first, main), next(told), strict=True)))


@every_kind
@pytest.mark.parametrize("named", [False, True])
def test_an_early_stop_goes_back_to_the_best_by_the_headline(monkeypatch, given, kind, named):
    first, main = KINDS[kind][-2:]
    values = [
        (0.9, 0.1),
        (0.5, 0.8),
        (0.1, 0.2),
        (0.1, 0.2),
        (0.1, 0.2),
    ]  # at steps 2, 4, 6, 8, and when it is done
    scripted(monkeypatch, kind, values if not named else [*values[:3], values[-1]])
    made = answer(*given, "train.steps=20", "train.eval_every=2", "train.stop=2", *([f"best={first}"] if named else []))
    assert (made["best_step"], made["step"], made["metric"]) == ((2, 6, first) if named else (4, 8, main))


@every_kind
@pytest.mark.parametrize("named", [False, True])
def test_the_best_of_several_seeds_is_so_by_the_headline(monkeypatch, given, kind, named):
    first, main = KINDS[kind][-2:]
    scripted(monkeypatch, kind, [(0.5, 0.1), (0.9, 0.3), (0.1, 0.8)])
    made = answer(*given, "train.steps=1", "seeds=[4,5,6]", *([f"best={first}"] if named else []))
    assert (made["seed"], made["metric"]) == ((5, first) if named else (6, main))
    assert made["dev"] == made["seeds"][str(made["seed"])]
    assert made["mean"] == pytest.approx({first: 0.5, main: 0.4})


@pytest.mark.parametrize("kind", ["many"])
def test_a_run_without_a_dev_file_names_no_score(given, kind):
    made = answer(*[word for word in given if not word.startswith("data.dev")], "train.steps=1")
    assert made["dev"] == {} and "metric" not in made
