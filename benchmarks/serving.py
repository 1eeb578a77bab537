"""`bertsmith serve` under load: throughput against the same model offline, latency at 70 % load, memory, and other servers.

Servers and the offline run have one core, the clients another (`http_load.py`). The same weights for all; the embeddings and
probabilities of the other servers are compared before they are timed.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith import api
from bertsmith.errors import UserError

from . import serving_faults
from .cpu_inference import _read_texts
from .http_load import Plan
from .inputs import BenchmarkInputs
from .weights import build_classifiers, import_pretrained

Row = tuple[str, str, str, str, str]

SERVER_CORE, CLIENT_CORE = 0, 1
CLIENTS = 64
START_SECONDS = 90
PARTS = ("embed", "classify", "memory", "faults")
OFFLINE = """
import json, sys, time
import bertsmith
folder, kind, precision = sys.argv[1:]
texts, model = json.load(sys.stdin), bertsmith.load(folder, precision=precision)
answer = model.embed if kind == "embed" else model
answer(texts[:64])
rates = []
for _ in range(3):
    start = time.perf_counter()
    answer(texts)
    rates.append(len(texts) / (time.perf_counter() - start))
print(json.dumps([sorted(rates)[1], repr(model)]))
"""


def run(bench: BenchmarkInputs) -> list[Row]:
    parts = bench.options.get("parts", ",".join(PARTS)).split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise UserError(f"parts: unknown {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if os.cpu_count() == 1:
        raise UserError("serving needs two cores: one for the server, one for the clients")
    texts = random.Random(0).sample(texts := _read_texts(bench), min(bench.int_option("count", 2000), len(texts)))
    rows: list[Row] = []
    if "embed" in parts or "memory" in parts:
        folders = import_pretrained(bench)
        served = bench.folder / "embed"
        api.export(model=str(folders.ours), format="onnx", out=str(served), quiet=True)
        rows += _measure_embeddings(bench, served, folders.theirs, texts, parts)
    if "classify" in parts:
        rows += _measure_classification(bench, texts)
    if "faults" in parts:
        rows += serving_faults.run(bench)
    return rows


def _measure_embeddings(bench: BenchmarkInputs, served: Path, theirs: Path, texts: list[str], parts: list[str]) -> list[Row]:
    rows, seconds = list[Row](), bench.int_option("seconds", 12)
    bodies = [json.dumps({"model": served.name, "input": text, "truncate": "right"}) for text in texts]
    precision = bench.options.get("precision", "fp32")
    with run_server(f"model={served}", f"precision={precision}") as (port, process):
        load = lambda **changes: send(Plan(**{**plan._asdict(), **changes}))
        plan = Plan(port, "/v1/embeddings", bodies, CLIENTS, seconds)
        vector = _post(port, "/v1/embeddings", bodies[0])["data"][0]["embedding"]
        load(seconds=3)
        if "embed" in parts:
            result = load()
            rate = result["requests"] / result["seconds"]
            offline = _measure_offline(served, texts, "embed", precision)
            rows.append(_compare("embeddings over HTTP, 64 clients, against offline", rate, offline, 0.9))
            calm = load(rate=0.7 * rate, seconds=2 * seconds)
            cells = (f"p99 {calm['p99'] * 1e3:.0f} ms", f"p50 {calm['p50'] * 1e3:.0f} ms", f"{calm['p99'] / calm['p50']:.2f}x")
            rows.append(("embeddings, 70 % load, latency", *cells, "< 4x"))
            rows += _measure_infinity(bench, theirs, texts, np.array(vector), rate, seconds)
        if "memory" in parts:
            requests, minutes = bench.int_option("requests", 100_000), bench.int_option("minutes", 4)
            rows.append(_measure_memory(process.pid, plan, requests, minutes))
    return rows


def _measure_memory(pid: int, plan: Plan, requests: int, minutes: int) -> Row:
    """Resident memory after the first 5 % of the requests, and after all."""
    first = send(plan._replace(limit=requests // 20, seconds=60 * minutes))
    before = read_memory(pid)
    left = 60 * minutes - first["seconds"]
    rest = send(plan._replace(limit=requests - first["requests"], seconds=left))
    after, total = read_memory(pid), first["requests"] + rest["requests"]
    failed = total - sum(result["statuses"].get("200", 0) for result in (first, rest))
    name = f"memory over {total:,} requests, {failed} failed"
    return name, f"{after:.0f} MB", f"{before:.0f} MB after {first['requests']:,}", f"{after - before:+.1f} MB", "flat"


def _measure_infinity(
    bench: BenchmarkInputs, theirs: Path, texts: list[str], vector: np.ndarray, rate: float, seconds: int
) -> list[Row]:
    if "peers" not in bench.options:
        return []
    port, folder = free_port(), bench.folder / "infinity-model"
    folder.mkdir()
    for file in theirs.iterdir():
        (folder / file.name).symlink_to(file.absolute())
    command = [str(Path(bench.options["peers"]).parent / "infinity_emb"), "v2", "--model-id", str(folder), "--device", "cpu",
               "--port", str(port), "--engine", "torch", "--no-bettertransformer", "--no-model-warmup", "--url-prefix", "/v1",
               "--served-model-name", "peer"]  # fmt: skip
    bodies = [json.dumps({"model": "peer", "input": text}) for text in texts]
    with run_process(command, port, "/health"):
        theirs_vector = np.array(_post(port, "/v1/embeddings", bodies[0])["data"][0]["embedding"])
        cosine = vector @ theirs_vector / np.linalg.norm(vector) / np.linalg.norm(theirs_vector)
        if cosine < 0.999:
            return [("embeddings against infinity", "", f"other vectors: cosine {cosine:.4f}", "", "")]
        plan = Plan(port, "/v1/embeddings", bodies, CLIENTS, seconds)
        send(plan._replace(seconds=3))
        result = send(plan)
    peer = result["statuses"].get("200", 0) / result["seconds"]
    return [_compare("embeddings over HTTP, against infinity", rate, peer, 1.0)]


def _measure_classification(bench: BenchmarkInputs, texts: list[str]) -> list[Row]:
    folders, seconds = build_classifiers(bench, 256), bench.int_option("seconds", 12)
    served = bench.folder / "classify"
    api.export(model=str(folders.ours), format="onnx", out=str(served), quiet=True)
    bodies = [json.dumps({"inputs": text, "truncate": "right"}) for text in texts]
    precision = bench.options.get("precision", "fp32")
    with run_server(f"model={served}", f"precision={precision}") as (port, _):
        plan = Plan(port, "/models/classify/predict", bodies, CLIENTS, seconds)
        answer = _post(port, plan.path, bodies[0])
        send(plan._replace(seconds=3))
        result = send(plan)
    rate = result["statuses"].get("200", 0) / result["seconds"]
    offline = _measure_offline(served, texts, "classify", precision)
    rows = [_compare("classification over HTTP, against offline", rate, offline, 0.9)]
    if "peers" not in bench.options:
        return rows
    port, script = free_port(), str(Path(__file__).with_name("plain_server.py"))
    with run_process([bench.options["peers"], script, str(folders.theirs), str(port)], port, "/health"):
        theirs = _post(port, "/predict", bodies[0])
        if abs(theirs["score"] - answer["scores"][theirs["label"]]) > 1e-3:
            return [*rows, ("classification against FastAPI", "", f"other answers: {theirs}", "", "")]
        plan = Plan(port, "/predict", bodies, CLIENTS, seconds)
        send(plan._replace(seconds=3))
        result = send(plan)
    peer = result["statuses"].get("200", 0) / result["seconds"]
    return [*rows, _compare("classification over HTTP, against FastAPI and a transformers pipeline", rate, peer, 3.0)]


def _measure_offline(folder: Path, texts: list[str], kind: str, precision: str) -> float:
    command = [sys.executable, "-c", OFFLINE, str(folder), kind, precision]
    result = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=True, preexec_fn=_pin_server
    )
    rate, model = json.loads(result.stdout.splitlines()[-1])
    print(f"offline, {kind}: {model}", file=sys.stderr)
    return float(rate)


def _compare(name: str, ours: float, theirs: float, goal: float) -> Row:
    return name, f"{ours:,.0f} texts/s", f"{theirs:,.0f} texts/s", f"{ours / theirs:.2f}x", f"{goal}x"


@contextmanager
def run_server(*arguments: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`bertsmith serve` on a free port and the servers' core; it is stopped at the end."""
    port = free_port()
    with run_process(
        [sys.executable, "-m", "bertsmith", "serve", *arguments, f"port={port}", "--quiet"], port, "/ready"
    ) as process:
        yield port, process


@contextmanager
def run_process(command: list[str], port: int, health: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, once it answers `health`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_pin_server
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_healthy(port, health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"{' '.join(command)} does not answer")
            time.sleep(0.1)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def send(plan: Plan) -> dict[str, Any]:
    """The result of `http_load.run`, on the clients' core."""
    command = [sys.executable, "-m", "benchmarks.http_load"]
    pin = lambda: os.sched_setaffinity(0, {CLIENT_CORE})
    output = subprocess.run(
        command, input=json.dumps(plan._asdict()), capture_output=True, text=True, check=True, preexec_fn=pin
    )
    result: dict[str, Any] = json.loads(output.stdout)
    return result


def read_memory(pid: int) -> float:
    """Resident memory in MB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _pin_server() -> None:
    os.sched_setaffinity(0, {SERVER_CORE})


def _is_healthy(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _post(port: int, path: str, body: str) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body.encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
