"""A predictor: a folder's tokenizer, task and model behind one call, ready to answer."""

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
    """What `bertsmith.load` gives: it knows its tokenizer, task, labels and thresholds from the folder alone.

    `batch_tokens` anywhere is how many tokens of texts are read at once; if nobody says, what suits the device.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, card: dict[str, Any], task: TaskConfig | None = None, length: int = 0,
        precision: Precision = "auto",
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.card, self.task = model.eval(), tokenizer, card, task
        self.length = length or model.config.encoder.positions
        self.runtime = Runtime(model, precision)
        self.search: GenerationConfig | None = None  # how task=generate writes, if not as the task says

    def __call__(self, inputs: Any = None, text_pair: Any = None, /, *, batch_tokens: int | None = None, **fields: Any) -> Any:
        """The answer to one question, or a list of answers to several, as plain values.

        A question is a text (`model("a fine film")`), two (`model("a film", "a movie")`), or its fields by name:
        `model(question=..., context=...)`, `model(context=..., options=[...])`, `model(tokens=[...])`; several are a
        list of texts, or of dictionaries of such fields. A model without a task fills the masks of its texts, or writes
        on, if it reads from left to right.
        """
        if self.task is None and not fields and text_pair is None:
            texts, one = as_text_list(inputs)
            if is_causal_lm(self.model):
                return self.generate(inputs, batch_tokens=batch_tokens)
            filled = [self.fill(text) for text in texts]
            return filled[0] if one else filled
        task = self.require_task()
        some, one = parse_requests(task, inputs, text_pair, fields)
        answers = self.answers([each.example for each in some], batch_tokens)
        told = [each.to_dict(answer) for each, answer in zip(some, answers, strict=True)]
        return told[0] if one else told

    def answers(
        self, examples: Sequence[Any], batch_tokens: int | None = None, before: Sequence[Any] = (), after: Sequence[Any] = ()
    ) -> list[Any]:
        """One answer an example, in order; sequences of like length share a batch.

        `before` and `after` are examples around these that are not answered: a task that shows the document sees them.
        """
        task = self.require_task()
        if not examples:
            return []
        around = task.encode([*before, *examples, *after], self.tokenizer, self.length)
        encoded = around.select_examples(len(before), len(before) + len(examples))
        return task.decode(self.scores(encoded, batch_tokens), encoded, examples)

    def scores(self, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[np.ndarray]:
        """What the task's head says of each sequence (of each example, where its windows are joined); generate: ids written."""
        task = self.require_task()
        if isinstance(task, Seq2Seq):
            return list(generate_targets(self.runtime, self.tokenizer, task, encoded.input_ids, self.search, batch_tokens))
        bare = EncodedExamples(encoded.input_ids, encoded.token_type_ids, encoded.example_index, {}, encoded.metadata)
        reading, objective = (
            ExampleBatches(task, bare, batch_tokens or self.runtime.batch_tokens, 0, shuffle=False),
            build_task_objective(task),
        )
        assert not isinstance(objective, Seq2SeqObjective)
        found = dict[int, np.ndarray]()
        for chosen in reading.split_epoch(0):
            units = [reading.groups[i] for i in chosen]
            made = build_batch(task, bare, units, reading.pools_windows)
            with self.runtime.inference_context():
                rows = objective.compute_outputs(self.model, made.to(self.runtime.device)).float().cpu()
            numbers = [n for unit in units for n in unit if not reading.pools_windows or bare.metadata[n].number == 0]
            parts = rows.split(made.inputs.layout.lengths.tolist()) if task.head_type != "text" else rows
            found |= {int(number): part.numpy() for number, part in zip(numbers, parts, strict=True)}
        return [found[number] for number in sorted(found)]

    def embed(self, texts: str | Sequence[str], pool: Pooling | None = None, batch_tokens: int | None = None) -> Embeddings:
        """A vector a text, (texts, width), or (width,) of one; pooled as the model was taught, by the mean if it was not."""
        some, one = as_text_list(texts)
        pool = self.pool if pool is None else pool
        if pool not in get_args(Pooling):
            raise UserError(f"pool={pool} is not known; write {' or '.join(get_args(Pooling))}")
        long = (self.task.long, self.task.stride) if isinstance(self.task, TextSimilarity) else ()
        encoded = encode_pairs([(text, None) for text in some], self.tokenizer, self.length, *long)
        ids = encoded.input_ids
        vectors = np.zeros((len(ids), self.model.config.encoder.width), np.float32)
        for chosen in self.runtime.batch_by_length(np.array([len(text) for text in ids], np.int64), batch_tokens):
            with self.runtime.inference_context():
                hidden, layout = self.runtime.compute_hidden_states([ids[i] for i in chosen])
                vectors[chosen] = pool_tokens(hidden, layout, pool, self.model.config.encoder.is_causal).float().cpu().numpy()
        if len(ids) > len(some):  # the windows of a long text, as one
            vectors = average_windows(vectors, replace(encoded, metadata=[]), len(some)).astype(np.float32)
        return vectors[0] if one else vectors

    @property
    def pool(self) -> Pooling:
        return self.task.pool if isinstance(self.task, TextSimilarity) else "mean"

    def nearest(
        self, queries: str | Sequence[str], documents: Sequence[str] | NDArray[Any], top: int = 5, pool: Pooling | None = None
    ) -> list[Any]:
        """The documents likest each query, best first: `[{"row": 12, "score": 0.83, "text": "..."}, ...]`.

        Documents may be vectors that `embed` made, mapped from a file if they are many; then there is no text to tell.
        """
        some, one = as_text_list(queries)
        texts = None if isinstance(documents, np.ndarray) else as_text_list(documents)[0]
        vectors = documents if isinstance(documents, np.ndarray) else self.embed(texts or [], pool)
        found = to_hits(*semantic_search(self.embed(some, pool), vectors, top), texts)
        return found[0] if one else found

    def fill(self, text: str, top: int = 5, candidates: Sequence[str] | None = None, together: bool = False) -> list[Any]:
        """For each [MASK] in the text, the likeliest words: `[[{"word": "capital", "score": 0.71}, ...], ...]`.

        Masks are filled each as if the others stayed; `together`, the surest first, and the next ones knowing it. Or the
        `candidates` for the one mask, likeliest first: `[{"word": "New York", "score": 0.9, "log": -4.1}, ...]`.
        """
        words = FillMask(self.runtime, self.tokenizer, self.length)
        if candidates is not None:
            return words.score_candidates(text, candidates)
        return words.fill_jointly(text, top) if together else words.fill(text, top)

    def generate(self, texts: str | Sequence[str], kind: str = "greedy", batch_tokens: int | None = None, **search: Any) -> Any:
        """What a causal model writes on: `{"text": " and so on", "tokens": [...], "log": -12.3, "ended": False}`.

        `kind` is greedy, sample or beam, and `search` what that takes: `generate("Once", kind="sample", top_p=0.9,
        tokens=50)`. A text is continued alike whatever else is asked with it.
        """
        some, one = as_text_list(texts)
        chosen: GenerationConfig = from_dict(GenerationConfig, {"kind": kind, **search}, "generate")  # type: ignore[arg-type]
        found = CausalGenerator(self.runtime, self.tokenizer).generate(some, chosen, batch_tokens)
        return found[0] if one else found

    def likelihood(self, texts: str | Sequence[str], batch_tokens: int | None = None) -> Any:
        """How likely the model finds each text, every token hidden alone: `{"total": -31.2, "per_token": -2.6, ...}`.

        Natural logarithms. It takes a reading of a text for each of its tokens; of a causal model, which gives the
        probability of the text itself, only one.
        """
        some, one = as_text_list(texts)
        if is_causal_lm(self.model):
            told = CausalGenerator(self.runtime, self.tokenizer).log_likelihood(some, batch_tokens)
            return told[0] if one else told
        found = FillMask(self.runtime, self.tokenizer, self.length).pseudo_log_likelihood(some, batch_tokens)
        return found[0] if one else found

    def require_task(self) -> TaskConfig:
        """Its task; a model that was only pre-trained has none."""
        if self.task is None:
            raise UserError(
                "this model was not fine-tuned for a task; `bertsmith finetune` does that, and .fill fills its masks"
            )
        return self.task


def load(folder: str | Path, device: str = "auto", precision: Precision = "auto") -> Predictor:
    """The model in a checkpoint folder, ready to answer: on a GPU where there is one, or where `device` says."""
    path = resolve_path(folder, "folder")
    where = resolve_device(device)
    model, tokenizer, card = checkpoint.load(path)
    record = checkpoint.read_config(path)
    task = from_dict(TaskConfig, record["task"], str(path / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    return Predictor(model.to(where), tokenizer, card, task, record.get("length", 0), precision)
