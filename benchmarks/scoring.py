"""One job of `scores`: one task, library and seed, fine-tuned and evaluated; the last line printed is its JSON result.

Both libraries get the same examples and initial weights, make as many updates, and are scored by the same metrics.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from bertsmith import api
from bertsmith.config import Config, NonNegFloat, PosFloat, PosInt, from_dict, to_dict
from bertsmith.tasks import QuestionAnswering, TextClassification, TextRegression, TokenClassification
from bertsmith.tasks.base import EncodedExamples
from bertsmith.tasks.classification import ClassificationPrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction
from bertsmith.tasks.regression import RegressionPrediction
from bertsmith.tasks.token_classification import TokenClassificationPrediction, TokenWindow
from bertsmith.tokenization.tokenizer import Tokenizer

from . import peer
from .batches import find_batch_tokens

Task = TextClassification | TextRegression | TokenClassification | QuestionAnswering


class Case(Config, frozen=True):
    """A table of the suite: a task, its files and hyper-parameters."""

    task: Annotated[Task, "as in finetune"]
    train: Annotated[str, "training file"]
    dev: Annotated[str, "evaluation file"]
    model: Annotated[str, "Hugging Face folder of the pre-trained model"]
    metric: Annotated[str, "metric to compare"]
    columns: Annotated[dict[str, str], "column names: { text = NAME, text_b = NAME, label = NAME }"] = msgspec.field(
        default_factory=dict
    )
    max_length: Annotated[PosInt, "maximum sequence length, in tokens"] = 128
    batch_size: Annotated[PosInt, "batch size, in sequences"] = 32
    learning_rate: Annotated[PosFloat, "initial learning rate"] = 5e-5
    epochs: Annotated[PosFloat, "passes over the training file"] = 3.0
    overlap: Annotated[PosInt, "overlap of context windows in tokens, for transformers"] = 128
    attention_dropout: Annotated[NonNegFloat, "attention dropout in both libraries"] = 0.0


class ScoringJob(Config, frozen=True):
    """One case with one library and one seed, for one process."""

    case: Case
    library: Annotated[Literal["bertsmith", "transformers"], "library to train with"]
    model: Annotated[str, "the weights, in the library's own format"]
    folder: Annotated[str, "to work in"]
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"


class TrainedSide(NamedTuple):
    """A fine-tuned model of one library, with its predictions on the evaluation examples."""

    predict: Callable[[bool], list[Any]]  # argument: whether to decode tags under the constraints of the scheme
    train_seconds: float
    num_updates: int


def run_job(job: ScoringJob) -> dict[str, Any]:
    """Scores and training examples per second."""
    case = job.case
    task: Any = from_dict(Task, to_dict(case.task) | ({"columns": case.columns} if case.columns else {}), "task")  # type: ignore[arg-type]
    train_examples, eval_examples = list(task.read(Path(case.train))), list(task.read(Path(case.dev)))
    task = task.fit(train_examples)
    train = train_ours if job.library == "bertsmith" else train_theirs
    trained = train(job, task, train_examples, eval_examples)
    predictions = trained.predict(
        job.library == "bertsmith" and getattr(task, "constrained_decoding", False)
    )  # transformers' script uses argmax
    speed = {"examples_per_second": case.epochs * len(train_examples) / trained.train_seconds, "updates": trained.num_updates}
    return {
        **task.compute_metrics(predictions, eval_examples),
        **_seqeval_f1(task, predictions, eval_examples),
        **score_decodings(task, trained, eval_examples),
        **speed,
    }


def score_decodings(task: Any, trained: TrainedSide, eval_examples: Sequence[Any]) -> dict[str, float]:
    """For tagging, the score with argmax per token and with decoding constrained by the tag scheme; {} for other tasks.

    With both for both libraries, the effects of training and of decoding can be separated.
    """
    if not isinstance(task, TokenClassification):
        return {}
    metrics = {
        name: task.compute_metrics(trained.predict(constrained), eval_examples)
        for name, constrained in (("argmax", False), ("constrained", True))
    }
    return {name: scores.get("f1", scores["accuracy"]) for name, scores in metrics.items()}


def _with_decoding(task: Any, constrained: bool) -> Any:
    return msgspec.structs.replace(task, constrained_decoding=constrained) if isinstance(task, TokenClassification) else task


def train_ours(job: ScoringJob, task: Any, train_examples: Sequence[Any], eval_examples: Sequence[Any]) -> TrainedSide:
    case, out = job.case, Path(job.folder) / "out"
    encoded = task.encode(train_examples, Tokenizer.load(Path(job.model) / "tokenizer.json"), case.max_length)
    train = {
        "epochs": case.epochs,
        "batch_tokens": find_batch_tokens(task, encoded, case.batch_size),
        "learning_rate": case.learning_rate,
        "warmup_steps": 0.0,
    }
    train |= {"weight_decay": 0.0, "optimizer": {"kind": "adamw", "eps": 1e-8}, "save_every": 10**9}
    train |= {"device": job.device, "precision": job.precision}
    data = {"train": case.train, "columns": case.columns}
    result = api.finetune(task=to_dict(task), model=job.model, data=data, out=str(out), max_length=case.max_length, train=train,
                        seed=job.seed, quiet=True)  # fmt: skip
    predictor = api.load(out)
    predictor.model.to(job.device)
    trained_task = predictor.require_task()
    encoded_eval = trained_task.encode(eval_examples, predictor.tokenizer, predictor.max_length)
    scores = predictor.compute_outputs(encoded_eval)
    return TrainedSide(
        lambda constrained: _with_decoding(trained_task, constrained).decode(scores, encoded_eval, eval_examples),
        result["seconds"],
        result["step"],
    )


def train_theirs(job: ScoringJob, task: Any, train_examples: Sequence[Any], eval_examples: Sequence[Any]) -> TrainedSide:
    case, folder = job.case, Path(job.model)
    kind, tokenizer = to_dict(task)["kind"], peer.load_tokenizer(folder)
    encode = lambda examples: _encode_features(case, kind, task, tokenizer, examples)
    model = peer.load_model(kind, folder, task.num_outputs, case.attention_dropout, job.seed)
    train_features, device_settings = encode(train_examples), {"device": job.device, "precision": job.precision}
    trainer = peer.build_trainer(model, tokenizer, train_features, Path(job.folder) / "theirs", seed=job.seed,
                           learning_rate=case.learning_rate, num_train_epochs=case.epochs,
                           per_device_train_batch_size=case.batch_size, per_device_eval_batch_size=64,
                           **device_settings)  # fmt: skip
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    eval_features = encode(eval_examples)
    scores = trainer.predict(eval_features).predictions
    predict = lambda constrained: DECODERS[kind](_with_decoding(task, constrained), eval_features, scores, eval_examples)
    return TrainedSide(predict, seconds, trainer.state.global_step)


def _encode_features(case: Case, kind: str, task: Any, tokenizer: Any, examples: Sequence[Any]) -> list[peer.Feature]:
    if kind == "answer":
        return peer.encode_windows(tokenizer, examples, case.max_length, case.overlap)
    encode = peer.encode_words if kind == "tag" else peer.encode_texts
    return encode(tokenizer, examples, case.max_length, task.labels if kind != "regress" else ())


def _decode_labels(task: Any, features: Any, scores: Any, examples: Any) -> list[ClassificationPrediction]:
    return [ClassificationPrediction(task.labels[int(row.argmax())], {}) for row in scores]


def _decode_values(task: Any, features: Any, scores: Any, examples: Any) -> list[RegressionPrediction]:
    return [RegressionPrediction(float(value)) for value in np.asarray(scores).reshape(-1)]


def _decode_tags(task: Any, features: Any, scores: Any, examples: Any) -> list[TokenClassificationPrediction]:
    """Tags by word; a word that was truncated or has no subword is O."""
    first_subwords = [
        [(word, position) for position, word in enumerate(feature["words"]) if word is not None] for feature in features
    ]
    windows = [TokenWindow(*np.array(pairs, np.int64).reshape(-1, 2).T) for pairs in first_subwords]
    return task.decode(scores, EncodedExamples([], [], np.arange(len(windows)), metadata=windows), examples)


def _decode_answers(task: Any, features: Any, scores: Any, examples: Any) -> list[QuestionAnsweringPrediction]:
    spans = peer.find_best_spans(
        features, *scores, num_examples=len(examples), max_answer_length=task.max_answer_length, n_best_size=task.n_best_size
    )
    texts = [example.context[slice(*span)] if span else "" for example, span in zip(examples, spans, strict=True)]
    return [
        QuestionAnsweringPrediction(text, *(span or (None, None)), 0.0, 0.0, ())
        for text, span in zip(texts, spans, strict=True)
    ]


DECODERS: dict[str, Callable[..., list[Any]]] = {
    "classify": _decode_labels, "regress": _decode_values, "tag": _decode_tags, "answer": _decode_answers
}  # fmt: skip


def _seqeval_f1(task: Any, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
    """F1 by seqeval, where it is installed, as a check of our own."""
    if not isinstance(task, TokenClassification):
        return {}
    try:
        from seqeval.metrics import f1_score
    except ImportError:
        return {}
    return {"seqeval": float(f1_score([list(example.tags) for example in examples], [list(answer.tags) for answer in answers]))}


if __name__ == "__main__":
    print("\n" + json.dumps(run_job(from_dict(ScoringJob, json.loads(sys.argv[1]), "the job"))))
