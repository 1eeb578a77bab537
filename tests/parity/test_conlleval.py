"""Entity scores equal those of conlleval, for valid and invalid tag sequences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scorers.conlleval import Entity, count_matches, get_entities
from bertsmith.tasks.token_classification import Sentence, TokenClassification, TokenClassificationPrediction

# conlleval's rules for when a chunk ends and starts between two tags of the same type, as its documentation tables them;
# where the types differ, a chunk ends unless the first tag is O, and one starts unless the second is.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}


def split(tag):
    return tuple(tag.split("-", 1)) if "-" in tag else (tag, "")


def conlleval(gold, predicted):
    """(correct, predicted, gold) counts by type: one pass over both columns with a state machine each, as in the script."""
    num_correct, num_predicted, num_gold = {}, {}, {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        previous_gold, previous_predicted, in_match = ("O", ""), ("O", ""), False
        for gold_tag, predicted_tag in zip([*gold_tags, "O"], [*predicted_tags, "O"], strict=True):
            gold_tag, predicted_tag = split(gold_tag), split(predicted_tag)
            ends = [
                (a[0], b[0]) in ENDS or (a[0] != "O" and a[1] != b[1])
                for a, b in ((previous_gold, gold_tag), (previous_predicted, predicted_tag))
            ]
            starts = [
                (a[0], b[0]) in STARTS or (b[0] != "O" and a[1] != b[1])
                for a, b in ((previous_gold, gold_tag), (previous_predicted, predicted_tag))
            ]
            if in_match and ends == [True, True] and previous_gold[1] == previous_predicted[1]:
                num_correct[previous_gold[1]] = num_correct.get(previous_gold[1], 0) + 1
                in_match = False
            elif in_match and (ends[0] != ends[1] or gold_tag[1] != predicted_tag[1]):
                in_match = False
            if starts == [True, True] and gold_tag[1] == predicted_tag[1]:
                in_match = True
            for is_start, (_, name), counts in ((starts[0], gold_tag, num_gold), (starts[1], predicted_tag, num_predicted)):
                if is_start:
                    counts[name] = counts.get(name, 0) + 1
            previous_gold, previous_predicted = gold_tag, predicted_tag
    return {
        name: (num_correct.get(name, 0), num_predicted.get(name, 0), num_gold.get(name, 0)) for name in num_predicted | num_gold
    }


BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-new-type", "I-new-type"]
BIOES = [*BIO[:5], "E-PER", "S-PER", "E-LOC", "S-LOC"]


def columns(tags):
    pairs = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), min_size=1, max_size=9)
    return st.lists(pairs, min_size=1, max_size=4).map(lambda rows: [list(zip(*row, strict=True)) for row in rows])


@settings(max_examples=2000)
@given(columns(BIO))
def test_count_matches_equals_conlleval(rows):
    gold, predicted = [row[0] for row in rows], [row[1] for row in rows]
    counts = {name: (c.num_correct, c.num_predicted, c.num_gold) for name, c in count_matches(predicted, gold).items()}
    assert counts == conlleval(gold, predicted)


@settings(max_examples=300)
@given(columns(["O", "B", "I"]))
def test_count_matches_of_tags_without_type(rows):
    gold, predicted = [row[0] for row in rows], [row[1] for row in rows]
    counts = {name: (c.num_correct, c.num_predicted, c.num_gold) for name, c in count_matches(predicted, gold).items()}
    assert counts == conlleval(gold, predicted)


@settings(max_examples=1000)
@given(columns(BIOES))
def test_get_entities_of_bioes_matches_seqeval(rows):
    metrics = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for tags in (row[side] for row in rows for side in (0, 1)):
        expected = [(start, end + 1, name) for name, start, end in metrics.get_entities(list(tags))]
        assert [(e.start, e.end, e.type) for e in get_entities(tags)] == sorted(expected)


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("O I-PER I-PER", [Entity(1, 3, "PER")]),  # I after O starts an entity
        ("B-PER I-LOC", [Entity(0, 1, "PER"), Entity(1, 2, "LOC")]),  # as does another type
        ("I-PER B-PER I-PER", [Entity(0, 1, "PER"), Entity(1, 3, "PER")]),
        ("B-PER M-PER E-PER S-PER", [Entity(0, 3, "PER"), Entity(3, 4, "PER")]),
        ("E-PER B-PER", [Entity(0, 1, "PER"), Entity(1, 2, "PER")]),
        ("B M E S", [Entity(0, 3, ""), Entity(3, 4, "")]),
        ("B-LOC L-LOC U-LOC", [Entity(0, 2, "LOC"), Entity(2, 3, "LOC")]),
        ("NN VB O", []),
    ],
)
def test_get_entities(tags, entities):
    assert get_entities(tags.split()) == entities


def compute_metrics(predicted, gold):
    task = TokenClassification(labels=("B-LOC", "B-PER", "I-LOC", "I-PER", "O"))
    examples = [Sentence(tokens=tuple("x" * len(tags)), tags=tuple(tags)) for tags in gold]
    return task.compute_metrics([TokenClassificationPrediction(tuple(tags)) for tags in predicted], examples)


def test_entity_scores_by_hand():
    """Two of three predicted entities are correct, of four gold ones; the end of a sentence splits the last one."""
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["I-LOC", "O", "B-PER"]]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["I-LOC", "O", "O"]]
    scores = compute_metrics(predicted, gold)
    assert scores["precision"] == pytest.approx(2 / 3) and scores["recall"] == pytest.approx(2 / 4)
    assert scores["f1"] == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores["f1.LOC"] == pytest.approx(2 / 3) and scores["f1.PER"] == pytest.approx(1 / 2)
    assert scores["accuracy"] == pytest.approx(5 / 7)


def test_entity_scores_without_entities_are_zero():
    expected = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "f1.LOC": 0.0, "f1.PER": 0.0, "accuracy": 1.0}
    assert compute_metrics([["O"]], [["O"]]) == expected
