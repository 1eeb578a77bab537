"""Token classification with document context and a CRF: fine-tuning, evaluation and prediction."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from bertsmith.tasks.scorers.conlleval import get_entities
from tests.support.cli import (
    FAST,
    run_cli,
    run_cli_json,
)
from tests.support.texts import WORDS

PLAIN = [word for word in WORDS if word not in ("people", "water", "one", "two")]


def document(rng):
    """The first sentence determines whether `one two` in the second is a person or a location."""
    is_person = bool(rng.integers(2))
    first_sentence = [*rng.choice(PLAIN, 2), "people" if is_person else "water"]
    entity_type = "PER" if is_person else "LOC"
    words = [*rng.choice(PLAIN, int(rng.integers(1, 3))), "one", "two"]
    tags = ["O"] * (len(words) - 2) + [f"B-{entity_type}", f"I-{entity_type}"]
    rows = "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True))
    return "-DOCSTART- O\n\n" + "".join(f"{word} O\n" for word in first_sentence) + f"\n{rows}\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    for name, seed, count in (("train", 0, 400), ("dev", 1, 60)):
        rng = np.random.default_rng(seed)
        (folder / f"{name}.txt").write_text("".join(document(rng) for _ in range(count)), encoding="utf-8")
    return [f"data.train={folder / 'train.txt'}", f"data.dev={folder / 'dev.txt'}"]


def test_tagging_with_crf_and_document_context(bert, files, tmp_path):
    out, dev = tmp_path / "out", files[1].partition("=")[2]
    args = ["task=tag", "task.crf=true", "task.context=true", f"model={bert}", *files, f"out={out}", *FAST, "train.epochs=8"]
    result = run_cli_json("finetune", *args)
    assert result["dev"]["f1"] > 0.8
    transitions = np.array(json.loads((out / "config.json").read_text())["task"]["transitions"])
    assert transitions.shape == (6, 6) and np.abs(transitions).max() > 0.01
    assert run_cli_json("evaluate", f"model={out}", f"data={dev}")["scores"] == pytest.approx(result["dev"])
    run_cli("predict", f"model={out}", f"data={dev}", f"out={tmp_path / 'answers.jsonl'}")
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    sentences = list(bertsmith.load(out).task.read(Path(dev)))
    assert all(row["text"] == " ".join(sentence.tokens) for row, sentence in zip(rows, sentences, strict=True))
    correct = [entity_words(row) == gold_entity_words(sentence) for row, sentence in zip(rows, sentences, strict=True)]
    assert np.mean(correct) > 0.8
    assert all(0 < entity["score"] <= 1 for row in rows for entity in row["entities"])


def entity_words(row):
    return [(entity["entity_group"], entity["word"]) for entity in row["entities"]]


def gold_entity_words(sentence):
    return [(entity.type, " ".join(sentence.tokens[entity.start : entity.end])) for entity in get_entities(sentence.tags)]


def test_tagging_without_document_context_fails(bert, files, tmp_path):
    result = run_cli_json("finetune", "task=tag", f"model={bert}", *files, f"out={tmp_path / 'out'}", *FAST, "train.epochs=4")
    assert result["dev"]["f1"] < 0.75
