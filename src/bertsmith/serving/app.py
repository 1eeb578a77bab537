"""The ASGI app: all endpoints, health and metrics, keys, rate limit and CORS, errors as JSON, and one log line per request."""

import base64
import hmac
import json
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..console import logger
from ..errors import UserError
from .endpoints import Endpoint, describe_api, json_response
from .errors import ClientGone, InternalError, InvalidRequest, Overloaded, ServeError, TooManyRequests, Unauthorized
from .page import page_routes
from .routes import attribute, inference, models, openai, rerank
from .service import Service
from .workshop.pages import redirect_home

ENDPOINTS = (*models.ENDPOINTS, *attribute.ENDPOINTS, *openai.ENDPOINTS, *rerank.ENDPOINTS, *inference.ENDPOINTS)
OPEN_PATHS = frozenset(("/health", "/ready"))  # without a key, for load balancers
WORKSHOP = "/workshop"  # pages for browsers, which ask for a name and a password: the password is the key
OPEN_FOLDER = "/page/"  # the page asks for the key itself
CLIENT_GONE = 499  # as nginx logs it; nobody receives it
MAX_REQUESTS = 4096  # in progress; with more, a request is to be sent again
MAX_CLIENTS = 100_000  # whose requests are counted at a time

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


class Access:
    """Who may ask, and how often: API keys and requests per minute and client (key, or else address)."""

    def __init__(self, keys: tuple[str, ...] = (), requests_per_minute: int | None = None) -> None:
        self.keys, self.requests_per_minute = [key.encode() for key in keys], requests_per_minute
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, and when that was so

    def check(self, request: Request) -> None:
        path = request.url.path
        is_page = request.method == "GET" and (path == "/" or path.startswith(OPEN_FOLDER))
        if path in OPEN_PATHS or is_page or request.method == "OPTIONS":
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic" and path.startswith(WORKSHOP):
            key = _read_password(key)
        elif scheme.lower() != "bearer":
            key = request.headers.get("x-api-key", "")
        if self.keys and not any([hmac.compare_digest(key.encode(), known) for known in self.keys]):
            raise Unauthorized("the API key is missing or wrong; send `Authorization: Bearer KEY`")
        if self.requests_per_minute is not None:
            client = key if self.keys else request.client.host if request.client else ""
            self._count(client, self.requests_per_minute)

    def _count(self, client: str, limit: int) -> None:
        """Token bucket: `limit` requests at once, refilled evenly over a minute."""
        now = time.monotonic()
        left, since = self._budgets.pop(client, (float(limit), now))
        left = min(limit, left + (now - since) * limit / 60)
        self._budgets[client] = (left - 1 if left >= 1 else left, now)
        if len(self._budgets) > MAX_CLIENTS:
            self._budgets.popitem(last=False)
        if left < 1:
            seconds = int((1 - left) * 60 / limit) + 1
            raise TooManyRequests(f"more than {limit} requests a minute; try again in {seconds} s", retry_after=seconds)


def build_app(
    service: Service, access: Access, cors_origins: tuple[str, ...] = (), workshop: Sequence[Route] = ()
) -> AsgiApp:  # fmt: skip
    """The app of a service, whose first model is loaded when it starts; with the pages of a workshop, if there are any."""
    document = describe_api(ENDPOINTS, bool(access.keys))

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        return json_response({"ready": service.is_ready}, 200 if service.is_ready else 503)

    async def metrics(request: Request) -> Response:
        loaded = [(name, model.predictor is not None) for name, model in service.store.models.items()]
        return PlainTextResponse(
            service.metrics.render(service.scheduler.num_pending, loaded), media_type="text/plain; version=0.0.4"
        )

    async def openapi(request: Request) -> Response:
        return json_response(document)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        service.stop()

    plain = {"/health": health, "/ready": ready, "/metrics": metrics, "/openapi.json": openapi}
    routes = [Route(endpoint.path, _wrap(service, endpoint), methods=[endpoint.method]) for endpoint in ENDPOINTS]
    routes += [Route(path, function, methods=["GET"]) for path, function in plain.items()]
    routes += workshop
    routes += page_routes() if service.store.models else [Route("/", redirect_home, methods=["GET"])]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _unknown_path})
    return _Gate(app, service, access, cors_origins)


def _wrap(service: Service, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """The handler with its value as JSON, and its errors in the words of its API."""

    async def handle(request: Request) -> Response:
        try:
            value = await endpoint.handler(service, request)
            return value if isinstance(value, Response) else json_response(value)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        except UserError as error:
            return _error_response(InvalidRequest(str(error)), endpoint)
        except ServeError as error:
            return _error_response(error, endpoint)
        except Exception as error:
            calls = [f"{call.filename}:{call.lineno}" for call in traceback.extract_tb(error.__traceback__)]
            logger.error(
                f"a request failed: {type(error).__name__} in {', '.join(calls[-8:])}"
            )  # its message may have user text
            return _error_response(InternalError("the server failed; its log says where"), endpoint)

    return handle


def _error_response(error: ServeError, endpoint: Endpoint | None = None) -> Response:
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else None
    body = endpoint.error_body(error) if endpoint else {"error": error.message, "error_type": error.kind}
    return json_response(body, error.status, headers)


async def _unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:  # Starlette names the methods of one route, and / has two
        matching = [route for route in request.app.routes if route.path_regex.match(request.url.path)]
        headers["allow"] = ", ".join(sorted({method for route in matching for method in route.methods}))
    hint = "GET /openapi.json lists the paths" if error.status_code == 404 else f"{request.method} is not for this path"
    message = {"error": f"{request.url.path}: {error.detail}; {hint}", "error_type": "not_found"}
    return json_response(message, error.status_code, headers)


def _read_password(credentials: str) -> str:
    """The password of HTTP Basic credentials; empty if they are none."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class _Gate:
    """ASGI middleware around the app: access, CORS, counting and logging. It passes `receive` on, so that the app sees a client
    leave."""

    def __init__(self, app: AsgiApp, service: Service, access: Access, origins: tuple[str, ...]) -> None:
        self.app, self.service, self.access, self.origins = app, service, access, origins
        self._num_requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, started, status = Request(scope), time.monotonic(), 500
        cors = self._cors_headers(request)

        async def send_counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *cors]
            await send(message)

        self._num_requests += 1
        try:
            try:
                self.access.check(request)
                if self._num_requests > MAX_REQUESTS:
                    raise Overloaded(f"{MAX_REQUESTS:,} requests are in progress; try again in a second", retry_after=1)
            except ServeError as error:
                response = _error_response(error)
                if isinstance(error, Unauthorized) and request.url.path.startswith(WORKSHOP):
                    response.headers["www-authenticate"] = 'Basic realm="the password is an API key"'
                await response(scope, receive, send_counted)
                return
            if request.method == "OPTIONS" and cors:
                await Response(status_code=204)(scope, receive, send_counted)
                return
            await self.app(scope, receive, send_counted)
        finally:
            self._num_requests -= 1
            seconds = time.monotonic() - started
            route = scope.get("route")
            self.service.metrics.count_request(getattr(route, "path", "other"), status, seconds)
            logger.info(json.dumps({"method": request.method, "path": request.url.path[:200], "status": status,
                                    "ms": round(1000 * seconds, 1)}))  # fmt: skip

    def _cors_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        if not self.origins:
            return []
        origin = request.headers.get("origin")
        if origin is None or not ("*" in self.origins or origin in self.origins):
            return []
        allowed = {"access-control-allow-origin": "*" if "*" in self.origins else origin, "vary": "origin",
                   "access-control-allow-methods": "GET, POST, OPTIONS",
                   "access-control-allow-headers": "authorization, content-type, x-api-key"}  # fmt: skip
        return [(name.encode(), value.encode("latin-1")) for name, value in allowed.items()]
