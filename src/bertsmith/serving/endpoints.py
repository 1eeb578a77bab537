"""`Endpoint`: a route with the types of its body and answer, from which the OpenAPI document is made."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from .errors import ServeError
from .service import Service

Handler = Callable[[Service, Request], Awaitable[Any]]
ErrorBody = Callable[[ServeError], dict[str, Any]]


class Endpoint(NamedTuple):
    """A handler returns a value that becomes JSON, or a Response."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any  # type of the answer
    body: Any = None  # type of the body
    error_body: ErrorBody = lambda error: {"error": error.message, "error_type": error.kind}
    content_type: str = "application/json"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def describe_api(endpoints: Sequence[Endpoint], has_keys: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the endpoints."""
    types = [endpoint.body for endpoint in endpoints if endpoint.body is not None] + [endpoint.answer for endpoint in endpoints]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    bodies = iter(schemas[: sum(endpoint.body is not None for endpoint in endpoints)])
    answers = schemas[len(types) - len(endpoints) :]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, answer in zip(endpoints, answers, strict=True):
        names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
        words = endpoint.path.strip("/").translate(str.maketrans("/", "_", "{}")) or "root"
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": f"{endpoint.method.lower()}_{words}",
            "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names],
            "responses": {
                "200": {"description": "the answer", "content": {endpoint.content_type: {"schema": answer}}},
                "default": {"description": "an error, with what is wrong and what to do",
                            "content": {"application/json": {"schema": {"type": "object"}}}},
            },
        }  # fmt: skip
        if endpoint.body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": next(bodies)}}}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "bertsmith", "version": __version__, "description": "Models served by `bertsmith serve`."},
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document
