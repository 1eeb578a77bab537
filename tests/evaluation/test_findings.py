"""What is found out about mistakes: labels, confusions, faults of entities, calibration, and another model's answers."""

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
from bertsmith.evaluation.errors import (
    TextSpan,
    count_entity_mistakes,
    find_entity_mistakes,
    find_mistakes,
    find_sentence_mistakes,
)
from bertsmith.evaluation.significance import compare_evaluations
from bertsmith.tasks import TextClassification, TokenClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.token_classification import TokenClassificationPrediction
from tests.evaluation.builders import EVERY, asked, classified, finished, numbered, of, several, tagged, worse


def test_labels_are_counted_as_scikit_learn_does():
    judged = classified()
    said, true = [one.label for one in judged.predictions], [one.label for one in judged.examples]
    rows = compute_label_counts(judged)
    want = sklearn.precision_recall_fscore_support(true, said, labels=[row.label for row in rows])
    found = [(row.counts.precision, row.counts.recall, row.counts.f1, row.counts.there) for row in rows]
    np.testing.assert_allclose(found, np.array(want).T)
    assert compute_confusion(judged).table == sklearn.confusion_matrix(true, said, labels=judged.task.labels).tolist()
    assert compute_majority_baseline(judged)[1] == max(true.count(label) for label in true) / len(true)


def test_of_many_labels_each_is_counted_by_itself():
    judged = several()
    given, true = judged.task.label_matrices(judged.predictions, judged.examples)
    rows = sorted(compute_label_counts(judged), key=lambda row: row.label)
    want = sklearn.precision_recall_fscore_support(true, given)
    np.testing.assert_allclose(
        [(r.counts.precision, r.counts.recall, r.counts.f1, r.counts.there) for r in rows], np.array(want).T
    )
    assert compute_confusion(judged) is None and compute_majority_baseline(judged) is None


def test_a_large_confusion_table_keeps_the_labels_in_most_mistakes():
    whole = ConfusionMatrix(["a", "b", "c"], [[9, 0, 0], [0, 1, 5], [0, 2, 1]])
    assert truncate_confusion(whole, 2) == ConfusionMatrix(["b", "c"], [[1, 5], [2, 1]], 1)
    assert whole.most_confused() == [("b", "c", 5), ("c", "b", 2)]


@pytest.mark.parametrize(
    ("said", "gold", "kinds"),
    [
        ("B-PER I-PER O", "B-PER I-PER O", []),
        ("O O O", "B-PER I-PER O", ["missed: PER"]),
        ("B-PER O O", "O O O", ["made up: PER"]),
        ("B-LOC I-LOC O", "B-PER I-PER O", ["wrong type: PER as LOC"]),
        ("B-PER O O", "B-PER I-PER O", ["wrong border: PER"]),
        ("O B-LOC I-LOC", "B-PER I-PER O", ["wrong type and border: PER as LOC"]),
        ("B-PER O B-LOC", "B-PER I-PER O", ["wrong border: PER", "made up: LOC"]),
        ("B-PER B-PER B-PER", "B-PER I-PER I-PER", ["wrong border: PER", "made up: PER", "made up: PER"]),
    ],
)
def test_faults_of_entities_have_their_names(said, gold, kinds):
    found = find_entity_mistakes(tuple(said.split()), tuple(gold.split()))
    assert [f"{fault.kind}: {fault.types}" for fault in found] == kinds


def test_faults_make_up_what_is_missing_to_the_scores():
    judged = tagged()
    counts = count_entity_mistakes(judged.predictions, judged.examples)
    row = [sum(getattr(r.counts, name) for r in compute_label_counts(judged)) for name in ("right", "found", "there")]
    made_up = sum(times for kind, _, times in counts if kind == "made up")
    missed = sum(times for kind, _, times in counts if kind == "missed")
    other = sum(times for kind, _, times in counts if kind not in ("made up", "missed"))
    assert (made_up + other, missed + other) == (row[1] - row[0], row[2] - row[0])


def test_a_sentence_is_told_with_its_faults_in_place():
    one = Sentence(tokens=("Kim", "Young", "saw", "Rome", "."), tags=("B-PER", "I-PER", "O", "B-LOC", "O"), source="d", line=3)
    (found,) = find_sentence_mistakes([TokenClassificationPrediction(("B-PER", "I-PER", "O", "B-PER", "O"))], [one])
    assert found.spans == [
        TextSpan("Kim Young saw"),
        TextSpan(" "),
        TextSpan("Rome", "wrong type: LOC as PER"),
        TextSpan(" "),
        TextSpan("."),
    ]
    assert found.gold == "PER Kim Young, LOC Rome" and found.location == "d, line 3"
    han = Sentence(tokens=tuple("天地玄黄"), tags=("B-PER", "I-PER", "O", "O"))
    (found,) = find_sentence_mistakes([TokenClassificationPrediction(("O", "O", "O", "O"))], [han])
    assert found.spans == [TextSpan("天地", "missed: PER"), TextSpan("玄黄")]


def test_a_long_sentence_is_cut_around_its_first_fault():
    tags = ["O"] * 500
    tags[400] = "B-PER"
    one = Sentence(tokens=tuple(f"w{i}" for i in range(500)), tags=tuple(tags))
    (found,) = find_sentence_mistakes([TokenClassificationPrediction(("O",) * 500)], [one])
    assert found.spans[0] == TextSpan("… ") and TextSpan("w400", "missed: PER") in found.spans


@pytest.mark.parametrize("kind", EVERY)
def test_mistakes_come_worst_first_and_every_one_is_there(kind):
    judged = EVERY[kind]()
    found = find_mistakes(judged)
    assert [one.loss for one in found] == sorted((one.loss for one in found), reverse=True)
    assert all(one.place.startswith("dev") and one.texts for one in found)
    if kind in ("classify", "many", "choose"):
        assert len(found) == round((1 - judged.scores["accuracy"]) * len(judged.examples))
        assert all(0 <= one.confidence <= 1 for one in found)


def test_the_worst_label_is_the_one_that_seemed_least_likely():
    judged = classified()
    first = find_mistakes(judged)[0]
    probable = [said.scores[one.label] for said, one in zip(judged.predictions, judged.examples, strict=True)]
    assert first.place == judged.examples[int(np.argmin(probable))].place and first.loss == pytest.approx(
        -np.log(min(probable))
    )


def test_numbers_are_ordered_by_how_far_off_they_are():
    judged = numbered()
    off = [abs(said.value - one.label) for said, one in zip(judged.predictions, judged.examples, strict=True)]
    assert find_mistakes(judged)[0].loss == max(off)


def test_an_answer_is_told_in_its_passage():
    judged = asked()
    found = find_mistakes(judged)
    assert {one.kind for one in found} == {"missed", "made up", "partly right"}
    partly = next(one for one in found if one.kind == "partly right")
    assert "".join(span.text for span in partly.texts[1] if span.mark == "both") == partly.truth
    made_up = next(one for one in found if one.kind == "made up")
    assert made_up.truth == "no answer" and [s.text for s in made_up.texts[1] if s.mark == "said"] == [made_up.answer]


def test_calibration_is_that_of_confidence_and_accuracy():
    raw = np.log([[0.9, 0.1]] * 10 + [[0.6, 0.4]] * 10)
    task = TextClassification(labels=("a", "b"), temperature=0.5)
    truths = ["a"] * 5 + ["b"] * 5 + ["a"] * 6 + ["b"] * 4
    examples = [ClassificationExample("t", label=label) for label in truths]
    found = compute_calibration(of(task, examples, raw))
    assert found.before.error == pytest.approx(0.5 * abs(0.9 - 0.5) + 0.5 * abs(0.6 - 0.6))
    sharp = [0.81 / 0.82, 0.36 / 0.52]
    assert found.after.error == pytest.approx(0.5 * abs(sharp[0] - 0.5) + 0.5 * abs(sharp[1] - 0.6))
    assert found.before.loss == pytest.approx(-np.log([0.9] * 5 + [0.1] * 5 + [0.6] * 6 + [0.4] * 4).mean())
    assert [one.count for one in found.before.bins] == [10, 10] and found.temperature == 0.5


def test_temperature_mends_a_model_that_is_too_sure():
    judged = classified(1000, sharp=4.0)
    task = judged.task.calibrate(judged.logits, judged.examples)
    found = compute_calibration(of(task, judged.examples, judged.logits))
    assert found.after.error < 0.5 * found.before.error and found.after.loss < found.before.loss


@pytest.mark.parametrize("kind", EVERY)
def test_a_model_against_itself_is_no_better(kind):
    judged = EVERY[kind]()
    found = compare_evaluations(judged, judged)
    assert {one.name for one in found.differences} == set(judged.measures)
    for one in found.differences:
        assert (one.above.value, one.above.low, one.above.high, one.p) == (0, 0, 0, 1)
        assert one.exact_p in (None, 1.0)
    assert found.only in (None, 0) and found.won == found.lost == ()


def test_a_much_worse_model_is_told_from_chance_and_a_shaken_one_is_not():
    judged = classified(400, margin=2.5)
    noise = np.random.default_rng(1).normal(size=judged.logits.shape) / 4
    bad, like = (
        compare_evaluations(judged, worse(judged, share=0.5)),
        compare_evaluations(judged, of(judged.task, judged.examples, judged.logits + noise)),
    )
    accuracy = bad.differences[0]
    assert (
        accuracy.p < 0.01 and accuracy.above.low > 0 and accuracy.above.value == pytest.approx(accuracy.score - accuracy.other)
    )
    assert like.differences[0].p > 0.05 and like.differences[0].above.low <= 0 <= like.differences[0].above.high
    want = binomtest(min(bad.only, bad.only_other), bad.only + bad.only_other).pvalue
    assert accuracy.exact_p == pytest.approx(want)
    assert bad.both + bad.only + bad.only_other + bad.neither == 400 and len(bad.won) == bad.only


def test_the_order_of_labels_does_not_matter():
    judged = classified()
    turned = TextClassification(labels=judged.task.labels[::-1])
    other = of(turned, judged.examples, judged.logits[:, ::-1])
    assert all(one.above.value == 0 and one.p == 1 for one in compare_evaluations(judged, other).differences)


def test_models_of_different_tasks_are_not_compared():
    judged = classified()
    with pytest.raises(UserError, match="does regress, this one classify"):
        compare_evaluations(judged, numbered())
    with pytest.raises(UserError, match=r"labels a, b, c, this one bad, fair, good"):
        compare_evaluations(judged, classified(labels=("a", "b", "c")))
    with pytest.raises(UserError, match="10 examples are judged there, 300 here"):
        compare_evaluations(judged, classified(10))


def test_parts_of_speech_are_confused_by_tag():
    sentences_ = [Sentence(tokens=("a", "cat"), tags=("DET", "NOUN"), source="d")]
    judged = finished(TokenClassification(labels=("DET", "NOUN")), sentences_, [TokenClassificationPrediction(("DET", "DET"))])
    assert compute_confusion(judged).most_confused() == [("NOUN", "DET", 1)]
    assert count_entity_mistakes(judged.predictions, judged.examples) == [] and find_mistakes(judged)[0].texts[0][
        -1
    ] == TextSpan("cat", "NOUN as DET")
