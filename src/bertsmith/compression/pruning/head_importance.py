"""Importance of attention heads: the expected sensitivity of the loss to masking each of them (Michel et al. 2019, eq. 2)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UserError
from ...inference.predictor import Predictor
from ...model.model import Model
from ...objectives.contrastive import Contrastive
from ...objectives.seq2seq import Seq2SeqObjective
from ...objectives.supervised import ExampleBatches, Supervised
from ...objectives.task_objective import build_task_objective
from ...train.objective import Batch
from .structure import count_heads

BATCH_TOKENS = 2048


def compute_head_importance(predictor: Predictor, examples: Sequence[Any]) -> list[NDArray[np.float64]]:
    """(heads,) of each layer: the mean over examples of |dL / dξ_h|, where ξ_h = 1 multiplies the output of head h.

    L is the loss of one example, the sum over its targets.
    """
    engine, task = predictor.require_torch("head importance"), predictor.require_task()
    model, objective = engine.model, build_task_objective(task)
    if isinstance(objective, Seq2SeqObjective | Contrastive):
        raise UserError("head importance needs a model with a task head; task=similar and task=generate have none")
    if not model.encoder.stack.layers or not all(count_heads(block) for block in model.encoder.stack.layers):  # type: ignore[arg-type]
        raise UserError("head importance needs layers with mixer=attention")
    encoded = task.encode(examples, predictor.tokenizer, predictor.max_length)
    if not encoded.targets:
        raise UserError("head importance needs labelled examples: it is the gradient of their loss")
    batches = ExampleBatches(task, encoded, BATCH_TOKENS, 0, shuffle=False)
    model.eval()
    totals: list[Tensor] = []
    for indices in batches.split_epoch(0):
        groups = [batches.groups[i] for i in indices]
        example_of_sequence = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor([len(group) for group in groups]))
        sums = _sum_sensitivities(model, objective, batches.build(groups).to(engine.device), example_of_sequence)
        totals = [total + more for total, more in zip(totals, sums, strict=True)] if totals else sums
    return [(total / len(batches.groups)).double().cpu().numpy() for total in totals]


def _sum_sensitivities(model: Model, objective: Supervised, batch: Batch[Any], example_of_sequence: Tensor) -> list[Tensor]:
    """(heads,) of each layer, in the order of the layers: the sum over the examples of a batch."""
    layout, recorded = batch.inputs.layout, list[Tensor]()
    example_of_token = example_of_sequence.to(layout.seq_id.device)[layout.seq_id]
    blocks = dict.fromkeys(model.encoder.stack.layers)  # layers may share one, which is called for each
    hooks = [
        block.mixer.projections.output.register_forward_pre_hook(  # type: ignore[union-attr]
            partial(_multiply_heads, recorded, count_heads(block), len(example_of_sequence.unique()), example_of_token)  # type: ignore[arg-type]
        )
        for block in blocks
    ]
    try:
        with torch.enable_grad():
            loss = sum(objective.compute_loss(model, batch).parts.values(), start=torch.zeros((), device=layout.seq_id.device))
        gradients = torch.autograd.grad(loss, recorded)
    finally:
        for hook in hooks:
            hook.remove()
    return [gradient.abs().sum(0) for gradient in gradients]


def _multiply_heads(
    recorded: list[Tensor], num_heads: int, num_examples: int, example_of_token: Tensor, module: Any, args: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The heads' outputs (tokens, heads * head_dim) times ξ, a variable for each example and head, which is recorded."""
    mask = torch.ones(num_examples, num_heads, device=args[0].device, requires_grad=True)
    recorded.append(mask)
    heads = args[0].unflatten(-1, (num_heads, -1)) * mask[example_of_token][..., None].to(args[0].dtype)
    return (heads.flatten(-2), *args[1:])
