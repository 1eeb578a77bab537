"""`bertsmith serve`: models behind HTTP, for our own clients and those of OpenAI, text-embeddings-inference and Cohere; and
pages of training runs."""

import logging
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from ..artifacts import resolve_path
from ..config import Config, PosFloat, PosInt
from ..console import Console
from ..errors import UserError
from ..inference.engines.base import Backend, Precision
from ..inference.predictor import load
from ..reading import read_text

MAX_KEY_FILE_BYTES = 1 << 20


class Recipe(Config, frozen=True):
    """The models, the address, and the limits of a request."""

    model: Annotated[tuple[str, ...], "checkpoint folders and names of shipped models; paths have their names"] = ()
    runs: Annotated[
        str | None, "folder whose runs, corpora, races and compressions the pages at /workshop show; they are only read"
    ] = None
    host: Annotated[str, "address to listen on; 0.0.0.0: every network of the machine"] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), "port; 0: any free one, which is printed"] = 8000
    batch_tokens: Annotated[PosInt, "tokens computed at once; a short request waits for at most one such batch"] = 2048
    max_texts: Annotated[PosInt, "texts of one request"] = 10_000
    max_request_bytes: Annotated[PosInt, "bytes of one request"] = 16 << 20
    max_pending: Annotated[PosInt, "texts that wait for an answer; with more, requests get 429 and are to be sent again"] = (
        20_000
    )
    timeout: Annotated[PosFloat, "seconds for an answer"] = 120.0
    memory_limit: Annotated[PosInt | None, "megabytes of weights in memory; the least recently used models are unloaded"] = None
    api_keys: Annotated[str | None, "file with one API key a line; default: no key is needed"] = None
    requests_per_minute: Annotated[PosInt | None, "limit for each client (API key or address)"] = None
    cors_origins: Annotated[tuple[str, ...], "origins whose pages may call the server from a browser; *: all"] = ()
    backend: Annotated[Backend, "torch, onnx or openvino; auto: the fastest on this machine"] = "auto"
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, and on a CPU with instructions for it; else fp32"] = "auto"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Serve until a stop signal."""
    if not recipe.model and recipe.runs is None:
        raise UserError("serve needs model=FOLDER,FOLDER (or names of shipped models), or runs=FOLDER for the workshop pages")
    try:
        from ..serving.app import Access, build_app
        from ..serving.models import ModelStore
        from ..serving.requests import Limits
        from ..serving.server import open_socket, serve
        from ..serving.service import Service
        from ..serving.workshop import workshop_routes
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11"):
            raise
        raise UserError("serve needs Starlette and uvicorn: pip install 'bertsmith[serve]'") from None
    workshop = workshop_routes(resolve_path(recipe.runs, "runs")) if recipe.runs is not None else []
    memory_limit = None if recipe.memory_limit is None else recipe.memory_limit * 1_000_000
    store = ModelStore(recipe.model, lambda folder: load(folder, recipe.backend, recipe.precision, recipe.device), memory_limit)
    access = Access(_read_keys(recipe.api_keys), recipe.requests_per_minute)
    limits = Limits(recipe.max_request_bytes, recipe.max_texts, recipe.timeout)
    console = Console(quiet)
    with open_socket(recipe.host, recipe.port) as listener:
        host, port = listener.getsockname()[:2]
        service = Service(store, recipe.batch_tokens, recipe.max_pending, limits)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        address, names = f"http://{f'[{host}]' if ':' in host else host}:{port}", ", ".join(store.models)
        console.info(f"serving {names} on {address}" if names else f"showing {recipe.runs} on {address}/workshop")
        if names and workshop:
            console.info(f"showing {recipe.runs} on {address}/workshop")
        serve(build_app(service, access, recipe.cors_origins, workshop), listener)
    return {"host": host, "port": port, "models": list(store.models)}


def _read_keys(path: str | None) -> tuple[str, ...]:
    if path is None:
        return ()
    keys = tuple(line.strip() for line in read_text(resolve_file(path), MAX_KEY_FILE_BYTES).splitlines() if line.strip())
    if not keys:
        raise UserError(f"api_keys={path} has no key; write one a line")
    return keys


def resolve_file(path: str) -> Path:
    return resolve_path(path, "api_keys")
