"""Servers of tiny models, in a thread of this process."""

import http.client
import json
import threading
import time
from contextlib import contextmanager

import bertsmith
from bertsmith.serving.app import Access, build_app
from bertsmith.serving.models import ModelStore
from bertsmith.serving.requests import Limits
from bertsmith.serving.server import open_socket, serve
from bertsmith.serving.service import Service
from bertsmith.serving.workshop import workshop_routes

MAX_BYTES = 200_000


class Client:
    """Sends a request and returns status, JSON (or text) and headers."""

    def __init__(self, port):
        self.port = port

    def __call__(self, path, body=None, headers=None, method=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.headers.get("content-type") == "application/json"
        return response.status, json.loads(text) if is_json else text, response.headers

    def post(self, path, body):
        status, answer, _ = self(path, body)
        assert status == 200, answer
        return answer


@contextmanager
def run_server(models, load=bertsmith.load, access=None, limits=None, memory_limit=None, **options):
    """A `Client` of a server on a free port; it is stopped at the end, and must stop."""
    from bertsmith.serving import server as module

    service = Service(ModelStore(tuple(map(str, models)), load, memory_limit), options.get("batch_tokens", 256),
                      options.get("max_pending", 1000), limits or Limits(MAX_BYTES, 100, 30))  # fmt: skip
    servers, create = [], module.Server

    class RecordedServer(create):
        def __init__(self, config):
            super().__init__(config)
            servers.append(self)

    listener = open_socket("127.0.0.1", 0)
    workshop = workshop_routes(options["runs"]) if "runs" in options else []
    app = build_app(service, access or Access(), options.get("cors_origins", ()), workshop)
    module.Server = RecordedServer
    thread = threading.Thread(target=serve, args=(app, listener))
    thread.start()
    client = Client(listener.getsockname()[1])
    client.service = service
    client.stop = lambda: setattr(servers[0], "should_exit", True)
    try:
        deadline = time.monotonic() + 30
        while not servers or not servers[0].started:
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        yield client
    finally:
        module.Server = create
        servers[0].should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive(), "the server does not stop"
