"""Synthetic evaluations of every task: random examples with predictions of adjustable quality."""

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
from bertsmith.tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction
from bertsmith.tasks.regression import RegressionExample, RegressionPrediction
from bertsmith.tasks.similarity import SimilarityExample, SimilarityPrediction
from bertsmith.tasks.squad_files import QuestionAnsweringExample
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.support.texts import CHINESE_CHARS, WORDS

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def random_text(rng, min_words=2, max_words=30):
    return " ".join(rng.choice([*WORDS, "qqq🙂", "unheard"], rng.integers(min_words, max_words)))


def make_classification(count=300, seed=0, margin=1.5, labels=("bad", "fair", "good"), pair=False, scale=1.0):
    rng = np.random.default_rng(seed)
    label_ids = rng.integers(0, len(labels), count)
    logits = rng.normal(size=(count, len(labels)))
    logits[np.arange(count), label_ids] += margin
    examples = [
        ClassificationExample(
            random_text(rng), random_text(rng) if pair else None, labels[label_id], source="dev.tsv", line=i + 2
        )
        for i, label_id in enumerate(label_ids)
    ]
    return evaluation_from_logits(TextClassification(labels=labels), examples, logits * scale)


def evaluation_from_logits(task, examples, logits):
    """The evaluation of a classifier with these logits."""
    predictions = [task._to_prediction(row) for row in task.probabilities(logits)]
    return Evaluation(task, examples, predictions, task.compute_metrics(predictions, examples), logits)


def make_multi_label(count=200, seed=0):
    rng = np.random.default_rng(seed)
    labels = ("a", "b", "c", "d")
    gold = rng.random((count, 4)) < 0.3
    logits = np.where(gold, 1.0, -1.0) + rng.normal(size=gold.shape)
    examples = [
        ClassificationExample(random_text(rng), label="|".join(np.array(labels)[row]), source="dev.tsv", line=i + 2)
        for i, row in enumerate(gold)
    ]
    return evaluation_from_logits(TextClassification(labels=labels, multi_label=True), examples, logits)


def make_regression(count=200, seed=0, noise=0.7):
    rng = np.random.default_rng(seed)
    examples = [
        RegressionExample(random_text(rng), random_text(rng), float(rng.uniform(0, 5)), source="dev.tsv", line=i + 2)
        for i in range(count)
    ]
    return evaluation_from_predictions(
        TextRegression(), examples, [RegressionPrediction(example.label + float(rng.normal()) * noise) for example in examples]
    )


def make_similarity(count=200, seed=0):
    rng = np.random.default_rng(seed)
    examples = [
        SimilarityExample(random_text(rng), random_text(rng), float(rng.uniform(0, 5)), source="dev.tsv", line=i + 2)
        for i in range(count)
    ]
    return evaluation_from_predictions(
        TextSimilarity(),
        examples,
        [SimilarityPrediction(float(np.tanh(example.score / 5 + rng.normal() / 4))) for example in examples],
    )


def make_tagging(count=150, seed=0, error_rate=0.15, chinese=False):
    rng = np.random.default_rng(seed)
    examples, predictions = [], []
    for i in range(count):
        tokens = rng.choice(list(CHINESE_CHARS) if chinese else WORDS, rng.integers(1, 25)).tolist()
        tags = rng.choice(TAGS, len(tokens), p=[0.15, 0.15, 0.1, 0.1, 0.5]).tolist()
        predicted_tags = [str(rng.choice(TAGS)) if rng.random() < error_rate else tag for tag in tags]
        examples.append(Sentence(tokens=tuple(tokens), tags=tuple(tags), source="dev.txt", line=i + 1))
        predictions.append(TokenClassificationPrediction(tuple(predicted_tags)))
    return evaluation_from_predictions(TokenClassification(labels=TAGS), examples, predictions)


def make_question_answering(count=120, seed=0, no_answer=True):
    rng = np.random.default_rng(seed)
    examples, predictions = [], []
    for i in range(count):
        words = rng.choice(WORDS, rng.integers(14, 50)).tolist()
        context, start = " ".join(words), len(" ".join(words[:10])) + 1
        end = start + len(" ".join(words[10:13]))
        is_unanswerable = no_answer and rng.random() < 0.3
        gold = () if is_unanswerable else (context[start:end],)
        example = QuestionAnsweringExample(
            question="what is " + words[0],
            context=context,
            id=str(i),
            answers=gold,
            source="dev.json",
            span=None if is_unanswerable else (start, end),
        )
        shift = len(words[10]) + 1 if rng.random() < 0.4 else 0
        predicts_none = no_answer and rng.random() < 0.3
        predicted = "" if predicts_none else context[start + shift : end]
        span = (None, None) if predicts_none else (start + shift, end)
        examples.append(example)
        predictions.append(QuestionAnsweringPrediction(predicted, *span, float(rng.beta(4, 2)), float(rng.normal()), ()))
    return evaluation_from_predictions(QuestionAnswering(no_answer=no_answer), examples, predictions)


def make_multiple_choice(count=150, seed=0):
    rng = np.random.default_rng(seed)
    examples, predictions = [], []
    for i in range(count):
        options = tuple(random_text(rng, 1, 5) for _ in range(int(rng.integers(2, 5))))
        label = int(rng.integers(len(options)))
        scores = rng.normal(size=len(options)) + 1.5 * (np.arange(len(options)) == label)
        probs = np.exp(scores) / np.exp(scores).sum()
        best = int(probs.argmax())
        examples.append(MultipleChoiceExample(random_text(rng), options, "which", label, source="dev.jsonl", line=i + 1))
        predictions.append(MultipleChoicePrediction(best, probs.tolist()))
    return evaluation_from_predictions(MultipleChoice(), examples, predictions)


def evaluation_from_predictions(task, examples, predictions):
    return Evaluation(task, examples, predictions, task.compute_metrics(predictions, examples))


def degrade(evaluation, seed=0, fraction=0.3):
    """The same examples, a fraction of them with random predicted labels."""
    rng = np.random.default_rng(seed)
    task = evaluation.task
    predictions = [
        replace(prediction, label=str(rng.choice(task.labels))) if rng.random() < fraction else prediction
        for prediction in evaluation.predictions
    ]
    return Evaluation(
        task, evaluation.examples, predictions, task.compute_metrics(predictions, evaluation.examples), evaluation.logits
    )


MAKE_EVALUATION = {
    "classify": make_classification,
    "many": make_multi_label,
    "regress": make_regression,
    "similar": make_similarity,
    "tag": make_tagging,
    "answer": make_question_answering,
    "choose": make_multiple_choice,
}
