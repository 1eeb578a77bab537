"""`Service`: what every route needs: the models, the scheduler, limits and metrics, and `run`, which computes an operation."""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from ..errors import UserError
from ..inference.predictor import Predictor
from .errors import ClientGone, InvalidRequest, ServeError, Timeout, TooManyRequests, Unsupported
from .metrics import Metrics
from .models import ModelStore, ServedModel, Test
from .requests import Limits
from .scheduler import Operation, QueueFull, Scheduler


class Service:
    """One server's state, held by its app."""

    def __init__(self, store: ModelStore, batch_tokens: int, max_pending: int, limits: Limits) -> None:
        self.store, self.limits, self.metrics = store, limits, Metrics()
        self.scheduler = Scheduler(batch_tokens, max_pending, self.metrics.count_batch)
        self.is_ready = False

    async def start(self) -> None:
        """Load the first model; the others are loaded when they are asked for."""
        if self.store.models:
            await self.store.load(next(iter(self.store.models.values())))
        self.is_ready = True

    def stop(self) -> None:
        self.scheduler.close()

    async def find(self, name: str) -> Predictor:
        """The model of this name, loaded."""
        return await self.store.load(self.store.find(name))

    async def choose(self, name: str | None, *can: Test, what: str) -> tuple[ServedModel, Predictor]:
        """The named model, or else the first one that can do `what`: by the first test of `can`, or else by the next ones.

        A model is loaded to be tested; what it cannot do is remembered, so that memory_limit does not unload others for it.
        """
        if name:
            model = self.store.find(name)
            predictor = await self.store.load(model)
            if not any(test(predictor) for test in can):
                raise Unsupported(f"model {name} cannot {what}; name another of {', '.join(self.store.models)}")
            return model, predictor
        for test in can:
            for model in self.store.models.values():
                if test in model.cannot:
                    continue
                try:
                    predictor = await self.store.load(model)
                except ServeError:
                    continue  # the next one may do
                if test(predictor):
                    return model, predictor
                model.cannot.add(test)
        raise Unsupported(f"none of the models ({', '.join(self.store.models)}) can {what}; start the server with one that can")

    async def run(
        self, request: Request, operation: Operation, items: Sequence[Any], sizes: Sequence[int], is_continued: bool = False
    ) -> list[Any]:
        """The results of the items in order. Raises ClientGone, and computes no further, when the client leaves."""
        try:
            job = self.scheduler.submit(operation, items, sizes, is_continued)
        except QueueFull:
            raise TooManyRequests(
                f"{self.scheduler.num_pending:,} texts are waiting; try again in a second, or send fewer texts", retry_after=1
            ) from None
        result, gone = asyncio.wrap_future(job.future), asyncio.ensure_future(_wait_for_disconnect(request))
        either: list[asyncio.Future[Any]] = [result, gone]
        try:
            await asyncio.wait(either, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return await result
            if gone.done():
                raise ClientGone
            raise Timeout(f"no answer within {self.limits.timeout:g} seconds; send fewer texts, or raise `timeout`")
        except UserError as error:
            raise InvalidRequest(str(error)) from None
        finally:
            gone.cancel()
            job.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
