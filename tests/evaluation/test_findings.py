"""Error analysis: label counts, confusion, entity mistakes, worst mistakes, calibration, comparison of two models."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn import metrics as sklearn

from bertsmith.errors import UserError
from bertsmith.evaluation.calibration import compute_calibration
from bertsmith.evaluation.confusion import (
    ConfusionMatrix,
    compute_confusion,
    compute_label_counts,
    compute_majority_baseline,
    truncate_confusion,
)
from bertsmith.evaluation.errors import find_mistakes
from bertsmith.evaluation.significance import compare_evaluations
from bertsmith.tasks import TextClassification, TokenClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.entity_mistakes import count_entity_mistakes, find_entity_mistakes, find_sentence_mistakes
from bertsmith.tasks.mistakes import TextSpan
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.support.evaluation import (
    MAKE_EVALUATION,
    degrade,
    evaluation_from_logits,
    evaluation_from_predictions,
    make_classification,
    make_multi_label,
    make_question_answering,
    make_regression,
    make_tagging,
)


def test_label_counts_and_confusion_match_sklearn():
    evaluation = make_classification()
    predicted, gold = [x.label for x in evaluation.predictions], [x.label for x in evaluation.examples]
    rows = compute_label_counts(evaluation)
    expected = sklearn.precision_recall_fscore_support(gold, predicted, labels=[row.label for row in rows])
    counts = [(row.counts.precision, row.counts.recall, row.counts.f1, row.counts.num_gold) for row in rows]
    np.testing.assert_allclose(counts, np.array(expected).T)
    assert (
        compute_confusion(evaluation).table == sklearn.confusion_matrix(gold, predicted, labels=evaluation.task.labels).tolist()
    )
    assert compute_majority_baseline(evaluation)[1] == max(gold.count(label) for label in gold) / len(gold)


def test_multi_label_counts_match_sklearn():
    evaluation = make_multi_label()
    predicted, gold = evaluation.task.label_matrices(evaluation.predictions, evaluation.examples)
    rows = sorted(compute_label_counts(evaluation), key=lambda row: row.label)
    expected = sklearn.precision_recall_fscore_support(gold, predicted)
    np.testing.assert_allclose(
        [(r.counts.precision, r.counts.recall, r.counts.f1, r.counts.num_gold) for r in rows], np.array(expected).T
    )
    assert compute_confusion(evaluation) is None and compute_majority_baseline(evaluation) is None


def test_truncated_confusion_keeps_labels_with_most_errors():
    matrix = ConfusionMatrix(["a", "b", "c"], [[9, 0, 0], [0, 1, 5], [0, 2, 1]])
    assert truncate_confusion(matrix, 2) == ConfusionMatrix(["b", "c"], [[1, 5], [2, 1]], 1)
    assert matrix.most_confused() == [("b", "c", 5), ("c", "b", 2)]


@pytest.mark.parametrize(
    ("predicted", "gold", "kinds"),
    [
        ("B-PER I-PER O", "B-PER I-PER O", []),
        ("O O O", "B-PER I-PER O", ["missed: PER"]),
        ("B-PER O O", "O O O", ["spurious: PER"]),
        ("B-LOC I-LOC O", "B-PER I-PER O", ["wrong type: PER as LOC"]),
        ("B-PER O O", "B-PER I-PER O", ["wrong boundary: PER"]),
        ("O B-LOC I-LOC", "B-PER I-PER O", ["wrong type and boundary: PER as LOC"]),
        ("B-PER O B-LOC", "B-PER I-PER O", ["wrong boundary: PER", "spurious: LOC"]),
        ("B-PER B-PER B-PER", "B-PER I-PER I-PER", ["wrong boundary: PER", "spurious: PER", "spurious: PER"]),
    ],
)
def test_entity_mistake_kinds(predicted, gold, kinds):
    mistakes = find_entity_mistakes(tuple(predicted.split()), tuple(gold.split()))
    assert [f"{mistake.kind}: {mistake.types}" for mistake in mistakes] == kinds


def test_entity_mistake_counts_agree_with_label_counts():
    evaluation = make_tagging()
    counts = count_entity_mistakes(evaluation.predictions, evaluation.examples)
    totals = [
        sum(getattr(r.counts, name) for r in compute_label_counts(evaluation))
        for name in ("num_correct", "num_predicted", "num_gold")
    ]
    spurious = sum(count for kind, _, count in counts if kind == "spurious")
    missed = sum(count for kind, _, count in counts if kind == "missed")
    other = sum(count for kind, _, count in counts if kind not in ("spurious", "missed"))
    assert (spurious + other, missed + other) == (totals[1] - totals[0], totals[2] - totals[0])


def test_sentence_mistakes_highlight_wrong_spans():
    sentence = Sentence(
        tokens=("Kim", "Young", "saw", "Rome", "."), tags=("B-PER", "I-PER", "O", "B-LOC", "O"), source="d", line=3
    )
    (mistakes,) = find_sentence_mistakes([TokenClassificationPrediction(("B-PER", "I-PER", "O", "B-PER", "O"))], [sentence])
    assert mistakes.spans == [
        TextSpan("Kim Young saw"),
        TextSpan(" "),
        TextSpan("Rome", "wrong type: LOC as PER"),
        TextSpan(" "),
        TextSpan("."),
    ]
    assert mistakes.gold == "PER Kim Young, LOC Rome" and mistakes.location == "d, line 3"
    chinese = Sentence(tokens=tuple("天地玄黄"), tags=("B-PER", "I-PER", "O", "O"))
    (mistakes,) = find_sentence_mistakes([TokenClassificationPrediction(("O", "O", "O", "O"))], [chinese])
    assert mistakes.spans == [TextSpan("天地", "missed: PER"), TextSpan("玄黄")]


def test_sentence_mistakes_truncate_long_sentence():
    tags = ["O"] * 500
    tags[400] = "B-PER"
    sentence = Sentence(tokens=tuple(f"w{i}" for i in range(500)), tags=tuple(tags))
    (mistakes,) = find_sentence_mistakes([TokenClassificationPrediction(("O",) * 500)], [sentence])
    assert mistakes.spans[0] == TextSpan("… ") and TextSpan("w400", "missed: PER") in mistakes.spans


@pytest.mark.parametrize("kind", MAKE_EVALUATION)
def test_find_mistakes_is_complete_and_sorted_by_loss(kind):
    evaluation = MAKE_EVALUATION[kind]()
    mistakes = find_mistakes(evaluation)
    assert [mistake.loss for mistake in mistakes] == sorted((mistake.loss for mistake in mistakes), reverse=True)
    assert all(mistake.location.startswith("dev") and mistake.texts for mistake in mistakes)
    if kind in ("classify", "many", "choose"):
        assert len(mistakes) == round((1 - evaluation.scores["accuracy"]) * len(evaluation.examples))
        assert all(0 <= mistake.confidence <= 1 for mistake in mistakes)


def test_worst_classification_mistake_has_lowest_gold_probability():
    evaluation = make_classification()
    worst = find_mistakes(evaluation)[0]
    gold_probs = [
        prediction.scores[example.label]
        for prediction, example in zip(evaluation.predictions, evaluation.examples, strict=True)
    ]
    assert worst.location == evaluation.examples[int(np.argmin(gold_probs))].location and worst.loss == pytest.approx(
        -np.log(min(gold_probs))
    )


def test_regression_mistakes_are_sorted_by_absolute_error():
    evaluation = make_regression()
    errors = [
        abs(prediction.score - example.label)
        for prediction, example in zip(evaluation.predictions, evaluation.examples, strict=True)
    ]
    assert find_mistakes(evaluation)[0].loss == max(errors)


def test_answer_mistakes_highlight_passage():
    evaluation = make_question_answering()
    mistakes = find_mistakes(evaluation)
    assert {mistake.kind for mistake in mistakes} == {"missed", "spurious", "partial match"}
    partly = next(mistake for mistake in mistakes if mistake.kind == "partial match")
    assert "".join(span.text for span in partly.texts[1] if span.mark == "both") == partly.gold
    spurious = next(mistake for mistake in mistakes if mistake.kind == "spurious")
    assert spurious.gold == "no answer" and [s.text for s in spurious.texts[1] if s.mark == "predicted"] == [
        spurious.prediction
    ]


def test_calibration_error_before_and_after_temperature():
    logits = np.log([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    task = TextClassification(labels=("a", "b"), temperature=0.5)
    labels = ["a"] * 5 + ["b"] * 5 + ["a"] * 6 + ["b"] * 4
    examples = [ClassificationExample("t", label=label) for label in labels]
    calibration = compute_calibration(evaluation_from_logits(task, examples, logits))
    assert calibration.uncalibrated.expected_calibration_error == pytest.approx(0.5 * abs(0.9 - 0.5) + 0.5 * abs(0.6 - 0.6))
    confidences = [0.81 / 0.82, 0.36 / 0.52]
    assert calibration.calibrated.expected_calibration_error == pytest.approx(
        0.5 * abs(confidences[0] - 0.5) + 0.5 * abs(confidences[1] - 0.6)
    )
    assert calibration.uncalibrated.nll == pytest.approx(-np.log([0.9] * 5 + [0.1] * 5 + [0.6] * 6 + [0.4] * 4).mean())
    assert [bin_.count for bin_ in calibration.uncalibrated.bins] == [10, 10] and calibration.temperature == 0.5


def test_temperature_reduces_calibration_error():
    evaluation = make_classification(1000, scale=4.0)
    task = evaluation.task.calibrate(evaluation.logits, evaluation.examples)
    calibration = compute_calibration(evaluation_from_logits(task, evaluation.examples, evaluation.logits))
    assert (
        calibration.calibrated.expected_calibration_error < 0.5 * calibration.uncalibrated.expected_calibration_error
        and calibration.calibrated.nll < calibration.uncalibrated.nll
    )


@pytest.mark.parametrize("kind", MAKE_EVALUATION)
def test_comparison_of_model_with_itself_is_zero(kind):
    evaluation = MAKE_EVALUATION[kind]()
    comparison = compare_evaluations(evaluation, evaluation)
    assert {difference.name for difference in comparison.differences} == set(evaluation.metrics)
    for difference in comparison.differences:
        assert (difference.difference.value, difference.difference.low, difference.difference.high, difference.p_value) == (
            0,
            0,
            0,
            1,
        )
        assert difference.mcnemar_p_value in (None, 1.0)
    assert comparison.only_this_correct in (None, 0) and comparison.won == comparison.lost == ()


def test_comparison_significance_of_degraded_and_noisy_model():
    evaluation = make_classification(400, margin=2.5)
    noise = np.random.default_rng(1).normal(size=evaluation.logits.shape) / 4
    degraded, noisy = (
        compare_evaluations(evaluation, degrade(evaluation, fraction=0.5)),
        compare_evaluations(
            evaluation, evaluation_from_logits(evaluation.task, evaluation.examples, evaluation.logits + noise)
        ),
    )
    accuracy = degraded.differences[0]
    assert (
        accuracy.p_value < 0.01
        and accuracy.difference.low > 0
        and accuracy.difference.value == pytest.approx(accuracy.score - accuracy.other_score)
    )
    assert (
        noisy.differences[0].p_value > 0.05 and noisy.differences[0].difference.low <= 0 <= noisy.differences[0].difference.high
    )
    expected = binomtest(
        min(degraded.only_this_correct, degraded.only_other_correct), degraded.only_this_correct + degraded.only_other_correct
    ).pvalue
    assert accuracy.mcnemar_p_value == pytest.approx(expected)
    assert (
        degraded.both_correct + degraded.only_this_correct + degraded.only_other_correct + degraded.neither_correct == 400
        and len(degraded.won) == degraded.only_this_correct
    )


def test_comparison_ignores_order_of_labels():
    evaluation = make_classification()
    reversed_task = TextClassification(labels=evaluation.task.labels[::-1])
    other = evaluation_from_logits(reversed_task, evaluation.examples, evaluation.logits[:, ::-1])
    assert all(
        difference.difference.value == 0 and difference.p_value == 1
        for difference in compare_evaluations(evaluation, other).differences
    )


def test_comparison_rejects_different_tasks():
    evaluation = make_classification()
    with pytest.raises(UserError, match="task=regress, this one task=classify"):
        compare_evaluations(evaluation, make_regression())
    with pytest.raises(UserError, match=r"labels a, b, c, this one has bad, fair, good"):
        compare_evaluations(evaluation, make_classification(labels=("a", "b", "c")))
    with pytest.raises(UserError, match="evaluated on 10 examples, this one on 300"):
        compare_evaluations(evaluation, make_classification(10))


def test_pos_confusion_is_by_tag():
    sentences = [Sentence(tokens=("a", "cat"), tags=("DET", "NOUN"), source="d")]
    evaluation = evaluation_from_predictions(
        TokenClassification(labels=("DET", "NOUN")), sentences, [TokenClassificationPrediction(("DET", "DET"))]
    )
    assert compute_confusion(evaluation).most_confused() == [("NOUN", "DET", 1)]
    assert count_entity_mistakes(evaluation.predictions, evaluation.examples) == [] and find_mistakes(evaluation)[0].texts[0][
        -1
    ] == TextSpan("cat", "NOUN as DET")
