"""The scheduler: shared batches, turns, limits, errors of one request, and requests that are cancelled."""

import threading
from concurrent.futures import CancelledError

import pytest

from bertsmith.errors import UserError
from bertsmith.serving.scheduler import Operation, QueueFull, Scheduler


class Recorder:
    """An operation that doubles numbers, waits until it is released, and records its batches."""

    def __init__(self, key="double"):
        self.batches, self.started, self.released = [], threading.Event(), threading.Event()
        self.operation = Operation(key, self.compute)

    def compute(self, items):
        self.batches.append(list(items))
        self.started.set()
        assert self.released.wait(20)
        if -1 in items:
            raise UserError("-1 cannot be doubled")
        return [2 * item for item in items]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def scheduler():
    scheduler = Scheduler(batch_tokens=4, max_pending=8)
    yield scheduler
    scheduler.close()


def submit(scheduler, recorder, items):
    return scheduler.submit(recorder.operation, items, [1] * len(items))


def test_requests_that_wait_share_batches_and_take_turns(scheduler, recorder):
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    long, short = submit(scheduler, recorder, [1, 2, 3, 4, 5]), submit(scheduler, recorder, [10])
    recorder.released.set()
    assert [job.future.result(20) for job in (first, long, short)] == [[0], [2, 4, 6, 8, 10], [20]]
    assert recorder.batches[:2] == [[0], [1, 10, 2, 3]] and sorted(recorder.batches[2]) == [4, 5]
    assert scheduler.num_pending == 0


def test_operations_with_other_keys_have_batches_of_their_own(scheduler, recorder):
    other = Recorder("other")
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    jobs = [submit(scheduler, recorder, [1]), submit(scheduler, other, [2]), submit(scheduler, recorder, [3])]
    recorder.released.set(), other.released.set()
    assert [job.future.result(20) for job in (first, *jobs)] == [[0], [2], [4], [6]]
    assert recorder.batches == [[0], [1, 3]] and other.batches == [[2]]


def test_a_bad_item_fails_its_own_request_only(scheduler, recorder):
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    bad, good = submit(scheduler, recorder, [-1]), submit(scheduler, recorder, [7])
    recorder.released.set()
    assert first.future.result(20) == [0] and good.future.result(20) == [14]
    with pytest.raises(UserError, match="cannot be doubled"):
        bad.future.result(20)


def test_a_full_queue_refuses_and_has_room_again(scheduler, recorder):
    first, second = submit(scheduler, recorder, [1] * 4), submit(scheduler, recorder, [2] * 4)
    with pytest.raises(QueueFull):
        submit(scheduler, recorder, [3])
    recorder.released.set()
    assert first.future.result(20) == [2] * 4 and second.future.result(20) == [4] * 4
    assert submit(scheduler, recorder, [3] * 20).future.result(20) == [6] * 20, "an empty queue takes any request"


def test_a_cancelled_request_is_computed_no_further(scheduler, recorder):
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    left, stays = submit(scheduler, recorder, [1, 2, 3]), submit(scheduler, recorder, [5])
    left.cancel()
    recorder.released.set()
    assert first.future.result(20) == [0] and stays.future.result(20) == [10]
    assert recorder.batches == [[0], [5]] and scheduler.num_pending == 0


def test_close_cancels_what_waits():
    scheduler, recorder = Scheduler(4, 8), Recorder()
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    waiting = submit(scheduler, recorder, [1])
    threading.Timer(0.1, recorder.released.set).start()
    scheduler.close()
    assert first.future.done()
    with pytest.raises(CancelledError):
        waiting.future.result(20)
    with pytest.raises(QueueFull):
        submit(scheduler, recorder, [2])


def test_batches_are_counted():
    counts = []
    scheduler, recorder = Scheduler(4, 8, lambda items, tokens: counts.append((items, tokens))), Recorder()
    recorder.released.set()
    scheduler.submit(recorder.operation, [1, 2], [3, 4]).future.result(20)
    scheduler.close()
    assert counts == [(1, 3), (1, 4)]


def test_an_item_larger_than_a_batch_is_a_batch_of_its_own(scheduler, recorder):
    recorder.released.set()
    assert scheduler.submit(recorder.operation, [1, 2, 3], [1, 100, 1]).future.result(20) == [2, 4, 6]
    assert recorder.batches == [[1], [2], [3]]


def test_items_of_similar_length_share_a_batch_and_none_waits_for_ever():
    scheduler, recorder = Scheduler(18, 100), Recorder()
    first = submit(scheduler, recorder, [0])
    assert recorder.started.wait(20)
    sizes = [9, 2, 8, 3, 9, 2, 3, 8, 2]
    jobs = [scheduler.submit(recorder.operation, [10 * number + size], [size]) for number, size in enumerate(sizes, 1)]
    recorder.released.set()
    assert [job.future.result(20) for job in (first, *jobs)] == [[0], *([2 * (10 * n + s)] for n, s in enumerate(sizes, 1))]
    scheduler.close()
    lengths = [sorted(item % 10 for item in batch) for batch in recorder.batches[1:]]
    assert lengths == [[9, 9], [2, 2, 2, 3, 3], [8, 8]]
