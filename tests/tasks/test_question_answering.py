"""Question answering: SQuAD files, context windows, answer spans as characters, no-answer threshold."""

import json

import numpy as np
import pytest

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks.answer_spans import QaWindow, best_spans
from bertsmith.tasks.question_answering import QuestionAnswering, QuestionAnsweringPrediction, SpanCandidate
from bertsmith.tasks.squad_files import QuestionAnsweringExample, find_answer_start
from bertsmith.tokenization.tokenizer import Tokenizer

PASSAGE = "The people of Zebra-town, over there,  made 天地玄黄 two times more. "


@pytest.fixture(scope="module")
def tokenizer(vocabulary) -> Tokenizer:
    return Tokenizer.load(vocabulary)


def write_squad(folder, *questions, context=PASSAGE):
    """A SQuAD file with one context; a question is (id, answers) or the whole JSON object."""
    qas = [qa if isinstance(qa, dict) else make_question(*qa) for qa in questions]
    path = folder / "dev.json"
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def make_question(name, answers):
    return {"id": name, "question": "what is it ?", "answers": [{"text": t, "answer_start": s} for t, s in answers]}


def answers_at(*texts):
    return [(answer, PASSAGE.index(answer)) for answer in texts]


def gold_logits(encoded):
    """Logits of a model that predicts every target."""
    logits = [np.full((len(ids), 2), -10.0) for ids in encoded.input_ids]
    for sequence_logits, start, end in zip(logits, encoded.targets["start"], encoded.targets["end"], strict=True):
        sequence_logits[start, 0] = sequence_logits[end, 1] = 10.0
    return logits


def test_squad_questions_are_read_with_answer_spans(tmp_path):
    (example,) = QuestionAnswering().read(write_squad(tmp_path, ("q1", answers_at("Zebra-town", "Zebra"))))
    assert (example.id, example.answers, example.span) == ("q1", ("Zebra-town", "Zebra"), (14, 24))


@pytest.mark.parametrize(("answer_start", "expected"), [(0, 0), (3, 4), (1, 0), (-1, 0), (99, 8), (6, 4), (7, 8)])
def test_find_answer_start_uses_nearest_occurrence(answer_start, expected):
    assert find_answer_start("abc.abc.abc", "abc", answer_start) == expected


def test_squad_answer_missing_in_context_raises_or_is_skipped(tmp_path):
    path = write_squad(tmp_path, ("q1", [("people", 999)]), ("q2", [("persons", 4)]), ("q3", [("persons", 4), ("people", 4)]))
    with pytest.raises(UserError, match=r"dev.json, question q2: its answer 'persons' does not occur.*skip_bad"):
        list(QuestionAnswering().read(path))
    reader = QuestionAnswering(skip_bad=True).read(path)
    assert [(example.id, example.span) for example in reader] == [("q1", (4, 10)), ("q3", (4, 10))] and reader.num_skipped == 1


@pytest.mark.parametrize("qa", [make_question("q1", []), {"id": "q1", "question": "?", "is_impossible": True, "answers": []}])
def test_squad_question_without_answer_requires_no_answer(tmp_path, qa):
    with pytest.raises(UserError, match=r"question q1 has no answer.*task.no_answer=true"):
        list(QuestionAnswering(skip_bad=True).read(write_squad(tmp_path, qa)))
    (example,) = QuestionAnswering(no_answer=True).read(write_squad(tmp_path, qa))
    assert example.answers == () and example.span is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[]", "no list `data`"), ('{"data": [{}]}', "an article has no list `paragraphs`")],
)
def test_squad_rejects_other_json(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=f"x.json.*{message}.*SQuAD"):
        list(QuestionAnswering().read(tmp_path / "x.json"))


def test_question_answering_without_references(tmp_path, tokenizer):
    (example,) = QuestionAnswering().read(write_squad(tmp_path, {"id": 7, "question": "?"}))
    assert (example.id, example.answers) == ("7", None) and QuestionAnswering().encode([example], tokenizer, 32).targets == {}
    with pytest.raises(UserError, match="no question has a gold answer"):
        QuestionAnswering().compute_metrics([QuestionAnsweringPrediction("x", 0, 1, 1.0, 0.0, ())], [example])


@pytest.mark.parametrize("length", [24, 32, 384])
@pytest.mark.parametrize("stride", [3, 128])
def test_question_answering_round_trip_of_answers(tmp_path, tokenizer, length, stride):
    texts = ["The people", "there", "天地", "天地玄黄 two", "more."]
    task = QuestionAnswering(doc_stride=stride)
    examples = list(task.read(write_squad(tmp_path, *((text, answers_at(text)) for text in texts))))
    encoded = task.encode(examples, tokenizer, length)
    assert max(map(len, encoded.input_ids)) <= length and (length > 32 or len(encoded.input_ids) > len(examples))
    predictions = task.decode(gold_logits(encoded), encoded, examples)
    assert [prediction.answer for prediction in predictions] == texts
    assert all(PASSAGE[prediction.start : prediction.end] == prediction.answer for prediction in predictions)
    assert task.compute_metrics(predictions, examples) == {"exact": 1.0, "f1": 1.0}


def test_question_answering_window_without_answer_targets_cls(tmp_path, tokenizer):
    task = QuestionAnswering(doc_stride=4)
    (example,) = task.read(write_squad(tmp_path, ("q", answers_at("made 天地"))))
    encoded = task.encode([example], tokenizer, 16)
    start, end = encoded.targets["start"], encoded.targets["end"]
    answers = [tokenizer.decode(ids[a : b + 1]) for ids, a, b in zip(encoded.input_ids, start, end, strict=True) if a]
    assert answers and set(answers) == {"made 天 地"} and len(answers) < len(start)
    assert [tokenizer.id_to_token[ids[0]] for ids in encoded.input_ids] == ["[CLS]"] * len(start)
    assert all(
        token_types.tolist() == sorted(token_types) and token_types[5] == 0 and token_types[6] == 1
        for token_types in encoded.token_type_ids
    )


def test_best_spans_respects_max_context_and_max_answer_length():
    offsets = np.array([(i, i + 1) for i in range(4)])
    logits = np.array([[0.0, 0], [1, 0], [5, 0], [0.1, 2], [0.2, 3], [0.3, 8]])
    window = QaWindow(
        2, offsets, np.array([False, True, True, True])
    )  # positions 2..5; the best start is max-context in another window
    spans, _ = best_spans([window], [logits], max_answer_length=2, n_best_size=3)
    assert (spans[0].start, spans[0].end) == (3, 4)
    valid_spans = [(s, e) for s in range(1, 4) for e in range(s, min(s + 2, 4))]
    expected = sorted(valid_spans, key=lambda p: -(logits[2 + p[0], 0] + logits[2 + p[1], 1]))[:3]
    assert [(span.start, span.end - 1) for span in spans] == expected


def test_best_spans_softmax_over_context_and_cls():
    window = QaWindow(1, np.array([(0, 1), (1, 2)]), np.array([True, True]))
    spans, null = best_spans(
        [window], [np.log(np.array([[2.0, 1], [5, 1], [1, 2], [900, 900]]))], max_answer_length=5, n_best_size=9
    )
    assert np.exp(spans[0].score) == pytest.approx(5 / 8 * 2 / 4) and np.exp(null) == pytest.approx(2 / 8 * 1 / 4)
    assert sum(np.exp(span.score) for span in spans) == pytest.approx((5 * 3 + 1 * 2) / 32)  # no span ends before its start


def test_best_spans_null_score_is_the_minimum_over_windows():
    window = QaWindow(1, np.array([(0, 1)]), np.array([True]))
    confident, doubtful = np.log(np.array([[1.0, 1], [9, 9]])), np.log(np.array([[9.0, 9], [1, 1]]))
    assert best_spans([window, window], [doubtful, confident], 3, 3)[1] == pytest.approx(np.log(0.01))


def make_prediction(text, null_score_diff):
    return QuestionAnsweringPrediction(text, 0, len(text), 0.5, null_score_diff, (SpanCandidate(text, 0, len(text), 0.5),))


def test_question_answering_tunes_no_answer_threshold():
    examples = [
        QuestionAnsweringExample(question="?", context="x", answers=("yes",)),
        QuestionAnsweringExample(question="?", context="x", answers=()),
        QuestionAnsweringExample(question="?", context="x", answers=("yes",)),
    ]
    task = QuestionAnswering(no_answer=True)
    predictions = [make_prediction("yes", 1.5), make_prediction("yes", 4.0), make_prediction("no", 3.0)]
    tuned = task.tune_threshold(predictions, examples)
    assert tuned.threshold == 1.5 and from_dict(QuestionAnswering, to_dict(tuned)) == tuned
    metrics = task.compute_metrics(predictions, examples)
    assert (metrics["exact"], metrics["best_exact"], metrics["best_f1_threshold"]) == (1 / 3, 2 / 3, 1.5)
    assert (metrics["has_answer_exact"], metrics["no_answer_f1"]) == (0.5, 0.0)
    always_null = task.tune_threshold([make_prediction("no", 2.0)] * 3, examples)
    assert always_null.threshold < 2.0  # never answering is best
    assert QuestionAnswering().tune_threshold(predictions, examples) == QuestionAnswering()


def test_question_answering_predicts_no_answer_above_threshold(tmp_path, tokenizer):
    examples = list(QuestionAnswering(no_answer=True).read(write_squad(tmp_path, ("q1", answers_at("people")), ("q2", []))))
    task = QuestionAnswering(no_answer=True, threshold=-5.0)
    encoded = task.encode(examples, tokenizer, 64)
    assert encoded.targets["start"].tolist()[1] == 0
    predictions = task.decode(gold_logits(encoded), encoded, examples)
    assert [(prediction.answer, prediction.start) for prediction in predictions] == [("people", 4), ("", 0)]
    assert predictions[1].null_score_diff > 0 > predictions[0].null_score_diff and predictions[1].candidates
    assert task.compute_metrics(predictions, examples)["f1"] == 1
    forced = QuestionAnswering().decode(gold_logits(encoded), encoded, examples)
    assert forced[1].answer  # without no_answer there is always an answer


@pytest.mark.parametrize("context", ["", " \x07 "])
def test_question_answering_of_empty_context(tokenizer, context):
    example = QuestionAnsweringExample(question="what ?", context=context)
    encoded = QuestionAnswering().encode([example], tokenizer, 16)
    (prediction,) = QuestionAnswering().decode([np.zeros((len(ids), 2)) for ids in encoded.input_ids], encoded, [example])
    assert (prediction.answer, prediction.start, prediction.end, prediction.candidates) == ("", 0, 0, ())


def test_question_answering_cmrc_scorer():
    examples = [QuestionAnsweringExample(question="?", context="x", answers=("《天地》",))]
    assert QuestionAnswering(scorer="cmrc").compute_metrics([make_prediction("天地玄", 0)], examples) == {
        "exact": 0.0,
        "f1": pytest.approx(4 / 5),
    }
    assert QuestionAnswering().compute_metrics([make_prediction("天地玄", 0)], examples) == {"exact": 0.0, "f1": 0.0}


def test_question_answering_truncates_long_question(tokenizer):
    example = QuestionAnsweringExample(question="what " * 500, context=PASSAGE, answers=("The people",), span=(0, 10))
    encoded = QuestionAnswering().encode([example], tokenizer, 32)
    assert max(map(len, encoded.input_ids)) <= 32 and all(
        (token_types == 1).sum() > 2 for token_types in encoded.token_type_ids
    )
    assert QuestionAnswering().decode(gold_logits(encoded), encoded, [example])[0].answer == "The people"


class CountingTokenizer:
    """A tokenizer whose encodings count how often their contents, copied whole each time, are asked for."""

    def __init__(self, tokenizer):
        self.tokenizer, self.num_copies = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def encode_batch(self, texts, return_offsets=True):
        return [CountingEncoding(encoding, self) for encoding in self.tokenizer.encode_batch(texts, return_offsets)]


class CountingEncoding:
    def __init__(self, encoding, counter):
        self.encoding, self.counter = encoding, counter

    def __getattr__(self, name):
        self.counter.num_copies += 1
        return getattr(self.encoding, name)


def test_encoding_a_long_passage_copies_it_once_and_not_per_window(tokenizer):
    questions = [QuestionAnsweringExample(question="who ?", context=PASSAGE * 100) for _ in range(3)]
    counting = CountingTokenizer(tokenizer)
    encoded = QuestionAnswering().encode(questions, counting, 32)
    assert len(encoded.input_ids) > 300
    assert counting.num_copies == len(questions) + 2  # the ids of each question, ids and offsets of their one context


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_of_questions_are_read_as_squad_files_are(tmp_path, form):
    rows = [
        {"id": "a", "context": PASSAGE, "question": "who ?",
         "answers": {"text": ["Zebra-town"], "answer_start": [PASSAGE.index("Zebra")]}},
        {"id": "b", "context": PASSAGE, "question": "why ?", "answers": {"text": [], "answer_start": []}},
    ]  # fmt: skip
    path = tmp_path / f"dev.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    examples = list(QuestionAnswering(no_answer=True).read(path))
    assert [(example.id, example.answers) for example in examples] == [("a", ("Zebra-town",)), ("b", ())]
    assert PASSAGE[slice(*examples[0].span)] == "Zebra-town"


def test_squad_with_a_lone_surrogate_is_a_bad_row(tmp_path):
    path = write_squad(tmp_path, ("a", answers_at("Zebra-town")), ("\ud83d", answers_at("Zebra-town")))
    reader = QuestionAnswering(skip_bad=True).read(path)
    assert len(list(reader)) == 1 and "lone surrogate" in reader.errors[0]


def test_reported_best_threshold_is_the_one_that_is_saved_if_never_answering_is_best():
    task = QuestionAnswering(no_answer=True)
    examples = [QuestionAnsweringExample(question="?", context="a", answers=()) for _ in range(3)]
    predictions = [
        QuestionAnsweringPrediction("a", 0, 1, 0.5, difference, (SpanCandidate("a", 0, 1, 0.5),))
        for difference in (-0.17, 0.5, 2.0)
    ]
    metrics, tuned = task.compute_metrics(predictions, examples), task.tune_threshold(predictions, examples)
    assert metrics["best_f1_threshold"] == tuned.threshold == pytest.approx(-1.17)
    assert all(prediction.null_score_diff > tuned.threshold for prediction in predictions) and metrics["best_f1"] == 1
