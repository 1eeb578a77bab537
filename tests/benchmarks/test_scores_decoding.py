"""`benchmarks scores` evaluates both sides with argmax decoding and with constrained decoding."""

import numpy as np
import pytest

from benchmarks.scoring import TrainedSide, _decode_tags, _with_decoding, score_decodings
from bertsmith.tasks import TextClassification, TokenClassification
from bertsmith.tasks.conll_files import Sentence

TASK = TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio")
GOLD = [Sentence(tokens=("Mr", "Peter", "Blackburn", "said"), tags=("O", "B-PER", "I-PER", "O"))]
# [CLS], Mr, Peter, its second subword, Blackburn, [SEP], padding; "said" was truncated
FEATURES = [{"words": [None, 0, 1, None, 2, None]}]
LOGITS = np.array([[[9, 0, 0], [0, 0, 5], [3, 4, 0], [0, 0, 9], [0, 5, 0], [9, 0, 0], [-100, -100, -100]]], np.float64)


def test_scores_decoding_uses_first_subword_and_truncated_words_are_outside():
    (prediction,) = _decode_tags(_with_decoding(TASK, constrained=False), FEATURES, LOGITS, GOLD)
    assert prediction.tags == ("O", "I-PER", "I-PER", "O")
    (prediction,) = _decode_tags(_with_decoding(TASK, constrained=True), FEATURES, LOGITS, GOLD)
    assert prediction.tags == GOLD[0].tags


def test_scores_decoding_of_sentence_without_subwords_is_outside():
    (prediction,) = _decode_tags(TASK, [{"words": [None, None]}], LOGITS[:, :2], GOLD)
    assert prediction.tags == ("O",) * 4


def test_scores_decodings_of_the_same_logits():
    logits = LOGITS.copy()
    logits[0, 4] = [5, 0, 0]  # "Blackburn" starts an entity of its own in both decodings; only "Peter" differs
    gold = [Sentence(tokens=GOLD[0].tokens, tags=("O", "B-PER", "B-PER", "O"))]
    side = TrainedSide(lambda constrained: _decode_tags(_with_decoding(TASK, constrained), FEATURES, logits, gold), 1.0, 1)
    assert score_decodings(TASK, side, gold) == {
        "argmax": 1.0,
        "constrained": 1.0,
    }  # an I after O starts an entity, as in conlleval
    logits[0, 1] = [4, 0, 5]  # "Mr" before it
    logits[0, 2] = [0, 9, 0]
    assert score_decodings(TASK, side, gold) == {"argmax": 1.0, "constrained": pytest.approx(0.5)}


def test_scores_decodings_are_empty_for_other_tasks():
    assert score_decodings(TextClassification(labels=("a", "b")), TrainedSide(lambda constrained: [], 1.0, 1), []) == {}
