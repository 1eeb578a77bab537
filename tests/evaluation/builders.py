"""Answers of made-up models, as good as one likes, for every kind of task."""

from dataclasses import replace

import numpy as np

from bertsmith.evaluation.evaluate import Evaluation
from bertsmith.tasks import (
    MultipleChoice,
    QuestionAnswering,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.multiple_choice import MultipleChoiceExample as Options
from bertsmith.tasks.multiple_choice import MultipleChoicePrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction
from bertsmith.tasks.regression import RegressionExample, RegressionPrediction
from bertsmith.tasks.similarity import SimilarityExample, SimilarityPrediction
from bertsmith.tasks.squad_files import QuestionAnsweringExample
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.conftest import HAN, WORDS

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def phrase(rng, least=2, most=30):
    return " ".join(rng.choice([*WORDS, "qqq🙂", "unheard"], rng.integers(least, most)))


def classified(count=300, seed=0, margin=1.5, labels=("bad", "fair", "good"), pair=False, sharp=1.0):
    rng = np.random.default_rng(seed)
    truths = rng.integers(0, len(labels), count)
    raw = rng.normal(size=(count, len(labels)))
    raw[np.arange(count), truths] += margin
    examples = [
        ClassificationExample(phrase(rng), phrase(rng) if pair else None, labels[t], source="dev.tsv", line=i + 2)
        for i, t in enumerate(truths)
    ]
    return of(TextClassification(labels=labels), examples, raw * sharp)


def of(task, examples, raw):
    """A classifier that scored these examples so."""
    answers = [task._to_prediction(row) for row in task.probabilities(raw)]
    return Evaluation(task, examples, answers, task.judge(answers, examples), raw)


def several(count=200, seed=0):
    rng = np.random.default_rng(seed)
    labels = ("a", "b", "c", "d")
    true = rng.random((count, 4)) < 0.3
    raw = np.where(true, 1.0, -1.0) + rng.normal(size=true.shape)
    examples = [
        ClassificationExample(phrase(rng), label="|".join(np.array(labels)[row]), source="dev.tsv", line=i + 2)
        for i, row in enumerate(true)
    ]
    return of(TextClassification(labels=labels, many=True), examples, raw)


def numbered(count=200, seed=0, noise=0.7):
    rng = np.random.default_rng(seed)
    examples = [
        RegressionExample(phrase(rng), phrase(rng), float(rng.uniform(0, 5)), source="dev.tsv", line=i + 2)
        for i in range(count)
    ]
    return finished(
        TextRegression(), examples, [RegressionPrediction(one.label + float(rng.normal()) * noise) for one in examples]
    )


def alike(count=200, seed=0):
    rng = np.random.default_rng(seed)
    examples = [
        SimilarityExample(phrase(rng), phrase(rng), float(rng.uniform(0, 5)), source="dev.tsv", line=i + 2)
        for i in range(count)
    ]
    return finished(
        TextSimilarity(), examples, [SimilarityPrediction(float(np.tanh(one.score / 5 + rng.normal() / 4))) for one in examples]
    )


def tagged(count=150, seed=0, wrong=0.15, chinese=False):
    rng = np.random.default_rng(seed)
    examples, answers = [], []
    for i in range(count):
        tokens = rng.choice(list(HAN) if chinese else WORDS, rng.integers(1, 25)).tolist()
        tags = rng.choice(TAGS, len(tokens), p=[0.15, 0.15, 0.1, 0.1, 0.5]).tolist()
        said = [str(rng.choice(TAGS)) if rng.random() < wrong else tag for tag in tags]
        examples.append(Sentence(tokens=tuple(tokens), tags=tuple(tags), source="dev.txt", line=i + 1))
        answers.append(TokenClassificationPrediction(tuple(said)))
    return finished(TokenClassification(labels=TAGS), examples, answers)


def asked(count=120, seed=0, no_answer=True):
    rng = np.random.default_rng(seed)
    examples, answers = [], []
    for i in range(count):
        words = rng.choice(WORDS, rng.integers(14, 50)).tolist()
        context, start = " ".join(words), len(" ".join(words[:10])) + 1
        end = start + len(" ".join(words[10:13]))
        none = no_answer and rng.random() < 0.3
        gold = () if none else (context[start:end],)
        one = QuestionAnsweringExample(question="what is " + words[0], context=context, id=str(i), answers=gold, source="dev.json",
                       span=None if none else (start, end))  # fmt: skip
        shift = len(words[10]) + 1 if rng.random() < 0.4 else 0
        silent = no_answer and rng.random() < 0.3
        said = "" if silent else context[start + shift : end]
        at = (None, None) if silent else (start + shift, end)
        examples.append(one)
        answers.append(QuestionAnsweringPrediction(said, *at, float(rng.beta(4, 2)), float(rng.normal()), ()))
    return finished(QuestionAnswering(no_answer=no_answer), examples, answers)


def chosen(count=150, seed=0):
    rng = np.random.default_rng(seed)
    examples, answers = [], []
    for i in range(count):
        options = tuple(phrase(rng, 1, 5) for _ in range(int(rng.integers(2, 5))))
        right = int(rng.integers(len(options)))
        scores = rng.normal(size=len(options)) + 1.5 * (np.arange(len(options)) == right)
        weights = np.exp(scores) / np.exp(scores).sum()
        best = int(weights.argmax())
        examples.append(Options(phrase(rng), options, "which", right, source="dev.jsonl", line=i + 1))
        answers.append(MultipleChoicePrediction(best, options[best], weights.tolist()))
    return finished(MultipleChoice(), examples, answers)


def finished(task, examples, answers):
    return Evaluation(task, examples, answers, task.judge(answers, examples))


def worse(judged, seed=0, share=0.3):
    """The same examples by a model that takes another label so often."""
    rng = np.random.default_rng(seed)
    task = judged.task
    said = [replace(one, label=str(rng.choice(task.labels))) if rng.random() < share else one for one in judged.answers]
    return Evaluation(task, judged.examples, said, task.judge(said, judged.examples), judged.raw)


EVERY = {
    "classify": classified, "many": several, "regress": numbered, "similar": alike, "tag": tagged, "answer": asked,
    "choose": chosen,
}  # fmt: skip
