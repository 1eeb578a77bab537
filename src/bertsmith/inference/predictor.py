"""`Predictor`: model, tokenizer and task of a checkpoint folder behind one call; `load` reads the folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..artifacts import resolve_path
from ..config import from_dict
from ..device import resolve_device
from ..errors import UserError
from ..model import checkpoint
from ..model.generation.search import GenerationConfig
from ..model.model import Model
from ..objectives.contrastive import pool_tokens
from ..objectives.seq2seq import Seq2SeqObjective
from ..objectives.supervised import ExampleBatches, build_batch
from ..objectives.task_objective import build_task_objective
from ..tasks import Seq2Seq, TaskConfig, TextSimilarity
from ..tasks.base import EncodedExamples, average_windows, encode_pairs
from ..tasks.requests import as_text_list, parse_requests
from ..tasks.similarity import Pooling, semantic_search, to_hits
from ..tokenization.tokenizer import Tokenizer
from .fill_mask import FillMask
from .runtime import Precision, Runtime
from .text_generation import CausalGenerator, generate_targets, is_causal_lm

Embeddings = NDArray[np.float32]


class Predictor:
    """What `bertsmith.load` returns: tokenizer, task, labels and thresholds come from the checkpoint folder.

    `batch_tokens` in every method is the number of tokens in a batch; the default depends on the device.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, card: dict[str, Any], task: TaskConfig | None = None, length: int = 0,
        precision: Precision = "auto",
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.card, self.task = model.eval(), tokenizer, card, task
        self.length = length or model.config.encoder.max_position_embeddings
        self.runtime = Runtime(model, precision)
        self.search: GenerationConfig | None = None  # overrides the decoding settings of task=generate

    def __call__(self, inputs: Any = None, text_pair: Any = None, /, *, batch_tokens: int | None = None, **fields: Any) -> Any:
        """The prediction for one input, or a list of predictions for several, as JSON-compatible values.

        An input is a text (`model("a fine film")`), a pair (`model("a film", "a movie")`), or fields by name:
        `model(question=..., context=...)`, `model(context=..., options=[...])`, `model(tokens=[...])`; several inputs are
        a list of texts, or of dictionaries of such fields. A model without a task fills masks, or continues the text if
        it is a causal language model.
        """
        if self.task is None and not fields and text_pair is None:
            texts, is_single = as_text_list(inputs)
            if is_causal_lm(self.model):
                return self.generate(inputs, batch_tokens=batch_tokens)
            filled = [self.fill(text) for text in texts]
            return filled[0] if is_single else filled
        task = self.require_task()
        requests, is_single = parse_requests(task, inputs, text_pair, fields)
        answers = self.answers([request.example for request in requests], batch_tokens)
        results = [request.to_dict(answer) for request, answer in zip(requests, answers, strict=True)]
        return results[0] if is_single else results

    def answers(
        self, examples: Sequence[Any], batch_tokens: int | None = None, before: Sequence[Any] = (), after: Sequence[Any] = ()
    ) -> list[Any]:
        """One prediction per example, in order; sequences of similar length share a batch.

        `before` and `after` are neighbouring examples that serve only as document context, for tasks that use it.
        """
        task = self.require_task()
        if not examples:
            return []
        all_encoded = task.encode([*before, *examples, *after], self.tokenizer, self.length)
        encoded = all_encoded.select_examples(len(before), len(before) + len(examples))
        return task.decode(self.scores(encoded, batch_tokens), encoded, examples)

    def scores(self, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[np.ndarray]:
        """Outputs of the task's head per sequence (per example, where windows are pooled); for task=generate, generated ids."""
        task = self.require_task()
        if isinstance(task, Seq2Seq):
            return list(generate_targets(self.runtime, self.tokenizer, task, encoded.input_ids, self.search, batch_tokens))
        unlabelled = EncodedExamples(encoded.input_ids, encoded.token_type_ids, encoded.example_index, {}, encoded.metadata)
        batches, objective = (
            ExampleBatches(task, unlabelled, batch_tokens or self.runtime.batch_tokens, 0, shuffle=False),
            build_task_objective(task),
        )
        assert not isinstance(objective, Seq2SeqObjective)
        outputs = dict[int, np.ndarray]()
        for indices in batches.split_epoch(0):
            groups = [batches.groups[i] for i in indices]
            batch = build_batch(task, unlabelled, groups, batches.pools_windows)
            with self.runtime.inference_context():
                rows = objective.compute_outputs(self.model, batch.to(self.runtime.device)).float().cpu()
            sequence_ids = [
                index
                for group in groups
                for index in group
                if not batches.pools_windows or unlabelled.metadata[index].number == 0
            ]
            values = rows.split(batch.inputs.layout.lengths.tolist()) if task.head_type != "text" else rows
            outputs |= {int(i): value.numpy() for i, value in zip(sequence_ids, values, strict=True)}
        return [outputs[i] for i in sorted(outputs)]

    def embed(self, texts: str | Sequence[str], pooling: Pooling | None = None, batch_tokens: int | None = None) -> Embeddings:
        """Text embeddings, float32 (texts, hidden_size), or (hidden_size,) for a single text.

        `pooling` defaults to that of task=similar, otherwise to the mean over tokens.
        """
        text_list, is_single = as_text_list(texts)
        pooling = self.pool if pooling is None else pooling
        if pooling not in get_args(Pooling):
            raise UserError(f"pooling={pooling} is not known; write {' or '.join(get_args(Pooling))}")
        long_text_options = (self.task.long_text, self.task.doc_stride) if isinstance(self.task, TextSimilarity) else ()
        encoded = encode_pairs([(text, None) for text in text_list], self.tokenizer, self.length, *long_text_options)
        ids = encoded.input_ids
        vectors = np.zeros((len(ids), self.model.config.encoder.hidden_size), np.float32)
        for batch in self.runtime.batch_by_length(np.array([len(text) for text in ids], np.int64), batch_tokens):
            with self.runtime.inference_context():
                hidden, layout = self.runtime.compute_hidden_states([ids[i] for i in batch])
                vectors[batch] = pool_tokens(hidden, layout, pooling, self.model.config.encoder.is_causal).float().cpu().numpy()
        if len(ids) > len(text_list):  # windows of long texts: one vector per text
            vectors = average_windows(vectors, replace(encoded, metadata=[]), len(text_list)).astype(np.float32)
        return vectors[0] if is_single else vectors

    @property
    def pool(self) -> Pooling:
        """Default pooling of `embed`."""
        return self.task.pooling if isinstance(self.task, TextSimilarity) else "mean"

    def nearest(
        self,
        queries: str | Sequence[str],
        documents: Sequence[str] | NDArray[Any],
        top_k: int = 5,
        pooling: Pooling | None = None,
    ) -> list[Any]:
        """The most similar documents for each query, best first: `[{"row": 12, "score": 0.83, "text": "..."}, ...]`.

        Documents may be embeddings from `embed`, e.g. a memory-mapped .npy; then the results have no text.
        """
        query_list, is_single = as_text_list(queries)
        texts = None if isinstance(documents, np.ndarray) else as_text_list(documents)[0]
        vectors = documents if isinstance(documents, np.ndarray) else self.embed(texts or [], pooling)
        hits = to_hits(*semantic_search(self.embed(query_list, pooling), vectors, top_k), texts)
        return hits[0] if is_single else hits

    def fill(self, text: str, top_k: int = 5, candidates: Sequence[str] | None = None, together: bool = False) -> list[Any]:
        """For each [MASK] in the text, the most probable tokens: `[[{"word": "capital", "score": 0.71}, ...], ...]`.

        Masks are predicted independently; with `together`, one after another, the most confident first. With
        `candidates`, these are ranked for the single mask: `[{"word": "New York", "score": 0.9, "log": -4.1}, ...]`.
        """
        fill_mask = FillMask(self.runtime, self.tokenizer, self.length)
        if candidates is not None:
            return fill_mask.score_candidates(text, candidates)
        return fill_mask.fill_jointly(text, top_k) if together else fill_mask.fill(text, top_k)

    def generate(self, texts: str | Sequence[str], kind: str = "greedy", batch_tokens: int | None = None, **search: Any) -> Any:
        """Continuations by a causal model: `{"text": " and so on", "tokens": [...], "log": -12.3, "ended": False}`.

        `kind` is greedy, sample or beam, and `search` its settings: `generate("Once", kind="sample", top_p=0.9,
        max_new_tokens=50)`. The result for a text does not depend on the other texts of the call.
        """
        text_list, is_single = as_text_list(texts)
        config: GenerationConfig = from_dict(GenerationConfig, {"kind": kind, **search}, "generate")  # type: ignore[arg-type]
        results = CausalGenerator(self.runtime, self.tokenizer).generate(text_list, config, batch_tokens)
        return results[0] if is_single else results

    def likelihood(self, texts: str | Sequence[str], batch_tokens: int | None = None) -> Any:
        """Pseudo-log-likelihood (natural log) of each text: `{"total": -31.2, "per_token": -2.6, ...}`.

        A masked LM needs one forward pass per token; a causal model gives the log-likelihood itself in one.
        """
        text_list, is_single = as_text_list(texts)
        if is_causal_lm(self.model):
            results = CausalGenerator(self.runtime, self.tokenizer).log_likelihood(text_list, batch_tokens)
            return results[0] if is_single else results
        results = FillMask(self.runtime, self.tokenizer, self.length).pseudo_log_likelihood(text_list, batch_tokens)
        return results[0] if is_single else results

    def require_task(self) -> TaskConfig:
        """The task of the checkpoint; an error for a model that was only pre-trained."""
        if self.task is None:
            raise UserError(
                "this model was not fine-tuned for a task; `bertsmith finetune` does that, and .fill fills its masks"
            )
        return self.task


def load(folder: str | Path, device: str = "auto", precision: Precision = "auto") -> Predictor:
    """Load a checkpoint folder as a `Predictor`; `device="auto"` is a GPU if there is one."""
    path = resolve_path(folder, "folder")
    torch_device = resolve_device(device)
    model, tokenizer, card = checkpoint.load(path)
    record = checkpoint.read_config(path)
    task = from_dict(TaskConfig, record["task"], str(path / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    return Predictor(model.to(torch_device), tokenizer, card, task, record.get("max_length", 0), precision)
