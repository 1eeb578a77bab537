"""Entity scores are those of conlleval, on legal and illegal tags alike."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scorers.conlleval import Entity, count_matches, entity_scores, get_entities, tag_accuracy

# conlleval's rules for when a chunk ends and starts between two tags of the same type, as its documentation tables them;
# where the types differ, a chunk ends unless the first tag is O, and one starts unless the second is.
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}


def split(tag):
    return tuple(tag.split("-", 1)) if "-" in tag else (tag, "")


def conlleval(gold, guessed):
    """(right, found, there) by type: one pass over both columns with two little machines, as the script works."""
    right, found, there = {}, {}, {}
    for truth, guess in zip(gold, guessed, strict=True):
        before, said_before, both = ("O", ""), ("O", ""), False
        for tag, said in zip([*truth, "O"], [*guess, "O"], strict=True):
            tag, said = split(tag), split(said)
            ends = [(a[0], b[0]) in ENDS or (a[0] != "O" and a[1] != b[1]) for a, b in ((before, tag), (said_before, said))]
            starts = [(a[0], b[0]) in STARTS or (b[0] != "O" and a[1] != b[1]) for a, b in ((before, tag), (said_before, said))]
            if both and ends == [True, True] and before[1] == said_before[1]:
                right[before[1]] = right.get(before[1], 0) + 1
                both = False
            elif both and (ends[0] != ends[1] or tag[1] != said[1]):
                both = False
            if starts == [True, True] and tag[1] == said[1]:
                both = True
            for started, (_, name), counts in ((starts[0], tag, there), (starts[1], said, found)):
                if started:
                    counts[name] = counts.get(name, 0) + 1
            before, said_before = tag, said
    return {name: (right.get(name, 0), found.get(name, 0), there.get(name, 0)) for name in found | there}


BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-new-type", "I-new-type"]
BIOES = [*BIO[:5], "E-PER", "S-PER", "E-LOC", "S-LOC"]


def columns(tags):
    pairs = st.lists(st.tuples(st.sampled_from(tags), st.sampled_from(tags)), min_size=1, max_size=9)
    return st.lists(pairs, min_size=1, max_size=4).map(lambda rows: [list(zip(*row, strict=True)) for row in rows])


@settings(max_examples=2000)
@given(columns(BIO))
def test_counts_are_those_of_the_two_machines(rows):
    gold, guessed = [row[0] for row in rows], [row[1] for row in rows]
    ours = {name: (c.right, c.found, c.there) for name, c in count_matches(guessed, gold).items()}
    assert ours == conlleval(gold, guessed)


@settings(max_examples=300)
@given(columns(["O", "B", "I"]))
def test_tags_without_a_type_are_counted_too(rows):
    gold, guessed = [row[0] for row in rows], [row[1] for row in rows]
    ours = {name: (c.right, c.found, c.there) for name, c in count_matches(guessed, gold).items()}
    assert ours == conlleval(gold, guessed)


@settings(max_examples=1000)
@given(columns(BIOES))
def test_bioes_agrees_with_seqeval(rows):
    metrics = pytest.importorskip("seqeval.metrics.sequence_labeling")
    for tags in (row[side] for row in rows for side in (0, 1)):
        theirs = [(start, end + 1, name) for name, start, end in metrics.get_entities(list(tags))]
        assert [(e.start, e.end, e.type) for e in get_entities(tags)] == sorted(theirs)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O I-PER I-PER", [Entity(1, 3, "PER")]),  # I after O begins one
        ("B-PER I-LOC", [Entity(0, 1, "PER"), Entity(1, 2, "LOC")]),  # as does another type
        ("I-PER B-PER I-PER", [Entity(0, 1, "PER"), Entity(1, 3, "PER")]),
        ("B-PER M-PER E-PER S-PER", [Entity(0, 3, "PER"), Entity(3, 4, "PER")]),
        ("E-PER B-PER", [Entity(0, 1, "PER"), Entity(1, 2, "PER")]),
        ("B M E S", [Entity(0, 3, ""), Entity(3, 4, "")]),
        ("B-LOC L-LOC U-LOC", [Entity(0, 2, "LOC"), Entity(2, 3, "LOC")]),
        ("NN VB O", []),
    ],
)
def test_entities_of_a_sentence(tags, found):
    assert get_entities(tags.split()) == found


def test_scores_worked_by_hand():
    """Two of three found entities are right, of four; the last is cut in two by the sentence's end."""
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["I-LOC", "O", "B-PER"]]
    said = [["B-PER", "I-PER", "O", "B-PER"], ["I-LOC", "O", "O"]]
    found = entity_scores(said, gold)
    assert found["precision"] == pytest.approx(2 / 3) and found["recall"] == pytest.approx(2 / 4)
    assert found["f1"] == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert found["f1.LOC"] == pytest.approx(2 / 3) and found["f1.PER"] == pytest.approx(1 / 2)
    assert tag_accuracy(said, gold) == pytest.approx(5 / 7)


def test_nothing_found_and_nothing_there_score_nothing():
    assert entity_scores([["O"]], [["O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}
