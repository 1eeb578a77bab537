"""Runs the app with uvicorn: on loopback by default, deadlines for slow clients, and a shutdown that loses no request."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..console import logger
from ..errors import UserError
from ..signals import StopSignals

HEADER_SECONDS = 20.0  # until a request's headers must be there
DRAIN_SECONDS = 60  # for the requests in progress when the server is stopped
IDLE_SECONDS = 0.5  # after the stop signal, in which connections without a request can still send one


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request does not come: a client that sends a byte now and then (slow loris)
    would hold it for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()
            if self._is_stopping:
                self._close_after_answer()

    def shutdown(self) -> None:
        """As uvicorn's, but a request that is on its way on an idle connection is answered, and then the connection closed."""
        self._is_stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            self._close_after_answer()
        else:
            self._close_in(IDLE_SECONDS)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _close_after_answer(self) -> None:
        self.cycle.keep_alive = False
        scope = self.cycle.scope
        scope["headers"] = [*scope["headers"], CLOSE_HEADER]  # of the request: the answer says it, too, if it has not begun

    def _wait_for_headers(self) -> None:
        self._close_in(HEADER_SECONDS)

    def _close_in(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

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
        problem = f"host={host} port={port}: {error.strerror or error}"
        raise UserError(f"{problem}; choose another port, or port=0 for a free one") from None
    return listener


def serve(app: Any, listener: socket.socket) -> None:
    """Answer until a stop signal, then until the requests in progress are answered."""
    config = uvicorn.Config(
        app, http=Protocol, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS, timeout_keep_alive=int(HEADER_SECONDS), h11_max_incomplete_event_size=65536,
    )  # fmt: skip
    server = Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise UserError("the server did not start: its first model cannot be loaded; the lines above say why")
    logger.info("stopped: all requests in progress were answered")
