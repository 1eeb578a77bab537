"""Answering: questions from SQuAD's JSON, windows over the passage, spans by characters, no answer by a threshold."""

import json

import numpy as np
import pytest

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks.question_answering import (
    QaWindow,
    QuestionAnswering,
    QuestionAnsweringPrediction,
    SpanCandidate,
    best_spans,
)
from bertsmith.tasks.squad_files import QuestionAnsweringExample, find_answer_start
from bertsmith.tokenization.tokenizer import Tokenizer

PASSAGE = "The people of Zebra-town, over there,  made 天地玄黄 two times more. "


@pytest.fixture(scope="module")
def tokenizer(vocabulary) -> Tokenizer:
    return Tokenizer.load(vocabulary)


def squad(folder, *asked, context=PASSAGE):
    """A file of one passage; a question is (id, answers) or the whole object."""
    objects = [one if isinstance(one, dict) else question(*one) for one in asked]
    path = folder / "dev.json"
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": objects}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def question(name, answers):
    return {"id": name, "question": "what is it ?", "answers": [{"text": t, "answer_start": s} for t, s in answers]}


def at(*texts):
    return [(text, PASSAGE.index(text)) for text in texts]


def perfect(encoded):
    """Scores of a model that knows every target."""
    rows = [np.full((len(ids), 2), -10.0) for ids in encoded.ids]
    for row, start, end in zip(rows, encoded.targets["start"], encoded.targets["end"], strict=True):
        row[start, 0] = row[end, 1] = 10.0
    return rows


def test_questions_are_read_with_their_places(tmp_path):
    (one,) = QuestionAnswering().read(squad(tmp_path, ("q1", at("Zebra-town", "Zebra"))))
    assert (one.id, one.answers, one.span) == ("q1", ("Zebra-town", "Zebra"), (14, 24))


@pytest.mark.parametrize(("given", "found"), [(0, 0), (3, 4), (1, 0), (-1, 0), (99, 8), (6, 4), (7, 8)])
def test_an_answer_is_taken_from_the_nearest_place(given, found):
    assert find_answer_start("abc.abc.abc", "abc", given) == found


def test_an_answer_that_is_nowhere_is_named_or_left_out(tmp_path):
    path = squad(tmp_path, ("q1", [("people", 999)]), ("q2", [("persons", 4)]), ("q3", [("persons", 4), ("people", 4)]))
    with pytest.raises(UserError, match=r"dev.json, question q2: its answer 'persons' does not stand.*skip_bad"):
        list(QuestionAnswering().read(path))
    reading = QuestionAnswering(skip_bad=True).read(path)
    assert [(one.id, one.span) for one in reading] == [("q1", (4, 10)), ("q3", (4, 10))] and reading.num_skipped == 1


@pytest.mark.parametrize("asked", [question("q1", []), {"id": "q1", "question": "?", "is_impossible": True, "answers": []}])
def test_questions_without_an_answer_want_the_mode_for_them(tmp_path, asked):
    with pytest.raises(UserError, match=r"question q1 has no answer.*task.no_answer=true"):
        list(QuestionAnswering(skip_bad=True).read(squad(tmp_path, asked)))
    (one,) = QuestionAnswering(no_answer=True).read(squad(tmp_path, asked))
    assert one.answers == () and one.span is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "not JSON"), ("[]", "no list `data`"), ('{"data": [{}]}', "an article has no list `paragraphs`")],
)
def test_a_file_of_another_shape_is_refused(tmp_path, text, fault):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=f"x.json.*{fault}.*SQuAD"):
        list(QuestionAnswering().read(tmp_path / "x.json"))


def test_a_question_without_answers_can_be_asked(tmp_path, tokenizer):
    (one,) = QuestionAnswering().read(squad(tmp_path, {"id": 7, "question": "?"}))
    assert (one.id, one.answers) == ("7", None) and QuestionAnswering().encode([one], tokenizer, 32).targets == {}
    with pytest.raises(UserError, match="no question has an answer"):
        QuestionAnswering().compute_metrics([QuestionAnsweringPrediction("x", 0, 1, 1.0, 0.0, ())], [one])


@pytest.mark.parametrize("length", [24, 32, 384])
@pytest.mark.parametrize("stride", [3, 128])
def test_answers_come_back_as_the_passage_writes_them(tmp_path, tokenizer, length, stride):
    texts = ["The people", "there", "天地", "天地玄黄 two", "more."]
    task = QuestionAnswering(stride=stride)
    examples = list(task.read(squad(tmp_path, *((text, at(text)) for text in texts))))
    encoded = task.encode(examples, tokenizer, length)
    assert max(map(len, encoded.input_ids)) <= length and (length > 32 or len(encoded.input_ids) > len(examples))
    answers = task.decode(perfect(encoded), encoded, examples)
    assert [answer.text for answer in answers] == texts
    assert all(PASSAGE[answer.start : answer.end] == answer.text for answer in answers)
    assert task.compute_metrics(answers, examples) == {"exact": 1.0, "f1": 1.0}


def test_a_window_without_the_whole_answer_points_at_cls(tmp_path, tokenizer):
    task = QuestionAnswering(stride=4)
    (example,) = task.read(squad(tmp_path, ("q", at("made 天地"))))
    encoded = task.encode([example], tokenizer, 16)
    start, end = encoded.targets["start"], encoded.targets["end"]
    held = [tokenizer.decode(ids[a : b + 1]) for ids, a, b in zip(encoded.input_ids, start, end, strict=True) if a]
    assert held and set(held) == {"made 天 地"} and len(held) < len(start)
    assert [tokenizer.pieces[ids[0]] for ids in encoded.input_ids] == ["[CLS]"] * len(start)
    assert all(
        segments.tolist() == sorted(segments) and segments[5] == 0 and segments[6] == 1 for segments in encoded.token_type_ids
    )


def test_a_span_starts_where_its_window_sees_most_and_is_not_too_long():
    offsets = np.array([(i, i + 1) for i in range(4)])
    scores = np.array([[0.0, 0], [1, 0], [5, 0], [0.1, 2], [0.2, 3], [0.3, 8]])
    window = QaWindow(2, offsets, np.array([False, True, True, True]))  # places 2..5; the best start belongs to another
    spans, _ = best_spans([window], [scores], max_answer_length=2, n_best_size=3)
    assert (spans[0].start, spans[0].end) == (3, 4)
    everything = [(s, e) for s in range(1, 4) for e in range(s, min(s + 2, 4))]
    expected = sorted(everything, key=lambda p: -(scores[2 + p[0], 0] + scores[2 + p[1], 1]))[:3]
    assert [(span.start, span.end - 1) for span in spans] == expected


def test_scores_are_probabilities_over_the_passage_and_cls():
    window = QaWindow(1, np.array([(0, 1), (1, 2)]), np.array([True, True]))
    spans, null = best_spans(
        [window], [np.log(np.array([[2.0, 1], [5, 1], [1, 2], [900, 900]]))], max_answer_length=5, n_best_size=9
    )
    assert np.exp(spans[0].score) == pytest.approx(5 / 8 * 2 / 4) and np.exp(null) == pytest.approx(2 / 8 * 1 / 4)
    assert sum(np.exp(span.score) for span in spans) == pytest.approx((5 * 3 + 1 * 2) / 32)  # no end before its start


def test_doubt_is_that_of_the_window_that_doubts_most():
    window = QaWindow(1, np.array([(0, 1)]), np.array([True]))
    sure, unsure = np.log(np.array([[1.0, 1], [9, 9]])), np.log(np.array([[9.0, 9], [1, 1]]))
    assert best_spans([window, window], [unsure, sure], 3, 3)[1] == pytest.approx(np.log(0.01))


def said(text, doubt):
    return QuestionAnsweringPrediction(text, 0, len(text), 0.5, doubt, (SpanCandidate(text, 0, len(text), 0.5),))


def test_the_threshold_is_tuned_and_stored():
    examples = [
        QuestionAnsweringExample(question="?", context="x", answers=("yes",)),
        QuestionAnsweringExample(question="?", context="x", answers=()),
        QuestionAnsweringExample(question="?", context="x", answers=("yes",)),
    ]
    task = QuestionAnswering(no_answer=True)
    answers = [said("yes", 1.5), said("yes", 4.0), said("no", 3.0)]
    tuned = task.tune_threshold(answers, examples)
    assert tuned.threshold == 1.5 and from_dict(QuestionAnswering, to_dict(tuned)) == tuned
    judged = task.compute_metrics(answers, examples)
    assert (judged["exact"], judged["best_exact"], judged["best_f1_threshold"]) == (1 / 3, 2 / 3, 1.5)
    assert (judged["has_answer_exact"], judged["no_answer_f1"]) == (0.5, 0.0)
    never = task.tune_threshold([said("no", 2.0)] * 3, examples)
    assert never.threshold < 2.0  # the best is to say nothing
    assert QuestionAnswering().tune_threshold(answers, examples) == QuestionAnswering()


def test_no_answer_is_given_above_the_threshold(tmp_path, tokenizer):
    examples = list(QuestionAnswering(no_answer=True).read(squad(tmp_path, ("q1", at("people")), ("q2", []))))
    task = QuestionAnswering(no_answer=True, threshold=-5.0)
    encoded = task.encode(examples, tokenizer, 64)
    assert encoded.targets["start"].tolist()[1] == 0
    answers = task.decode(perfect(encoded), encoded, examples)
    assert [(one.text, one.start) for one in answers] == [("people", 4), ("", None)]
    assert answers[1].no_answer > 0 > answers[0].no_answer and answers[1].candidates
    assert task.compute_metrics(answers, examples)["f1"] == 1
    forced = QuestionAnswering().decode(perfect(encoded), encoded, examples)
    assert forced[1].text  # without the mode there is always an answer


@pytest.mark.parametrize("context", ["", " \x07 "])
def test_an_empty_passage_has_no_answer(tokenizer, context):
    example = QuestionAnsweringExample(question="what ?", context=context)
    encoded = QuestionAnswering().encode([example], tokenizer, 16)
    (answer,) = QuestionAnswering().decode([np.zeros((len(ids), 2)) for ids in encoded.input_ids], encoded, [example])
    assert (answer.text, answer.start, answer.candidates) == ("", None, ())


def test_chinese_is_scored_as_cmrc_does():
    examples = [QuestionAnsweringExample(question="?", context="x", answers=("《天地》",))]
    assert QuestionAnswering(scorer="cmrc").compute_metrics([said("天地玄", 0)], examples) == {
        "exact": 0.0,
        "f1": pytest.approx(4 / 5),
    }
    assert QuestionAnswering().compute_metrics([said("天地玄", 0)], examples) == {"exact": 0.0, "f1": 0.0}


def test_a_long_question_leaves_room_for_the_passage(tokenizer):
    example = QuestionAnsweringExample(question="what " * 500, context=PASSAGE, answers=("The people",), span=(0, 10))
    encoded = QuestionAnswering().encode([example], tokenizer, 32)
    assert max(map(len, encoded.input_ids)) <= 32 and all((one == 1).sum() > 2 for one in encoded.token_type_ids)
    assert QuestionAnswering().decode(perfect(encoded), encoded, [example])[0].text == "The people"
