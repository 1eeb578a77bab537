"""SQuAD v1.1, SQuAD v2.0 and CMRC 2018 scorers equal the official ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scorers import cmrc, squad


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("The Denver Broncos!", ["denver broncos"], 1, 1),
        ("a cat", ["The CAT."], 1, 1),
        ("cats", ["cat"], 0, 0),
        ("anthem", ["them"], 0, 0),  # an article is a whole word, not a prefix
        ("the-man", ["theman"], 1, 1),  # punctuation is removed before articles
        ("the man", ["man, the"], 1, 1),
        ("24–10", ["24-10"], 0, 0),  # a non-ASCII dash is kept
        ("in 10th and 11th", ["10th and 11th centuries"], 0, 2 * 3 / (4 + 4)),
        ("new new york", ["new york"], 0, 2 * 2 / (3 + 2)),  # a word counts as often as it is in both
        ("York", ["London", "New York", "York city of"], 0, 2 / 3),  # the best of several
        ("É", ["é"], 1, 1),
        ("", ["x"], 0, 0),
    ],
)
def test_squad_scores_by_hand(prediction, references, exact, f1):
    assert (squad.exact_match(prediction, references), squad.f1(prediction, references)) == (exact, pytest.approx(f1))
    assert (squad.exact_match_v2(prediction, references), squad.f1_v2(prediction, references)) == (exact, pytest.approx(f1))


def test_squad_versions_differ_for_empty_normalized_answers():
    assert (squad.exact_match("a", ["the"]), squad.f1("a", ["the"])) == (1, 0)
    assert (squad.exact_match_v2("a", ["the"]), squad.f1_v2("a", ["the"])) == (1, 1)
    assert (squad.exact_match_v2("", []), squad.f1_v2("", [])) == (1, 1)
    assert (squad.exact_match_v2("x", []), squad.f1_v2("x", [])) == (0, 0)
    assert squad.exact_match_v2("", ["the", "x"]) == 0  # a reference of articles only is ignored if there are others


WORDS = st.lists(st.sampled_from(["a", "an", "The", "cat", "cat.", "-", "dog's", "É", "1,000", "them"]), max_size=6).map(
    " ".join
)


@settings(max_examples=300)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_squad_matches_torchmetrics(prediction, references):
    torchmetrics = pytest.importorskip("torchmetrics.functional.text")
    gold = {"answers": {"answer_start": [0] * len(references), "text": references}, "id": "1"}
    expected = torchmetrics.squad([{"prediction_text": prediction, "id": "1"}], [gold])
    assert squad.exact_match(prediction, references) == pytest.approx(float(expected["exact_match"]) / 100)
    if all(map(squad.normalize_answer, [prediction, *references])):  # for empty normalized texts torchmetrics follows v2.0
        assert squad.f1(prediction, references) == pytest.approx(float(expected["f1"]) / 100)


QUESTIONS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.sampled_from(["", "text"])), min_size=1, max_size=12
)


@settings(max_examples=300)
@given(QUESTIONS, st.randoms(use_true_random=False))
def test_squad_best_threshold_matches_brute_force(questions, random):
    """Against brute force; for a question without an answer the empty prediction is correct."""
    null_scores = random.sample([n / 4 - 1 for n in range(40)], len(questions))
    scores = [score if answerable else float(not text) for score, answerable, text in questions]
    has_answer, predictions = [q[1] for q in questions], [q[2] for q in questions]

    def mean_score(threshold):
        values = [
            float(not answerable) if null_score > threshold else score
            for null_score, answerable, score in zip(null_scores, has_answer, scores, strict=True)
        ]
        return sum(values) / len(values)

    lowest = min(null_scores) - 1
    best, threshold = squad.best_threshold([q[0] for q in questions], null_scores, has_answer, predictions, lowest)
    assert (
        best
        == pytest.approx(max(mean_score(value) for value in [lowest, *null_scores]))
        == pytest.approx(mean_score(threshold))
    )


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("光荣和ω-force", ["光荣和ω-force"], 1, 1),
        ("光荣和ω-force公司", ["光荣和ω-force"], 0, 2 * 4 / (6 + 4)),  # 光 荣 和 ωforce 公 司: a foreign word is one unit
        ("《战国无双》", ["战国无双"], 1, 1),  # CMRC removes this punctuation
        ("战国……无双", ["战国无双"], 0, 2 * 2 / (5 + 4)),  # but not the ellipsis
        ("北京上海", ["上海北京"], 0, 2 / 4),  # the common substring is contiguous: not four characters
        ("甲乙丙丁", ["甲丙丁"], 0, 2 * 2 / (4 + 3)),
        ("1990年", ["1991年", "1990年代"], 0, 2 * 2 / (2 + 3)),
        ("New York city", ["new york"], 0, 2 * 2 / (3 + 2)),
        ("about 1,000,000 us$", ["1,000,000"], 0, 2 * 1 / (4 + 1)),
        ("", ["上海"], 0, 0),
        ("。", ["，"], 1, 0),  # both empty after removal: equal, but no common substring
    ],
)
def test_cmrc_scores_by_hand(prediction, references, exact, f1):
    assert (cmrc.exact_match(prediction, references), cmrc.f1(prediction, references)) == (exact, pytest.approx(f1))


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("I don't know Mr. Smith's age.", ["i", "do", "n't", "know", "mr.", "smith", "'s", "age", "."]),
        ("（Port Royal Sound）号", ["port", "royal", "sound", "号"]),
        ('5% (about) "ten"', ["5", "%", "(", "about", ")", '"', "ten", '"']),
        ("3.5英里", ["3.5", "英", "里"]),
    ],
)
def test_cmrc_segmentation_of_non_chinese_text(text, units):
    assert cmrc.mixed_segmentation(text) == units
