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
from bertsmith.config import Amount, Config, Count, Positive, parse, plain
from bertsmith.tasks import Answering, Classify, Regress, Tag
from bertsmith.tasks.base import Encoded
from bertsmith.tasks.classification import Label
from bertsmith.tasks.question_answering import Answered
from bertsmith.tasks.regression import Value
from bertsmith.tasks.token_classification import Tagged, Window
from bertsmith.tokenization.tokenizer import Tokenizer

from . import peer
from .batches import budget

Task = Classify | Regress | Tag | Answering


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
    length: Annotated[Count, "longest sequence"] = 128
    batch: Annotated[Count, "sequences of an update"] = 32
    rate: Annotated[Positive, "peak learning rate"] = 5e-5
    epochs: Annotated[Positive, "passes over the training file"] = 3.0
    overlap: Annotated[Count, "tokens that windows of a passage share, at transformers"] = 128
    attention_dropout: Annotated[Amount, "on both sides"] = 0.0


class Job(Config, frozen=True):
    """What one process does."""

    case: Case
    side: Annotated[str, "ours or theirs"]
    model: Annotated[str, "the weights, in the side's own format"]
    folder: Annotated[str, "to work in"]
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"


class Taught(NamedTuple):
    """A side after its training."""

    answers: Callable[[bool], list[Any]]  # to the file it is judged on; tags are legal ones, if that is asked for
    seconds: float
    updates: int


def scored(job: Job) -> dict[str, Any]:
    """The scores, and how many examples a second were learnt."""
    case = job.case
    task: Any = parse(Task, plain(case.task) | ({"columns": case.columns} if case.columns else {}), "task")  # type: ignore[arg-type]
    learn, judged = list(task.read(Path(case.train))), list(task.read(Path(case.dev)))
    task = task.fitted(learn)
    side = ours if job.side == "ours" else theirs
    taught = side(job, task, learn, judged)
    answers = taught.answers(job.side == "ours" and getattr(task, "legal", False))  # transformers' recipe: each token's best
    told = {"examples_per_second": case.epochs * len(learn) / taught.seconds, "updates": taught.updates}
    return {**task.judge(answers, judged), **_seqeval(task, answers, judged), **decodings(task, taught, judged), **told}


def decodings(task: Any, taught: Taught, judged: Sequence[Any]) -> dict[str, float]:
    """Of tags: the score of each token's best one, and that of the best legal ones.

    With both from both sides, what training is worth and what decoding is can be told apart.
    """
    if not isinstance(task, Tag):
        return {}
    found = {name: task.judge(taught.answers(legal), judged) for name, legal in (("argmax", False), ("legal", True))}
    return {name: scores.get("f1", scores["accuracy"]) for name, scores in found.items()}


def _decoding(task: Any, legal: bool) -> Any:
    return msgspec.structs.replace(task, legal=legal) if isinstance(task, Tag) else task


def ours(job: Job, task: Any, learn: Sequence[Any], judged: Sequence[Any]) -> Taught:
    case, out = job.case, Path(job.folder) / "out"
    encoded = task.encode(learn, Tokenizer.load(Path(job.model) / "tokenizer.json"), case.length)
    train = {"epochs": case.epochs, "batch_tokens": budget(task, encoded, case.batch), "rate": case.rate, "warmup": 0.0}
    train |= {"decay": 0.0, "optimizer": {"kind": "adamw", "eps": 1e-8}, "save_every": 10**9}
    train |= {"device": job.device, "precision": job.precision}
    data = {"train": case.train, "columns": case.columns}
    told = api.finetune(task=plain(task), model=job.model, data=data, out=str(out), length=case.length, train=train,
                        seed=job.seed, quiet=True)  # fmt: skip
    predictor = api.load(out)
    predictor.model.to(job.device)
    taught = predictor.taught()
    asked = taught.encode(judged, predictor.tokenizer, predictor.length)
    scores = predictor.scores(asked)
    return Taught(lambda legal: _decoding(taught, legal).decode(scores, asked, judged), told["seconds"], told["step"])


def theirs(job: Job, task: Any, learn: Sequence[Any], judged: Sequence[Any]) -> Taught:
    case, folder = job.case, Path(job.model)
    kind, tokenizer = plain(task)["kind"], peer.tokenizer(folder)
    made = lambda examples: _features(case, kind, task, tokenizer, examples)
    model = peer.model(kind, folder, task.outputs, case.attention_dropout, job.seed)
    features, how = made(learn), {"device": job.device, "precision": job.precision}
    trainer = peer.trainer(model, tokenizer, features, Path(job.folder) / "theirs", seed=job.seed, learning_rate=case.rate,
                           num_train_epochs=case.epochs, per_device_train_batch_size=case.batch,
                           per_device_eval_batch_size=64, **how)  # fmt: skip
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    asked = made(judged)
    scores = trainer.predict(asked).predictions
    answers = lambda legal: ANSWERS[kind](_decoding(task, legal), asked, scores, judged)
    return Taught(answers, seconds, trainer.state.global_step)


def _features(case: Case, kind: str, task: Any, tokenizer: Any, examples: Sequence[Any]) -> list[peer.Feature]:
    if kind == "answer":
        return peer.windows(tokenizer, examples, case.length, case.overlap)
    make = peer.words if kind == "tag" else peer.texts
    return make(tokenizer, examples, case.length, task.labels if kind != "regress" else ())


def _labels(task: Any, features: Any, scores: Any, examples: Any) -> list[Label]:
    return [Label(task.labels[int(row.argmax())], {}) for row in scores]


def _values(task: Any, features: Any, scores: Any, examples: Any) -> list[Value]:
    return [Value(float(value)) for value in np.asarray(scores).reshape(-1)]


def _tags(task: Any, features: Any, scores: Any, examples: Any) -> list[Tagged]:
    """A word that was cut off, or has no piece of its own, is O."""
    firsts = [[(word, place) for place, word in enumerate(one["words"]) if word is not None] for one in features]
    found = [Window(*np.array(pairs, np.int64).reshape(-1, 2).T) for pairs in firsts]
    return task.decode(scores, Encoded([], [], np.arange(len(found)), facts=found), examples)


def _answers(task: Any, features: Any, scores: Any, examples: Any) -> list[Answered]:
    spans = peer.spans(features, *scores, count=len(examples), longest=task.longest, best=task.candidates)
    texts = [one.context[slice(*span)] if span else "" for one, span in zip(examples, spans, strict=True)]
    return [Answered(text, *(span or (None, None)), 0.0, 0.0, ()) for text, span in zip(texts, spans, strict=True)]


ANSWERS: dict[str, Callable[..., list[Any]]] = {
    "classify": _labels, "regress": _values, "tag": _tags, "answer": _answers
}  # fmt: skip


def _seqeval(task: Any, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
    """A second opinion on names, where seqeval is installed."""
    if not isinstance(task, Tag):
        return {}
    try:
        from seqeval.metrics import f1_score
    except ImportError:
        return {}
    return {"seqeval": float(f1_score([list(one.tags) for one in examples], [list(said.tags) for said in answers]))}


if __name__ == "__main__":
    print("\n" + json.dumps(scored(parse(Job, json.loads(sys.argv[1]), "the job"))))
