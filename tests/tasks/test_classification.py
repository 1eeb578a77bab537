"""Classification: labels are learnt once and kept, texts fit the model, scores become answers that can be judged."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks import TaskConfig, TextClassification
from bertsmith.tasks.base import sliding_windows, truncate_longest_first
from bertsmith.tasks.classification import ClassificationExample, ClassificationPrediction, MultiLabelPrediction
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id


def ids(text):
    return TOKENIZER.encode(text).ids


def read(tmp_path, text, name="a.tsv", **settings):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(TextClassification(**settings).read(path))


def test_one_text_and_a_pair_become_berts_sequences():
    task = TextClassification(labels=("no", "yes"))
    examples = [
        ClassificationExample("the people", label="yes"),
        ClassificationExample("what time", "it is first", label="no"),
        ClassificationExample("", label="no"),
    ]
    encoded = task.encode(examples, TOKENIZER, 16)
    pair = [CLS, *ids("what time"), SEP, *ids("it is first"), SEP]
    assert [one.tolist() for one in encoded.input_ids] == [[CLS, *ids("the people"), SEP], pair, [CLS, SEP]]
    assert encoded.token_type_ids[1].tolist() == [0] * 4 + [1] * 4 and not encoded.token_type_ids[0].any()
    assert encoded.example_index.tolist() == [0, 1, 2] and encoded.targets["label"].tolist() == [1, 0, 0]
    assert "label" not in task.encode([ClassificationExample("the people")], TOKENIZER, 16).targets


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
def test_pairs_are_cut_as_in_the_original(first, second, room):
    a, b = list(range(first)), list(range(second))
    while len(a) + len(b) > room:  # as BERT's own _truncate_seq_pair
        (a if len(a) > len(b) else b).pop()
    assert truncate_longest_first(first, second, room) == (len(a), len(b))


def test_a_long_pair_keeps_the_beginnings_and_the_length():
    encoded = TextClassification(labels=("a", "b")).encode([ClassificationExample("one two " * 50, "three")], TOKENIZER, 20)
    pieces = ids("three")
    room = 20 - 3 - len(pieces)
    assert encoded.input_ids[0].tolist() == [CLS, *ids("one two " * 50)[:room], SEP, *pieces, SEP]


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 80))
def test_windows_cover_every_token_and_none_is_needless(count, size, stride):
    found = sliding_windows(count, size, stride)
    assert set().union(*(range(*one) for one in found)) == set(range(count))
    assert all(end - start <= size for start, end in found) and found[0][0] == 0
    assert all(end < count for _, end in found[:-1])


def test_a_long_text_is_windowed_and_its_scores_are_averaged():
    task = TextClassification(labels=("a", "b"), long="window", stride=10)
    examples = [
        ClassificationExample("the", label="a"),
        ClassificationExample("of and " * 20, label="b"),
        ClassificationExample("of", label="a"),
    ]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert encoded.example_index.tolist() == [0, 1, 1, 1, 2] and encoded.targets["label"].tolist() == [0, 1, 1, 1, 0]
    assert [len(one) for one in encoded.input_ids] == [3, 22, 22, 22, 3]
    scores = np.array([[1.0, 0.0], [0.0, 3.0], [4.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    answer = task.decode(scores, encoded, examples)[1]
    assert answer.label == "b" and answer.scores["b"] == pytest.approx(1 / (1 + np.exp(4 / 3 - 5 / 3)))


def test_a_windowed_pair_keeps_its_shorter_text_beside_every_window():
    task = TextClassification(labels=("a", "b"), long="window", stride=4)
    for example in (ClassificationExample("of and " * 10, "the people"), ClassificationExample("the people", "of and " * 10)):
        encoded = task.encode([example], TOKENIZER, 15)
        side = int("the" in example.text)  # where the longer one is
        for one, segments in zip(encoded.input_ids, encoded.token_type_ids, strict=True):
            assert {*ids("of and")} <= {*one[segments == side]} and {*ids("the people")} <= {*one[segments != side]}
        assert len(encoded.input_ids) > 2 and max(map(len, encoded.input_ids)) == 15


def test_hierarchical_leaves_joining_to_the_model():
    task = TextClassification(labels=("a", "b"), long="hierarchical", stride=10)
    examples = [ClassificationExample("of and " * 20, label="b"), ClassificationExample("of", label="a")]
    encoded = task.encode(examples, TOKENIZER, 22)
    assert (
        len(encoded.input_ids) == 4
        and encoded.targets["label"].tolist() == [1, 0]
        and all(one.pooled for one in encoded.metadata)
    )
    answers = task.decode(np.array([[0.0, 1.0], [1.0, 0.0]]), encoded, examples)
    assert [one.label for one in answers] == ["b", "a"]
    with pytest.raises(ValueError, match="4 rows of scores for 2 examples"):
        task.decode(np.zeros((4, 2)), encoded, examples)


def test_a_text_of_a_hundred_thousand_words_is_answered():
    examples = [ClassificationExample("time people " * 50_000)]
    assert len(TextClassification(labels=("a", "b")).encode(examples, TOKENIZER, 128).input_ids[0]) == 128
    task = TextClassification(labels=("a", "b"), long="window", stride=126)
    encoded = task.encode(examples, TOKENIZER, 128)
    assert len(encoded.input_ids) == 794
    assert task.decode(np.tile([0.0, 1.0], (794, 1)), encoded, examples)[0].label == "b"


def test_reading_takes_columns_pairs_and_labels_of_any_kind(tmp_path):
    found = read(tmp_path, "s1\ts2\tgold\na\tb\tyes\n", columns={"text": "s1", "text_b": "s2", "label": "gold"})
    assert found == [ClassificationExample("a", "b", "yes", source=str(tmp_path / "a.tsv"), line=2)]
    lines = '{"text": "a", "label": 1}\n{"text": "b", "label": false}\n{"text": "c", "label": null}\n{"text": ""}\n'
    assert [one.label for one in read(tmp_path, lines, "a.jsonl")] == ["1", "false", None, None]
    many = read(tmp_path, '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": []}\n', "b.jsonl", many=True)
    assert [one.label for one in many] == ["x|y", ""]


@pytest.mark.parametrize(
    ("text", "name", "fault"),
    [
        ("text\tlabel\na\t\n", "a.tsv", r"a\.tsv, line 2: label is empty"),
        ('{"text": "a", "label": ["x"]}\n', "a.jsonl", r"line 1: label is \[\"x\"\], not one label .*task\.many=true"),
        ('{"text": "a", "text_b": 3, "label": "x"}\n', "a.jsonl", r"line 1: text_b is 3, not a text"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(tmp_path, text, name, fault):
    with pytest.raises(UserError, match=fault):
        read(tmp_path, text, name)


def test_labels_are_learnt_sorted_and_survive_a_config():
    task = TextClassification().fit([ClassificationExample("a", label=one) for one in ("b", "c", "a", "b")])
    assert task.labels == ("a", "b", "c") and task.num_outputs == 3
    assert from_dict(TaskConfig, to_dict(task)) == task and to_dict(task)["kind"] == "classify"
    assert TextClassification(labels=("c", "b", "a")).fit([ClassificationExample("a", label="b")]).labels == ("c", "b", "a")


def test_a_label_nobody_learnt_names_its_place_and_the_nearest():
    task = TextClassification(labels=("negative", "positive"))
    with pytest.raises(UserError, match=r"a\.tsv, line 7: 'positiv' is not a label of this task; did you mean 'positive'\?"):
        task.encode([ClassificationExample("a", label="positiv", source="a.tsv", line=7)], TOKENIZER, 16)
    with pytest.raises(UserError, match="known: negative, positive"):
        TextClassification(labels=("negative", "positive"), many=True).encode(
            [ClassificationExample("a", label="zzz")], TOKENIZER, 16
        )


def test_training_without_labels_names_the_columns_there_are(tmp_path):
    examples = read(tmp_path, "text\tlable\na\tyes\n")
    with pytest.raises(UserError, match=r"a\.tsv has no column 'label', only: text, lable; .*data\.columns\.label=lable"):
        TextClassification().fit(examples)
    examples = read(tmp_path, '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2 has no label"):
        TextClassification().fit(examples)


@pytest.mark.parametrize(
    ("settings", "labels", "fault"),
    [
        ({}, ["x", "x"], "nothing to tell apart"),
        ({"positive": "z"}, ["x", "y"], "task.positive: 'z' is not a label"),
        ({"positive": "x"}, ["x", "y", "z"], "one of two labels; here are 3"),
        ({"weights": {"w": 2.0}}, ["x", "y"], "task.weights: 'w' is not a label"),
        ({"labels": ("x", "y")}, ["x", "q"], "'q' is not a label"),
    ],
)
def test_settings_that_do_not_fit_the_labels_are_refused(settings, labels, fault):
    with pytest.raises(UserError, match=fault):
        TextClassification(**settings).fit([ClassificationExample("a", label=one) for one in labels])


def test_balanced_weights_make_labels_count_the_same():
    examples = [ClassificationExample("a", label=one) for one in ["x"] * 6 + ["y"] * 2]
    task = TextClassification(weights="balanced").fit(examples)
    assert task.class_weights().tolist() == pytest.approx([8 / 12, 2.0]) and task.class_weights().dtype == np.float32
    assert TextClassification().fit(examples).class_weights() is None
    given = TextClassification(weights={"y": 3.0}).fit(examples)
    assert given.class_weights().tolist() == [1.0, 3.0]
    several = TextClassification(weights="balanced", many=True).fit(
        [ClassificationExample("a", label=one) for one in ["x|y", "x", "", "x|x"]]
    )
    assert several.class_weights().tolist() == pytest.approx([1 / 3, 3.0])
    with pytest.raises(UserError, match="fitted"):
        TextClassification(labels=("x", "y"), weights="balanced").class_weights()


def test_many_labels_hold_at_once_or_none():
    task = TextClassification(many=True).fit(
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
    answers = task.decode(np.array([[800.0, 0.0, -1.0], [-900.0, -1.0, -2.0]]), encoded, examples)
    assert [one.labels for one in answers] == [["x", "y"], []]
    assert answers[0].scores == pytest.approx({"x": 1.0, "y": 0.5, "z": 1 / (1 + np.e)})
    assert task.compute_metrics(answers, examples) == pytest.approx({"accuracy": 1, "f1_macro": 2 / 3, "f1_micro": 1})


def test_the_tuned_threshold_is_the_best_there_is():
    rng = np.random.default_rng(0)
    scores, truths = np.round(rng.normal(size=(60, 4)), 1), rng.random((60, 4)) < 0.3  # rounded: many are equal
    task = TextClassification(labels=tuple("abcd"), many=True)
    examples = [ClassificationExample("t", label="|".join(np.array(list("abcd"))[row])) for row in truths]

    def score(threshold):
        given = task.probabilities(scores) >= threshold
        return 2 * (given & truths).sum() / (given.sum() + truths.sum())

    tuned = task.tune_threshold(scores, examples)
    assert score(tuned.threshold) == max(score(cut) for cut in np.linspace(0, 1, 2001)) > score(0.5)
    assert task.tune_threshold(scores[:5], [ClassificationExample("t", label="")] * 5) == task
    assert TextClassification(labels=("a", "b")).tune_threshold(scores[:, :2], examples) == TextClassification(
        labels=("a", "b")
    )


def test_answers_are_judged_by_every_score_that_applies():
    task = TextClassification(labels=("no", "yes"), positive="yes")
    examples = [ClassificationExample("t", label=one) for one in ["yes", "yes", "no", "no", "no"]]
    answers = [ClassificationPrediction(one, {}) for one in ["yes", "no", "no", "no", "yes"]]
    found = task.compute_metrics(answers, examples)
    assert found == pytest.approx(
        {"accuracy": 0.6, "f1": 0.5, "f1_macro": (0.5 + 2 / 3) / 2, "f1_micro": 0.6, "matthews": 1 / 6}
    )
    assert task.confusion_matrix(answers, examples).tolist() == [[2, 1], [1, 1]]
    assert "f1" not in TextClassification(labels=("no", "yes")).compute_metrics(answers, examples)


def test_answers_are_plain_values():
    assert dataclasses.asdict(ClassificationPrediction("yes", {"no": 0.25, "yes": 0.75})) == {
        "label": "yes",
        "scores": {"no": 0.25, "yes": 0.75},
    }
    assert to_dict(MultiLabelPrediction(["a"], {"a": 0.7})) == {"labels": ["a"], "scores": {"a": 0.7}}


def test_skipped_rows_are_counted(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\na\tx\nb\t\nc\ty\n")
    found = TextClassification(skip_bad=True).read(tmp_path / "a.tsv")
    assert [one.text for one in found] == ["a", "c"] and found.num_skipped == 1
