"""`Predictor`: every task, fill-mask, pseudo-log-likelihood and embeddings, against single forward passes."""

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from bertsmith.tasks import (
    TextClassification,
)
from bertsmith.tasks.requests import parse_requests
from bertsmith.tasks.words import sentence_from_text
from tests.support.models import TASKS, TOKENIZER, save_model


@pytest.fixture(scope="module")
def predictors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: bertsmith.load(save_model(folder / kind, task)) for kind, task in TASKS.items()}


@pytest.fixture(scope="module")
def mlm(tmp_path_factory):
    return bertsmith.load(save_model(tmp_path_factory.mktemp("words") / "bert"))


def log_probs_of(model, ids):
    """(length, vocabulary) log-probabilities of one sequence, computed without batching."""
    with torch.inference_mode():
        hidden = model.model(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
        return model.model.compute_logits("lm", hidden)[:, : len(TOKENIZER)].log_softmax(-1)


def encode_with_special_tokens(text):
    return [TOKENIZER.cls_token_id, *TOKENIZER.encode_with_mask(text), TOKENIZER.sep_token_id]


def score_of(answer):
    return answer["scores"]["good"] if "scores" in answer else answer["score"]


def test_predictor_of_every_task_takes_one_or_several_inputs(predictors):
    text = "she was here"
    for kind in ("classify", "regress"):
        model = predictors[kind]
        assert (
            score_of(model([text, "the way"])[0])
            == pytest.approx(score_of(model(text)))
            == pytest.approx(score_of(model(text=text)))
        )
        assert (
            score_of(model(text, "the way")) == pytest.approx(score_of(model([text], ["the way"])[0])) != score_of(model(text))
        )
    assert list(predictors["classify"](text)) == ["label", "score", "scores"] and list(predictors["regress"](text)) == ["score"]
    pair = predictors["classify"]({"text": text, "text_b": "the way"})
    assert score_of(pair) == pytest.approx(score_of(predictors["classify"](text, "the way")))
    similarity = predictors["similar"](text, "the way")
    assert -1 <= similarity["score"] < 1 and predictors["similar"](text, text)["score"] == pytest.approx(1)
    assert predictors["similar"]([text, text], ["the way", text])[0] == pytest.approx(similarity)
    choice = predictors["choose"](context=text, question="who", options=["she", "he", "they"])
    assert list(choice) == ["choice", "score", "scores"] and sum(choice["scores"]) == pytest.approx(1)
    assert choice["score"] == choice["scores"][choice["choice"]] == max(choice["scores"])
    answer = predictors["answer"](question="who was here", context="Then she, and many others, was here.")
    assert list(answer) == ["answer", "score", "start", "end"]
    assert answer["answer"] == "Then she, and many others, was here."[answer["start"] : answer["end"]]
    answers = predictors["answer"]([{"question": "who", "context": "she was"}, {"question": "who", "context": "he"}])
    assert len(answers) == 2


def test_api_functions_are_not_shadowed_by_submodules():
    modules = (api.__name__, "bertsmith.stages")
    functions = {name for name, value in vars(api).items() if inspect.isfunction(value) and value.__module__ in modules}
    public = {name for name in functions if not name.startswith("_")}
    assert public | {"Data"} == set(bertsmith.__all__)
    code = (
        "import bertsmith, bertsmith.inference.predictor, bertsmith.evaluation.evaluate, bertsmith.reports.html\n"
        "import bertsmith.racing.table\n"
        "from bertsmith import api, race\n"
        "from bertsmith.inference.predictor import Predictor, load\n"
        "assert all(getattr(bertsmith, name) is getattr(api, name) for name in bertsmith.__all__)\n"
        "assert race is api.race and isinstance(Predictor, type) and load is not api.load\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_api_predict_is_the_stage(predictors, tmp_path, capsys):
    folder = save_model(tmp_path / "model", TASKS["classify"])
    arguments = {"model": str(folder), "device": "cpu", "quiet": True}
    assert bertsmith.predict(text="she was here", **arguments) == predictors["classify"]("she was here")
    (tmp_path / "texts.txt").write_text("she was here\nhe was not\n")
    answers = bertsmith.predict(data=str(tmp_path / "texts.txt"), **arguments)
    assert [answer["text"] for answer in answers] == ["she was here", "he was not"] and "label" in answers[0]
    result = bertsmith.predict(data=str(tmp_path / "texts.txt"), out=str(tmp_path / "a.jsonl"), **arguments)
    assert result["answers"] == 2 and result.folder == tmp_path / "a.jsonl"
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match=r'give a text or data=FILE: bertsmith predict .* "a text"'):
        bertsmith.predict(**arguments)


def test_api_embed_returns_arrays_and_hits_and_prints_nothing(predictors, tmp_path, capsys):
    folder = save_model(tmp_path / "model", TASKS["classify"])
    arguments = {"model": str(folder), "device": "cpu", "quiet": True}
    texts = ["she was here", "he was not"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    vectors = bertsmith.embed(data=str(tmp_path / "texts.txt"), **arguments)
    np.testing.assert_allclose(vectors, predictors["classify"].embed(texts), atol=1e-5)
    np.testing.assert_allclose(bertsmith.embed(text=texts[0], **arguments), vectors[0], atol=1e-5)
    hits = bertsmith.embed(text=texts[1], documents=str(tmp_path / "texts.txt"), top_k=1, **arguments)
    assert [hit["text"] for hit in hits] == [texts[1]]
    rows = bertsmith.embed(data=str(tmp_path / "texts.txt"), documents=str(tmp_path / "texts.txt"), **arguments)
    assert [row["hits"][0]["text"] for row in rows] == texts and capsys.readouterr().out == ""


def test_predictor_ignores_gold_labels(predictors):
    labelled = {"text": "she was here", "label": "never heard of"}
    assert predictors["classify"](labelled) == predictors["classify"]("she was here")
    assert predictors["classify"]([labelled])[0]["label"] in ("bad", "good")


def test_predictor_template_fields_are_optional():
    task = TextClassification(labels=("a", "b"), template="[way={way}] {text}")
    assert parse_requests(task, "the", None, {"way": "up"})[0][0].special_tokens == ("[way=up]",)
    assert parse_requests(task, ["the"], None, {})[0][0].special_tokens == ("[way=?]",)
    paired = TextClassification(labels=("a", "b"), columns={"text": "first", "text_b": "second"})
    with pytest.raises(UserError, match="text_b is missing"):
        parse_requests(paired, "the", None, {})


def test_predictor_entities_have_character_offsets(predictors):
    text = "  Mary,  and 天地 said: “no”"
    entities = predictors["tag"](text)
    assert entities, "random weights that predict no entity would test nothing"
    for entity in entities:
        assert list(entity) == ["entity_group", "score", "word", "start", "end"] and 0 < entity["score"] < 1
        assert entity["word"] == text[entity["start"] : entity["end"]] and entity["word"].strip() == entity["word"] != ""
    tokens = ["Mary", ",", "and", "天", "地", "said", ":", "“", "no", "”"]
    by_token = predictors["tag"](tokens=tokens)
    joined, (sentence, offsets) = "Mary , and 天地 said : “ no ”", sentence_from_text(text)
    assert list(sentence.tokens) == tokens and [text[start:end] for start, end in offsets] == tokens
    assert all(entity["word"] == joined[entity["start"] : entity["end"]] for entity in by_token)
    assert [(item["entity_group"], item["score"]) for item in by_token] == [
        (item["entity_group"], pytest.approx(item["score"])) for item in entities
    ]


@pytest.mark.parametrize(
    ("kind", "inputs", "fields", "message"),
    [
        ("classify", None, {}, "text is missing"),
        ("classify", 3, {}, "3 is not a text or a list of texts"),
        ("classify", ["a", 3], {}, "text is 3, not a text"),
        ("classify", "a", {"txt": "b"}, "txt is not a field of this task"),
        ("classify", ["a", "b"], {"text_b": ["c"]}, "2 texts and 1 values of text_b"),
        ("similar", "a", {}, "text_b is missing"),
        ("answer", "who", {}, "question is missing"),
        ("answer", None, {"question": "who"}, r"context is missing; call for example model\(question="),
        ("choose", None, {"context": "a", "options": "b"}, "options is .*not a list of texts"),
        ("choose", None, {"context": "a", "options": ["b"]}, "two or more texts"),
        ("tag", None, {"tokens": "John"}, "tokens is .*not a list of texts"),
    ],
)
def test_predictor_bad_inputs_are_refused(predictors, kind, inputs, fields, message):
    with pytest.raises(UserError, match=message):
        predictors[kind](inputs, **fields)


def test_predictor_empty_and_very_long_texts(predictors):
    long = "the people said " * 33_334
    for kind in ("classify", "regress"):
        assert len(predictors[kind](["", long, " "])) == 3
    assert predictors["similar"]("", long)["score"] == pytest.approx(predictors["similar"](long, "")["score"])
    assert all(entity["word"] == long[entity["start"] : entity["end"]] for entity in predictors["tag"](long))
    assert predictors["tag"]("") == []
    answer = predictors["answer"](question="who", context=long[:40_000])
    assert long[answer["start"] : answer["end"]] == answer["answer"]
    vectors = predictors["classify"].embed(["", long])
    assert np.isfinite(vectors).all() and vectors.shape == (2, 32)


def test_fill_mask_matches_one_forward_pass(mlm):
    filled = mlm.fill("the [MASK] said [MASK] .", top_k=3)
    row = log_probs_of(mlm, encode_with_special_tokens("the [MASK] said [MASK] ."))[2]
    assert [prediction["token"] for prediction in filled[0]] == row.topk(3).indices.tolist()
    assert filled[0][0]["score"] == pytest.approx(row.max().exp().item(), abs=1e-5) and len(filled) == 2
    assert mlm("the [MASK] said [MASK] .")[0][:3] == filled[0] == mlm("the [MASK] said [MASK] .", top_k=3)[0]


def test_fill_mask_jointly_fills_the_most_confident_first(mlm):
    text = "[MASK] people [MASK] the [MASK]"
    ids, best = encode_with_special_tokens(text), {}
    while masked := [index for index, token_id in enumerate(ids) if token_id == TOKENIZER.mask_token_id]:
        rows = log_probs_of(mlm, ids)
        most_confident = max(masked, key=lambda position: rows[position].max().item())
        ids[most_confident] = best[most_confident] = int(rows[most_confident].argmax())
    jointly = [mask[0]["token"] for mask in mlm.fill(text, iterative=True)]
    assert jointly == [best[index] for index in sorted(best)]
    independently = [mask[0]["token"] for mask in mlm.fill(text)]
    assert independently != jointly, "the test would not distinguish them"


def test_fill_mask_candidates_of_several_subwords(mlm):
    text, candidates = "the [MASK] said", ["people", "water", "xyz"]
    ranked = mlm.fill(text, candidates=candidates)
    expected = {}
    for candidate in candidates:
        subwords = TOKENIZER.encode(candidate).ids
        expected[candidate] = 0.0
        for offset, subword in enumerate(subwords):
            ids = [TOKENIZER.cls_token_id, *TOKENIZER.encode("the").ids, *subwords[:offset]]
            position = len(ids)
            ids += [TOKENIZER.mask_token_id] * (len(subwords) - offset) + [
                *TOKENIZER.encode("said").ids,
                TOKENIZER.sep_token_id,
            ]
            expected[candidate] += log_probs_of(mlm, ids)[position, subword].item()
    assert len(TOKENIZER.encode("xyz").ids) == 3 and len(TOKENIZER.encode("people").ids) == 1
    assert {prediction["token_str"]: prediction["log_prob"] for prediction in ranked} == pytest.approx(expected, abs=1e-3)
    log_probs = [prediction["log_prob"] for prediction in ranked]
    assert log_probs == sorted(log_probs, reverse=True)
    assert {prediction["sequence"] for prediction in ranked} == {f"the {candidate} said" for candidate in candidates}
    assert sum(prediction["score"] for prediction in ranked) == pytest.approx(1, abs=1e-5)


def test_pseudo_log_likelihood_is_the_sum_over_single_masks(mlm):
    texts = ["the people said water", "now", "", "天地 ☃ one"]
    results = mlm.likelihood(texts, batch_tokens=20)
    for text, result in zip(texts, results, strict=True):
        ids = encode_with_special_tokens(text)
        scored = [position for position, token_id in enumerate(ids) if not TOKENIZER.is_special[token_id]]
        total = sum(log_probs_of(mlm, [*ids[:i], TOKENIZER.mask_token_id, *ids[i + 1 :]])[i, ids[i]].item() for i in scored)
        assert result["log_prob"] == pytest.approx(total, abs=1e-3) and result["num_tokens"] == len(scored)
    assert results[0]["num_words"] == 4 < results[0]["num_tokens"] == 8  # `water` is several subwords in this vocabulary
    assert results[0]["log_prob_per_word"] == pytest.approx(results[0]["log_prob"] / 4)
    assert list(results[2].values()) == [0.0, None, None, 0, 0]
    assert mlm.likelihood("now") == pytest.approx(results[1])


@pytest.mark.parametrize(
    ("text", "candidates", "message"),
    [
        ("no mask", None, "has no \\[MASK\\]"),
        ("[MASK] and [MASK]", ["a"], "2 masks"),
        ("the [MASK]", [], "0 candidates"),
        ("the [MASK]", ["☃"], "contains \\[UNK\\]"),
        ("the [MASK]", [" "], "has no tokens"),
        ("the [MASK]" + " the" * 60, None, "longer than the model's 48 positions"),
    ],
)
def test_fill_mask_bad_inputs_are_refused(mlm, text, candidates, message):
    with pytest.raises(UserError, match=message):
        mlm.fill(text, candidates=candidates)


def test_fill_mask_needs_a_language_model_head(predictors, mlm):
    with pytest.raises(UserError, match="no language-model head"):
        predictors["classify"].fill("the [MASK]")
    with pytest.raises(UserError, match="was not fine-tuned"):
        mlm("a", "b")


class FakeSeries(list):
    """A column, as a pandas Series is for this package: iterable."""


class FakeFrame:
    """A data frame, as those of pandas and polars are for this package: `columns` and columns by name."""

    def __init__(self, **columns):
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name):
        return FakeSeries(self._values[name])


def test_predictor_takes_any_iterable_of_texts(predictors, mlm):
    texts, model = ["she was here", "the way"], predictors["classify"]
    expected = model(texts)
    for inputs in (tuple(texts), np.array(texts), np.array(texts, object), FakeSeries(texts), (text for text in texts)):
        assert model(inputs) == expected
    assert model(np.array(texts)[0]) == model("she was here")
    np.testing.assert_array_equal(model.embed(iter(texts)), model.embed(texts))
    assert mlm.nearest("she", np.array(texts), top_k=1)[0]["text"] in texts
    assert [list(rows[0]) for rows in mlm(text for text in ["[MASK] was", "the [MASK]"])] == [
        ["score", "token", "token_str", "sequence"]
    ] * 2


def test_predictor_takes_data_frames(predictors):
    first, second = ["she was here", "the way"], ["the way", "now"]
    frame = FakeFrame(text=first, text_b=second, label=["x", "y"], other=[1, 2])
    assert predictors["similar"](frame) == predictors["similar"](first, second)
    missing = FakeFrame(text=first, text_b=["the way", float("nan")])
    answers = predictors["classify"](missing)
    assert answers == predictors["classify"]([{"text": first[0], "text_b": "the way"}, {"text": first[1]}])
    renamed = TextClassification(labels=("a", "b"), columns={"text": "sentence"})
    examples, is_single = parse_requests(renamed, FakeFrame(sentence=first), None, {})
    assert [example.text for example in examples] == first and not is_single
    with pytest.raises(UserError, match="no column text; its columns: sentence"):
        predictors["classify"](FakeFrame(sentence=first))
    with pytest.raises(UserError, match="give one of them"):
        predictors["classify"].embed(frame)


def test_predictor_top_k(predictors, mlm):
    model = predictors["classify"]
    answer = model("she was here")
    assert model("she was here", top_k=1) == answer | {"scores": {answer["label"]: answer["score"]}}
    question = {"question": "who was here", "context": "Then she, and many others, was here."}
    best = predictors["answer"](question)
    candidates = predictors["answer"](question, top_k=3)["candidates"]
    assert candidates[0] == best and [list(candidate) for candidate in candidates] == [list(best)] * 3
    scores = [candidate["score"] for candidate in candidates]
    assert scores == sorted(scores, reverse=True) and 0 < sum(scores) <= 1
    assert len(mlm("the [MASK]", top_k=2)) == 2 and len(mlm("the [MASK]")) == 5
    for kind, inputs in (("regress", "she"), ("tag", "she")):
        with pytest.raises(UserError, match="top_k=2 is for masks"):
            predictors[kind](inputs, top_k=2)
    with pytest.raises(UserError, match="top_k=0 is not a number of results"):
        model("she", top_k=0)


def test_predictor_properties_and_representation(predictors, mlm):
    model = predictors["classify"]
    assert model.labels == ("bad", "good") and model.task == TASKS["classify"] and model.device == torch.device("cpu")
    size = sum(weight.numel() for weight in model.model.parameters())
    assert (
        repr(model)
        == f"Predictor(task=classify, labels=[bad, good], parameters={size:,}, backend=torch, device=cpu, precision=fp32)"
    )
    assert mlm.labels == () and repr(mlm).startswith("Predictor(task=none, parameters=")
    assert model.to("cpu") is model
    many = bertsmith.inference.predictor.Predictor(
        TorchEngine(model.model, "bf16"), TOKENIZER, {}, TextClassification(labels=("<b>", *"cdefghi"))
    )
    assert "labels=[<b>, c, d, e, f, g, ... (8)]" in repr(many) and "precision=bf16" in repr(many)
    assert "<th>labels</th><td>[&lt;b&gt;, c," in many._repr_html_()


def test_predictor_save_writes_an_equal_model_and_overwrites_nothing(tmp_path):
    model = bertsmith.load(save_model(tmp_path / "model", TASKS["classify"]))
    assert model.save(tmp_path / "copy") == tmp_path / "copy"
    copy = bertsmith.load(tmp_path / "copy")
    assert copy("she was here") == model("she was here") and copy.task == model.task and copy.max_length == model.max_length
    with pytest.raises(UserError, match="exists"):
        model.save(tmp_path / "copy")
    masks = bertsmith.load(save_model(tmp_path / "words"))
    masks.save(tmp_path / "words-copy")
    assert bertsmith.load(tmp_path / "words-copy")("the [MASK]") == masks("the [MASK]")


def test_hidden_states_match_one_forward_pass(mlm):
    text = "The people, water!"
    tokens, offsets, vectors = mlm.hidden_states(text)
    ids = encode_with_special_tokens(text)
    assert tokens == [TOKENIZER.id_to_token[token_id] for token_id in ids]
    assert offsets[0].tolist() == offsets[-1].tolist() == [0, 0]
    assert [text[start:end].lower() for start, end in offsets[1:-1]] == [token.removeprefix("##") for token in tokens[1:-1]]
    with torch.inference_mode():
        expected = mlm.model(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-5)
    several = mlm.hidden_states([text, "", "now " * 100], batch_tokens=20)
    assert [len(item.tokens) for item in several] == [len(ids), 2, 48]
    assert all(item.offsets.shape == (len(item.tokens), 2) and item.vectors.shape == (len(item.tokens), 32) for item in several)
    np.testing.assert_allclose(several[0].vectors, vectors, atol=1e-5)


def test_predictor_methods_print_nothing(predictors, mlm, capsys):
    for kind in ("classify", "tag", "regress"):
        predictors[kind](["she was here", "the way"])
    mlm.fill("the [MASK]"), mlm.embed("she"), mlm.hidden_states("she"), mlm.likelihood("she"), repr(mlm)
    assert capsys.readouterr() == ("", "")


def test_embed_does_not_depend_on_the_batch(predictors):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["the", "people", "said", "now"], rng.integers(0, 30))) for _ in range(50)]
    for pool in ("mean", "cls"):
        together = predictors["classify"].embed(texts, pooling=pool)
        assert together.dtype == np.float32 and together.shape == (50, 32)
        np.testing.assert_allclose(together, predictors["classify"].embed(texts, pooling=pool, batch_tokens=40), atol=1e-5)
        alone = np.stack([predictors["classify"].embed(text, pooling=pool) for text in texts])
        np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.abs(predictors["classify"].embed(texts, "cls") - together[0]).max() > 0.1
    np.testing.assert_array_equal(predictors["similar"].embed(texts), predictors["similar"].embed(texts, "mean"))
    assert predictors["classify"].embed([]).shape == (0, 32)


def test_nearest_of_texts_equals_nearest_of_vectors(predictors):
    documents = ["the people", "now", "she said it", "water"]
    hits = predictors["similar"].nearest(["she said it", "now"], documents, top_k=2)
    assert [hit[0]["text"] for hit in hits] == ["she said it", "now"] and hits[0][0]["score"] == pytest.approx(1, abs=1e-5)
    by_vector = predictors["similar"].nearest("now", predictors["similar"].embed(documents), top_k=2)
    assert by_vector == [{"corpus_id": hit["corpus_id"], "score": pytest.approx(hit["score"])} for hit in hits[1]]


def test_load_device_and_precision(tmp_path, predictors):
    folder = save_model(tmp_path / "m", TASKS["classify"])
    for name, message in [("gpu", "set auto, cpu, cuda"), ("cuda:99", "cuda:99 does not exist")]:
        with pytest.raises(UserError, match=message):
            bertsmith.load(folder, device=name)
    exact, bf16 = (bertsmith.load(folder, device="cpu", precision=precision) for precision in ("auto", "bf16"))
    a, b = exact.embed("the people said"), bf16.embed("the people said")
    assert 1e-5 < np.abs(a - b).max() < 0.1
    assert math.isclose(exact("the way")["scores"]["good"], bf16("the way")["scores"]["good"], abs_tol=0.02)
    if not torch.cuda.is_available():
        assert bertsmith.load(folder).engine.device.type == "cpu"


@pytest.mark.gpu
def test_predictor_on_gpu_matches_cpu(tmp_path):
    texts = ["the people said it now " * n for n in range(1, 9)]
    for kind in ("classify", "tag", "similar"):
        folder = save_model(tmp_path / kind, TASKS[kind])
        cpu, fp32, bf16 = (
            bertsmith.load(folder, device=device, precision=precision)
            for device, precision in (("cpu", "fp32"), ("cuda", "fp32"), ("cuda", "auto"))
        )
        assert bf16.engine.device.type == "cuda" and bf16.engine.batch_tokens > cpu.engine.batch_tokens
        np.testing.assert_allclose(fp32.embed(texts), cpu.embed(texts), atol=1e-4)
        assert np.abs(bf16.embed(texts) - cpu.embed(texts)).max() < 0.1
    assert len(bf16(texts, texts)) == 8


def test_fill_takes_several_texts(mlm):
    texts = ["the people [MASK] .", "[MASK] said [MASK]"]
    expected = [mlm.fill(text, top_k=2) for text in texts]
    assert mlm.fill((text for text in texts), top_k=2) == mlm.fill(np.array(texts), top_k=2) == expected
    assert mlm.fill(texts[:1], top_k=2) == expected[:1]
    assert mlm.fill(texts[:1], candidates=["water", "people"]) == [mlm.fill(texts[0], candidates=["water", "people"])]
    with pytest.raises(UserError, match="3 is not a text"):
        mlm.fill([texts[0], 3])
