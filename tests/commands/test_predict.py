"""Predicting and embedding files: resuming after a kill, ignored labels, document context, streaming."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import msgspec
import numpy as np
import pytest

import bertsmith
from bertsmith.commands import embed, predict
from bertsmith.evaluation.evaluate import evaluate_model
from bertsmith.inference import output_files
from bertsmith.inference.predictor import load
from tests.support.cli import ROOT, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_jsonl


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_model(folder / kind, task) for kind, task in {**TASKS, "words": None}.items()}


def random_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(["the", "people", "said", "now", "water"], rng.integers(0, 40))) for _ in range(count)]


@pytest.fixture
def data(tmp_path):
    return write_jsonl(tmp_path / "asked.jsonl", [{"text": text} for text in random_texts(230)])


def interrupt_after(monkeypatch, stage, name, num_calls):
    """Make a function of a stage raise KeyboardInterrupt after `num_calls` calls; returns the list of calls."""
    original, calls = getattr(stage, name), []

    def interrupted(*args):
        calls.append(1)
        if len(calls) > num_calls:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(stage, name, interrupted)
    return calls


@pytest.mark.parametrize("cut", [0, 7, 64 * 70, -5])
def test_predict_resumes_an_interrupted_run_byte_for_byte(folders, data, tmp_path, monkeypatch, cut):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    argv = ["predict", f"model={folders['classify']}", f"data={data}", "batch_tokens=100"]
    run_cli(*argv, f"out={tmp_path / 'whole.jsonl'}")
    expected = (tmp_path / "whole.jsonl").read_bytes()
    interrupt_after(monkeypatch, predict, "_to_json_line", 0)
    run_cli(*argv, f"out={tmp_path / 'part.jsonl'}", code=130)
    monkeypatch.undo()
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    assert (tmp_path / "part.jsonl.part.json").exists() and not (tmp_path / "part.jsonl").exists()
    (tmp_path / "part.jsonl.part").write_bytes(expected[:cut])  # cut anywhere, also inside a line
    stderr = run_cli(*argv, f"out={tmp_path / 'part.jsonl'}").stderr
    assert ("resuming after" in stderr) == (expected[:cut].count(b"\n") > 0)
    assert (tmp_path / "part.jsonl").read_bytes() == expected
    records = [".part.jsonl.run.json", ".whole.jsonl.run.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*records, "asked.jsonl", "part.jsonl", "whole.jsonl"]


def test_predict_resumes_after_sigkill_byte_for_byte(folders, tmp_path):
    data = write_jsonl(tmp_path / "many.jsonl", [{"text": text} for text in random_texts(8_000)])
    argv = [sys.executable, "-m", "bertsmith", "predict", f"model={folders['classify']}", f"data={data}", "precision=fp32",
            "--quiet"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    part = tmp_path / "killed.jsonl.part"
    process = subprocess.Popen([*argv, f"out={tmp_path / 'killed.jsonl'}"], env=environment, cwd=ROOT)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not (part.exists() and part.stat().st_size > 10_000):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    num_done = part.read_bytes().count(b"\n")
    assert 0 < num_done < 8_000 and not (tmp_path / "killed.jsonl").exists()
    stderr = run_cli(*argv[3:-1], f"out={tmp_path / 'killed.jsonl'}").stderr
    assert f"resuming after {num_done:,} answers" in stderr
    run_cli(*argv[3:], f"out={tmp_path / 'straight.jsonl'}")
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


@pytest.mark.parametrize("change", ["model", "data", "setting"])
def test_predict_discards_partial_output_of_another_run(folders, data, tmp_path, monkeypatch, change):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 50)
    settings = {"model": folders["classify"], "data": data, "batch_tokens": 64, "out": tmp_path / "out.jsonl"}
    calls = interrupt_after(monkeypatch, predict, "_to_json_line", 120)
    run_cli("predict", *(f"{name}={value}" for name, value in settings.items()), code=130)
    monkeypatch.undo()
    part = tmp_path / "out.jsonl.part"
    assert part.read_bytes().count(b"\n") == 100 and len(calls) == 121
    if change == "model":
        settings["model"] = folders["regress"]
    if change == "data":
        write_jsonl(data, [{"text": text} for text in random_texts(230, seed=1)])
    if change == "setting":
        settings["batch_tokens"] = 128
    completed = run_cli("predict", *(f"{name}={value}" for name, value in settings.items()))
    assert "resuming" not in completed.stderr
    run_cli("predict", *(f"{name}={value}" for name, value in (settings | {"out": tmp_path / "straight.jsonl"}).items()))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_predict_ignores_labels(folders, tmp_path):
    texts = random_texts(5)
    files = {
        "classify": ([{"text": text} for text in texts], [{"text": text, "label": ["x", {}]} for text in texts]),
        "regress": ([{"text": text} for text in texts], [{"text": text, "label": "no number"} for text in texts]),
        "similar": ([{"text": "the", "text_b": text} for text in texts],
                    [{"text": "the", "text_b": text, "score": "?"} for text in texts]),
        "choose": ([{"context": text, "options": ["a", "b"]} for text in texts],
                   [{"context": text, "options": ["a", "b"], "label": 17} for text in texts]),
        "tag": ([{"tokens": ["she", text]} for text in texts],
                [{"tokens": ["she", text], "tags": ["unheard"]} for text in texts]),
    }  # fmt: skip
    for kind, (unlabelled, mislabelled) in files.items():
        outputs = []
        for name, rows in (("bare", unlabelled), ("wrong", mislabelled)):
            data = write_jsonl(tmp_path / f"{kind}-{name}.jsonl", rows)
            run_cli("predict", f"model={folders[kind]}", f"data={data}", f"out={tmp_path / kind}-{name}.out")
            outputs.append((tmp_path / f"{kind}-{name}.out").read_text())
        assert outputs[0] == outputs[1] and outputs[0].count("\n") == 5, kind


def test_predict_ignores_squad_answers(folders, tmp_path):
    questions = [{"id": "1", "question": "who", "answers": [{"text": "nowhere", "answer_start": 0}]},
             {"id": "2", "question": "what", "is_impossible": True, "answers": []}]  # fmt: skip
    squad = {"data": [{"paragraphs": [{"context": "She said it.", "qas": questions}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    printed = run_cli("predict", f"model={folders['answer']}", f"data={tmp_path / 'squad.json'}").stdout
    assert len([json.loads(line) for line in printed.splitlines()]) == 2


def test_predict_rows_carry_their_id_or_their_texts(folders, tmp_path):
    rows = {
        "classify": [{"id": 7, "text": "she"}, {"text": "the people", "text_b": "now"}, {"id": "b-2", "text": "way"}],
        "choose": [{"context": "it is", "question": "what", "options": ["wet", "dry"]}],
        "tag": [{"id": "s1", "tokens": ["Mary", "said"]}, {"tokens": ["天", "地", "said"]}, {"id": 3, "text": "Mary said"}],
        "words": [{"id": 1, "text": "the [MASK]"}, {"text": "[MASK] and [MASK]"}],
    }
    keys = {
        "classify": [{"id": 7}, {"text": "the people", "text_b": "now"}, {"id": "b-2"}],
        "choose": [{"question": "what", "context": "it is"}],
        "tag": [{"id": "s1"}, {"text": "天地 said"}, {"id": 3}],
        "words": [{"id": 1}, {"text": "[MASK] and [MASK]"}],
    }
    for kind, expected in keys.items():
        data, model = write_jsonl(tmp_path / f"{kind}.jsonl", rows[kind]), load(folders[kind])
        lines = run_cli("predict", f"model={folders[kind]}", f"data={data}").stdout.splitlines()
        for line, row, key in zip(lines, rows[kind], expected, strict=True):
            answer = json.loads(line)
            assert {name: answer.pop(name) for name in list(answer)[: len(key)]} == key
            values = {name: value for name, value in row.items() if name != "id"}
            single = model(**values) if model.task else model(row["text"])
            names = {"tag": "entities", "words": "predictions"}
            assert answer.keys() == (single.keys() if isinstance(single, dict) else {names[kind]})
            if kind in names:
                assert len(answer[names[kind]]) == len(single)
    (tmp_path / "rows.tsv").write_text("number\ttext\n4\tshe\n", encoding="utf-8")
    data = f"data={tmp_path / 'rows.tsv'}"
    assert json.loads(run_cli("predict", f"model={folders['classify']}", data).stdout)["text"] == "she"
    assert json.loads(run_cli("predict", f"model={folders['classify']}", data, "columns.id=number").stdout)["id"] == "4"


def test_predict_positional_arguments_and_top_k(folders):
    assert json.loads(run_cli("predict", str(folders["classify"]), "she was here").stdout)["label"] in ("bad", "good")
    assert len(json.loads(run_cli("predict", str(folders["words"]), "the [MASK]", "top_k=2").stdout)) == 2
    assert len(json.loads(run_cli("embed", str(folders["words"]), "the people").stdout)) == 32
    answer = run_cli("predict", f"model={folders['answer']}", "question=who", "context=She said it.", "top_k=3").stdout
    assert len(json.loads(answer)["candidates"]) == 3
    assert "top_k=3 is for masks" in run_cli_error("predict", str(folders["regress"]), "she", "top_k=3")


def test_predict_lines_of_text_in_order(folders, tmp_path):
    (tmp_path / "some.txt").write_text("the people\n\nnow", encoding="utf-8")
    printed = run_cli("predict", f"model={folders['classify']}", f"data={tmp_path / 'some.txt'}").stdout
    single_outputs = [
        json.loads(run_cli("predict", f"model={folders['classify']}", f"text={text}").stdout)
        for text in ("the people", "''", "now")
    ]
    assert [json.loads(line)["label"] for line in printed.splitlines()] == [output["label"] for output in single_outputs]
    data = write_jsonl(tmp_path / "raw.jsonl", [{"text": "Mary said: no"}])
    tagged = json.loads(run_cli("predict", f"model={folders['tag']}", f"data={data}").stdout)
    assert list(tagged) == ["text", "entities"] and tagged["text"] == "Mary said: no" and tagged["entities"]
    assert tagged["entities"] == json.loads(run_cli("predict", f"model={folders['tag']}", "text=Mary said: no").stdout)


def test_predict_fields_from_the_command_line(folders):
    qa_answer = json.loads(run_cli("predict", f"model={folders['answer']}", "question=who", "context=She said it.").stdout)
    assert qa_answer["answer"] in "She said it."
    choice = run_cli("predict", f"model={folders['choose']}", "context=it is", 'options=["wet", "dry"]').stdout
    assert json.loads(choice)["choice"] in (0, 1)
    similarity = json.loads(run_cli("predict", f"model={folders['similar']}", "text=the people", "text_b=the people").stdout)
    assert similarity["score"] == pytest.approx(1)
    assert "context is missing" in run_cli_error("predict", f"model={folders['answer']}", "question=who")
    assert "not both" in run_cli_error("predict", f"model={folders['answer']}", "question=who", "data=x.json")


def test_predict_fill_mask_and_likelihood_from_the_command_line(folders, tmp_path):
    model = f"model={folders['words']}"
    filled = json.loads(run_cli("predict", model, "text=the [MASK] said [MASK]", "top_k=3").stdout)
    assert [len(mask) for mask in filled] == [3, 3]
    fills = json.loads(run_cli("predict", model, "text=the [MASK] said [MASK]", "iterative=true").stdout)
    assert len(fills) == 2
    ranked = json.loads(run_cli("predict", model, "text=the [MASK]", 'candidates=["people", "water"]').stdout)
    assert {prediction["token_str"] for prediction in ranked} == {"people", "water"}
    (tmp_path / "some.txt").write_text("the people said\nnow\n", encoding="utf-8")
    lines = run_cli("predict", model, f"data={tmp_path / 'some.txt'}", "likelihood=true").stdout.splitlines()
    assert [json.loads(line)["num_tokens"] for line in lines] == [3, 1] and json.loads(lines[0])["log_prob"] < 0
    assert "was not fine-tuned" in run_cli_error("predict", model, "text=no mask")
    assert "text=... alone" in run_cli_error("predict", model, "question=who")
    assert "no language-model head" in run_cli_error(
        "predict", f"model={folders['classify']}", "text=the [MASK]", "likelihood=true"
    )


def write_conll(path):
    """Write documents of short sentences in CoNLL columns, some longer than a chunk."""
    rng, lines = np.random.default_rng(5), []
    for num_sentences in (3, 40, 1, 17, 9):
        lines.append("-DOCSTART- O\n\n")
        for _ in range(num_sentences):
            tokens = rng.choice(["the", "people", "said", "now", "water"], rng.integers(1, 6))
            lines.append("".join(f"{word} {rng.choice(['O', 'B-PER'])}\n" for word in tokens) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def read_entities(path):
    return [entity_spans(json.loads(line)["entities"]) for line in path.read_text().splitlines()]


def entity_spans(entities):
    return [(entity["entity_group"], entity["start"], entity["end"]) for entity in entities]


@pytest.mark.parametrize("context", [True, 3])
def test_predict_document_context_across_chunks(tmp_path, monkeypatch, context):
    task = msgspec.structs.replace(TASKS["tag"], context=context)
    model, data = save_model(tmp_path / "model", task), write_conll(tmp_path / "data.txt")
    argv = ["predict", f"model={model}", f"data={data}"]
    run_cli(*argv, f"out={tmp_path / 'whole.jsonl'}")
    expected = read_entities(tmp_path / "whole.jsonl")
    predictor = load(model)
    examples = list(predictor.task.read(data))
    predictions = evaluate_model(predictor, examples).predictions
    assert expected == [
        entity_spans(predictor.task.to_answer(p, example)) for example, p in zip(examples, predictions, strict=True)
    ]
    without_context = [
        entity_spans(predictor.task.to_answer(prediction, example))
        for start in range(0, 70, 7)
        for example, prediction in zip(
            examples[start : start + 7], predictor.predict_examples(examples[start : start + 7]), strict=True
        )
    ]
    assert expected != without_context, "a model that ignores the document would test nothing"
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    run_cli(*argv, f"out={tmp_path / 'some.jsonl'}")
    assert read_entities(tmp_path / "some.jsonl") == expected
    assert [entity_spans(json.loads(line)["entities"]) for line in run_cli(*argv).stdout.splitlines()] == expected


def test_predict_resumes_inside_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    model = save_model(tmp_path / "model", msgspec.structs.replace(TASKS["tag"], context=True))
    argv = ["predict", f"model={model}", f"data={write_conll(tmp_path / 'data.txt')}", "batch_tokens=100"]
    run_cli(*argv, f"out={tmp_path / 'whole.jsonl'}")
    interrupt_after(monkeypatch, predict, "_to_json_line", 30)
    run_cli(*argv, f"out={tmp_path / 'part.jsonl'}", code=130)
    monkeypatch.undo()
    monkeypatch.setattr(predict, "CHUNK_SIZE", 7)
    assert "resuming after 28 answers" in run_cli(*argv, f"out={tmp_path / 'part.jsonl'}").stderr
    assert (tmp_path / "part.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_predict_document_context_skips_bad_rows(tmp_path, monkeypatch):
    model = save_model(tmp_path / "model", msgspec.structs.replace(TASKS["tag"], context=True))
    rows = [{"tokens": item.split() or ["now"]} for item in random_texts(40, seed=2)]
    data = write_jsonl(tmp_path / "good.jsonl", rows)
    bad = write_jsonl(tmp_path / "bad.jsonl", [item for row in rows for item in (row, {"tokens": None})])
    run_cli("predict", f"model={model}", f"data={data}", f"out={tmp_path / 'good.out'}")
    monkeypatch.setattr(predict, "CHUNK_SIZE", 3)
    run_cli("predict", f"model={model}", f"data={bad}", "skip_bad=true", f"out={tmp_path / 'bad.out'}")
    outputs = [json.loads(line) for line in (tmp_path / "bad.out").read_text().splitlines()]
    assert [entity_spans(item["entities"]) for item in outputs[::2]] == read_entities(tmp_path / "good.out") and all(
        "error" in item for item in outputs[1::2]
    )


def test_predict_streams_its_input(folders, tmp_path, monkeypatch):
    """When the first predictions are written, the rest of the file has not been read."""
    monkeypatch.setattr(predict, "CHUNK_SIZE", 10)
    read_requests, seen = predict.read_requests, []

    def counted(*args):
        for request in read_requests(*args):
            seen.append(1)
            yield request

    monkeypatch.setattr(predict, "read_requests", counted)
    data = write_jsonl(tmp_path / "many.jsonl", [{"text": text} for text in random_texts(200)])
    recipe = predict.Recipe(model=str(folders["classify"]), data=str(data))
    chunks = predict._iter_answers(recipe, predict.load(recipe.model), {})
    assert len(next(chunks)) == 10 and len(seen) == 10
    assert len(next(chunks)) == 10 and len(seen) == 20


def test_embed_file_matches_and_resumes(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "CHUNK_SIZE", 40)
    texts = random_texts(130)
    data = write_jsonl(tmp_path / "some.jsonl", [{"text": text} for text in texts])
    argv = ["embed", f"model={folders['words']}", f"data={data}", "pooling=cls"]
    result = run_cli_json(*argv, f"out={tmp_path / 'straight.npy'}")
    assert (result["texts"], result["hidden_size"], result["pooling"]) == (130, 32, "cls")
    vectors = np.load(tmp_path / "straight.npy")
    assert vectors.dtype == np.float32 and vectors.shape == (130, 32)
    expected = embed.load(str(folders["words"])).embed(texts, pooling="cls")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    calls = interrupt_after(monkeypatch, embed, "_embed", 2)
    run_cli(*argv, f"out={tmp_path / 'killed.npy'}", code=130)
    assert not (tmp_path / "killed.npy").exists()
    monkeypatch.undo()
    monkeypatch.setattr(embed, "CHUNK_SIZE", 40)
    calls = interrupt_after(monkeypatch, embed, "_embed", 9)
    assert "resuming after 80 texts" in run_cli(*argv, f"out={tmp_path / 'killed.npy'}").stderr
    assert len(calls) == 2 and (tmp_path / "killed.npy").read_bytes() == (tmp_path / "straight.npy").read_bytes()


def test_partial_line_is_truncated(tmp_path):
    (tmp_path / "a.part").write_bytes(b'{"a": 1}\n{"b": 2}\n{"c"')
    with (tmp_path / "a.part").open("ab+") as file:
        assert output_files._count_complete_lines(file) == 2
        file.write(b"x\n")
    assert (tmp_path / "a.part").read_bytes() == b'{"a": 1}\n{"b": 2}\nx\n'
    (tmp_path / "b.part").write_bytes(b"half")
    with (tmp_path / "b.part").open("ab+") as file:
        assert output_files._count_complete_lines(file) == 0
    assert (tmp_path / "b.part").read_bytes() == b""


def test_predict_does_not_overwrite_the_output_of_other_inputs(folders, data, tmp_path):
    out = tmp_path / "out.jsonl"
    argv = ["predict", f"model={folders['classify']}", f"data={data}", f"out={out}"]
    run_cli(*argv)
    first, changed_at = out.read_bytes(), out.stat().st_mtime_ns
    assert "230 answers of this command already" in run_cli(*argv).stderr and out.stat().st_mtime_ns == changed_at
    write_jsonl(data, [{"text": text} for text in random_texts(20, seed=1)])
    assert "out.jsonl exists and has the output of other inputs" in run_cli_error(*argv)
    assert out.read_bytes() == first
    run_cli(*argv, "overwrite=true")
    assert out.read_bytes().count(b"\n") == 20
    foreign = tmp_path / "notes.jsonl"
    foreign.write_text("mine\n")
    assert "overwrite=true" in run_cli_error(*argv[:-1], f"out={foreign}") and foreign.read_text() == "mine\n"


def test_embed_does_not_overwrite_the_output_of_other_inputs(folders, data, tmp_path):
    out = tmp_path / "out.npy"
    argv = ["embed", f"model={folders['words']}", f"data={data}", f"out={out}"]
    result = run_cli_json(*argv)
    assert run_cli_json(*argv) == result
    assert "overwrite=true" in run_cli_error(*argv, "pooling=cls")
    assert run_cli_json(*argv, "pooling=cls", "overwrite=true")["pooling"] == "cls"


def test_predict_reads_other_encodings(folders, tmp_path):
    data = tmp_path / "rows.tsv"
    data.write_bytes("text\tid\n天地\t甲\n".encode("gb18030"))
    argv = ["predict", f"model={folders['classify']}", f"data={data}"]
    assert "it is not UTF-8" in run_cli_error(*argv)
    assert json.loads(run_cli(*argv, "encoding=gb18030").stdout)["id"] == "甲"


def give_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_predict_answers_standard_input_as_it_answers_a_file(folders, data, tmp_path, monkeypatch, name):
    argv = ["predict", f"model={folders['classify']}", "batch_tokens=100"]
    expected = run_cli(*argv, f"data={data}").stdout
    give_input(monkeypatch, data.read_bytes())
    assert run_cli(*argv, f"data={name}").stdout == expected
    give_input(monkeypatch, data.read_bytes())
    assert run_cli_json(*argv, f"data={name}", f"out={tmp_path / 'answers.jsonl'}")["answers"] == 230
    assert (tmp_path / "answers.jsonl").read_text() == expected
    give_input(monkeypatch, b"other\n")
    message = run_cli_error(*argv, f"data={name}", f"out={tmp_path / 'answers.jsonl'}")
    assert "exists and has the output of other inputs" in message


def test_predict_of_a_language_model_and_of_python_reads_standard_input(folders, monkeypatch):
    give_input(monkeypatch, b"the [MASK] said\nnow the [MASK]\n")
    lines = run_cli("predict", f"model={folders['words']}", "data=-").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["the [MASK] said", "now the [MASK]"]
    give_input(monkeypatch, b'{"text": "the people", "id": 3}\n')
    (answer,) = bertsmith.predict(model=folders["classify"], data="-", quiet=True)
    assert answer["id"] == 3 and answer["label"] in ("bad", "good")


def test_predict_answers_a_line_before_the_next_is_written(folders, monkeypatch):
    """As a program does that talks to it through two pipes."""
    questions, answers = os.pipe(), os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(questions[0]))
    monkeypatch.setattr(sys, "stdout", os.fdopen(answers[1], "w"))  # block-buffered
    recipe = predict.Recipe(model=str(folders["classify"]), data="-", device="cpu")
    worker = threading.Thread(target=predict.run, args=(recipe, True))
    worker.start()
    with open(questions[1], "w", buffering=1) as sender, open(answers[0]) as receiver:
        for text in ("the people", "now", "water"):
            sender.write(text + "\n")
            assert select.select([receiver], [], [], 60)[0], "no answer before the next line"
            assert json.loads(receiver.readline())["text"] == text
        sender.close()
        worker.join(60)
    assert not worker.is_alive()


def test_embed_of_standard_input_equals_that_of_a_file(folders, data, tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "CHUNK_SIZE", 100)
    argv = ["embed", f"model={folders['classify']}"]
    run_cli(*argv, f"data={data}", f"out={tmp_path / 'file.npy'}")
    expected = np.load(tmp_path / "file.npy")
    give_input(monkeypatch, data.read_bytes())
    assert run_cli_json(*argv, "data=-", f"out={tmp_path / 'input.npy'}")["texts"] == 230
    np.testing.assert_array_equal(np.load(tmp_path / "input.npy", mmap_mode="r"), expected)
    give_input(monkeypatch, data.read_bytes())
    printed = [json.loads(line) for line in run_cli(*argv, "data=-").stdout.splitlines()]
    np.testing.assert_array_equal(np.array(printed, np.float32), expected)
    give_input(monkeypatch, b"")
    assert "standard input is empty" in run_cli_error(*argv, "data=-", f"out={tmp_path / 'none.npy'}")
    assert not list(tmp_path.glob("none.npy*"))
    give_input(monkeypatch, b"the people\nwater\n")
    lines = run_cli(*argv, "data=-", f"documents={data}", "top_k=2").stdout.splitlines()
    assert [len(json.loads(line)["hits"]) for line in lines] == [2, 2]
