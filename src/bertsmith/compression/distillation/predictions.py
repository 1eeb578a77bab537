"""The teacher's predictions for all training examples, computed once before training and cached in the folder of the run.

They serve every epoch of a task stage that learns soft labels only: the teacher sees each example without dropout, so its
logits are always the same. They are written in shards, so that an interrupted run computes only those that are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...artifacts import fingerprint
from ...corpus.batches import batch_boundaries
from ...device import resolve_device
from ...model.batch import Inputs
from ...model.model import Model
from ...objectives.supervised import ExampleBatches, Supervised
from ...runs import Run
from ...tensors import load_tensors, save_tensors
from ...train.config import TrainConfig
from ...train.objective import Batch

TEACHER_LOGITS = "teacher_logits"  # target of a training batch
SHARD = 4096  # groups of sequences (examples) in a file
BATCH_TOKENS = 4096
MIN_EPOCHS = 2.0  # of a run; in a shorter one there is little to save


@dataclass(frozen=True)
class CachedPredictions:
    """Logits of the teacher for each group of sequences of the training batches."""

    logits: Tensor  # (rows, outputs), group after group
    starts: np.ndarray  # (groups + 1,): first row of each group

    def select(self, groups: Sequence[int] | np.ndarray) -> Tensor:
        """(rows, outputs): the logits of these groups, in their order."""
        return torch.cat([self.logits[self.starts[group] : self.starts[group + 1]] for group in groups])

    def add_targets(self, batch: Batch[Inputs], groups: Sequence[int] | np.ndarray) -> Batch[Inputs]:
        """The batch of these groups with the teacher's logits."""
        return replace(batch, targets={**batch.targets, TEACHER_LOGITS: self.select(groups)})


def is_worthwhile(batches: ExampleBatches, config: TrainConfig) -> bool:
    """Whether the run sees most examples several times, and the rows of a batch belong to its groups one by one."""
    if batches.pools_windows or config.steps is None:
        return False
    return config.steps * config.gradient_accumulation_steps / batches.batches_per_epoch >= MIN_EPOCHS


def cache_predictions(
    teacher: Model, objective: Supervised, batches: ExampleBatches, run: Run, device_name: str
) -> CachedPredictions:
    """Read the shards of the run, and compute those that are missing."""
    folder, num_groups = run.cache, len(batches.groups)
    shards = [range(first, min(first + SHARD, num_groups)) for first in range(0, num_groups, SHARD)]
    paths = [folder / f"teacher-{fingerprint([run.identity, SHARD])}-{index:05d}.safetensors" for index in range(len(shards))]
    missing = sum(not path.exists() for path in paths)
    if missing:
        run.console.info(f"teacher: predictions for {num_groups:,} training examples, computed once")
        teacher.to(resolve_device(device_name, "train.device")).eval()
        folder.mkdir(parents=True, exist_ok=True)
    logits, counts = list[Tensor](), list[Tensor]()
    with run.console.progress_bar("teacher") as update:
        for index, (shard, path) in enumerate(zip(shards, paths, strict=True)):
            if not path.exists():
                save_tensors(_predict(teacher, objective, batches, shard), path)
            tensors = load_tensors(path)
            logits.append(tensors["logits"])
            counts.append(tensors["counts"])
            update(index + 1, len(shards))
    return CachedPredictions(torch.cat(logits), np.cumsum([0, *torch.cat(counts).tolist()]))


@torch.no_grad()
def _predict(teacher: Model, objective: Supervised, batches: ExampleBatches, groups: range) -> dict[str, Tensor]:
    """Logits of these groups, (rows, outputs), and the number of rows of each; groups of similar length share a batch."""
    device, lengths = next(teacher.parameters()).device, batches.group_lengths[groups.start : groups.stop]
    order = np.argsort(lengths, kind="stable")
    rows: dict[int, Tensor] = {}
    for indices in np.split(order, batch_boundaries(lengths[order], max(BATCH_TOKENS, int(lengths.max())))):
        chosen = [batches.groups[groups.start + index] for index in indices]
        outputs = objective.compute_outputs(teacher, batches.build(chosen).to(device)).float().cpu()
        sizes = _rows_per_group(len(outputs), [len(group) for group in chosen], lengths[indices].tolist())
        rows |= zip(indices.tolist(), outputs.split(sizes), strict=True)
    ordered = [rows[index] for index in range(len(groups))]
    return {"logits": torch.cat(ordered), "counts": torch.tensor([len(part) for part in ordered])}


def _rows_per_group(num_rows: int, num_sequences: list[int], num_tokens: list[int]) -> list[int]:
    """Rows of the outputs of a batch that belong to each group: one for each token, for each sequence, or for the group."""
    choices = num_tokens, num_sequences, [1] * len(num_sequences)
    return next(sizes for sizes in choices if sum(sizes) == num_rows)
