"""A hub of models on this machine: the endpoints of Hugging Face's that huggingface_hub asks, over folders."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSED = {"org/private": (401, "RepoNotFound"), "org/gated": (403, "GatedRepo"), "org/broken": (500, "")}


class Hub(ThreadingHTTPServer):
    """Serves every folder `org/name` under its root; `asked` are the files that were fetched."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.asked = root, set[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        folder = self.server.root / name
        if name in REFUSED or not folder.is_dir():
            status, code = REFUSED.get(name, (404, "RepoNotFound"))
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
        elif parts[0] != "api":
            self._file(folder / "/".join(parts[4:]))
        elif "tree" in parts:
            self._json([_entry(folder, path) for path in _files(folder)])
        else:
            names = [{"rfilename": str(path.relative_to(folder))} for path in _files(folder)]
            self._json({"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "siblings": names})

    do_HEAD = do_GET

    def _file(self, path: Path) -> None:
        if self.command == "GET":
            self.server.asked.add(path.name)
        headers = {"ETag": f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._send(200, path.read_bytes(), headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    with Hub(root) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _entry(folder: Path, path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"type": "file", "path": str(path.relative_to(folder)), "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
