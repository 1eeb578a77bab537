"""The budget of tokens whose batches hold, in the mean, as many sequences as a peer's."""

from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.tasks import TaskConfig
from bertsmith.tasks.base import EncodedExamples


def find_batch_tokens(task: TaskConfig, encoded: EncodedExamples, batch_size: int) -> int:
    """Found by halving: an epoch has as many updates on both sides, or as nearly as tokens allow."""
    wanted = -(-len(encoded.input_ids) // batch_size)
    low, high = 1, batch_size * max(len(ids) for ids in encoded.input_ids)
    while low < high:
        middle = (low + high) // 2
        if ExampleBatches(task, encoded, middle, 0).batches_per_epoch > wanted:
            low = middle + 1
        else:
            high = middle
    return low
