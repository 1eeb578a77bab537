"""The page at /: plain HTML, CSS and JavaScript, which ask our own API; nothing is fetched from elsewhere."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..reading import read_bytes

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
MAX_FILE_BYTES = 1 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def page_routes() -> list[Route]:
    """/ and the files that it names."""
    names = sorted(path.name for path in FOLDER.iterdir() if path.suffix in TYPES)
    return [Route("/" if name == INDEX else f"/page/{name}", _serve_file(FOLDER / name), methods=["GET"]) for name in names]


def _serve_file(path: Path) -> Callable[[Request], Awaitable[Response]]:
    data = read_bytes(path, MAX_FILE_BYTES)
    headers = {
        "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
        "cache-control": "no-cache", "etag": f'"{hashlib.sha256(data).hexdigest()[:16]}"',
    }  # fmt: skip

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, 200, headers, f"{TYPES[path.suffix]}; charset=utf-8")

    return serve
