"""Bad input is answered with a status and a line, and the server goes on: limits, keys, slow clients, reloads, signals."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import bertsmith
from bertsmith.serving import server
from bertsmith.serving.app import Access
from bertsmith.serving.requests import Limits
from tests.support.cli import ROOT, run_cli_error
from tests.support.models import TASKS, save_model
from tests.support.servers import MAX_BYTES, run_server

TEXT = "she was here"
LONG = "the king " * 100

BAD = [
    ("/models/bert/fill", b"{", 400, "not valid JSON"),
    ("/models/bert/fill", b"\xff", 400, "not valid JSON"),
    ("/models/bert/fill", b"[" * 5000, 400, "deep"),
    ("/models/bert/fill", {"inputs": 3}, 400, "does not fit"),
    ("/models/bert/fill", {"inputs": []}, 400, "length >= 1"),
    ("/models/bert/fill", {"inputs": TEXT}, 400, "MASK"),
    ("/models/bert/fill", {"inputs": LONG}, 413, "truncate"),
    ("/models/bert/fill", {"inputs": "[MASK]" * 47}, 413, "49 tokens"),
    ("/models/classify/predict", {"inputs": LONG}, 413, "truncate"),
    ("/models/classify/predict", {"inputs": {"text": TEXT, "text_b": LONG}}, 413, "truncate"),
    ("/models/choose/predict", {"inputs": {"context": LONG, "options": ["a", "b"]}}, 413, "truncate"),
    ("/models/similar/predict", {"inputs": {"text": TEXT, "text_b": LONG}}, 413, "truncate"),
    ("/models/choose/predict", {"inputs": {"context": LONG, "options": ["a", "b"]}, "truncate": "left"}, 400, "pairs of texts"),
    ("/?model=classify", {"inputs": LONG}, 413, "truncate"),
    ("/?model=bert", {"inputs": "a", "parameters": {"top_k": 0}}, 400, "does not fit"),
    ("/?model=bert", {"inputs": {"source_sentence": 1, "sentences": []}}, 400, "do not fit"),
    ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, 413, "truncate"),
    ("/models/bert/embed", {"inputs": ["a"] * 101}, 413, "100 of a request"),
    ("/models/bert/embed", {"inputs": "a", "dimensions": 33}, 400, "between 1 and 32"),
    ("/models/bert/predict", {"inputs": TEXT}, 404, "no task"),
    ("/models/bert/generate", {"inputs": TEXT}, 404, "generates no text"),
    ("/models/classify/fill", {"inputs": "[MASK]"}, 404, "fills no masks"),
    ("/models/answer/predict", {"inputs": TEXT}, 400, "question"),
    ("/models/none/predict", {"inputs": TEXT}, 404, "served: bert"),
    ("/models/bert/embed", b"x" * (MAX_BYTES + 1), 413, "bytes of a request"),
    ("/v1/embeddings", {"input": [10**6]}, 400, "vocabulary"),
    ("/v1/embeddings", {"input": ["a", 3]}, 400, "mixes"),
    ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}, 404, "served: bert"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, 400, "missing required field `text`"),
    ("/embed", {"inputs": LONG}, 413, "truncate"),
    ("/embed", {}, 400, "missing required field `inputs`"),
    ("/predict", {"inputs": [["a", "b", "c"]]}, 400, "length <= 2"),
    ("/decode", {"ids": [-1]}, 400, "vocabulary"),
    ("/decode", {"ids": [1, [2]]}, 400, "mixes"),
    ("/nothing", {"inputs": TEXT}, 404, "openapi.json"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD)
def test_bad_requests_get_a_line_and_the_server_goes_on(client, path, body, status, message):
    answered, error, _ = client(path, body)
    assert answered == status and message in json.dumps(error), error
    assert client("/health")[0] == 200


def test_another_method_is_told_the_right_ones(client):
    for path, methods in (("/", "GET, HEAD, POST"), ("/models/bert/fill", "POST"), ("/models", "GET, HEAD")):
        status, error, headers = client(path, method="DELETE")
        assert (status, headers["allow"]) == (405, methods) and "DELETE is not for this path" in error["error"]


def test_special_tokens_and_odd_characters_are_text(client):
    texts = ["[CLS] [SEP] [PAD]", "\u0000", "\ud83d\ude00", "a" * 20_000, "", "\\ud800"]
    rows = client.post("/models/bert/embed", {"inputs": texts, "truncate": "right"})
    assert np.isfinite(np.array(rows)).all() and len(rows) == len(texts)
    assert client("/models/bert/embed", b'{"inputs": "\\ud800"}')[0] in (200, 400)


def test_truncation_keeps_the_side_that_is_asked_for(client, folders):
    model = bertsmith.load(folders["bert"])
    first, last = " ".join(["king"] * 46), " ".join(["way"] * 46)
    for side, kept in (("right", first), ("left", last)):
        vector = client.post("/models/bert/embed", {"inputs": f"{first} {last}", "truncate": side})
        assert np.allclose(vector, model.embed(kept), atol=1e-5)
    body = {"inputs": f"{first} {last}", "truncate": True, "normalize": False, "truncation_direction": "Left"}
    assert np.allclose(client.post("/embed", body)[0], model.embed(last), atol=1e-5)


def test_truncation_of_tasks_and_masks(client, folders):
    model = bertsmith.load(folders["classify"])
    first, last = " ".join(["that"] * 46), " ".join(["way"] * 46)
    predict = lambda text, side: client.post("/models/classify/predict", {"inputs": text, "truncate": side})["scores"]["good"]
    assert predict(f"{first} {last}", "right") == pytest.approx(model(first)["scores"]["good"], abs=1e-5)
    assert predict(f"{first} {last}", "left") == pytest.approx(model(last)["scores"]["good"], abs=1e-5)
    pair = predict({"text": f"she {first}", "text_b": f"he {last}"}, "left")
    ends = " ".join(["that"] * 23), " ".join(["way"] * 22)
    assert pair == pytest.approx(model(*ends)["scores"]["good"], abs=1e-5), "the longer text is cut first"
    fill = lambda text, side: client.post("/models/bert/fill", {"inputs": text, "truncate": side, "top_k": 1})
    long = f"the [MASK] {first} {last} of [MASK]"
    assert fill(long, "right")[0]["sequence"].startswith("the ") and fill(long, "right")[0]["sequence"].count("that") == 44
    assert fill(long, "left")[0]["sequence"].count("way") == 44
    whole = "[MASK] " + " ".join(["that"] * 45)
    assert fill(whole, False)[0]["sequence"].count("that") == 45, "a mask is one token"
    windows = client.post("/models/answer/predict", {"inputs": {"question": "who", "context": LONG}})
    assert windows["answer"] in LONG, "a task that reads windows takes any length"


def test_too_many_requests_in_progress_are_answered_with_503(folders, monkeypatch):
    monkeypatch.setattr("bertsmith.serving.app.MAX_REQUESTS", 0)
    with run_server([folders["bert"]]) as client:
        status, error, headers = client("/models")
        assert status == 503 and headers["retry-after"] == "1" and "try again" in error["error"]


def test_an_error_of_the_server_is_answered_and_logged_without_its_text(folders, monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError("a secret text")

    with run_server([folders["bert"]]) as client:
        monkeypatch.setattr("bertsmith.serving.operations.truncate_dimensions", fail)
        status, error, _ = client("/embed", {"inputs": "a"})
        assert status == 500 and "secret" not in json.dumps(error)
        assert "RuntimeError" in caplog.text and "test_limits.py" in caplog.text and "secret" not in caplog.text
        assert client("/health")[0] == 200


def test_the_log_has_no_text_of_users(folders, caplog):
    caplog.set_level("INFO", "bertsmith")
    with run_server([folders["bert"]]) as client:
        client.post("/embed?model=bert", {"inputs": "a secret"})
    (line,) = [json.loads(record.message) for record in caplog.records if record.message.startswith("{")]
    assert line.keys() == {"method", "path", "status", "ms"} and (line["path"], line["status"]) == ("/embed", 200)


def test_keys_rate_limit_and_cors(folders):
    access = Access(("secret", "other"), requests_per_minute=3)
    with run_server([folders["bert"]], access=access, cors_origins=("https://page.example",)) as client:
        assert client("/models")[0] == 401 and client("/health")[0] == 200
        assert client("/")[0] == client("/page/main.js")[0] == 200, "the page asks for the key"
        assert client("/", {"inputs": TEXT})[0] == 401
        assert client("/models", headers={"authorization": "Bearer wrong"})[0] == 401
        key = {"authorization": "Bearer secret"}
        assert [client("/models", headers=key)[0] for _ in range(4)] == [200, 200, 200, 429]
        status, _, headers = client("/models", headers=key)
        assert status == 429 and int(headers["retry-after"]) >= 1
        assert client("/models", headers={"x-api-key": "other"})[0] == 200
        status, _, headers = client("/models", headers={"origin": "https://page.example"}, method="OPTIONS")
        assert status == 204 and headers["access-control-allow-origin"] == "https://page.example"
        assert "access-control-allow-origin" not in client("/health", headers={"origin": "https://evil.example"})[2]


def test_a_full_queue_is_answered_with_429(folders):
    with run_server([folders["bert"]], max_pending=3) as client:
        release, started = _block(client.service)
        assert started.wait(20)
        waiting = [threading.Thread(target=client, args=("/embed", {"inputs": ["a", "b"]})) for _ in range(1)]
        [thread.start() for thread in waiting]
        while client.service.scheduler.num_pending < 3:
            time.sleep(0.01)
        status, error, headers = client("/embed", {"inputs": "c"})
        assert status == 429 and headers["retry-after"] == "1" and "waiting" in error["error"]
        release.set()
        [thread.join() for thread in waiting]
        assert client("/embed", {"inputs": "c"})[0] == 200


def test_a_client_that_leaves_is_computed_no_further(folders):
    with run_server([folders["bert"]], limits=Limits(MAX_BYTES, 100, 30)) as client:
        release, started = _block(client.service)
        assert started.wait(20)
        body = json.dumps({"inputs": ["a"] * 50}).encode()
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            while client.service.scheduler.num_pending < 51:
                time.sleep(0.01)
        deadline = time.monotonic() + 20
        while client.service.scheduler.num_pending > 1:
            assert time.monotonic() < deadline, "the texts of a client that left still wait"
            time.sleep(0.01)
        release.set()


def test_an_answer_that_takes_too_long_is_a_timeout(folders):
    with run_server([folders["bert"]], limits=Limits(MAX_BYTES, 100, 0.3)) as client:
        release, started = _block(client.service)
        assert started.wait(20)
        status, error, _ = client("/embed", {"inputs": "a"})
        assert status == 504 and "0.3 seconds" in error["error"]
        release.set()


def test_slow_clients_are_cut_off(folders, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    with run_server([folders["bert"]], limits=Limits(MAX_BYTES, 100, 0.5)) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.settimeout(20)
            connection.sendall(b"POST /embed HT")
            assert connection.recv(100) == b"", "headers that do not come close the connection"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.settimeout(20)
            connection.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in connection.recv(100), "so does a body that does not come"


def test_models_are_loaded_on_demand_reloaded_and_unloaded(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.serving.models.CHECK_SECONDS", 0.0)
    first = tmp_path / "mood"
    shutil.copytree(folders["classify"], first)
    loaded = []
    load = lambda folder: loaded.append(folder.name) or bertsmith.load(folder)
    with run_server([first, folders["tag"]], load) as client:
        assert loaded == ["mood"]
        before = client.post("/models/mood/predict", {"inputs": TEXT})
        assert loaded == ["mood"]
        client.post("/models/tag/predict", {"inputs": TEXT})
        assert loaded == ["mood", "tag"]
        shutil.rmtree(first)
        save_model(first, TASKS["regress"])
        after = client.post("/models/mood/predict", {"inputs": TEXT})
        assert "label" in before and list(after) == ["score"] and loaded == ["mood", "tag", "mood"]
        (first / "config.json").write_text("{")
        assert client.post("/models/mood/predict", {"inputs": TEXT}) == after, "the model of before answers"
    loaded.clear()
    sizes = [sum(file.stat().st_size for file in folders[name].glob("*.safetensors")) for name in ("bert", "tag")]
    with run_server([folders["bert"], folders["tag"]], load, memory_limit=sum(sizes) - 1) as client:
        client.post("/models/tag/predict", {"inputs": TEXT})
        client.post("/models/bert/embed", {"inputs": TEXT})
        assert loaded == ["bert", "tag", "bert"]
        assert [model["loaded"] for model in client("/models")[1]] == [True, False]


def test_the_model_of_before_answers_while_the_new_one_is_loaded(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.serving.models.CHECK_SECONDS", 0.0)
    folder, release, loading = tmp_path / "mood", threading.Event(), threading.Event()
    shutil.copytree(folders["classify"], folder)

    def load(path):
        if loading.is_set():
            assert release.wait(20)
        return bertsmith.load(path)

    with run_server([folder], load) as client:
        before = client.post("/models/mood/predict", {"inputs": TEXT})
        loading.set()
        shutil.rmtree(folder)
        save_model(folder, TASKS["regress"])
        waiting = threading.Thread(target=client.post, args=("/models/mood/predict", {"inputs": TEXT}))
        waiting.start()
        while not client.service.store.models["mood"].lock.locked():
            time.sleep(0.01)
        assert client.post("/models/mood/predict", {"inputs": TEXT}) == before
        release.set()
        waiting.join()
        assert "label" not in client.post("/models/mood/predict", {"inputs": TEXT})


def test_a_model_that_needs_more_than_the_memory_limit_is_refused(folders):
    error = run_cli_error("serve", "model=mini-en", "memory_limit=10")
    assert "mini-en has" in error and "memory_limit" in error


def test_metrics_count_requests_and_texts(folders):
    with run_server([folders["bert"]]) as client:
        client.post("/embed", {"inputs": ["a", "b"]})
        client("/models/none/embed", {"inputs": "a"})
        _, text, _ = client("/metrics")
        values = dict(re.findall(r"^(\S+) (\S+)$", text, re.M))
        assert values['bertsmith_requests_total{path="/embed",status="200"}'] == "1"
        assert values['bertsmith_requests_total{path="/models/{name}/embed",status="404"}'] == "1"
        assert values["bertsmith_texts_total"] == "2" and values['bertsmith_model_loaded{model="bert"}'] == "1"
        assert values['bertsmith_request_seconds_count{path="/embed"}'] == "1"


def test_no_accepted_request_is_lost_when_the_server_is_stopped(folders):
    """SIGTERM twice at once, as coreutils' `timeout` sends it, while requests are being answered."""
    command = [sys.executable, "-m", "bertsmith", "serve", f"model={folders['bert']}", "port=0", "device=cpu", "backend=torch"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    port = int(re.search(r":(\d+)$", process.stderr.readline().strip())[1])
    body = json.dumps({"inputs": ["the king of the way"] * 64}).encode()
    request = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    while not _is_ready(port):
        time.sleep(0.05)
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(8)]
    for connection in connections:
        connection.sendall(request)
    first = connections[0].recv(15)
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
    statuses = [first, *(connection.recv(15) for connection in connections[1:])]
    assert statuses == [b"HTTP/1.1 200 OK"] * 8
    assert process.wait(60) in (0, 130) and "Traceback" not in process.stderr.read()


def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered(folders):
    with (
        run_server([folders["bert"]]) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection,
    ):
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        connection.sendall(request)
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(1000)
        client.stop()
        time.sleep(0.2)  # SIGTERM arrives while the connection is idle
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(1000), b""))  # until the server closes the connection
        assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer.lower()


def test_bad_settings_get_one_line(folders, tmp_path):
    assert "no folder" in run_cli_error("serve", f"model={tmp_path / 'none'}")
    assert "two models are named bert" in run_cli_error("serve", f"model={folders['bert']},{folders['bert']}")
    (tmp_path / "keys").write_text("\n")
    assert "has no key" in run_cli_error("serve", f"model={folders['bert']}", f"api_keys={tmp_path / 'keys'}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "choose another port" in run_cli_error("serve", f"model={folders['bert']}", f"port={port}")


def _is_ready(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b" 200 " in connection.recv(100)
    except OSError:
        return False


def _block(service):
    """Occupies the scheduler with one item until the first event is set; the second one says that it has begun."""
    from bertsmith.serving.scheduler import Operation

    release, started = threading.Event(), threading.Event()

    def compute(items):
        started.set()
        assert release.wait(20)
        return items

    service.scheduler.submit(Operation("block", compute), [0], [1])
    return release, started
