"""Files of any size to answers in order: killed and gone on with, byte for byte; labels that are wrong; bounded memory."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest

from bertsmith.commands import embed, predict
from bertsmith.evaluation.evaluate import evaluate_model
from bertsmith.inference import output_files
from bertsmith.inference.predictor import load
from tests.journeys.test_pretraining import ROOT, answer, ran, refused
from tests.test_predict import TASKS, saved


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: saved(folder / kind, task) for kind, task in {**TASKS, "words": None}.items()}


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(["the", "people", "said", "now", "water"], rng.integers(0, 40))) for _ in range(count)]


def written(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def asked(tmp_path):
    return written(tmp_path / "asked.jsonl", [{"text": text} for text in texts(230)])


def died(monkeypatch, stage, name, at):
    """The stage stops with an error at the chunk of that number."""
    real, calls = getattr(stage, name), []

    def dying(*words):
        calls.append(1)
        if len(calls) > at:
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(stage, name, dying)
    return calls


@pytest.mark.parametrize("cut", [0, 7, 64 * 70, -5])
def test_a_killed_run_goes_on_byte_for_byte(folders, asked, tmp_path, monkeypatch, cut):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    words = ["predict", f"model={folders['classify']}", f"data={asked}", "batch_tokens=100"]
    ran(*words, f"out={tmp_path / 'whole.jsonl'}")
    whole = (tmp_path / "whole.jsonl").read_bytes()
    died(monkeypatch, predict, "_line", 0)
    ran(*words, f"out={tmp_path / 'part.jsonl'}", code=130)
    monkeypatch.undo()
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    assert (tmp_path / "part.jsonl.part.json").exists() and not (tmp_path / "part.jsonl").exists()
    (tmp_path / "part.jsonl.part").write_bytes(whole[:cut])  # anywhere, inside a line too
    told = ran(*words, f"out={tmp_path / 'part.jsonl'}").stderr
    assert ("going on after" in told) == (whole[:cut].count(b"\n") > 0)
    assert (tmp_path / "part.jsonl").read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked.jsonl", "part.jsonl", "whole.jsonl"]


def test_killed_outright_it_goes_on_byte_for_byte(folders, tmp_path):
    data = written(tmp_path / "many.jsonl", [{"text": text} for text in texts(8_000)])
    words = [sys.executable, "-m", "bertsmith", "predict", f"model={folders['classify']}", f"data={data}", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    part = tmp_path / "killed.jsonl.part"
    running = subprocess.Popen([*words, f"out={tmp_path / 'killed.jsonl'}"], env=environment, cwd=ROOT)
    limit = time.monotonic() + 120
    while time.monotonic() < limit and running.poll() is None and not (part.exists() and part.stat().st_size > 10_000):
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    done = part.read_bytes().count(b"\n")
    assert 0 < done < 8_000 and not (tmp_path / "killed.jsonl").exists()
    told = ran(*words[3:-1], f"out={tmp_path / 'killed.jsonl'}").stderr
    assert f"going on after {done:,} answers" in told
    ran(*words[3:], f"out={tmp_path / 'straight.jsonl'}")
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


@pytest.mark.parametrize("change", ["model", "data", "setting"])
def test_what_another_command_left_is_begun_anew(folders, asked, tmp_path, monkeypatch, change):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    words = {"model": folders["classify"], "data": asked, "batch_tokens": 64, "out": tmp_path / "out.jsonl"}
    calls = died(monkeypatch, predict, "_line", 120)
    ran("predict", *(f"{name}={value}" for name, value in words.items()), code=130)
    monkeypatch.undo()
    part = tmp_path / "out.jsonl.part"
    assert part.read_bytes().count(b"\n") == 100 and len(calls) == 121
    if change == "model":
        words["model"] = folders["regress"]
    if change == "data":
        written(asked, [{"text": text} for text in texts(230, seed=1)])
    if change == "setting":
        words["batch_tokens"] = 128
    told = ran("predict", *(f"{name}={value}" for name, value in words.items()))
    assert "going on" not in told.stderr
    ran("predict", *(f"{name}={value}" for name, value in (words | {"out": tmp_path / "straight.jsonl"}).items()))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_labels_that_are_wrong_or_missing_make_no_difference(folders, tmp_path):
    some = texts(5)
    files = {
        "classify": ([{"text": one} for one in some], [{"text": one, "label": ["x", {}]} for one in some]),
        "regress": ([{"text": one} for one in some], [{"text": one, "label": "no number"} for one in some]),
        "similar": ([{"text": "the", "text_b": one} for one in some],
                    [{"text": "the", "text_b": one, "score": "?"} for one in some]),
        "choose": ([{"context": one, "options": ["a", "b"]} for one in some],
                   [{"context": one, "options": ["a", "b"], "label": 17} for one in some]),
        "tag": ([{"tokens": ["she", one]} for one in some], [{"tokens": ["she", one], "tags": ["unheard"]} for one in some]),
    }  # fmt: skip
    for kind, (bare, wrong) in files.items():
        found = []
        for name, made in (("bare", bare), ("wrong", wrong)):
            data = written(tmp_path / f"{kind}-{name}.jsonl", made)
            ran("predict", f"model={folders[kind]}", f"data={data}", f"out={tmp_path / kind}-{name}.out")
            found.append((tmp_path / f"{kind}-{name}.out").read_text())
        assert found[0] == found[1] and found[0].count("\n") == 5, kind


def test_questions_whose_answers_are_not_in_their_passage_are_answered(folders, tmp_path):
    asked = [{"id": "1", "question": "who", "answers": [{"text": "nowhere", "answer_start": 0}]},
             {"id": "2", "question": "what", "is_impossible": True, "answers": []}]  # fmt: skip
    squad = {"data": [{"paragraphs": [{"context": "She said it.", "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    printed = ran("predict", f"model={folders['answer']}", f"data={tmp_path / 'squad.json'}").stdout
    assert len([json.loads(line) for line in printed.splitlines()]) == 2


def test_lines_of_text_are_answered_beside_their_lines(folders, tmp_path):
    (tmp_path / "some.txt").write_text("the people\n\nnow", encoding="utf-8")
    printed = ran("predict", f"model={folders['classify']}", f"data={tmp_path / 'some.txt'}").stdout
    single = [
        json.loads(ran("predict", f"model={folders['classify']}", f"text={one}").stdout) for one in ("the people", "''", "now")
    ]
    assert [json.loads(line)["label"] for line in printed.splitlines()] == [one["label"] for one in single]
    data = written(tmp_path / "raw.jsonl", [{"text": "Mary said: no"}])
    tagged = json.loads(ran("predict", f"model={folders['tag']}", f"data={data}").stdout)
    assert tagged["tokens"] == ["Mary", "said", ":", "no"]
    assert tagged == json.loads(ran("predict", f"model={folders['tag']}", "text=Mary said: no").stdout)


def test_questions_are_asked_by_their_fields(folders):
    said = json.loads(ran("predict", f"model={folders['answer']}", "question=who", "context=She said it.").stdout)
    assert said["text"] in "She said it."
    chosen = ran("predict", f"model={folders['choose']}", "context=it is", 'options=["wet", "dry"]').stdout
    assert json.loads(chosen)["option"] in ("wet", "dry")
    like = json.loads(ran("predict", f"model={folders['similar']}", "text=the people", "text_b=the people").stdout)
    assert like["score"] == pytest.approx(1)
    assert "context is missing" in refused("predict", f"model={folders['answer']}", "question=who")
    assert "one of the two" in refused("predict", f"model={folders['answer']}", "question=who", "data=x.json")


def test_masks_candidates_and_likelihoods_from_the_command_line(folders, tmp_path):
    model = f"model={folders['words']}"
    filled = json.loads(ran("predict", model, "text=the [MASK] said [MASK]", "top=3").stdout)
    assert [len(mask) for mask in filled["masks"]] == [3, 3]
    together = json.loads(ran("predict", model, "text=the [MASK] said [MASK]", "together=true").stdout)
    assert len(together["masks"]) == 2
    ranked = json.loads(ran("predict", model, "text=the [MASK]", 'candidates=["people", "water"]').stdout)
    assert {one["word"] for one in ranked["candidates"]} == {"people", "water"}
    (tmp_path / "some.txt").write_text("the people said\nnow\n", encoding="utf-8")
    lines = ran("predict", model, f"data={tmp_path / 'some.txt'}", "likelihood=true").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [3, 1] and json.loads(lines[0])["total"] < 0
    assert "was not fine-tuned" in refused("predict", model, "text=no mask")
    assert "text=... alone" in refused("predict", model, "question=who")
    assert "no head for words" in refused("predict", f"model={folders['classify']}", "text=the [MASK]", "likelihood=true")


def sentences(path):
    """Documents of many short sentences, some longer than what is answered at once, in CoNLL's columns."""
    rng, lines = np.random.default_rng(5), []
    for size in (3, 40, 1, 17, 9):
        lines.append("-DOCSTART- O\n\n")
        for _ in range(size):
            words = rng.choice(["the", "people", "said", "now", "water"], rng.integers(1, 6))
            lines.append("".join(f"{word} {rng.choice(['O', 'B-PER'])}\n" for word in words) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def tags(path):
    return [json.loads(line)["tags"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("context", [True, 3])
def test_a_document_is_seen_over_the_border_of_what_is_answered_at_once(tmp_path, monkeypatch, context):
    task = msgspec.structs.replace(TASKS["tag"], context=context)
    model, data = saved(tmp_path / "model", task), sentences(tmp_path / "data.txt")
    words = ["predict", f"model={model}", f"data={data}"]
    ran(*words, f"out={tmp_path / 'whole.jsonl'}")
    whole = tags(tmp_path / "whole.jsonl")
    predictor = load(model)
    examples = list(predictor.task.read(data))
    assert whole == [list(one.tags) for one in evaluate_model(predictor, examples).predictions]
    cut = [list(one.tags) for at in range(0, 70, 7) for one in predictor.answers(examples[at : at + 7])]
    assert whole != cut, "a model that does not look at the document would test nothing"
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    ran(*words, f"out={tmp_path / 'some.jsonl'}")
    assert tags(tmp_path / "some.jsonl") == whole
    assert [json.loads(line)["tags"] for line in ran(*words).stdout.splitlines()] == whole


def test_a_document_goes_on_where_a_killed_run_left_it(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    model = saved(tmp_path / "model", msgspec.structs.replace(TASKS["tag"], context=True))
    words = ["predict", f"model={model}", f"data={sentences(tmp_path / 'data.txt')}", "batch_tokens=100"]
    ran(*words, f"out={tmp_path / 'whole.jsonl'}")
    died(monkeypatch, predict, "_line", 30)
    ran(*words, f"out={tmp_path / 'part.jsonl'}", code=130)
    monkeypatch.undo()
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    assert "going on after 28 answers" in ran(*words, f"out={tmp_path / 'part.jsonl'}").stderr
    assert (tmp_path / "part.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_bad_rows_inside_a_document_are_not_seen(tmp_path, monkeypatch):
    model = saved(tmp_path / "model", msgspec.structs.replace(TASKS["tag"], context=True))
    rows = [{"tokens": one.split() or ["now"]} for one in texts(40, seed=2)]
    data = written(tmp_path / "good.jsonl", rows)
    bad = written(tmp_path / "bad.jsonl", [one for row in rows for one in (row, {"tokens": None})])
    ran("predict", f"model={model}", f"data={data}", f"out={tmp_path / 'good.out'}")
    monkeypatch.setattr(predict, "CHUNK_SIZE", 3)
    ran("predict", f"model={model}", f"data={bad}", "skip_bad=true", f"out={tmp_path / 'bad.out'}")
    found = [json.loads(line) for line in (tmp_path / "bad.out").read_text().splitlines()]
    assert [one["tags"] for one in found[::2]] == tags(tmp_path / "good.out") and all("error" in one for one in found[1::2])


def test_no_more_is_read_than_is_being_answered(folders, tmp_path, monkeypatch):
    """A file is a stream: when the first answers are written, the rest is not read yet."""
    monkeypatch.setattr(predict, "CHUNK_SIZE", 10)
    read, seen = predict.read_requests, []

    def counted(*words):
        for one in read(*words):
            seen.append(1)
            yield one

    monkeypatch.setattr(predict, "read_requests", counted)
    data = written(tmp_path / "many.jsonl", [{"text": text} for text in texts(200)])
    recipe = predict.Recipe(model=str(folders["classify"]), data=str(data))
    chunks = predict._iter_answers(recipe, predict.load(recipe.model), {})
    assert len(next(chunks)) == 10 and len(seen) == 10
    assert len(next(chunks)) == 10 and len(seen) == 20


def test_vectors_of_a_file_are_those_of_its_texts_and_go_on_where_they_were_killed(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "CHUNK_SIZE", 40)
    some = texts(130)
    data = written(tmp_path / "some.jsonl", [{"text": one} for one in some])
    words = ["embed", f"model={folders['words']}", f"data={data}", "pool=first"]
    made = answer(*words, f"out={tmp_path / 'straight.npy'}")
    assert (made["rows"], made["width"], made["pool"]) == (130, 32, "first")
    vectors = np.load(tmp_path / "straight.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (130, 32)
    expected = embed.load(str(folders["words"])).embed(some, pool="first")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    calls = died(monkeypatch, embed, "_vectors", 2)
    ran(*words, f"out={tmp_path / 'killed.npy'}", code=130)
    assert not (tmp_path / "killed.npy").exists()
    monkeypatch.undo()
    monkeypatch.setattr(embed, "CHUNK_SIZE", 40)
    calls = died(monkeypatch, embed, "_vectors", 9)
    assert "going on after 80 texts" in ran(*words, f"out={tmp_path / 'killed.npy'}").stderr
    assert len(calls) == 2 and (tmp_path / "killed.npy").read_bytes() == (tmp_path / "straight.npy").read_bytes()


def test_half_a_line_is_cut_off(tmp_path):
    (tmp_path / "a.part").write_bytes(b'{"a": 1}\n{"b": 2}\n{"c"')
    with (tmp_path / "a.part").open("ab+") as file:
        assert output_files._count_complete_lines(file) == 2
        file.write(b"x\n")
    assert (tmp_path / "a.part").read_bytes() == b'{"a": 1}\n{"b": 2}\nx\n'
    (tmp_path / "b.part").write_bytes(b"half")
    with (tmp_path / "b.part").open("ab+") as file:
        assert output_files._count_complete_lines(file) == 0
    assert (tmp_path / "b.part").read_bytes() == b""
