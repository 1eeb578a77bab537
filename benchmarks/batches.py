"""The budget of tokens whose batches hold, in the mean, as many sequences as a peer's."""

from bertsmith.objectives.supervised import Reading
from bertsmith.tasks import TaskConfig
from bertsmith.tasks.base import Encoded


def budget(task: TaskConfig, encoded: Encoded, batch: int) -> int:
    """Found by halving: an epoch has as many updates on both sides, or as nearly as tokens allow."""
    wanted = -(-len(encoded.ids) // batch)
    low, high = 1, batch * max(len(ids) for ids in encoded.ids)
    while low < high:
        middle = (low + high) // 2
        if Reading(task, encoded, middle, 0).an_epoch > wanted:
            low = middle + 1
        else:
            high = middle
    return low
