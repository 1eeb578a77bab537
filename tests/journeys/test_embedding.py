"""Vectors of texts, from a file to a search: learnt from single texts, from pairs, from scores, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from tests.conftest import WORDS
from tests.journeys.test_finetuning import bert, written  # noqa: F401
from tests.journeys.test_pretraining import answer, ran, refused

FAST = ["length=32", "train.batch_tokens=600", "train.rate=2e-3", "train.log_every=50", "train.epochs=4"]
TOPICS = [WORDS[at : at + 8] for at in range(16, 80, 8)]


def sentence(rng, topic, size=8):
    """Words of one topic among others that say nothing."""
    return " ".join(rng.permutation([*rng.choice(TOPICS[topic], 3), *rng.choice(WORDS[:16], size - 3)]))


def judged(count, seed):
    """Pairs of one topic, alike, and of two, unlike."""
    rng, rows = np.random.default_rng(seed), []
    for number in range(count):
        a, b = rng.choice(len(TOPICS), 2, replace=False)
        alike = number % 2
        rows.append({"text": sentence(rng, a), "text_b": sentence(rng, a if alike else b), "score": 1.0 + 4.0 * alike})
    return rows


def pairs(count, seed, negative=False):
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        a, b = rng.choice(len(TOPICS), 2, replace=False)
        third = {"negative": sentence(rng, b)} if negative else {}
        rows.append({"text": sentence(rng, a), "text_b": sentence(rng, a), **third})
    return rows


WAYS = {
    "pairs": (lambda: pairs(800, 1), 0.6),
    "negatives": (lambda: pairs(600, 2, negative=True), 0.6),
    "scores": (lambda: judged(800, 3), 0.6),
}


@pytest.mark.parametrize("way", WAYS)
def test_likeness_is_learnt_judged_and_searched(bert, tmp_path, way):  # noqa: F811
    make, least = WAYS[way]
    train, dev = written(tmp_path / "train.jsonl", make()), written(tmp_path / "dev.jsonl", judged(200, 9))
    words = ["finetune", "task=similar", f"model={bert}", f"data.train={train}", f"data.dev={dev}", *FAST]
    before = answer(*words, f"out={tmp_path / 'untaught'}", "train.epochs=0.01", "train.rate=1e-9")["dev"]["spearman"]
    made = answer(*words, f"out={tmp_path / 'out'}")
    assert made["dev"]["spearman"] > max(least, before + 0.1)
    scores = answer("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")["scores"]
    assert scores["spearman"] == pytest.approx(made["dev"]["spearman"], abs=1e-6)
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record["task"]["pool"] == "mean" and (record["task"]["scale"] == [1.0, 5.0]) == (way == "scores")
    rng = np.random.default_rng(5)
    topics = [number % len(TOPICS) for number in range(64)]
    documents = written(tmp_path / "documents.jsonl", [{"text": sentence(rng, topic)} for topic in topics])
    queries = written(tmp_path / "queries.jsonl", [{"text": sentence(rng, topic)} for topic in topics[:16]])
    ran("embed", f"model={tmp_path / 'out'}", f"data={documents}", f"out={tmp_path / 'd.npy'}")
    search = ["embed", f"model={tmp_path / 'out'}", f"data={queries}", "top=4"]
    by_vector = ran(*search, f"documents={tmp_path / 'd.npy'}").stdout.splitlines()
    ran(*search, f"documents={documents}", f"out={tmp_path / 'found.jsonl'}")
    by_text = (tmp_path / "found.jsonl").read_text().splitlines()
    found = [[one["row"] for one in json.loads(line)["nearest"]] for line in by_vector]
    assert found == [[one["row"] for one in json.loads(line)["nearest"]] for line in by_text] and len(found) == 16
    right = np.mean([topics[row] == topic for rows, topic in zip(found, topics, strict=False) for row in rows])
    assert right > 3 / len(TOPICS)  # chance is one of eight


def test_single_texts_are_learnt_from_by_dropout_alone(bert, tmp_path):  # noqa: F811
    """What it must do is spread texts out: of 16 others, the text itself is found again."""
    rng = np.random.default_rng(0)
    lines = [sentence(rng, number % len(TOPICS)) for number in range(400)]
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    begin = [
        "finetune",
        "task=similar",
        "task.pool=first",
        f"model={bert}",
        f"data.train={tmp_path / 'train.txt'}",
        *FAST,
        "train.epochs=15",
    ]
    made = answer(*begin, f"out={tmp_path / 'out'}")
    log = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert made["dev"] == {} and made["examples"] == 400
    model, plain = bertsmith.load(tmp_path / "out"), bertsmith.load(bert)
    assert model.pool == "first"
    spread = lambda one: np.corrcoef(one.embed(lines[:50], pool="first"))[np.triu_indices(50, 1)].mean()
    assert spread(model) < spread(plain) - 0.1
    assert any(row.get("accuracy", 0) > 0.9 for row in log)


def test_what_cannot_be_done_with_vectors_is_said(bert, tmp_path):  # noqa: F811
    (tmp_path / "some.txt").write_text("the way\n", encoding="utf-8")
    data = f"data={tmp_path / 'some.txt'}"
    assert "give out=vectors.npy" in refused("embed", f"model={bert}", data)
    assert "written as .npy" in refused("embed", f"model={bert}", data, f"out={tmp_path / 'a.txt'}")
    assert "one of the two" in refused("embed", f"model={bert}")
    np.save(tmp_path / "narrow.npy", np.ones((3, 5), np.float32))
    assert "32 wide" in refused("embed", f"model={bert}", data, f"documents={tmp_path / 'narrow.npy'}")
    assert "cannot be read" in refused("embed", f"model={bert}", data, f"documents={tmp_path / 'none.npy'}")
    (tmp_path / "empty.npy").write_bytes(b"")
    assert "cannot be read" in refused("embed", f"model={bert}", data, f"documents={tmp_path / 'empty.npy'}")
    vector = json.loads(ran("embed", f"model={bert}", "text=the way").stdout)
    np.testing.assert_allclose(vector, bertsmith.load(bert).embed("the way"), atol=1e-5)
    train = written(tmp_path / "train.jsonl", pairs(8, 0))
    begin = ["finetune", "task=similar", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST]
    assert "has no head" in refused(*begin, "rdrop=1")
    assert "choose task.pool" in refused(*begin, "features.layers=sum")
