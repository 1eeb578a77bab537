"""One task, one side, one seed: fine-tuned on the training file, judged on the other; a line of JSON is printed last.

Both sides read the same examples, begin with the same weights, make as many updates and are judged by the same scorer.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
    """A table of the suite: a task, its files and how it is learnt."""

    task: Annotated[Task, "as in finetune"]
    train: Annotated[str, "the file to learn from"]
    dev: Annotated[str, "the file to be judged on"]
    model: Annotated[str, "the Hugging Face folder to begin from"]
    metric: Annotated[str, "the score that is compared"]
    columns: Annotated[dict[str, str], "what text, text_b and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    length: Annotated[PosInt, "longest sequence"] = 128
    batch: Annotated[PosInt, "sequences of an update"] = 32
    rate: Annotated[PosFloat, "peak learning rate"] = 5e-5
    epochs: Annotated[PosFloat, "passes over the training file"] = 3.0
    overlap: Annotated[PosInt, "tokens that windows of a passage share, at transformers"] = 128
    attention_dropout: Annotated[NonNegFloat, "on both sides"] = 0.0


class ScoringJob(Config, frozen=True):
    """What one process does."""

    case: Case
    side: Annotated[str, "ours or theirs"]
    model: Annotated[str, "the weights, in the side's own format"]
    folder: Annotated[str, "to work in"]
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"


class TrainedSide(NamedTuple):
    """A side after its training."""

    predict: Callable[[bool], list[Any]]  # to the file it is judged on; tags are legal ones, if that is asked for
    train_seconds: float
    num_updates: int


def run_job(job: ScoringJob) -> dict[str, Any]:
    """The scores, and how many examples a second were learnt."""
    case = job.case
    task: Any = from_dict(Task, to_dict(case.task) | ({"columns": case.columns} if case.columns else {}), "task")  # type: ignore[arg-type]
    learn, judged = list(task.read(Path(case.train))), list(task.read(Path(case.dev)))
    task = task.fitted(learn)
    side = train_ours if job.side == "ours" else train_theirs
    taught = side(job, task, learn, judged)
    answers = taught.predict(job.side == "ours" and getattr(task, "legal", False))  # transformers' recipe: each token's best
    told = {"examples_per_second": case.epochs * len(learn) / taught.train_seconds, "updates": taught.num_updates}
    return {
        **task.judge(answers, judged),
        **_seqeval_f1(task, answers, judged),
        **score_decodings(task, taught, judged),
        **told,
    }


def score_decodings(task: Any, trained: TrainedSide, eval_examples: Sequence[Any]) -> dict[str, float]:
    """Of tags: the score of each token's best one, and that of the best legal ones.

    With both from both sides, what training is worth and what decoding is can be told apart.
    """
    if not isinstance(task, TokenClassification):
        return {}
    found = {
        name: task.compute_metrics(trained.predict(legal), eval_examples)
        for name, legal in (("argmax", False), ("legal", True))
    }
    return {name: scores.get("f1", scores["accuracy"]) for name, scores in found.items()}


def _with_decoding(task: Any, legal: bool) -> Any:
    return msgspec.structs.replace(task, legal=legal) if isinstance(task, TokenClassification) else task


def train_ours(job: ScoringJob, task: Any, train_examples: Sequence[Any], eval_examples: Sequence[Any]) -> TrainedSide:
    case, out = job.case, Path(job.folder) / "out"
    encoded = task.encode(train_examples, Tokenizer.load(Path(job.model) / "tokenizer.json"), case.length)
    train = {
        "epochs": case.epochs,
        "batch_tokens": find_batch_tokens(task, encoded, case.batch),
        "rate": case.rate,
        "warmup": 0.0,
    }
    train |= {"decay": 0.0, "optimizer": {"kind": "adamw", "eps": 1e-8}, "save_every": 10**9}
    train |= {"device": job.device, "precision": job.precision}
    data = {"train": case.train, "columns": case.columns}
    told = api.finetune(task=to_dict(task), model=job.model, data=data, out=str(out), length=case.length, train=train,
                        seed=job.seed, quiet=True)  # fmt: skip
    predictor = api.load(out)
    predictor.model.to(job.device)
    taught = predictor.require_task()
    asked = taught.encode(eval_examples, predictor.tokenizer, predictor.length)
    scores = predictor.scores(asked)
    return TrainedSide(
        lambda legal: _with_decoding(taught, legal).decode(scores, asked, eval_examples), told["seconds"], told["step"]
    )


def train_theirs(job: ScoringJob, task: Any, train_examples: Sequence[Any], eval_examples: Sequence[Any]) -> TrainedSide:
    case, folder = job.case, Path(job.model)
    kind, tokenizer = to_dict(task)["kind"], peer.load_tokenizer(folder)
    made = lambda examples: _encode_features(case, kind, task, tokenizer, examples)
    model = peer.load_model(kind, folder, task.outputs, case.attention_dropout, job.seed)
    features, how = made(train_examples), {"device": job.device, "precision": job.precision}
    trainer = peer.build_trainer(model, tokenizer, features, Path(job.folder) / "theirs", seed=job.seed, learning_rate=case.rate,
                           num_train_epochs=case.epochs, per_device_train_batch_size=case.batch,
                           per_device_eval_batch_size=64, **how)  # fmt: skip
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    asked = made(eval_examples)
    scores = trainer.predict(asked).predictions
    answers = lambda legal: DECODERS[kind](_with_decoding(task, legal), asked, scores, eval_examples)
    return TrainedSide(answers, seconds, trainer.state.global_step)


def _encode_features(case: Case, kind: str, task: Any, tokenizer: Any, examples: Sequence[Any]) -> list[peer.Feature]:
    if kind == "answer":
        return peer.encode_windows(tokenizer, examples, case.length, case.overlap)
    make = peer.encode_words if kind == "tag" else peer.encode_texts
    return make(tokenizer, examples, case.length, task.labels if kind != "regress" else ())


def _decode_labels(task: Any, features: Any, scores: Any, examples: Any) -> list[ClassificationPrediction]:
    return [ClassificationPrediction(task.labels[int(row.argmax())], {}) for row in scores]


def _decode_values(task: Any, features: Any, scores: Any, examples: Any) -> list[RegressionPrediction]:
    return [RegressionPrediction(float(value)) for value in np.asarray(scores).reshape(-1)]


def _decode_tags(task: Any, features: Any, scores: Any, examples: Any) -> list[TokenClassificationPrediction]:
    """A word that was cut off, or has no piece of its own, is O."""
    firsts = [[(word, place) for place, word in enumerate(one["words"]) if word is not None] for one in features]
    found = [TokenWindow(*np.array(pairs, np.int64).reshape(-1, 2).T) for pairs in firsts]
    return task.decode(scores, EncodedExamples([], [], np.arange(len(found)), metadata=found), examples)


def _decode_answers(task: Any, features: Any, scores: Any, examples: Any) -> list[QuestionAnsweringPrediction]:
    spans = peer.find_best_spans(
        features, *scores, num_examples=len(examples), max_answer_length=task.longest, n_best_size=task.candidates
    )
    texts = [one.context[slice(*span)] if span else "" for one, span in zip(examples, spans, strict=True)]
    return [
        QuestionAnsweringPrediction(text, *(span or (None, None)), 0.0, 0.0, ())
        for text, span in zip(texts, spans, strict=True)
    ]


DECODERS: dict[str, Callable[..., list[Any]]] = {
    "classify": _decode_labels, "regress": _decode_values, "tag": _decode_tags, "answer": _decode_answers
}  # fmt: skip


def _seqeval_f1(task: Any, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
    """A second opinion on names, where seqeval is installed."""
    if not isinstance(task, TokenClassification):
        return {}
    try:
        from seqeval.metrics import f1_score
    except ImportError:
        return {}
    return {"seqeval": float(f1_score([list(one.tags) for one in examples], [list(said.tags) for said in answers]))}


if __name__ == "__main__":
    print("\n" + json.dumps(run_job(from_dict(ScoringJob, json.loads(sys.argv[1]), "the job"))))
