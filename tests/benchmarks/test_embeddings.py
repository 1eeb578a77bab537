"""The benchmark of sentence embeddings: BM25 and rank scores against plain formulas, and a whole run."""

import json
import math

import numpy as np
import pytest

from benchmarks import embeddings, triples
from benchmarks.inputs import BenchmarkInputs
from tests.support.models import save_model
from tests.support.rows import write_jsonl

DOCUMENTS = ["the cat sat on the mat", "a dog", "cats and dogs and a cat", "天气很好"]


def test_bm25_is_the_formula():
    index, lengths = embeddings.BM25(DOCUMENTS), [6, 2, 6, 7]
    assert [sum(1 for _ in embeddings.split_words(text)) for text in DOCUMENTS] == lengths
    k1, b, mean = embeddings.K1, embeddings.B, sum(lengths) / 4
    expected = 0.0
    for tf, df in ((1, 2), (2, 1)):  # cat, the: in the first document
        idf = math.log(1 + (4 - df + 0.5) / (df + 0.5))
        expected += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * lengths[0] / mean))
    scores = index.score("the Cat nowhere")
    assert scores[0] == pytest.approx(expected) and scores[1] == 0 < scores[2]
    assert index.score("好天气")[3] > 0 == index.score("雨")[3]


def test_rank_scores():
    found, relevant = np.array([[3, 1, 2], [5, 6, 7], [9, 8, 4]]), np.array([3, 0, 8])
    scores = embeddings.rank_scores(found, relevant)
    assert scores["MRR@10"] == pytest.approx(100 * (1 + 0 + 1 / 2) / 3)
    assert scores["nDCG@10"] == pytest.approx(100 * (1 + 0 + 1 / math.log2(3)) / 3)


def test_run_measures_every_model_and_size(tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", [{"text": "the cat", "text_b": text, "score": i} for i, text in enumerate(DOCUMENTS)])
    question = lambda i: {"id": str(i), "question": DOCUMENTS[i], "answers": [{"text": DOCUMENTS[i][:2], "answer_start": 0}]}
    paragraphs = [{"context": text, "qas": [question(i)]} for i, text in enumerate(DOCUMENTS)]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    (tmp_path / "suite.toml").write_text(
        '[pairs]\nfile = "pairs.jsonl"\n[search]\nkind = "retrieval"\nfile = "squad.json"\n[other]\nfile = "missing.tsv"\n'
    )
    model = save_model(tmp_path / "bert")
    options = {"suite": str(tmp_path / "suite.toml"), "models": f"bm25,{model}", "cases": "pairs,search", "dimensions": "8",
               "out": str(tmp_path / "results.jsonl")}  # fmt: skip
    rows = embeddings.run(BenchmarkInputs(tmp_path, options))
    assert [row[0] for row in rows] == ["pairs, bm25", "search, bm25", "pairs, bert", "pairs, bert, 8 dimensions",
                                        "search, bert", "search, bert, 8 dimensions"]  # fmt: skip
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(results) == 6 and results[1]["nDCG@10"] == 100 and all(-100 <= results[i]["spearman"] <= 100 for i in (0, 2, 3))


def test_triples_of_inferences_and_questions(tmp_path):
    rows = [
        ("a man plays", "a person plays", "entailment"), ("a man plays", "nobody plays", "contradiction"),
        ("a man plays", "he is old", "neutral"), ("two dogs run", "dogs are still", "contradiction"),
        ("a cat sleeps here", "a cat rests", "entailment"), ("a cat eats", "it eats a fish", "entailment"),
    ]  # fmt: skip
    (tmp_path / "nli.tsv").write_text("text_a\ttext_b\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows))
    context = "Rome is old. Paris is large. It rains."
    question = {"id": "q", "question": "What is large?", "answers": [{"text": "Paris", "answer_start": 13}]}
    squad = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    out = tmp_path / "out.jsonl"
    assert triples.main([str(out), f"nli={tmp_path / 'nli.tsv'}", f"squad={tmp_path / 'squad.json'}"]) == 5
    found = {tuple(json.loads(line).values()) for line in out.read_text().splitlines()}
    assert ("a man plays", "a person plays", "nobody plays") in found  # the neutral text is in no triple
    assert ("two dogs run", "two dogs run", "dogs are still") in found
    assert ("a cat sleeps here", "a cat rests", "it eats a fish") in found
    question_triple = next(triple for triple in found if triple[0] == "What is large?")
    assert question_triple[1] == "Paris is large." and question_triple[2] in ("Rome is old.", "It rains.")
