"""Inputs and outputs of an exported graph, under the names that transformers and sentence-transformers use.

Inputs, int64 (batch, sequence), texts right-padded: `input_ids`, `attention_mask` (0 on padding), and `token_type_ids` if the
model has segments. Outputs, float32; at padding their values have no meaning:

- `last_hidden_state` (batch, sequence, hidden_size)
- `sentence_embedding` (batch, embedding size): pooled, through dense layers if there are any; normalized if the task says so
- `logits`: of classify, regress and choose (batch, outputs), choose with a row for each option, and pair=cross with a row for
  each two texts; of tag (batch, sequence, tags);
  of ELECTRA's discriminator (batch, sequence)
- `start_logits`, `end_logits` (batch, sequence): of answer
- `pooled_tokens` (batch, pooled_size): input of the task's head, where it is averaged over several sequences: windows of a long
  text (long_text=hierarchical), or both orders of a pair (pair=both)
- `seq_relationship_logits` (batch, 2): of next-sentence prediction or sentence order

A language modeling head is a graph of its own (`HeadModule`): engines compute every output of a graph, and logits over the
vocabulary are needed for a few rows only.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ...model.batch import Inputs
from ...model.heads import LM_HEAD, DiscriminatorHead, PooledClassifier
from ...model.heads.cross_attention import CrossAttentionHead
from ...model.heads.embedding import EMBEDDING_HEAD
from ...model.model import Model
from ...objectives.contrastive import embed_sequences
from ...objectives.supervised import Supervised
from ...objectives.task_objective import build_task_objective
from ...tasks import Task
from ...tasks.similarity import Pooling
from ...train.objective import Batch
from .layout import GraphLayout

INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS = "input_ids", "attention_mask", "token_type_ids"
HIDDEN_STATES, EMBEDDING, POOLED = "last_hidden_state", "sentence_embedding", "pooled_tokens"
LOGITS, START_LOGITS, END_LOGITS, PAIR_LOGITS = "logits", "start_logits", "end_logits", "seq_relationship_logits"
TASK_HEAD = "task"  # name of the task's head in Model.heads


class GraphModule(nn.Module):
    """A model with these inputs and outputs, as it is traced."""

    def __init__(self, model: Model, task: Task | None = None) -> None:
        super().__init__()
        self.model, self.task = model, task

    @property
    def input_names(self) -> list[str]:
        has_segments = self.model.encoder.token_type_embeddings is not None
        return [INPUT_IDS, ATTENTION_MASK, *[TOKEN_TYPE_IDS] * has_segments]

    @property
    def reads_pairs(self) -> bool:
        """Whether texts 2i and 2i + 1 are a pair, with one row of logits (pair=cross)."""
        return TASK_HEAD in self.model.heads and isinstance(self.model.heads[TASK_HEAD], CrossAttentionHead)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> dict[str, Tensor]:
        global_segment = None if self.task is None else self.task.global_segment
        layout = GraphLayout.from_mask(attention_mask.bool(), token_type_ids, global_segment)
        inputs = Inputs(input_ids.flatten(), layout, None if token_type_ids is None else token_type_ids.flatten())
        hidden_states, shape = self.model(inputs), input_ids.shape
        outputs = {HIDDEN_STATES: hidden_states.unflatten(0, shape), EMBEDDING: self._embed(hidden_states, layout)}
        if self.task is not None and TASK_HEAD in self.model.heads:
            return outputs | self._compute_task_outputs(self.task, inputs, hidden_states)
        for head in self.model.heads.values():
            if isinstance(head, DiscriminatorHead):
                outputs[LOGITS] = head(hidden_states, self.model.encoder).unflatten(0, shape).squeeze(-1)
            elif isinstance(head, PooledClassifier):
                pooled = self.model.encoder.pool_tokens(inputs, hidden_states)
                outputs[PAIR_LOGITS] = head(pooled, self.model.encoder)
        return outputs

    def _compute_task_outputs(self, task: Task, inputs: Inputs, hidden_states: Tensor) -> dict[str, Tensor]:
        objective, shape = build_task_objective(task), inputs.layout.padding_mask().shape
        assert isinstance(objective, Supervised)
        logits = objective.compute_outputs(self.model, Batch(inputs), hidden_states)
        if task.head_type == "text":
            averaged = {POOLED: self.model.encoder.pool_tokens(inputs, hidden_states)} if averages_sequences(task) else {}
            return averaged | {LOGITS: logits}
        logits = logits.unflatten(0, shape)
        if task.head_type == "token":
            return {LOGITS: logits}
        start_logits, end_logits = logits.unbind(-1)
        return {START_LOGITS: start_logits, END_LOGITS: end_logits}

    def _embed(self, hidden_states: Tensor, layout: GraphLayout) -> Tensor:
        pooling: Pooling = getattr(self.task, "pooling", "mean")
        vectors = embed_sequences(self.model, hidden_states, layout, pooling)
        return F.normalize(vectors, dim=-1) if getattr(self.task, "normalize", False) else vectors


class HeadModule(nn.Module):
    """One head as a graph: rows (rows, size) -> `logits` (rows, outputs).

    Of the language modeling head, the rows are hidden states; of a task's head (`task`), `pooled_tokens`.
    """

    def __init__(self, model: Model, head: str, task: Task | None = None) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.scale = 2.0 if task is not None and head == TASK_HEAD and _uses_both_orders(task) else 1.0

    @property
    def input_names(self) -> list[str]:
        return [POOLED if self.head == TASK_HEAD else HIDDEN_STATES]

    @property
    def input_size(self) -> int:
        encoder = self.model.config.encoder
        return encoder.pooled_size if self.head == TASK_HEAD else encoder.hidden_size

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        return {LOGITS: self.model.compute_logits(self.head, self.scale * rows)}


def head_graphs(model: Model, task: Task | None) -> list[str]:
    """Names of the heads that are graphs of their own."""
    is_averaged = task is not None and TASK_HEAD in model.heads and averages_sequences(task)
    own = [name for name in (LM_HEAD, EMBEDDING_HEAD) if name in model.heads]
    return [*own, *[TASK_HEAD] * is_averaged]


def averages_sequences(task: Task) -> bool:
    """Whether the input of the task's head is an average over several sequences of an example."""
    return task.head_type == "text" and (getattr(task, "long_text", None) == "hierarchical" or _uses_both_orders(task))


def _uses_both_orders(task: Task) -> bool:
    objective: Any = build_task_objective(task)
    return isinstance(objective, Supervised) and objective.uses_both_orders
