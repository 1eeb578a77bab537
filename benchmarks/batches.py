"""The batch_tokens at which a batch has as many sequences, on average, as a fixed batch size."""

from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.tasks import TaskConfig
from bertsmith.tasks.base import EncodedExamples


def find_batch_tokens(task: TaskConfig, encoded: EncodedExamples, batch_size: int) -> int:
    """Bisection for the smallest budget with at most as many batches per epoch as `batch_size` gives."""
    target_batches = -(-len(encoded.input_ids) // batch_size)
    low, high = 1, batch_size * max(len(ids) for ids in encoded.input_ids)
    while low < high:
        middle = (low + high) // 2
        if ExampleBatches(task, encoded, middle, 0).batches_per_epoch > target_batches:
            low = middle + 1
        else:
            high = middle
    return low
