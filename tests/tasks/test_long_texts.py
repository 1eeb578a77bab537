"""Texts much longer than the model, for every task: truncated, windowed or hierarchical."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
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
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.multiple_choice import MultipleChoiceExample
from bertsmith.tasks.regression import RegressionExample
from bertsmith.tasks.sequences import encode_pairs
from bertsmith.tasks.similarity import SimilarityExample
from bertsmith.tasks.squad_files import QuestionAnsweringExample
from bertsmith.tokenization.tokenizer import Tokenizer

LENGTH = 32


def document(words):
    """A text whose only distinctive word is the last one."""
    return "the " * (words - 1) + "people"


def make_example(kind, words):
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
    return QuestionAnsweringExample(id="1", question="who", context=text, answers=("people",), span=(start, len(text)))


TASKS = {
    "classify": TextClassification(labels=("a", "b"), doc_stride=16),
    "regress": TextRegression(doc_stride=16),
    "choose": MultipleChoice(doc_stride=16),
    "tag": TokenClassification(labels=("B-X", "O"), scheme="bio", overlap=8),
    "answer": QuestionAnswering(doc_stride=16),
}
LONG = {
    kind: ("truncate", "window", "hierarchical") if kind in ("classify", "regress", "choose") else ("truncate", "window")
    for kind in TASKS
}
CASES = [(kind, long) for kind, modes in LONG.items() for long in modes]


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return Tokenizer.load(vocabulary)


def make_task(kind, long, stride=None):
    settings = {"doc_stride": stride} if stride and kind != "tag" else {}
    return replace(TASKS[kind], long_text=long, **settings)


def make_predictor(task, tokenizer, objective=None):
    encoder = from_dict(
        EncoderConfig,
        {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "mixer": {"num_attention_heads": 2},
            "feedforward": {"intermediate_size": 8},
            "max_position_embeddings": 512,
        },
    )
    model = build_model(
        ModelConfig(encoder=encoder, vocab_size=len(tokenizer), heads=(objective or Supervised(task)).heads()), 0
    )
    return Predictor(TorchEngine(model), tokenizer, {}, task, LENGTH)


@pytest.mark.parametrize(("kind", "long"), CASES)
def test_long_text_windows_include_the_end_and_truncation_does_not(tokenizer, kind, long):
    encoded = make_task(kind, long).encode([make_example(kind, 300)], tokenizer, LENGTH)
    last = tokenizer.backend_tokenizer.token_to_id("people")
    assert max(map(len, encoded.input_ids)) <= LENGTH
    assert any(last in ids for ids in encoded.input_ids) == (long != "truncate")
    assert len(encoded.input_ids) == (2 if kind == "choose" else 1) or long != "truncate"


@pytest.mark.parametrize(("kind", "long"), CASES)
def test_long_text_of_100k_words_trains_and_predicts(tokenizer, kind, long):
    task = make_task(kind, long)
    predictor, short = make_predictor(make_task(kind, long, 256), tokenizer), make_example(kind, 5)
    predictor.max_length = 512
    predictions = predictor.predict_examples([short, make_example(kind, 100_000), short])
    assert len(predictions) == 3 and predictions[0] == predictions[2]
    encoded = task.encode([make_example(kind, 2000), short], tokenizer, LENGTH)
    batches = ExampleBatches(task, encoded, 512, 0)
    losses = [
        Supervised(task).compute_loss(predictor.model, batches(index)).parts["task"]
        for index in range(batches.batches_per_epoch)
    ]
    assert all(loss.isfinite() for loss in losses) and any(loss > 0 for loss in losses)


@pytest.mark.parametrize(("kind", "long"), [("tag", "hierarchical"), ("answer", "hierarchical"), ("similar", "window")])
def test_long_text_rejects_modes_the_task_does_not_support(kind, long):
    """Token-level outputs cannot be pooled, and embeddings have no logits to average."""
    with pytest.raises(UserError, match=rf"long_text = '{long}' is not valid; choose from .*truncate"):
        from_dict(TaskConfig, {"kind": kind, "long_text": long})


def test_long_text_embedding_is_the_mean_of_its_windows(tokenizer):
    """In training, in predictions and by `embed`."""
    examples = [
        SimilarityExample(document(70), "the way", 1.0),
        SimilarityExample("now", document(50), 0.0),
        SimilarityExample(document(70), "of", 0.5),
    ]
    task = TextSimilarity(long_text="hierarchical", doc_stride=16).fit(examples)
    predictor = make_predictor(task, tokenizer, Contrastive(task))
    texts = [text for example in examples for text in (example.text, example.text_b)]
    embeddings = []
    for text in texts:
        windows = encode_pairs([(text, None)], tokenizer, LENGTH, "window", 16).input_ids
        inputs = [Inputs(torch.from_numpy(ids), Layout.from_lengths([len(ids)])) for ids in windows]
        embeddings.append(torch.stack([predictor.model(window).mean(0) for window in inputs]).mean(0).detach())
    assert_close(torch.from_numpy(predictor.embed(texts)), torch.stack(embeddings), atol=1e-5, rtol=1e-5)
    cosines = torch.cosine_similarity(torch.stack(embeddings[::2]), torch.stack(embeddings[1::2]))
    assert [prediction.score for prediction in predictor.predict_examples(examples)] == pytest.approx(
        cosines.tolist(), abs=1e-5
    )
    encoded = task.encode(examples, tokenizer, LENGTH)
    assert encoded.targets["texts"].tolist() == [[0, 1], [2, 3], [0, 4]]
    loss = (
        Contrastive(task).compute_loss(predictor.model, ExampleBatches(task, encoded, 10**6, 0, shuffle=False)(0)).parts["task"]
    )
    assert float(loss.detach()) == pytest.approx(float(((cosines - torch.tensor([1.0, 0.0, 0.5])) ** 2).sum()), abs=1e-5)


def test_long_text_similarity_of_100k_words(tokenizer):
    for long in ("truncate", "hierarchical"):
        task = TextSimilarity(long_text=long)
        predictor = make_predictor(task, tokenizer, Contrastive(task))
        predictor.max_length = 512
        (prediction,) = predictor.predict_examples([SimilarityExample(document(100_000), document(100_000))])
        assert prediction.score == pytest.approx(1)


@pytest.mark.parametrize("long", ["window", "hierarchical"])
@torch.no_grad()
def test_long_text_multiple_choice_uses_all_windows_of_each_option(tokenizer, long):
    """Loss and predictions of a batch of several questions equal those computed from the windows of each option alone."""
    task = make_task("choose", long)
    examples = [
        MultipleChoiceExample(document(60), ("now", "the way", "of"), label=1),
        MultipleChoiceExample("the way", ("people", "now"), label=0),
    ]
    predictor = make_predictor(task, tokenizer)
    encoded = task.encode(examples, tokenizer, LENGTH)
    option_scores = []
    for example in examples:
        for option in example.options:
            alone = task.encode([MultipleChoiceExample(example.context, (option, option))], tokenizer, LENGTH)
            num_windows = len(alone.input_ids) // 2
            pooled = [predictor.model(build_batch(task, alone, [np.array([index])]).inputs)[0] for index in range(num_windows)]
            rows = torch.stack(pooled).mean(0, keepdim=True) if long == "hierarchical" else torch.stack(pooled)
            option_scores.append(float(predictor.model.compute_logits("task", rows).mean()))
    expected = [torch.tensor(option_scores[:3]), torch.tensor(option_scores[3:])]
    for prediction, option_logits in zip(predictor.predict_examples(examples), expected, strict=True):
        assert prediction.scores == pytest.approx(option_logits.softmax(0).tolist(), abs=1e-5)
    loss = Supervised(task).compute_loss(predictor.model, ExampleBatches(task, encoded, 10**6, 0)(0)).parts["task"]
    assert float(loss) == pytest.approx(
        sum(
            float(-option_logits.log_softmax(0)[example.label])
            for option_logits, example in zip(expected, examples, strict=True)
        ),
        rel=1e-4,
    )
