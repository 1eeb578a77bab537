"""Tags that only the document tells, learnt with a CRF and answered from the folder alone."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from tests.conftest import WORDS
from tests.journeys.test_finetuning import FAST, bert  # noqa: F401
from tests.journeys.test_pretraining import answer, ran

PLAIN = [word for word in WORDS if word not in ("people", "water", "one", "two")]


def document(rng):
    """Its first sentence tells what `one two` is in the second: a person of two tokens, or a place."""
    person = bool(rng.integers(2))
    lead = [*rng.choice(PLAIN, 2), "people" if person else "water"]
    name = "PER" if person else "LOC"
    words = [*rng.choice(PLAIN, int(rng.integers(1, 3))), "one", "two"]
    tags = ["O"] * (len(words) - 2) + [f"B-{name}", f"I-{name}"]
    rows = "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True))
    return "-DOCSTART- O\n\n" + "".join(f"{word} O\n" for word in lead) + f"\n{rows}\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    for name, seed, count in (("train", 0, 400), ("dev", 1, 60)):
        rng = np.random.default_rng(seed)
        (folder / f"{name}.txt").write_text("".join(document(rng) for _ in range(count)), encoding="utf-8")
    return [f"data.train={folder / 'train.txt'}", f"data.dev={folder / 'dev.txt'}"]


def test_a_crf_and_the_document_are_learnt_and_stay_in_the_folder(bert, files, tmp_path):  # noqa: F811
    out, dev = tmp_path / "out", files[1].partition("=")[2]
    words = ["task=tag", "task.crf=true", "task.context=true", f"model={bert}", *files, f"out={out}", *FAST, "train.epochs=8"]
    made = answer("finetune", *words)
    assert made["dev"]["f1"] > 0.8
    moves = np.array(json.loads((out / "config.json").read_text())["task"]["moves"])
    assert moves.shape == (6, 6) and np.abs(moves).max() > 0.01
    assert answer("evaluate", f"model={out}", f"data={dev}")["scores"] == pytest.approx(made["dev"])
    ran("predict", f"model={out}", f"data={dev}", f"out={tmp_path / 'answers.jsonl'}")
    told = [json.loads(line)["tags"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    gold = bertsmith.load(out).task.read(Path(dev))
    assert np.mean([tuple(tags) == one.tags for tags, one in zip(told, gold, strict=True)]) > 0.8


def test_without_the_document_it_cannot_be_known(bert, files, tmp_path):  # noqa: F811
    made = answer("finetune", "task=tag", f"model={bert}", *files, f"out={tmp_path / 'out'}", *FAST, "train.epochs=4")
    assert made["dev"]["f1"] < 0.75
