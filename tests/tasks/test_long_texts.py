"""Texts far over the model's length, on every task: cut, windowed or joined, and answered within seconds."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.inference.predictor import Predictor
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.objectives.contrastive import Contrastive
from bertsmith.objectives.supervised import ExampleBatches, Supervised, build_batch
from bertsmith.tasks import (
    MultipleChoice,
    QuestionAnswering,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from bertsmith.tasks.base import encode_pairs
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.multiple_choice import MultipleChoiceExample
from bertsmith.tasks.regression import RegressionExample
from bertsmith.tasks.similarity import SimilarityExample
from bertsmith.tasks.squad_files import QuestionAnsweringExample as Asked
from bertsmith.tokenization.tokenizer import Tokenizer

LENGTH = 32


def document(words):
    """Nothing of interest until the last word."""
    return "the " * (words - 1) + "people"


def example(kind, words):
    text = document(words)
    if kind == "classify":
        return ClassificationExample(text, label="a")
    if kind == "regress":
        return RegressionExample(text, label=1.0)
    if kind == "choose":
        return MultipleChoiceExample(text, ("now", "the way"), label=1)
    if kind == "tag":
        return Sentence(tokens=tuple(text.split()), tags=("O",) * (words - 1) + ("B-X",))
    start = len(text) - len("people")
    return Asked(id="1", question="who", context=text, answers=("people",), span=(start, len(text)))


TASKS = {
    "classify": TextClassification(labels=("a", "b"), stride=16),
    "regress": TextRegression(stride=16),
    "choose": MultipleChoice(stride=16),
    "tag": TokenClassification(labels=("B-X", "O"), scheme="bio", overlap=8),
    "answer": QuestionAnswering(stride=16),
}
LONG = {
    kind: ("truncate", "window", "hierarchical") if kind in ("classify", "regress", "choose") else ("truncate", "window")
    for kind in TASKS
}
CASES = [(kind, long) for kind, some in LONG.items() for long in some]


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def tasked(kind, long, stride=None):
    given = {"stride": stride} if stride and kind != "tag" else {}
    return replace(TASKS[kind], long=long, **given)


def predictor(task, tokenizer, objective=None):
    encoder = from_dict(
        EncoderConfig, {"width": 8, "layers": 1, "mixer": {"heads": 2}, "feedforward": {"inner": 8}, "positions": 512}
    )
    model = build_model(
        ModelConfig(encoder=encoder, vocabulary=len(tokenizer), heads=(objective or Supervised(task)).heads()), 0
    )
    return Predictor(model, tokenizer, {}, task, LENGTH)


@pytest.mark.parametrize(("kind", "long"), CASES)
def test_windows_see_the_end_of_a_document_and_a_cut_does_not(tokenizer, kind, long):
    encoded = tasked(kind, long).encode([example(kind, 300)], tokenizer, LENGTH)
    last = tokenizer.backend_tokenizer.token_to_id("people")
    assert max(map(len, encoded.ids)) <= LENGTH
    assert any(last in ids for ids in encoded.ids) == (long != "truncate")
    assert len(encoded.ids) == (2 if kind == "choose" else 1) or long != "truncate"


@pytest.mark.parametrize(("kind", "long"), CASES)
def test_a_hundred_thousand_words_are_learnt_from_and_answered(tokenizer, kind, long):
    task = tasked(kind, long)
    ask, short = predictor(tasked(kind, long, 256), tokenizer), example(kind, 5)
    ask.length = 512
    answers = ask.answers([short, example(kind, 100_000), short])
    assert len(answers) == 3 and answers[0] == answers[2]
    encoded = task.encode([example(kind, 2000), short], tokenizer, LENGTH)
    reading = ExampleBatches(task, encoded, 512, 0)
    losses = [Supervised(task).compute_loss(ask.model, reading(k)).parts["task"] for k in range(reading.batches_per_epoch)]
    assert all(loss.isfinite() for loss in losses) and any(loss > 0 for loss in losses)


@pytest.mark.parametrize(("kind", "long"), [("tag", "hierarchical"), ("answer", "hierarchical"), ("similar", "window")])
def test_what_has_no_meaning_for_a_task_is_refused(kind, long):
    """Answers that are places are not joined, and a vector has no score to be averaged."""
    with pytest.raises(UserError, match=rf"long = '{long}' is not known; known: .*truncate"):
        from_dict(TaskConfig, {"kind": kind, "long": long})


def test_the_vector_of_a_long_text_is_the_mean_of_its_windows(tokenizer):
    """In training, in answers and by `embed` alike."""
    examples = [
        SimilarityExample(document(70), "the way", 1.0),
        SimilarityExample("now", document(50), 0.0),
        SimilarityExample(document(70), "of", 0.5),
    ]
    task = TextSimilarity(long="hierarchical", stride=16).fit(examples)
    ask = predictor(task, tokenizer, Contrastive(task))
    texts = [text for one in examples for text in (one.text, one.text_b)]
    whole = []
    for text in texts:
        windows = encode_pairs([(text, None)], tokenizer, LENGTH, "window", 16).input_ids
        inputs = [Inputs(torch.from_numpy(ids), Layout.from_lengths([len(ids)])) for ids in windows]
        whole.append(torch.stack([ask.model(one).mean(0) for one in inputs]).mean(0).detach())
    assert_close(torch.from_numpy(ask.embed(texts)), torch.stack(whole), atol=1e-5, rtol=1e-5)
    cosines = torch.cosine_similarity(torch.stack(whole[::2]), torch.stack(whole[1::2]))
    assert [one.score for one in ask.answers(examples)] == pytest.approx(cosines.tolist(), abs=1e-5)
    encoded = task.encode(examples, tokenizer, LENGTH)
    assert encoded.targets["texts"].tolist() == [[0, 1], [2, 3], [0, 4]]
    loss = Contrastive(task).compute_loss(ask.model, ExampleBatches(task, encoded, 10**6, 0, shuffle=False)(0)).parts["task"]
    assert float(loss.detach()) == pytest.approx(float(((cosines - torch.tensor([1.0, 0.0, 0.5])) ** 2).sum()), abs=1e-5)


def test_the_vector_of_a_hundred_thousand_words(tokenizer):
    for long in ("truncate", "hierarchical"):
        task = TextSimilarity(long=long)
        ask = predictor(task, tokenizer, Contrastive(task))
        ask.length = 512
        (answer,) = ask.answers([SimilarityExample(document(100_000), document(100_000))])
        assert answer.score == pytest.approx(1)


@pytest.mark.parametrize("long", ["window", "hierarchical"])
@torch.no_grad()
def test_options_are_compared_over_all_their_windows(tokenizer, long):
    """What a batch of several questions costs, and is answered, is what each option's own windows say."""
    task = tasked("choose", long)
    examples = [
        MultipleChoiceExample(document(60), ("now", "the way", "of"), label=1),
        MultipleChoiceExample("the way", ("people", "now"), label=0),
    ]
    ask = predictor(task, tokenizer)
    encoded = task.encode(examples, tokenizer, LENGTH)
    scores = []
    for one in examples:
        for option in one.options:
            alone = task.encode([MultipleChoiceExample(one.context, (option, option))], tokenizer, LENGTH)
            half = len(alone.ids) // 2
            states = [ask.model(build_batch(task, alone, [np.array([n])]).inputs)[0] for n in range(half)]
            rows = torch.stack(states).mean(0, keepdim=True) if long == "hierarchical" else torch.stack(states)
            scores.append(float(ask.model.compute_logits("task", rows).mean()))
    wanted = [torch.tensor(scores[:3]), torch.tensor(scores[3:])]
    for answer, row in zip(ask.answers(examples), wanted, strict=True):
        assert answer.scores == pytest.approx(row.softmax(0).tolist(), abs=1e-5)
    loss = Supervised(task).compute_loss(ask.model, ExampleBatches(task, encoded, 10**6, 0)(0)).parts["task"]
    assert float(loss) == pytest.approx(
        sum(float(-row.log_softmax(0)[one.label]) for row, one in zip(wanted, examples, strict=True)), rel=1e-4
    )
