"""Both sides of `benchmarks scores` are judged by each token's best tag and by the best legal tags, too."""

import numpy as np
import pytest

from benchmarks.scoring import TrainedSide, _decode_tags, _with_decoding, score_decodings
from bertsmith.tasks import TextClassification, TokenClassification
from bertsmith.tasks.conll_files import Sentence

TASK = TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio")
GOLD = [Sentence(tokens=("Mr", "Peter", "Blackburn", "said"), tags=("O", "B-PER", "I-PER", "O"))]
# [CLS], Mr, Peter, a second piece of it, Blackburn, [SEP], padding; "said" was cut off
FEATURES = [{"words": [None, 0, 1, None, 2, None]}]
SCORES = np.array([[[9, 0, 0], [0, 0, 5], [3, 4, 0], [0, 0, 9], [0, 5, 0], [9, 0, 0], [-100, -100, -100]]], np.float64)


def test_a_word_has_the_tag_of_its_first_piece_and_a_word_that_was_cut_off_is_outside():
    (answer,) = _decode_tags(_with_decoding(TASK, legal=False), FEATURES, SCORES, GOLD)
    assert answer.tags == ("O", "I-PER", "I-PER", "O")
    (answer,) = _decode_tags(_with_decoding(TASK, legal=True), FEATURES, SCORES, GOLD)
    assert answer.tags == GOLD[0].tags


def test_a_sentence_without_a_word_that_has_a_piece_is_outside():
    (answer,) = _decode_tags(TASK, [{"words": [None, None]}], SCORES[:, :2], GOLD)
    assert answer.tags == ("O",) * 4


def test_the_same_scores_are_judged_in_both_ways():
    scores = SCORES.copy()
    scores[0, 4] = [5, 0, 0]  # "Blackburn" begins a name of its own, whoever decodes; only "Peter" does differ
    gold = [Sentence(tokens=GOLD[0].tokens, tags=("O", "B-PER", "B-PER", "O"))]
    taught = TrainedSide(lambda legal: _decode_tags(_with_decoding(TASK, legal), FEATURES, scores, gold), 1.0, 1)
    assert score_decodings(TASK, taught, gold) == {
        "argmax": 1.0,
        "legal": 1.0,
    }  # an I after O begins a name, as conlleval counts
    scores[0, 1] = [4, 0, 5]  # "Mr" before it
    scores[0, 2] = [0, 9, 0]
    assert score_decodings(TASK, taught, gold) == {"argmax": 1.0, "legal": pytest.approx(0.5)}


def test_what_is_not_tagged_has_one_way_only():
    assert score_decodings(TextClassification(labels=("a", "b")), TrainedSide(lambda legal: [], 1.0, 1), []) == {}
