"""Clients of a server on this machine, in a process of their own: `python -m benchmarks.http_load < PLAN`.

Closed loop: each client sends its next request when it has the answer. Open loop: requests arrive as a Poisson process, whether
or not those before are answered, and latency counts from the arrival. The result is a JSON object on standard output.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Plan(NamedTuple):
    """What is sent: requests take turns with `bodies`."""

    port: int
    path: str
    bodies: list[str]
    clients: int
    seconds: float
    rate: float = 0.0  # requests a second; 0: closed loop
    limit: int = 0  # requests; 0: as many as there is time for


class Connection:
    """One keep-alive connection; reconnects when the server has closed it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> int:
        """The status; 0 if the server cannot be reached, -1 if the connection breaks after the request was sent."""
        if self.streams is None:
            try:
                self.streams = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return 0
        reader, writer = self.streams
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            header = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(header.split(b"content-length:")[1].split(b"\r\n")[0]))
        except (OSError, EOFError, IndexError):
            self.close()
            return -1
        if b"connection: close" in header:
            self.close()
        return int(header[9:12])

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def run(plan: Plan) -> dict[str, object]:
    statuses, latencies = Counter[int](), list[float]()
    bodies = [body.encode() for body in plan.bodies]
    start = time.perf_counter()
    await (_open_loop if plan.rate else _closed_loop)(plan, bodies, statuses, latencies)
    seconds = time.perf_counter() - start
    latencies.sort()
    quantile = lambda share: latencies[min(len(latencies) - 1, int(share * len(latencies)))] if latencies else 0.0
    return {
        "seconds": seconds, "requests": statuses.total(), "statuses": dict(statuses),
        "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "max": quantile(1.0),
    }  # fmt: skip


async def _closed_loop(plan: Plan, bodies: Sequence[bytes], statuses: Counter[int], latencies: list[float]) -> None:
    deadline, sent = time.perf_counter() + plan.seconds, 0

    async def repeat(connection: Connection) -> None:
        nonlocal sent
        while time.perf_counter() < deadline and (not plan.limit or sent < plan.limit):
            body, begin = bodies[sent % len(bodies)], time.perf_counter()
            sent += 1
            status = await connection.post(plan.path, body)
            statuses[status] += 1
            latencies.append(time.perf_counter() - begin)
            if status == 0:
                return  # the server has stopped
        connection.close()

    await asyncio.gather(*(repeat(Connection(plan.port)) for _ in range(plan.clients)))


async def _open_loop(plan: Plan, bodies: Sequence[bytes], statuses: Counter[int], latencies: list[float]) -> None:
    rng, idle, tasks = random.Random(0), list[Connection](), list[asyncio.Task[None]]()

    async def send(arrival: float, body: bytes) -> None:
        connection = idle.pop() if idle else Connection(plan.port)
        statuses[await connection.post(plan.path, body)] += 1
        latencies.append(time.perf_counter() - arrival)
        idle.append(connection)

    arrival, end = time.perf_counter(), time.perf_counter() + plan.seconds
    while (arrival := arrival + rng.expovariate(plan.rate)) < end:
        await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
        tasks.append(asyncio.create_task(send(arrival, bodies[len(tasks) % len(bodies)])))
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Plan(**json.load(sys.stdin))))))
