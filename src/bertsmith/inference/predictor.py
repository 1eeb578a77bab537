"""`Predictor`: model, tokenizer and task of a checkpoint folder behind one call; `load` reads the folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from ..artifacts import atomic_folder, resolve_path
from ..config import from_dict, to_dict
from ..errors import UserError
from ..model.folder import read_config
from ..model.generation.config import GenerationConfig, Greedy
from ..tasks import Task, TaskConfig
from ..tasks.base import EncodedExamples
from ..tasks.requests import as_text_list, parse_requests
from ..tasks.sequences import average_windows, encode_pairs, encode_texts
from ..tasks.similarity import Pooling, normalize_rows, semantic_search, to_hits
from ..tokenization.tokenizer import Tokenizer
from ..writing import check_writable, lock_output, resolve_output
from .engines.base import Backend, Engine, Precision
from .engines.choice import open_folder
from .engines.folder import is_installed
from .fill_mask import FilledMasks, FillMask, Predictions
from .framed_texts import encode_framed
from .search_config import build_search_config

if TYPE_CHECKING:
    import torch

    from ..model.model import Model
    from ..tasks import Seq2Seq
    from .engines.torch import TorchEngine
    from .text_generation import CausalGenerator

Embeddings = NDArray[np.float32]

MAX_LABELS_SHOWN = 6  # in the representation of a predictor


class TokenVectors(NamedTuple):
    """Hidden states of one text, [CLS] and [SEP] included."""

    tokens: list[str]
    offsets: NDArray[np.int64]  # (tokens, 2): characters [start, end) of each token in the text; 0, 0 for [CLS] and [SEP]
    vectors: Embeddings  # (tokens, hidden_size)


class Predictor:
    """What `bertsmith.load` returns: a model with its tokenizer, and the task, labels and thresholds it was fine-tuned with.

    Methods return their results and print nothing. Where a method takes several texts, they may be a list, tuple, NumPy
    array, pandas Series or generator; one text gives one result, several give a list in the same order. `batch_tokens` is the
    number of tokens in a batch; the default depends on the device.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, card: dict[str, Any], task: Task | None = None, max_length: int = 0,
        config: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`config` is what config.json of the folder records beside the model; `save` writes it again."""
        self.engine, self.tokenizer, self.card, self.task = engine, tokenizer, card, task
        self.max_length = max_length or engine.facts.max_position_embeddings
        self.config = config or {}
        self.generation_config: GenerationConfig | None = None  # overrides the decoding settings of task=generate

    def __call__(
        self, inputs: Any = None, text_pair: Any = None, /, *, top_k: int | None = None, batch_tokens: int | None = None,
        **fields: Any,
    ) -> Any:  # fmt: skip
        """The answer for one input, or a list of answers for several, as JSON-compatible values.

        An input is a text (`model("a fine film")`), a pair (`model("a film", "a movie")`), or fields by name:
        `model(question=..., context=...)`, `model(context=..., options=[...])`, `model(tokens=[...])`. Several inputs are
        texts, dictionaries of such fields, or a data frame with a column for each field (`text`, `text_b`). A model without a
        task fills masks, or continues the text if it is a causal language model.

        | task | answer |
        |---|---|
        | classify | `{"label", "score", "scores"}`; multi_label: `{"labels": [{"label", "score"}], "scores"}` |
        | regress, similar | `{"score"}` |
        | tag | `[{"entity_group", "score", "word", "start", "end"}]` |
        | answer | `{"answer", "score", "start", "end"}`; with `top_k` also `"candidates"` |
        | choose | `{"choice", "score", "scores"}` |
        | generate | `{"generated_text"}` |

        Args:
            top_k: number of tokens for each mask (default 5), of labels in `scores`, or of candidate answers
        """
        if self.task is None and not fields and text_pair is None:
            return self._call_language_model(inputs, top_k, batch_tokens)
        task = self.require_task()
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise UserError(f"top_k={top_k} is not a number of results; give 1 or more")
        examples, is_single = parse_requests(task, inputs, text_pair, fields)
        predictions = self.predict_examples(examples, batch_tokens)
        answers = [task.to_answer(*pair, top_k) for pair in zip(predictions, examples, strict=True)]
        return answers[0] if is_single else answers

    def predict_examples(
        self, examples: Sequence[Any], batch_tokens: int | None = None, before: Sequence[Any] = (), after: Sequence[Any] = ()
    ) -> list[Any]:
        """One `Prediction` per example of the task, in order; sequences of similar length share a batch.

        `before` and `after` are neighboring examples that serve only as document context, for tasks that use it.
        """
        task = self.require_task()
        if not examples:
            return []
        all_encoded = task.encode([*before, *examples, *after], self.tokenizer, self.max_length)
        encoded = all_encoded.select_examples(len(before), len(before) + len(examples))
        return task.decode(self.compute_outputs(encoded, batch_tokens), encoded, examples)

    def compute_outputs(self, encoded: EncodedExamples, batch_tokens: int | None = None) -> list[np.ndarray]:
        """Outputs of the task's head per sequence (per example, where windows are pooled); for task=generate, generated ids."""
        task = self.require_task()
        if task.head_type == "lm":
            engine, search = self.require_torch("text generation"), self.generation_config
            from .text_generation import generate_targets

            return list(
                generate_targets(engine, self.tokenizer, cast("Seq2Seq", task), encoded.input_ids, search, batch_tokens)
            )
        unlabelled = EncodedExamples(encoded.input_ids, encoded.token_type_ids, encoded.example_index, {}, encoded.metadata)
        return self.engine.task_outputs(task, unlabelled, batch_tokens)

    def embed(
        self, texts: str | Iterable[str], pooling: Pooling | None = None, batch_tokens: int | None = None,
        prompt_name: str | None = None, dimensions: int | None = None,
    ) -> Embeddings:  # fmt: skip
        """Sentence embeddings, float32 (texts, embedding_size), or (embedding_size,) for a single text.

        `pooling` is "mean" or "cls"; the default is `self.pooling`. The mean of word vectors (a model without layers) is over
        the known words of the text, without [CLS] and [SEP]; zero if there is none. `prompt_name` is one of the prompts of a
        model that has them (`query`, `passage`), put before each text; the default is the model's own. With
        `dimensions`, the first so many components of each vector, scaled to L2 norm 1: for models trained so
        (`task.matryoshka_dims`), such as mini-en-embed, whose first 64, 128 or 256 are embeddings themselves.
        """
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= self.embedding_size):
            raise UserError(f"dimensions={dimensions} is not a number from 1 to {self.embedding_size}, the size of the vectors")
        text_list, is_single = as_text_list(texts)
        if prompt := (self.task or Task()).find_prompt(prompt_name):
            text_list = [prompt + text for text in text_list]
        pooling = self.pooling if pooling is None else pooling
        if pooling not in get_args(Pooling):
            raise UserError(f"pooling={pooling} is not known; choose {' or '.join(get_args(Pooling))}")
        if pooling == "mean" and self.task is None and (table := self.engine.vector_table) is not None:
            vectors = self._mean_vectors(table, text_list)
            vectors = vectors if dimensions is None else normalize_rows(vectors[:, :dimensions])
            return vectors[0] if is_single else vectors
        options = {} if self.task is None else self.task.embedding_options
        encoded = encode_pairs([(text, None) for text in text_list], self.tokenizer, self.max_length, **options)
        ids = encoded.input_ids
        if pooling == "mean" and not self.engine.facts.num_hidden_layers:
            ids = [sequence[1:-1][sequence[1:-1] != self.tokenizer.unk_token_id] for sequence in ids]
        nonempty = np.flatnonzero([len(sequence) for sequence in ids])
        vectors = np.zeros((len(ids), self.embedding_size), np.float32)
        for positions in self.engine.batch_by_length(np.array([len(ids[i]) for i in nonempty], np.int64), batch_tokens):
            batch = nonempty[positions]
            vectors[batch] = self.engine.embed([ids[i] for i in batch], pooling)
        if len(ids) > len(text_list):  # windows of long texts: one vector per text
            vectors = average_windows(vectors, replace(encoded, metadata=[]), len(text_list)).astype(np.float32)
        vectors = vectors[:, :dimensions]
        if dimensions is not None or getattr(self.task, "normalize", False):
            vectors = normalize_rows(vectors)
        return vectors[0] if is_single else vectors

    def _mean_vectors(self, table: Embeddings, texts: Sequence[str]) -> Embeddings:
        """The mean of the vectors of each text's known words, in microseconds; zero if there is none."""
        vectors, unknown = np.zeros((len(texts), table.shape[1]), np.float32), self.tokenizer.unk_token_id
        for vector, text_ids in zip(vectors, encode_texts(texts, self.tokenizer), strict=True):
            ids = [i for i in text_ids[: self.max_length - 2] if i != unknown]
            if ids:
                np.add.reduce(table[ids], 0, out=vector)
                vector /= len(ids)
        return vectors

    def hidden_states(self, texts: str | Iterable[str], batch_tokens: int | None = None) -> Any:
        """Last hidden states of every token, as `TokenVectors(tokens, offsets, vectors)` per text.

        Texts are truncated to `max_length` tokens, [CLS] and [SEP] included.

        Example:
            >>> tokens, offsets, vectors = model.hidden_states("a fine film")
            >>> vectors.shape  # (5, hidden_size): [CLS] a fine film [SEP]
        """
        text_list, is_single = as_text_list(texts)
        encoded = encode_framed(self.tokenizer, text_list, self.max_length)
        ids = [text.ids for text in encoded]
        vectors: dict[int, Embeddings] = {}
        for batch in self.engine.batch_by_length(np.array([len(text) for text in ids], np.int64), batch_tokens):
            vectors |= zip(batch.tolist(), self.engine.hidden_states([ids[i] for i in batch]), strict=True)
        results = [TokenVectors(text.tokens, text.offsets, vectors[index]) for index, text in enumerate(encoded)]
        return results[0] if is_single else results

    def attentions(self, texts: str | Iterable[str], batch_tokens: int | None = None) -> Any:
        """Attention weights of every layer and head, as `TokenAttentions(tokens, offsets, weights)` per text.

        `weights[layer, head, i, j]` is how much token i attends to token j, as in transformers' `output_attentions`; rows
        sum to 1. Texts are truncated to `max_length` tokens, [CLS] and [SEP] included. Recurrent and convolutional models
        have none.

        Example:
            >>> tokens, offsets, weights = model.attentions("a fine film")
            >>> weights.shape  # (layers, heads, 5, 5): [CLS] a fine film [SEP]
        """
        engine = self.require_torch("attentions")
        from .attentions import compute_attentions

        text_list, is_single = as_text_list(texts)
        encoded = encode_framed(self.tokenizer, text_list, self.max_length)
        results = compute_attentions(engine, encoded, batch_tokens)
        return results[0] if is_single else results

    def attributions(self, inputs: Any, text_pair: Any = None, /, *, target: str | None = None) -> Any:
        """Integrated gradients: how much each token adds to the probability of an answer, as `TokenAttributions` per text.

        The values sum to the difference between the probability of `target` for the text and for a baseline whose token
        embeddings are zero (Sundararajan et al. 2017). `target` is a label, or the token at the only [MASK] of a masked LM; the
        default is what the model answers. A regression attributes its number. Inputs are texts or pairs, as in a call.

        Example:
            >>> result = model.attributions("a fine film")
            >>> dict(zip(result.tokens, result.values))  # {"[CLS]": 0.0, "a": 0.02, "fine": 0.41, ...}
        """
        engine = self.require_torch("attributions")
        from .attributions import attribute_masks, attribute_task

        if self.task is None:
            FillMask(self.engine, self.tokenizer, self.max_length)  # raises UserError for a model that fills no masks
            texts, is_single = as_text_list(inputs)
            results = attribute_masks(engine, self.tokenizer, self.max_length, texts, target)
        else:
            examples, is_single = parse_requests(self.task, inputs, text_pair, {})
            results = attribute_task(engine, self.tokenizer, self.task, self.max_length, examples, target)
        return results[0] if is_single else results

    def alignments(
        self, texts: str | Iterable[str], targets: str | Iterable[str] | None = None, batch_tokens: int | None = None
    ) -> Any:
        """Which source tokens the decoder attends to, as `Alignment(source_tokens, target_tokens, weights)` per text.

        For encoder-decoders (task=generate). `weights[layer, head, i, j]` is how much the decoder attends to source token j
        when it predicts target token i; an RNN decoder has one layer and one head (Bahdanau et al. 2015, figure 3). The target
        is what the model generates, or `targets`.
        """
        engine = self.require_torch("alignments")
        from .attentions import compute_alignments

        text_list, is_single = as_text_list(texts)
        task, target_list = self.require_task(), None if targets is None else as_text_list(targets)[0]
        if task.head_type != "lm":
            raise UserError(f"alignments are between source and target; task={task.__struct_config__.tag} has no target text")
        results = compute_alignments(
            engine, self.tokenizer, cast("Seq2Seq", task), text_list, target_list, self.max_length, batch_tokens
        )
        return results[0] if is_single else results

    def nearest(
        self,
        queries: str | Iterable[str],
        documents: Iterable[str] | NDArray[Any],
        top_k: int = 5,
        pooling: Pooling | None = None,
    ) -> list[Any]:
        """Semantic search: the most similar documents for each query, best first.

        One hit is `{"corpus_id": 12, "score": 0.83, "text": "..."}`: index of the document, cosine similarity and text.
        Documents may be embeddings from `embed`, e.g. a memory-mapped .npy; then the hits have no text.
        """
        query_list, is_single = as_text_list(queries)
        if isinstance(documents, np.ndarray) and documents.dtype.kind == "f":
            texts, vectors = None, documents
        else:
            texts = as_text_list(documents)[0]
            vectors = self.embed(texts, pooling, prompt_name=self.search_prompts[1])
        queries = self.embed(query_list, pooling, prompt_name=self.search_prompts[0])
        hits = to_hits(*semantic_search(queries, vectors, top_k), texts)
        return hits[0] if is_single else hits

    def fill(
        self, texts: str | Iterable[str], top_k: int = 5, candidates: Sequence[str] | None = None, iterative: bool = False
    ) -> Any:
        """The most probable tokens for [MASK]: a list of rows for one mask, a list of lists for several; of each text.

        A row is `{"score": 0.71, "token": 3007, "token_str": "capital", "sequence": "..."}`, as in transformers' fill-mask:
        the probability, the id and the text of the token, and the text with the token in it. Masks are predicted
        independently; with `iterative`, one after another, the most confident first. With `candidates`, these are ranked for
        the single mask: `{"score": 0.9, "token_str": "New York", "log_prob": -4.1, "sequence": "..."}`, where the scores of all
        candidates sum to 1.
        """
        text_list, is_single = as_text_list(texts)
        fill_mask = FillMask(self.engine, self.tokenizer, self.max_length)

        def fill_one(text: str) -> FilledMasks | Predictions:
            if candidates is not None:
                return fill_mask.score_candidates(text, candidates)
            return fill_mask.fill_jointly(text, top_k) if iterative else fill_mask.fill(text, top_k)

        results = [fill_one(text) for text in text_list]
        return results[0] if is_single else results

    def generate(self, texts: str | Iterable[str], kind: str = "greedy", batch_tokens: int | None = None, **search: Any) -> Any:
        """Continuations of texts by a causal language model.

        `{"generated_text": " and so on", "token_ids": [...], "log_prob": -12.3, "finish_reason": "length"}`: the continuation
        without the text itself, its log-probability, and "eos_token" where the model ended it or "length" where the limit did.
        `kind` is greedy, sample or beam, and `search` its settings: `generate("Once", kind="sample", top_p=0.9,
        max_new_tokens=50)`. The result for a text does not depend on the other texts of the call; sampling gives each copy of
        a text another result, so `generate(["Once"] * 5, kind="sample")` are five samples.
        """
        text_list, is_single = as_text_list(texts)
        config: GenerationConfig = from_dict(GenerationConfig, {"kind": kind, **search}, "generate")  # type: ignore[arg-type]
        results = self._causal_generator().generate(text_list, config, batch_tokens)
        return results[0] if is_single else results

    def stream(self, text: str, kind: str = "greedy", **search: Any) -> Iterator[str]:
        """The text that a causal language model or a model with task=generate generates, in pieces as they come.

        `kind` is greedy or sample, and `search` its settings, as in `generate`. The concatenation of all pieces is the
        `generated_text` that is generated at once with these settings.

        Example:
            >>> for piece in model.stream("Once upon a time", kind="sample", top_p=0.9):
            ...     print(piece, end="", flush=True)
        """
        if not isinstance(text, str):
            raise UserError("stream takes one text; call generate for several")
        task = self._generation_task
        settings = {"kind": kind, **({"max_new_tokens": task.max_target_length} if task else {}), **search}
        config: GenerationConfig = from_dict(GenerationConfig, settings, "stream")  # type: ignore[arg-type]
        if task is not None:
            engine = self.require_torch("text generation")
            from .text_generation import stream_target

            return stream_target(engine, self.tokenizer, task, text, self.max_length, config)
        return self._causal_generator().stream(text, config)

    @property
    def default_search(self) -> GenerationConfig | None:
        """The decoding settings unless others are given; None for a model that does not generate text."""
        if self.task is None:
            return Greedy() if self.is_causal_lm else None
        return build_search_config(self._generation_task) if self._generation_task else None

    def likelihood(self, texts: str | Iterable[str], batch_tokens: int | None = None) -> Any:
        """Log-likelihood of each text under the model: pseudo-log-likelihood for a masked LM (Salazar et al. 2020).

        `{"log_prob": -31.2, "log_prob_per_token": -2.6, "log_prob_per_word": -3.9, "num_tokens": 12, "num_words": 8}`, with
        natural logarithms. A masked LM needs one forward pass per token, a causal model one per text.
        """
        text_list, is_single = as_text_list(texts)
        if self.is_causal_lm:
            results = self._causal_generator().log_likelihood(text_list, batch_tokens)
            return results[0] if is_single else results
        results = FillMask(self.engine, self.tokenizer, self.max_length).pseudo_log_likelihood(text_list, batch_tokens)
        return results[0] if is_single else results

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of task=classify (in the order of the logits) or tags of task=tag; empty for other tasks."""
        return getattr(self.task, "labels", ())

    @property
    def model(self) -> "Model":
        """The torch module of the model."""
        return self.require_torch("model").model

    @property
    def device(self) -> Any:
        """Where the model computes: a torch.device, or "cpu" with backend=onnx or openvino."""
        return self.engine.device

    @property
    def hidden_size(self) -> int:
        """Size of the vectors of `hidden_states`."""
        return self.engine.facts.hidden_size

    @property
    def is_causal_lm(self) -> bool:
        """Whether the model continues texts: a causal decoder-only model with a language-model head."""
        return self.engine.facts.is_causal_lm

    @property
    def pooling(self) -> Pooling:
        """Default pooling of `embed`: that of task=similar, otherwise mean."""
        pooling: Pooling = getattr(self.task, "pooling", "mean")
        return pooling

    @property
    def num_parameters(self) -> int | None:
        """Number of weights; None where the folder does not say."""
        return self.engine.num_parameters

    def to(self, device: "str | torch.device") -> "Predictor":
        """Move the model to a device ("cpu", "cuda", "cuda:1", "auto") in place; returns the predictor."""
        model = self.model
        from ..device import resolve_device

        model.to(resolve_device(str(device)))
        return self

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint folder that `load` reads, with tokenizer, task and card; an existing folder is not overwritten."""
        model, path = self.model, resolve_output(folder, "folder")
        from ..model import checkpoint

        task = {} if self.task is None else {"task": to_dict(self.task)}
        config = {name: value for name, value in self.config.items() if name != "model"} | task
        config["max_length"] = self.max_length
        with lock_output(path), atomic_folder(check_writable(path)) as staging:
            checkpoint.write_files(staging, model, self.tokenizer, self.card, config, as_int8="weights" in self.config)
        return path

    @property
    def embedding_size(self) -> int:
        """Dimension of what `embed` returns: the hidden size, or that of the last dense layer after the pooling."""
        return self.engine.facts.embedding_size

    def require_task(self) -> Task:
        """The task of the checkpoint; an error for a model that was only pre-trained."""
        if self.task is None:
            raise UserError("this model was not fine-tuned for a task; run `bertsmith finetune`, or fill masks with .fill")
        return self.task

    @property
    def search_prompts(self) -> tuple[str | None, str | None]:
        """Names of the prompts that `nearest` puts before queries and before documents; None: the default prompt."""
        return (self.task or Task()).search_prompts

    def require_torch(self, feature: str) -> "TorchEngine":
        """The model in torch, which is loaded for it if another engine computed it so far."""
        engine = self.engine.as_torch()
        if engine is None:
            way_out = "this folder has no weights for it; load the exported checkpoint"
            if not is_installed("torch"):
                way_out = "it is not installed: pip install 'bertsmith[train]'"
            raise UserError(f"{feature} needs torch, and {way_out}")
        self.engine = engine  # answers from now on: its weights may be changed
        return engine

    def _call_language_model(self, inputs: Any, top_k: int | None, batch_tokens: int | None) -> Any:
        texts, is_single = as_text_list(inputs)
        if self.is_causal_lm:
            if top_k is not None:
                raise UserError(f'top_k={top_k} is an option of sampling; use .generate(text, kind="sample", top_k={top_k})')
            return self.generate(inputs if is_single else texts, batch_tokens=batch_tokens)
        filled = [self.fill(text, 5 if top_k is None else top_k) for text in texts]
        return filled[0] if is_single else filled

    def __repr__(self) -> str:
        return f"Predictor({', '.join(f'{name}={value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._summary().items())
        return f"<table>{''.join(rows)}</table>"

    def _summary(self) -> dict[str, str]:
        """What identifies a loaded model, by name."""
        task = "none" if self.task is None else self.task.__struct_config__.tag
        labels = ", ".join(self.labels[:MAX_LABELS_SHOWN])
        if len(self.labels) > MAX_LABELS_SHOWN:
            labels += f", ... ({len(self.labels)})"
        summary = {"task": str(task)} | ({"labels": f"[{labels}]"} if labels else {})
        summary |= {} if self.num_parameters is None else {"parameters": f"{self.num_parameters:,}"}
        return summary | {
            "backend": self.engine.backend, "device": str(self.device), "precision": self.engine.compute_precision
        }  # fmt: skip

    @property
    def _generation_task(self) -> "Seq2Seq | None":
        """The task, if its model generates text."""
        return self.task if self.task is not None and self.task.head_type == "lm" else None  # type: ignore[return-value]

    def _causal_generator(self) -> "CausalGenerator":
        engine = self.require_torch("text generation")
        from .text_generation import CausalGenerator

        return CausalGenerator(engine, self.tokenizer)


def load(
    folder: str | Path, backend: Backend = "auto", precision: Precision = "auto", device: str = "auto"
) -> Predictor:  # fmt: skip
    """Load a checkpoint or exported folder as a `Predictor`; the arguments are those of `bertsmith.load`."""
    path = resolve_path(folder, "folder")
    engine, tokenizer, card = open_folder(path, backend, precision, device)
    config = read_config(path)
    task = from_dict(TaskConfig, config["task"], str(path / "config.json")) if "task" in config else None  # type: ignore[arg-type]
    return Predictor(engine, tokenizer, card, task, config.get("max_length", 0), config)
