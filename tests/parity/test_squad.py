"""Answers are scored as SQuAD v1.1, SQuAD v2.0 and CMRC 2018 score them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scorers import cmrc, squad


@pytest.mark.parametrize(
    ("said", "answers", "exact", "f1"),
    [
        ("The Denver Broncos!", ["denver broncos"], 1, 1),
        ("a cat", ["The CAT."], 1, 1),
        ("cats", ["cat"], 0, 0),
        ("anthem", ["them"], 0, 0),  # an article is a word, not a beginning
        ("the-man", ["theman"], 1, 1),  # the hyphen goes before articles do
        ("the man", ["man, the"], 1, 1),
        ("24–10", ["24-10"], 0, 0),  # a dash that is not ASCII stays
        ("in 10th and 11th", ["10th and 11th centuries"], 0, 2 * 3 / (4 + 4)),
        ("new new york", ["new york"], 0, 2 * 2 / (3 + 2)),  # a word counts as often as both have it
        ("York", ["London", "New York", "York city of"], 0, 2 / 3),  # the best of several
        ("É", ["é"], 1, 1),
        ("", ["x"], 0, 0),
    ],
)
def test_squad_scores_worked_by_hand(said, answers, exact, f1):
    assert (squad.exact_match(said, answers), squad.f1(said, answers)) == (exact, pytest.approx(f1))
    assert (squad.exact_match_v2(said, answers), squad.f1_v2(said, answers)) == (exact, pytest.approx(f1))


def test_where_nothing_is_left_the_two_versions_differ():
    assert (squad.exact_match("a", ["the"]), squad.f1("a", ["the"])) == (1, 0)
    assert (squad.exact_match_v2("a", ["the"]), squad.f1_v2("a", ["the"])) == (1, 1)
    assert (squad.exact_match_v2("", []), squad.f1_v2("", [])) == (1, 1)
    assert (squad.exact_match_v2("x", []), squad.f1_v2("x", [])) == (0, 0)
    assert squad.exact_match_v2("", ["the", "x"]) == 0  # an answer of articles alone is no answer among others


WORDS = st.lists(st.sampled_from(["a", "an", "The", "cat", "cat.", "-", "dog's", "É", "1,000", "them"]), max_size=6).map(
    " ".join
)


@settings(max_examples=300)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_squad_agrees_with_torchmetrics(said, answers):
    torchmetrics = pytest.importorskip("torchmetrics.functional.text")
    gold = {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "1"}
    theirs = torchmetrics.squad([{"prediction_text": said, "id": "1"}], [gold])
    assert squad.exact_match(said, answers) == pytest.approx(float(theirs["exact_match"]) / 100)
    if all(map(squad.normalize_answer, [said, *answers])):  # where nothing is left, it follows v2.0
        assert squad.f1(said, answers) == pytest.approx(float(theirs["f1"]) / 100)


QUESTIONS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.sampled_from(["", "said"])), min_size=1, max_size=12
)


@settings(max_examples=300)
@given(QUESTIONS, st.randoms(use_true_random=False))
def test_the_best_threshold_is_the_best_of_all(questions, random):
    """Every threshold is tried; a question without an answer is right when nothing is said."""
    nulls = random.sample([n / 4 - 1 for n in range(40)], len(questions))
    right = [score if there else float(not said) for score, there, said in questions]
    there, said = [q[1] for q in questions], [q[2] for q in questions]

    def at(threshold):
        scores = [float(not has) if null > threshold else r for null, has, r in zip(nulls, there, right, strict=True)]
        return sum(scores) / len(scores)

    never = min(nulls) - 1
    best, threshold = squad.best_threshold([q[0] for q in questions], nulls, there, said, never)
    assert best == pytest.approx(max(at(one) for one in [never, *nulls])) == pytest.approx(at(threshold))


@pytest.mark.parametrize(
    ("said", "answers", "exact", "f1"),
    [
        ("光荣和ω-force", ["光荣和ω-force"], 1, 1),
        ("光荣和ω-force公司", ["光荣和ω-force"], 0, 2 * 4 / (6 + 4)),  # 光 荣 和 ωforce 公 司: a foreign word is one part
        ("《战国无双》", ["战国无双"], 1, 1),  # CMRC's marks are passed over
        ("战国……无双", ["战国无双"], 0, 2 * 2 / (5 + 4)),  # but not the ellipsis
        ("北京上海", ["上海北京"], 0, 2 / 4),  # a common stretch is unbroken: not four characters
        ("甲乙丙丁", ["甲丙丁"], 0, 2 * 2 / (4 + 3)),
        ("1990年", ["1991年", "1990年代"], 0, 2 * 2 / (2 + 3)),
        ("New York city", ["new york"], 0, 2 * 2 / (3 + 2)),
        ("about 1,000,000 us$", ["1,000,000"], 0, 2 * 1 / (4 + 1)),
        ("", ["上海"], 0, 0),
        ("。", ["，"], 1, 0),  # nothing is left of either: the same, and no stretch
    ],
)
def test_cmrc_scores_worked_by_hand(said, answers, exact, f1):
    assert (cmrc.exact_match(said, answers), cmrc.f1(said, answers)) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I don't know Mr. Smith's age.", ["i", "do", "n't", "know", "mr.", "smith", "'s", "age", "."]),
        ("（Port Royal Sound）号", ["port", "royal", "sound", "号"]),
        ('5% (about) "ten"', ["5", "%", "(", "about", ")", '"', "ten", '"']),
        ("3.5英里", ["3.5", "英", "里"]),
    ],
)
def test_what_is_not_chinese_is_cut_as_the_treebank_does(text, parts):
    assert cmrc.mixed_segmentation(text) == parts
