"""Sentence embeddings on the command line: trained on single texts, pairs, negatives and scores; semantic search."""

import json

import numpy as np
import pytest

import bertsmith
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.rows import write_jsonl
from tests.support.texts import WORDS

FAST = ["max_length=32", "train.batch_tokens=600", "train.learning_rate=2e-3", "train.log_every=50", "train.epochs=4"]
TOPICS = [WORDS[at : at + 8] for at in range(16, 80, 8)]


def sentence(rng, topic, size=8):
    """Words of one topic mixed with topic-independent words."""
    return " ".join(rng.permutation([*rng.choice(TOPICS[topic], 3), *rng.choice(WORDS[:16], size - 3)]))


def scored_pairs(count, seed):
    """Pairs of texts with a high score (same topic) or a low one (two topics)."""
    rng, rows = np.random.default_rng(seed), []
    for index in range(count):
        topic, other_topic = rng.choice(len(TOPICS), 2, replace=False)
        is_similar = index % 2
        rows.append(
            {
                "text": sentence(rng, topic),
                "text_b": sentence(rng, topic if is_similar else other_topic),
                "score": 1.0 + 4.0 * is_similar,
            }
        )
    return rows


def pairs(count, seed, negative=False):
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        topic, other_topic = rng.choice(len(TOPICS), 2, replace=False)
        negative_field = {"negative": sentence(rng, other_topic)} if negative else {}
        rows.append({"text": sentence(rng, topic), "text_b": sentence(rng, topic), **negative_field})
    return rows


TRAINING_DATA = {
    "pairs": (lambda: pairs(800, 1), 0.6),
    "negatives": (lambda: pairs(600, 2, negative=True), 0.6),
    "scores": (lambda: scored_pairs(800, 3), 0.6),
}


@pytest.mark.parametrize("data", TRAINING_DATA)
def test_embedding_training_evaluation_and_search(bert, tmp_path, data):
    make_rows, min_spearman = TRAINING_DATA[data]
    train, dev = write_jsonl(tmp_path / "train.jsonl", make_rows()), write_jsonl(tmp_path / "dev.jsonl", scored_pairs(200, 9))
    args = ["finetune", "task=similar", f"model={bert}", f"data.train={train}", f"data.dev={dev}", *FAST]
    before = run_cli_json(*args, f"out={tmp_path / 'untaught'}", "train.epochs=0.01", "train.learning_rate=1e-9")["dev"][
        "spearman"
    ]
    result = run_cli_json(*args, f"out={tmp_path / 'out'}")
    assert result["dev"]["spearman"] > max(min_spearman, before + 0.1)
    scores = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")["scores"]
    assert scores["spearman"] == pytest.approx(result["dev"]["spearman"], abs=1e-6)
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record["task"]["pooling"] == "mean" and (record["task"]["scale"] == [1.0, 5.0]) == (data == "scores")
    rng = np.random.default_rng(5)
    topics = [number % len(TOPICS) for number in range(64)]
    documents = write_jsonl(tmp_path / "documents.jsonl", [{"text": sentence(rng, topic)} for topic in topics])
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"text": sentence(rng, topic)} for topic in topics[:16]])
    run_cli("embed", f"model={tmp_path / 'out'}", f"data={documents}", f"out={tmp_path / 'd.npy'}")
    search = ["embed", f"model={tmp_path / 'out'}", f"data={queries}", "top_k=4"]
    by_vector = run_cli(*search, f"documents={tmp_path / 'd.npy'}").stdout.splitlines()
    run_cli(*search, f"documents={documents}", f"out={tmp_path / 'found.jsonl'}")
    by_text = (tmp_path / "found.jsonl").read_text().splitlines()
    nearest_rows = [[hit["corpus_id"] for hit in json.loads(line)["hits"]] for line in by_vector]
    assert (
        nearest_rows == [[hit["corpus_id"] for hit in json.loads(line)["hits"]] for line in by_text] and len(nearest_rows) == 16
    )
    precision = np.mean([topics[row] == topic for rows, topic in zip(nearest_rows, topics, strict=False) for row in rows])
    assert precision > 3 / len(TOPICS)  # chance is one of eight


def test_embedding_from_single_texts_with_dropout(bert, tmp_path):
    """SimCSE: embeddings of different texts spread out, and a text is nearest to itself in its batch."""
    rng = np.random.default_rng(0)
    lines = [sentence(rng, number % len(TOPICS)) for number in range(400)]
    (tmp_path / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    args = [
        "finetune",
        "task=similar",
        "task.pooling=cls",
        f"model={bert}",
        f"data.train={tmp_path / 'train.txt'}",
        *FAST,
        "train.epochs=15",
    ]
    result = run_cli_json(*args, f"out={tmp_path / 'out'}")
    log = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert result["dev"] == {} and result["examples"] == 400
    model, plain = bertsmith.load(tmp_path / "out"), bertsmith.load(bert)
    assert model.pooling == "cls"
    spread = lambda predictor: np.corrcoef(predictor.embed(lines[:50], pooling="cls"))[np.triu_indices(50, 1)].mean()
    assert spread(model) < spread(plain) - 0.1
    assert any(row.get("accuracy", 0) > 0.9 for row in log)


def test_embedding_rejects_invalid_requests(bert, tmp_path):
    (tmp_path / "some.txt").write_text("the way\n", encoding="utf-8")
    data = f"data={tmp_path / 'some.txt'}"
    assert "give out=vectors.npy" in run_cli_error("embed", f"model={bert}", data)
    assert "written as .npy" in run_cli_error("embed", f"model={bert}", data, f"out={tmp_path / 'a.txt'}")
    assert "not both" in run_cli_error("embed", f"model={bert}")
    np.save(tmp_path / "narrow.npy", np.ones((3, 5), np.float32))
    assert "vectors have size 32" in run_cli_error("embed", f"model={bert}", data, f"documents={tmp_path / 'narrow.npy'}")
    assert "none.npy: No such file" in run_cli_error("embed", f"model={bert}", data, f"documents={tmp_path / 'none.npy'}")
    (tmp_path / "empty.npy").write_bytes(b"")
    assert "empty.npy cannot be read as .npy" in run_cli_error(
        "embed", f"model={bert}", data, f"documents={tmp_path / 'empty.npy'}"
    )
    vector = json.loads(run_cli("embed", f"model={bert}", "text=the way").stdout)
    np.testing.assert_allclose(vector, bertsmith.load(bert).embed("the way"), atol=1e-5)
    train = write_jsonl(tmp_path / "train.jsonl", pairs(8, 0))
    args = ["finetune", "task=similar", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST]
    assert "has no task head" in run_cli_error(*args, "rdrop=1")
    assert "set task.pooling" in run_cli_error(*args, "features.layers=sum")
