"""Runs the app with uvicorn: a socket of loopback by default, deadlines for slow clients, and a shutdown that loses no request."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..console import logger
from ..errors import UserError
from ..signals import StopSignals

HEADER_SECONDS = 20.0  # until a request's headers must be there
DRAIN_SECONDS = 60  # for the requests in progress when the server is stopped
MAX_CONNECTIONS = 4096


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request does not come: a client that sends a byte now and then (slow loris)
    would hold it for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """A stop signal lets requests in progress end; the same signal again within two seconds is the same request to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # it alone gets signals
            yield
            return
        signals = StopSignals(lambda: self._stop(is_forced=False), lambda number: self._stop(is_forced=True))
        old_handlers = signals.install()
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stop(is_forced=False)

    def _stop(self, is_forced: bool) -> None:
        self.should_exit = True
        self.force_exit = self.force_exit or is_forced


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise UserError(f"host={host} port={port}: {error.strerror or error}; choose another port, or port=0 for a free one") from None
    return listener


def serve(app: Any, listener: socket.socket) -> None:
    """Answer until a stop signal, then until the requests in progress are answered."""
    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=DRAIN_SECONDS, timeout_keep_alive=int(HEADER_SECONDS),
        h11_max_incomplete_event_size=65536,
    )  # fmt: skip
    server = Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise UserError("the server did not start: its first model cannot be loaded; the lines above say why")
    logger.info("stopped: all requests in progress were answered")
