"""What a server should refuse or survive: stops under load, hostile requests, and schemathesis on its schema."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from .inputs import BenchmarkInputs

Row = tuple[str, str, str, str, str]

MODEL = "mini-en"
PATH = f"/models/{MODEL}/embed"
LIMIT = 16 << 20  # max_request_bytes of `bertsmith serve`


def run(bench: BenchmarkInputs) -> list[Row]:
    rows = [_stop_under_load(bench.int_option("stops", 6), signals) for signals in (1, 2)]
    return [*rows, *_send_bad_requests(), *_fuzz(bench)]


def _stop_under_load(stops: int, signals: int) -> Row:
    """SIGTERM while 64 clients send requests: every request that was sent is answered with 200."""
    from .http_load import Plan
    from .serving import run_server, send

    answered = lost = refused = 0
    for _ in range(stops):
        with run_server(f"model={MODEL}") as (port, process):
            bodies = [json.dumps({"inputs": ["the way of the king"] * count}) for count in (1, 1, 4, 16)]
            with ThreadPoolExecutor(1) as pool:
                clients = pool.submit(send, Plan(port, PATH, bodies, 64, 20))
                time.sleep(2)
                for _ in range(signals):
                    os.kill(process.pid, signal.SIGTERM)
                statuses = clients.result()["statuses"]
            process.wait(60)
        answered += statuses.get("200", 0)
        lost += statuses.get("-1", 0) + sum(count for status, count in statuses.items() if int(status) >= 500)
        refused += statuses.get("0", 0)
    name = f"SIGTERM {'twice ' if signals == 2 else ''}under load, {stops} times"
    return name, f"{answered:,} answered", f"{refused:,} refused after", f"{lost} lost", "0 lost"


def _send_bad_requests() -> list[Row]:
    """Each is answered with the status that is expected, and the server answers the next request."""
    from .serving import read_memory, run_server

    rows = list[Row]()
    with run_server(f"model={MODEL}", "timeout=5") as (port, process):
        post = lambda body, path=PATH: _status(port, path, body)
        before = read_memory(process.pid)
        million = "word " * 1_000_000
        cases: dict[str, tuple[Callable[[], int], int]] = {
            "malformed JSON": (lambda: post(b'{"inputs": '), 400),
            "invalid UTF-8": (lambda: post(b'{"inputs": "\xff\xfe"}'), 400),
            "100,000 brackets": (lambda: post(b"[" * 100_000), 400),
            "a wrong type": (lambda: post(b'{"inputs": 1}'), 400),
            "no text": (lambda: post(b'{"inputs": []}'), 400),
            "special tokens as text": (lambda: post(b'{"inputs": "[CLS] [SEP] [PAD] [UNK] [MASK] <s> </s>"}'), 200),
            "lone surrogates": (lambda: post(b'{"inputs": "\\ud800"}'), 200),
            "an unknown model": (lambda: post(b'{"inputs": "a"}', "/models/none/embed"), 404),
            "an unknown path": (lambda: post(b'{"inputs": "a"}', "/v9/none"), 404),
            "another method": (lambda: _status(port, PATH, None), 405),
            "a text of 1 M tokens": (lambda: post(json.dumps({"inputs": million}).encode()), 413),
            "the same, truncated": (lambda: post(json.dumps({"inputs": million, "truncate": "right"}).encode()), 200),
            "20,000 texts": (lambda: post(json.dumps({"inputs": ["a"] * 20_000}).encode()), 413),
            "a body over the limit": (lambda: post(b"x" * (LIMIT + 1)), 413),
            "a chunked body over the limit": (lambda: _send_chunks(port), 413),
            "a body that stops half-way": (lambda: _send_half(port), 408),
            "headers that never end": (lambda: _send_slowly(port), 0),
            "headers of 1 MB": (lambda: _send_raw(port, b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20)), 400),
            "not HTTP": (lambda: _send_raw(port, os.urandom(2000) + b"\r\n\r\n"), 400),
        }
        for name, (send, expected) in cases.items():
            status, alive = send(), post(b'{"inputs": "a"}') == 200
            passed = status == expected and alive
            rows.append((name, str(status or "closed"), "the server goes on" if alive else "the server is gone",
                         "pass" if passed else "FAIL", str(expected or "closed")))  # fmt: skip
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(500)]
        for connection in slow:
            connection.sendall(b"POST /embed HT")
        start = time.perf_counter()
        alive = post(b'{"inputs": "a"}') == 200
        took = time.perf_counter() - start
        for connection in slow:
            connection.close()
        rows.append(
            (
                "500 clients that send half a line",
                f"{took * 1e3:.0f} ms for another",
                "",
                "pass" if alive else "FAIL",
                "answered",
            )
        )
        after = read_memory(process.pid)
        rows.append(
            ("memory after all of these", f"{after:.0f} MB", f"{before:.0f} MB before", f"{after - before:+.0f} MB", "")
        )
    return rows


def _fuzz(bench: BenchmarkInputs) -> list[Row]:
    """`schemathesis` of the environment `peers`: every answer fits the schema, bad bodies are refused, nothing fails.

    Left out is its check that all that fits the schema is accepted: a schema cannot say that a text must have a mask.
    """
    from .serving import run_server

    program = Path(bench.options.get("peers", sys.executable)).parent / "schemathesis"
    if not program.exists():
        return [("schemathesis", "not installed", "", "", "passes")]
    with run_server(f"model={MODEL}") as (port, _):
        command = [str(program), "run", f"http://127.0.0.1:{port}/openapi.json", "--seed", "1",
                   "--max-examples", bench.options.get("examples", "30"), "--request-timeout", "30",
                   "--exclude-checks", "positive_data_acceptance"]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    (bench.folder / "schemathesis.txt").write_text(result.stdout)
    if result.returncode:
        print(result.stdout[-6000:], file=sys.stderr)
    summary = next((line.strip() for line in result.stdout.splitlines()[::-1] if "generated" in line), "")
    return [("schemathesis", summary, "", "pass" if result.returncode == 0 else "FAIL", "passes")]


def _status(port: int, path: str, body: bytes | None) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return -1


def _send_raw(port: int, data: bytes, timeout: float = 40) -> int:
    """The status of what is answered to these bytes; 0 if the connection is closed without an answer."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout)) as connection:
        try:
            connection.sendall(data)
            answer = connection.recv(100)
        except TimeoutError:
            return -1
        except OSError:
            return 0
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def _send_half(port: int) -> int:
    return _send_raw(port, f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())


def _send_slowly(port: int) -> int:
    """A byte of the headers a second: slow loris."""
    with closing(socket.create_connection(("127.0.0.1", port), 5)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\n")
        try:
            for _ in range(60):
                time.sleep(1)
                connection.sendall(b"X")
        except OSError:
            return 0
    return -1


def _send_chunks(port: int) -> int:
    """A body without Content-Length, of more bytes than a request may have."""
    with closing(socket.create_connection(("127.0.0.1", port), 40)) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            for _ in range(LIMIT // 65536 + 2):
                connection.sendall(chunk)
        except OSError:
            pass  # refused before the end; the answer may still be there
        try:
            return int(connection.recv(100)[9:12])
        except (OSError, ValueError):
            return 0
