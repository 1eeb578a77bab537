"""One call for every kind of task; masks, candidates and likelihoods against readings made one by one; vectors."""

import inspect
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import api
from bertsmith.config import to_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import (
    MultipleChoice,
    QuestionAnswering,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from bertsmith.tasks.requests import parse_requests
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)
ENCODER = EncoderConfig(
    layers=2, width=32, mixer=Attention(heads=2), feedforward=FeedForwardConfig(inner=64), positions=48, deviation=0.2
)
TASKS = {
    "classify": TextClassification(labels=("bad", "good")),
    "regress": TextRegression(),
    "similar": TextSimilarity(),
    "choose": MultipleChoice(),
    "answer": QuestionAnswering(),
    "tag": TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio"),
}


def saved(folder, task=None):
    """A model of random weights, as `finetune` or `pretrain` would leave it."""
    heads = build_task_objective(task).heads() if task else {"words": LMHeadConfig()}
    model = build_model(ModelConfig(encoder=ENCODER, vocabulary=len(TOKENIZER), heads=heads), 3)
    record = {"task": to_dict(task), "length": 48} if task else {}
    checkpoint.save(folder, model, TOKENIZER, {}, record)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: bertsmith.load(saved(folder / kind, task)) for kind, task in TASKS.items()}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return bertsmith.load(saved(tmp_path_factory.mktemp("words") / "bert"))


def logs(model, ids):
    """(length, words) log-probabilities of one sequence, with no batch around it."""
    with torch.inference_mode():
        hidden = model.model(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
        return model.model.scores("words", hidden)[:, : len(TOKENIZER)].log_softmax(-1)


def ids_of(text):
    return [TOKENIZER.cls_token_id, *TOKENIZER.encode_with_mask(text), TOKENIZER.sep_token_id]


def number(answer):
    return answer["value"] if "value" in answer else answer["scores"]["good"]


def test_every_kind_of_task_answers_one_question_and_several(models):
    text = "she was here"
    for kind in ("classify", "regress"):
        model = models[kind]
        assert (
            number(model([text, "the way"])[0]) == pytest.approx(number(model(text))) == pytest.approx(number(model(text=text)))
        )
        assert number(model(text, "the way")) == pytest.approx(number(model([text], ["the way"])[0])) != number(model(text))
    assert models["classify"](text).keys() == {"label", "scores"} and models["regress"](text).keys() == {"value"}
    like = models["similar"](text, "the way")
    assert -1 <= like["score"] < 1 and models["similar"](text, text)["score"] == pytest.approx(1)
    assert models["similar"]([text, text], ["the way", text])[0] == pytest.approx(like)
    chosen = models["choose"](context=text, question="who", options=["she", "he", "they"])
    assert chosen["option"] in ("she", "he", "they") and sum(chosen["scores"]) == pytest.approx(1)
    said = models["answer"](question="who was here", context="Then she, and many others, was here.")
    assert said["text"] == "Then she, and many others, was here."[said["start"] : said["end"]]
    several = models["answer"]([{"question": "who", "context": "she was"}, {"question": "who", "context": "he"}])
    assert len(several) == 2


def test_every_stage_is_a_function_of_the_package_whatever_part_is_imported():
    functions = {name for name, value in vars(api).items() if inspect.isfunction(value) and value.__module__ == api.__name__}
    offered = {name for name in functions if not name.startswith("_")}
    assert offered == set(bertsmith.__all__)
    code = (
        "import bertsmith, bertsmith.inference.predictor, bertsmith.evaluation.evaluate, bertsmith.reports.html\n"
        "import bertsmith.race.table\n"
        "from bertsmith import api, race\n"
        "from bertsmith.inference.predictor import Predictor, load\n"
        "assert all(getattr(bertsmith, name) is getattr(api, name) for name in bertsmith.__all__)\n"
        "assert race is api.race and isinstance(Predictor, type) and load is not api.load\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_predict_is_called_as_the_command_is(models, tmp_path, capsys):
    folder = saved(tmp_path / "model", TASKS["classify"])
    assert bertsmith.predict(model=str(folder), text="she was here", quiet=True)["answers"] == 1
    assert json.loads(capsys.readouterr().out)["label"] == models["classify"]("she was here")["label"]


def test_a_truth_beside_a_question_is_not_looked_at(models):
    asked = {"text": "she was here", "label": "never heard of"}
    assert models["classify"](asked) == models["classify"]("she was here")
    assert models["classify"]([asked])[0]["label"] in ("bad", "good")


def test_what_guides_a_text_may_be_said_or_left_out():
    task = TextClassification(labels=("a", "b"), template="[way={way}] {text}")
    assert parse_requests(task, "the", None, {"way": "up"})[0][0].example.guides == ("[way=up]",)
    assert parse_requests(task, ["the"], None, {})[0][0].example.guides == ("[way=?]",)
    paired = TextClassification(labels=("a", "b"), columns={"text": "first", "text_b": "second"})
    with pytest.raises(UserError, match="text_b is missing"):
        parse_requests(paired, "the", None, {})


def test_entities_of_a_text_are_told_in_its_characters(models):
    text = "  Mary,  and 天地 said: “no”"
    found = models["tag"](text)
    assert found["tokens"] == ["Mary", ",", "and", "天", "地", "said", ":", "“", "no", "”"] and len(found["tags"]) == 10
    assert found["entities"], "random weights that find nothing would test nothing"
    for entity in found["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]] and entity["text"].strip() == entity["text"] != ""
    by_token = models["tag"](tokens=found["tokens"])
    assert list(by_token["tags"]) == found["tags"]
    spans = [(text.index(found["tokens"][one["start"]]), one["type"]) for one in by_token["entities"]]
    assert spans == [(one["start"], one["type"]) for one in found["entities"]]


@pytest.mark.parametrize(
    ("kind", "given", "fields", "fault"),
    [
        ("classify", None, {}, "text is missing"),
        ("classify", 3, {}, "3 is not a question"),
        ("classify", ["a", 3], {}, "text is 3, not a text"),
        ("classify", "a", {"txt": "b"}, "txt is not known"),
        ("classify", ["a", "b"], {"text_b": ["c"]}, "2 texts need as many"),
        ("similar", "a", {}, "text_b is missing"),
        ("answer", "who", {}, "question is missing"),
        ("answer", None, {"question": "who"}, r"context is missing; ask for example model\(question="),
        ("choose", None, {"context": "a", "options": "b"}, "options is .*not a list of texts"),
        ("choose", None, {"context": "a", "options": ["b"]}, "two texts or more"),
        ("tag", None, {"tokens": "John"}, "tokens is .*not a list of texts"),
    ],
)
def test_a_wrong_shape_is_named_with_a_right_one(models, kind, given, fields, fault):
    with pytest.raises(UserError, match=fault):
        models[kind](given, **fields)


def test_empty_texts_and_texts_of_a_hundred_thousand_words(models):
    long = "the people said " * 33_334
    for kind in ("classify", "regress"):
        assert len(models[kind](["", long, " "])) == 3
    assert models["similar"]("", long)["score"] == pytest.approx(models["similar"](long, "")["score"])
    tagged = models["tag"](long)
    assert len(tagged["tags"]) == 100_002
    assert models["tag"]("")["tags"] == []
    said = models["answer"](question="who", context=long[:40_000])
    assert long[said["start"] : said["end"]] == said["text"]
    vectors = models["classify"].embed(["", long])
    assert np.isfinite(vectors).all() and vectors.shape == (2, 32)


def test_each_mask_is_filled_by_what_one_reading_says(words):
    found = words.fill("the [MASK] said [MASK] .", top=3)
    row = logs(words, ids_of("the [MASK] said [MASK] ."))[2]
    assert [one["word"] for one in found[0]] == [TOKENIZER.id_to_token[i] for i in row.topk(3).indices.tolist()]
    assert found[0][0]["score"] == pytest.approx(row.max().exp().item(), abs=1e-5) and len(found) == 2
    assert words("the [MASK] said [MASK] .")[0][:3] == found[0]


def test_masks_filled_together_know_the_surest_of_them(words):
    text = "[MASK] people [MASK] the [MASK]"
    ids, best = ids_of(text), {}
    while masked := [place for place, one in enumerate(ids) if one == TOKENIZER.mask_token_id]:
        rows = logs(words, ids)
        surest = max(masked, key=lambda place: rows[place].max().item())
        ids[surest] = best[surest] = int(rows[surest].argmax())
    found = [mask[0]["word"] for mask in words.fill(text, together=True)]
    assert found == [TOKENIZER.id_to_token[best[place]] for place in sorted(best)]
    apart = [mask[0]["word"] for mask in words.fill(text)]
    assert apart != found, "or the test would not tell them apart"


def test_a_candidate_of_several_pieces_is_filled_from_left_to_right(words):
    text, candidates = "the [MASK] said", ["people", "water", "xyz"]
    found = words.fill(text, candidates=candidates)
    expected = {}
    for word in candidates:
        pieces = TOKENIZER.encode(word).ids
        expected[word] = 0.0
        for place, piece in enumerate(pieces):
            ids = [TOKENIZER.cls_token_id, *TOKENIZER.encode("the").ids, *pieces[:place]]
            at = len(ids)
            ids += [TOKENIZER.mask_token_id] * (len(pieces) - place) + [*TOKENIZER.encode("said").ids, TOKENIZER.sep_token_id]
            expected[word] += logs(words, ids)[at, piece].item()
    assert len(TOKENIZER.encode("xyz").ids) == 3 and len(TOKENIZER.encode("people").ids) == 1
    assert {one["word"]: one["log"] for one in found} == pytest.approx(expected, abs=1e-3)
    assert [one["log"] for one in found] == sorted((one["log"] for one in found), reverse=True)
    assert sum(one["score"] for one in found) == pytest.approx(1, abs=1e-5)


def test_the_likelihood_of_a_text_is_the_sum_over_tokens_hidden_one_by_one(words):
    texts = ["the people said water", "now", "", "天地 ☃ one"]
    found = words.likelihood(texts, batch_tokens=20)
    for text, one in zip(texts, found, strict=True):
        ids = ids_of(text)
        asked = [place for place, piece in enumerate(ids) if not TOKENIZER.is_special[piece]]
        total = sum(logs(words, [*ids[:p], TOKENIZER.mask_token_id, *ids[p + 1 :]])[p, ids[p]].item() for p in asked)
        assert one["total"] == pytest.approx(total, abs=1e-3) and one["tokens"] == len(asked)
    assert found[0]["words"] == 4 < found[0]["tokens"] == 8  # wat-er is no piece of this vocabulary
    assert found[0]["per_word"] == pytest.approx(found[0]["total"] / 4)
    assert found[2] == {"total": 0.0, "per_token": None, "per_word": None, "tokens": 0, "words": 0}
    assert words.likelihood("now") == pytest.approx(found[1])


@pytest.mark.parametrize(
    ("text", "candidates", "fault"),
    [
        ("no mask", None, "there is no \\[MASK\\]"),
        ("[MASK] and [MASK]", ["a"], "2 masks"),
        ("the [MASK]", [], "0 candidates"),
        ("the [MASK]", ["☃"], "unknown pieces"),
        ("the [MASK]", [" "], "no pieces"),
        ("the [MASK]" + " the" * 60, None, "longer than the model's 48 positions"),
    ],
)
def test_what_cannot_be_filled_is_said(words, text, candidates, fault):
    with pytest.raises(UserError, match=fault):
        words.fill(text, candidates=candidates)


def test_a_model_with_a_task_has_no_words(models, words):
    with pytest.raises(UserError, match="no head for words"):
        models["classify"].fill("the [MASK]")
    with pytest.raises(UserError, match="was not fine-tuned"):
        words("a", "b")


def test_vectors_come_in_order_whatever_shares_their_batch(models):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["the", "people", "said", "now"], rng.integers(0, 30))) for _ in range(50)]
    for pool in ("mean", "first"):
        together = models["classify"].embed(texts, pool=pool)
        assert together.dtype == np.float32 and together.shape == (50, 32)
        np.testing.assert_allclose(together, models["classify"].embed(texts, pool=pool, batch_tokens=40), atol=1e-5)
        alone = np.stack([models["classify"].embed(text, pool=pool) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.abs(models["classify"].embed(texts, "first") - together[0]).max() > 0.1
    np.testing.assert_array_equal(models["similar"].embed(texts), models["similar"].embed(texts, "mean"))
    assert models["classify"].embed([]).shape == (0, 32)


def test_the_nearest_of_texts_and_of_vectors_are_the_same(models):
    documents = ["the people", "now", "she said it", "water"]
    found = models["similar"].nearest(["she said it", "now"], documents, top=2)
    assert [one[0]["text"] for one in found] == ["she said it", "now"] and found[0][0]["score"] == pytest.approx(1, abs=1e-5)
    by_vector = models["similar"].nearest("now", models["similar"].embed(documents), top=2)
    assert by_vector == [{"row": one["row"], "score": pytest.approx(one["score"])} for one in found[1]]


def test_where_a_model_answers_and_in_which_numbers(tmp_path, models):
    folder = saved(tmp_path / "m", TASKS["classify"])
    for name, fault in [("gpu", "write auto, cpu, cuda"), ("cuda:99", "no such device")]:
        with pytest.raises(UserError, match=fault):
            bertsmith.load(folder, device=name)
    exact, half = (bertsmith.load(folder, device="cpu", precision=one) for one in ("auto", "bf16"))
    a, b = exact.embed("the people said"), half.embed("the people said")
    assert 1e-5 < np.abs(a - b).max() < 0.1
    assert math.isclose(exact("the way")["scores"]["good"], half("the way")["scores"]["good"], abs_tol=0.02)
    if not torch.cuda.is_available():
        assert bertsmith.load(folder).runtime.device.type == "cpu"


@pytest.mark.gpu
def test_a_gpu_says_what_the_cpu_says(tmp_path):
    texts = ["the people said it now " * n for n in range(1, 9)]
    for kind in ("classify", "tag", "similar"):
        folder = saved(tmp_path / kind, TASKS[kind])
        cpu, exact, quick = (bertsmith.load(folder, *words) for words in (("cpu",), ("cuda", "fp32"), ("cuda",)))
        assert quick.runtime.device.type == "cuda" and quick.runtime.batch_tokens > cpu.runtime.batch_tokens
        np.testing.assert_allclose(exact.embed(texts), cpu.embed(texts), atol=1e-4)
        assert np.abs(quick.embed(texts) - cpu.embed(texts)).max() < 0.1
    assert len(quick(texts, texts)) == 8
