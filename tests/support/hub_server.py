"""A local Hugging Face hub: the HTTP endpoints that huggingface_hub uses, serving folders."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSED_REPOS = {"org/private": (401, "RepoNotFound"), "org/gated": (403, "GatedRepo"), "org/broken": (500, "")}


class HubServer(ThreadingHTTPServer):
    """Serves every folder `org/name` under `root`; `downloaded` collects the names of the files fetched."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.root, self.downloaded = root, set[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        folder = self.server.root / name
        if name in REFUSED_REPOS or not folder.is_dir():
            status, code = REFUSED_REPOS.get(name, (404, "RepoNotFound"))
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})
        elif parts[0] != "api":
            self._send_file(folder / "/".join(parts[4:]))
        elif "tree" in parts:
            self._send_json([_tree_entry(folder, path) for path in _list_files(folder)])
        else:
            names = [{"rfilename": str(path.relative_to(folder))} for path in _list_files(folder)]
            self._send_json({"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "siblings": names})

    do_HEAD = do_GET

    def _send_file(self, path: Path) -> None:
        if self.command == "GET":
            self.server.downloaded.add(path.name)
        headers = {"ETag": f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._send(200, path.read_bytes(), headers)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silence the access log."""


@contextmanager
def serve_hub(root: Path) -> Iterator[HubServer]:
    with HubServer(root) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _tree_entry(folder: Path, path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"type": "file", "path": str(path.relative_to(folder)), "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
