"""Text classification: reading, label fitting, encoding with truncation and windows, decoding and metrics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, matthews_corrcoef

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.metrics.scores import confusion_matrix
from bertsmith.tasks import TaskConfig, TextClassification
from bertsmith.tasks.classification import ClassificationExample, ClassificationPrediction, MultiLabelPrediction
from bertsmith.tasks.scorers.conlleval import MatchCounts
from bertsmith.tasks.sequences import sliding_windows, truncate_longest_first
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id


def ids(text):
    return TOKENIZER.encode(text).ids


def read(tmp_path, text, name="a.tsv", **settings):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(TextClassification(**settings).read(path))


def test_classification_encodes_texts_and_pairs_as_bert():
    task = TextClassification(labels=("no", "yes"))
    examples = [
        ClassificationExample("the people", label="yes"),
        ClassificationExample("what time", "it is first", label="no"),
        ClassificationExample("", label="no"),
    ]
    encoded = task.encode(examples, TOKENIZER, 16)
    pair = [CLS, *ids("what time"), SEP, *ids("it is first"), SEP]
    assert [sequence.tolist() for sequence in encoded.input_ids] == [[CLS, *ids("the people"), SEP], pair, [CLS, SEP]]
    assert encoded.token_type_ids[1].tolist() == [0] * 4 + [1] * 4 and not encoded.token_type_ids[0].any()
    assert encoded.example_index.tolist() == [0, 1, 2] and encoded.targets["label"].tolist() == [1, 0, 0]
    assert "label" not in task.encode([ClassificationExample("the people")], TOKENIZER, 16).targets


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
def test_truncate_longest_first_matches_bert(first_length, second_length, max_tokens):
    a, b = list(range(first_length)), list(range(second_length))
    while len(a) + len(b) > max_tokens:  # as BERT's own _truncate_seq_pair
        (a if len(a) > len(b) else b).pop()
    assert truncate_longest_first(first_length, second_length, max_tokens) == (len(a), len(b))


def test_classification_truncates_long_pair_at_the_end():
    encoded = TextClassification(labels=("a", "b")).encode([ClassificationExample("one two " * 50, "three")], TOKENIZER, 20)
    second_ids = ids("three")
    num_first = 20 - 3 - len(second_ids)
    assert encoded.input_ids[0].tolist() == [CLS, *ids("one two " * 50)[:num_first], SEP, *second_ids, SEP]


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 80))
def test_sliding_windows_cover_every_token_without_redundant_windows(num_tokens, window_size, stride):
    windows = sliding_windows(num_tokens, window_size, stride)
    assert set().union(*(range(*window) for window in windows)) == set(range(num_tokens))
    assert all(end - start <= window_size for start, end in windows) and windows[0][0] == 0
    assert all(end < num_tokens for _, end in windows[:-1])


def test_classification_averages_logits_of_windows():
    task = TextClassification(labels=("a", "b"), long_text="window", doc_stride=10)
    examples = [
        ClassificationExample("the", label="a"),
        ClassificationExample("of and " * 20, label="b"),
        ClassificationExample("of", label="a"),
    ]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert encoded.example_index.tolist() == [0, 1, 1, 1, 2] and encoded.targets["label"].tolist() == [0, 1, 1, 1, 0]
    assert [len(sequence) for sequence in encoded.input_ids] == [3, 22, 22, 22, 3]
    logits = np.array([[1.0, 0.0], [0.0, 3.0], [4.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    prediction = task.decode(logits, encoded, examples)[1]
    assert prediction.label == "b" and prediction.scores["b"] == pytest.approx(1 / (1 + np.exp(4 / 3 - 5 / 3)))


def test_classification_repeats_shorter_text_in_every_window():
    task = TextClassification(labels=("a", "b"), long_text="window", doc_stride=4)
    for example in (ClassificationExample("of and " * 10, "the people"), ClassificationExample("the people", "of and " * 10)):
        encoded = task.encode([example], TOKENIZER, 15)
        longer_segment = int("the" in example.text)  # segment of the longer text
        for sequence, token_types in zip(encoded.input_ids, encoded.token_type_ids, strict=True):
            assert {*ids("of and")} <= {*sequence[token_types == longer_segment]} and {*ids("the people")} <= {
                *sequence[token_types != longer_segment]
            }
        assert len(encoded.input_ids) > 2 and max(map(len, encoded.input_ids)) == 15


def test_classification_hierarchical_windows_are_pooled_by_the_model():
    task = TextClassification(labels=("a", "b"), long_text="hierarchical", doc_stride=10)
    examples = [ClassificationExample("of and " * 20, label="b"), ClassificationExample("of", label="a")]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert (
        len(encoded.input_ids) == 4
        and encoded.targets["label"].tolist() == [1, 0]
        and all(window.pooled for window in encoded.metadata)
    )
    predictions = task.decode(np.array([[0.0, 1.0], [1.0, 0.0]]), encoded, examples)
    assert [prediction.label for prediction in predictions] == ["b", "a"]
    with pytest.raises(ValueError, match="4 rows of outputs for 2 examples"):
        task.decode(np.zeros((4, 2)), encoded, examples)


def test_classification_of_100k_words():
    examples = [ClassificationExample("time people " * 50_000)]
    assert len(TextClassification(labels=("a", "b")).encode(examples, TOKENIZER, 128).input_ids[0]) == 128
    task = TextClassification(labels=("a", "b"), long_text="window", doc_stride=126)
    encoded = task.encode(examples, TOKENIZER, 128)
    assert len(encoded.input_ids) == 794
    assert task.decode(np.tile([0.0, 1.0], (794, 1)), encoded, examples)[0].label == "b"


def test_classification_reads_columns_pairs_and_label_types(tmp_path):
    examples = read(tmp_path, "s1\ts2\tgold\na\tb\tyes\n", columns={"text": "s1", "text_b": "s2", "label": "gold"})
    assert examples == [ClassificationExample("a", "b", "yes", source=str(tmp_path / "a.tsv"), line=2)]
    lines = '{"text": "a", "label": 1}\n{"text": "b", "label": false}\n{"text": "c", "label": null}\n{"text": ""}\n'
    assert [example.label for example in read(tmp_path, lines, "a.jsonl")] == ["1", "false", None, None]
    multi_label = read(
        tmp_path, '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": []}\n', "b.jsonl", multi_label=True
    )
    assert [example.label for example in multi_label] == ["x|y", ""]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("text\tlabel\na\t\n", "a.tsv", r"a\.tsv, line 2: label is empty"),
        ('{"text": "a", "label": ["x"]}\n', "a.jsonl", r"line 1: label is \[\"x\"\], not one label .*task\.multi_label=true"),
        ('{"text": "a", "text_b": 3, "label": "x"}\n', "a.jsonl", r"line 1: text_b is 3, not a text"),
    ],
)
def test_classification_rejects_invalid_rows(tmp_path, text, name, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text, name)


def test_classification_fit_sorts_labels_and_config_round_trips():
    task = TextClassification().fit([ClassificationExample("a", label=label) for label in ("b", "c", "a", "b")])
    assert task.labels == ("a", "b", "c") and task.num_outputs == 3
    assert from_dict(TaskConfig, to_dict(task)) == task and to_dict(task)["kind"] == "classify"
    assert TextClassification(labels=("c", "b", "a")).fit([ClassificationExample("a", label="b")]).labels == ("c", "b", "a")


def test_label_that_the_task_lacks_counts_as_wrong():
    """As scikit-learn scores it: a class that is never predicted."""
    task = TextClassification(labels=("a", "b"))
    examples = [ClassificationExample("x", label=label) for label in ("a", "b", "z", "a", "z", "q")]
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 2.0]])
    encoded = task.encode(examples, TOKENIZER, 16)
    predictions = task.decode(logits, encoded, examples)
    gold, predicted = [example.label for example in examples], [prediction.label for prediction in predictions]
    metrics = task.compute_metrics(predictions, examples)
    assert metrics["accuracy"] == pytest.approx(2 / 6)
    assert metrics["f1_macro"] == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))
    assert metrics["matthews"] == pytest.approx(matthews_corrcoef(gold, predicted))
    results = task.compute_metric_results(predictions, examples)
    assert {name: result.score for name, result in results.items()} == pytest.approx(metrics)
    assert {label: len(found) for label, found in task.find_unknown_labels(examples).items()} == {"q": 1, "z": 2}
    assert encoded.targets["label"].tolist() == [0, 1, -100, 0, -100, -100]
    assert task.calibrate(logits, examples) == task.calibrate(logits[[0, 1, 3]], [examples[i] for i in (0, 1, 3)])
    assert task.confidences(predictions, examples)[1].tolist() == [True, True, False, False, False, False]
    assert len(task.find_mistakes(predictions, examples)) == 4


def test_labels_that_a_multi_label_task_lacks_count_as_missed():
    task = TextClassification(labels=("a", "b"), multi_label=True)
    examples = [ClassificationExample("x", label=label) for label in ("a|z", "b", "z", "")]
    predictions = task.decode(
        np.array([[9.0, -9], [-9, 9], [-9, -9], [-9, -9]]), task.encode(examples, TOKENIZER, 16), examples
    )
    metrics = task.compute_metrics(predictions, examples)
    gold = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    predicted = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert metrics["accuracy"] == 0.5
    for average in ("micro", "macro"):
        assert metrics[f"f1_{average}"] == pytest.approx(f1_score(gold, predicted, average=average, zero_division=0))
    assert task.label_counts(predictions, examples)["z"] == MatchCounts(0, 0, 2)
    assert len(task.find_mistakes(predictions, examples)) == 2


def test_dev_file_of_other_labels_is_refused_with_a_suggestion():
    task = TextClassification(labels=("negative", "positive"))
    with pytest.raises(UserError, match=r"a\.tsv, line 7: 'positiv' is not a label of this task; did you mean 'positive'\?"):
        task.check_scorable([ClassificationExample("a", label="positiv", source="a.tsv", line=7)], "a.tsv")
    with pytest.raises(UserError, match="has no label"):
        task.check_scorable([ClassificationExample("a", label="positive"), ClassificationExample("a")], "a.tsv")


def test_classification_missing_label_error_lists_columns(tmp_path):
    examples = read(tmp_path, "text\tlable\na\tyes\n")
    with pytest.raises(
        UserError, match=r"a\.tsv has no column 'label'; its columns: text, lable; .*data\.columns\.label=lable"
    ):
        TextClassification().fit(examples)
    examples = read(tmp_path, '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2 has no label"):
        TextClassification().fit(examples)


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        ({}, ["x", "x"], "at least two labels"),
        ({"positive": "z"}, ["x", "y"], "task.positive: 'z' is not a label"),
        ({"positive": "x"}, ["x", "y", "z"], "binary classification, and this task has 3 labels"),
        ({"class_weights": {"w": 2.0}}, ["x", "y"], "task.class_weights: 'w' is not a label"),
        ({"labels": ("x", "y")}, ["x", "q"], "'q' is not a label"),
    ],
)
def test_classification_rejects_settings_inconsistent_with_labels(settings, labels, message):
    with pytest.raises(UserError, match=message):
        TextClassification(**settings).fit([ClassificationExample("a", label=label) for label in labels])


def test_classification_balanced_class_weights():
    examples = [ClassificationExample("a", label=label) for label in ["x"] * 6 + ["y"] * 2]
    task = TextClassification(class_weights="balanced").fit(examples)
    assert (
        task.class_weight_vector().tolist() == pytest.approx([8 / 12, 2.0]) and task.class_weight_vector().dtype == np.float32
    )
    assert TextClassification().fit(examples).class_weight_vector() is None
    custom = TextClassification(class_weights={"y": 3.0}).fit(examples)
    assert custom.class_weight_vector().tolist() == [1.0, 3.0]
    multi_label = TextClassification(class_weights="balanced", multi_label=True).fit(
        [ClassificationExample("a", label=label) for label in ["x|y", "x", "", "x|x"]]
    )
    assert multi_label.class_weight_vector().tolist() == pytest.approx([1 / 3, 3.0])
    with pytest.raises(UserError, match=r"call fit\(examples\) first"):
        TextClassification(labels=("x", "y"), class_weights="balanced").class_weight_vector()


def test_multi_label_classification_encodes_decodes_and_scores():
    task = TextClassification(multi_label=True).fit(
        [
            ClassificationExample("a", label="x|y"),
            ClassificationExample("b", label=" y | z "),
            ClassificationExample("c", label=""),
        ]
    )
    assert task.labels == ("x", "y", "z")
    examples = [ClassificationExample("a", label="x|y"), ClassificationExample("b", label="")]
    encoded = task.encode(examples, TOKENIZER, 16)
    assert encoded.targets["label"].tolist() == [[1, 1, 0], [0, 0, 0]]
    predictions = task.decode(np.array([[800.0, 0.0, -1.0], [-900.0, -1.0, -2.0]]), encoded, examples)
    assert [prediction.labels for prediction in predictions] == [["x", "y"], []]
    assert predictions[0].scores == pytest.approx({"x": 1.0, "y": 0.5, "z": 1 / (1 + np.e)})
    assert task.compute_metrics(predictions, examples) == pytest.approx({"accuracy": 1, "f1_macro": 2 / 3, "f1_micro": 1})


def test_multi_label_tuned_threshold_maximizes_micro_f1():
    rng = np.random.default_rng(0)
    logits, labels = np.round(rng.normal(size=(60, 4)), 1), rng.random((60, 4)) < 0.3  # rounded, so that there are ties
    task = TextClassification(labels=tuple("abcd"), multi_label=True)
    examples = [ClassificationExample("t", label="|".join(np.array(list("abcd"))[row])) for row in labels]

    def micro_f1(threshold):
        predicted = task.probabilities(logits) >= threshold
        return 2 * (predicted & labels).sum() / (predicted.sum() + labels.sum())

    tuned = task.tune_threshold(logits, examples)
    assert micro_f1(tuned.threshold) == max(micro_f1(value) for value in np.linspace(0, 1, 2001)) > micro_f1(0.5)
    assert task.tune_threshold(logits[:5], [ClassificationExample("t", label="")] * 5) == task
    assert TextClassification(labels=("a", "b")).tune_threshold(logits[:, :2], examples) == TextClassification(
        labels=("a", "b")
    )


def test_classification_metrics_and_confusion_matrix():
    task = TextClassification(labels=("no", "yes"), positive="yes")
    examples = [ClassificationExample("t", label=label) for label in ["yes", "yes", "no", "no", "no"]]
    predictions = [ClassificationPrediction(label, {}) for label in ["yes", "no", "no", "no", "yes"]]
    metrics = task.compute_metrics(predictions, examples)
    assert metrics == pytest.approx(
        {"accuracy": 0.6, "f1": 0.5, "f1_macro": (0.5 + 2 / 3) / 2, "f1_micro": 0.6, "matthews": 1 / 6}
    )
    assert confusion_matrix(*task.label_pairs(predictions, examples)).tolist() == [[2, 1], [1, 1]]
    assert "f1" not in TextClassification(labels=("no", "yes")).compute_metrics(predictions, examples)


def test_classification_predictions_convert_to_plain_values():
    assert ClassificationPrediction("yes", {"no": 0.25, "yes": 0.75}).to_answer() == {
        "label": "yes",
        "score": 0.75,
        "scores": {"no": 0.25, "yes": 0.75},
    }
    assert MultiLabelPrediction(["a", "b"], {"a": 0.7, "b": 0.9, "c": 0.1}).to_answer(top_k=2) == {
        "labels": [{"label": "b", "score": 0.9}, {"label": "a", "score": 0.7}],
        "scores": {"b": 0.9, "a": 0.7},
    }


def test_classification_counts_skipped_rows(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\na\tx\nb\t\nc\ty\n")
    reader = TextClassification(skip_bad=True).read(tmp_path / "a.tsv")
    assert [example.text for example in reader] == ["a", "c"] and reader.num_skipped == 1
