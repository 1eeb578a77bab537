"""Every route gives the answers of Python, in the shapes of its API."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

import bertsmith
from bertsmith.model import checkpoint
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from tests.support.models import BERT_ENCODER, TASKS, TOKENIZER, save_model
from tests.support.servers import run_server

TEXT, OTHER = "she was here", "the way of the king"


@pytest.fixture(scope="module")
def bert(folders):
    return bertsmith.load(folders["bert"])


def close(answer, expected):
    """Equal but for rounding: a batch has other sums."""
    if isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(close(answer[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(answer) == len(expected) and all(map(close, answer, expected))
    return answer == pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else answer == expected


INPUTS = {
    "classify": TEXT,
    "regress": {"text": TEXT, "text_b": OTHER},
    "similar": {"text": TEXT, "text_b": OTHER},
    "choose": {"context": TEXT, "question": "who", "options": ["she", "he"]},
    "answer": {"question": "who was here", "context": "Then she was here."},
    "tag": TEXT,
}


@pytest.mark.parametrize("kind", TASKS)
def test_predict_gives_the_answers_of_python(client, folders, kind):
    expected = bertsmith.load(folders[kind])(INPUTS[kind])
    assert close(client.post(f"/models/{kind}/predict", {"inputs": INPUTS[kind]}), expected)
    assert close(client.post(f"/models/{kind}/predict", {"inputs": [INPUTS[kind]] * 2}), [expected] * 2)


def test_fill_embed_similarity_tokenize(client, bert):
    text = "the [MASK] of [MASK]"
    assert close(client.post("/models/bert/fill", {"inputs": text, "top_k": 2}), bert.fill(text, 2))
    assert close(client.post("/models/bert/fill", {"inputs": ["the [MASK]"], "candidates": ["way", "king"]}),
                 bert.fill(["the [MASK]"], candidates=["way", "king"]))  # fmt: skip
    vectors = bert.embed([TEXT, OTHER])
    assert np.allclose(client.post("/models/bert/embed", {"inputs": [TEXT, OTHER]}), vectors, atol=1e-5)
    assert np.allclose(
        client.post("/models/bert/embed", {"inputs": TEXT, "pooling": "cls"}), bert.embed(TEXT, "cls"), atol=1e-5
    )
    short = np.array(client.post("/models/bert/embed", {"inputs": [TEXT], "dimensions": 7, "normalize": True}))[0]
    assert np.allclose(short, vectors[0, :7] / np.linalg.norm(vectors[0, :7]), atol=1e-5)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(client.post("/models/bert/similarity", {"inputs": [TEXT, OTHER]}), units @ units.T, atol=1e-5)
    assert np.allclose(
        client.post("/models/bert/similarity", {"inputs": TEXT, "others": [OTHER]}), units[:1] @ units[1:].T, atol=1e-5
    )
    encoding = bert.tokenizer.encode(TEXT)
    answer = client.post("/models/bert/tokenize", {"inputs": TEXT})
    assert answer == {"ids": encoding.ids, "tokens": encoding.tokens, "offsets": [list(pair) for pair in encoding.offsets]}


def test_models_are_described(client):
    _, models, _ = client("/models")
    assert [model["name"] for model in models] == ["bert", *TASKS]
    _, model, _ = client("/models/classify")
    assert (model["task"], model["labels"], model["max_length"], model["loaded"]) == ("classify", ["bad", "good"], 48, True)
    assert client("/v1/models")[1]["data"][0]["id"] == "bert" and client("/v1/models/tag")[1]["id"] == "tag"
    assert client("/info?model=classify")[1]["model_type"]["classifier"]["label2id"] == {"bad": 0, "good": 1}


def test_openai_embeddings(client, bert):
    vectors = bert.embed([TEXT, OTHER])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    answer = client.post("/v1/embeddings", {"input": [TEXT, OTHER], "model": "bert"})
    assert answer["object"] == "list" and answer["model"] == "bert"
    assert np.allclose([row["embedding"] for row in answer["data"]], units, atol=1e-5)
    num_tokens = sum(len(bert.tokenizer.encode(text).ids) + 2 for text in (TEXT, OTHER))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    data = client.post("/v1/embeddings", {"input": TEXT, "encoding_format": "base64"})["data"]
    assert np.allclose(np.frombuffer(base64.b64decode(data[0]["embedding"]), "<f4"), units[0], atol=1e-5)
    ids = bert.tokenizer.encode(TEXT).ids
    for value in (ids, [ids]):
        assert np.allclose(client.post("/v1/embeddings", {"input": value})["data"][0]["embedding"], units[0], atol=1e-5)
    assert len(client.post("/v1/embeddings", {"input": TEXT, "dimensions": 5})["data"][0]["embedding"]) == 5


def test_rerank_by_cross_encoder_and_by_vectors(client, folders, bert):
    documents = [OTHER, TEXT, "the king"]
    model = bertsmith.load(folders["classify"])
    scores = [model(TEXT, document)["scores"]["good"] for document in documents]
    answer = client.post("/v1/rerank", {"query": TEXT, "documents": documents, "top_n": 2, "model": "classify"})
    order = sorted(range(3), key=lambda index: -scores[index])
    assert answer["method"] == "cross-encoder" and [row["index"] for row in answer["results"]] == order[:2]
    assert answer["results"][0]["relevance_score"] == pytest.approx(max(scores), abs=1e-5)
    answer = client.post("/v2/rerank", {"query": TEXT, "documents": [{"text": text} for text in documents], "model": "bert",
                                        "return_documents": True})  # fmt: skip
    assert answer["method"] == "embeddings" and answer["results"][0]["document"] == {"text": TEXT}
    assert answer["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    ranked = client.post("/rerank", {"query": TEXT, "texts": documents, "return_text": True})
    assert [row["index"] for row in ranked] == order and ranked[0]["text"] == documents[order[0]]


def test_text_embeddings_inference_routes(client, folders, bert):
    vectors = bert.embed([TEXT, OTHER])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(client.post("/embed", {"inputs": [TEXT, OTHER]}), units, atol=1e-5)
    assert np.allclose(client.post("/embed", {"inputs": TEXT, "normalize": False}), vectors[:1], atol=1e-5)
    assert np.allclose(client.post("/embed_all", {"inputs": TEXT})[0], bert.hidden_states(TEXT).vectors, atol=1e-5)
    similarity = client.post("/similarity", {"inputs": {"source_sentence": TEXT, "sentences": [TEXT, OTHER]}})
    assert np.allclose(similarity, [1, units[0] @ units[1]], atol=1e-5)
    model = bertsmith.load(folders["classify"])
    expected = sorted(model(TEXT)["scores"].items(), key=lambda pair: -pair[1])
    one = client.post("/predict", {"inputs": TEXT})
    assert close([(row["label"], row["score"]) for row in one], expected)
    batch = client.post("/predict", {"inputs": [[TEXT], [TEXT, OTHER]]})
    assert close(batch[0], one) and batch[1][0]["score"] == pytest.approx(model(TEXT, OTHER)["score"], abs=1e-5)
    assert close(client.post("/predict", {"inputs": [TEXT, OTHER]}), batch[1]), "two texts are a pair"
    tokens = client.post("/tokenize", {"inputs": TEXT})[0]
    assert [token["text"] for token in tokens] == ["[CLS]", *bert.tokenizer.encode(TEXT).tokens, "[SEP]"]
    assert client.post("/decode", {"ids": [token["id"] for token in tokens]}) == [TEXT]


def test_root_answers_by_the_task_of_the_model(client, folders):
    models = {kind: bertsmith.load(folder) for kind, folder in folders.items()}
    ask = lambda kind, inputs: client.post(f"/?model={kind}", {"inputs": inputs})
    label = models["classify"](TEXT)
    assert ask("classify", TEXT)[0][0] == pytest.approx({"label": label["label"], "score": label["score"]}, abs=1e-5)
    assert [len(rows) for rows in ask("classify", [TEXT, OTHER])] == [2, 2]
    assert close(ask("tag", TEXT), models["tag"](TEXT))
    assert close(ask("answer", INPUTS["answer"]), models["answer"](INPUTS["answer"]))
    assert close(ask("bert", "the [MASK]"), models["bert"].fill("the [MASK]"))
    assert len(ask("bert", TEXT)[0]) == 32
    assert ask("bert", {"source_sentence": TEXT, "sentences": [TEXT]}) == [pytest.approx(1, abs=1e-5)]


def test_generation_whole_and_streamed(tmp_path):
    checkpoint.save(tmp_path / "gpt", _build_gpt(), TOKENIZER, {}, {})
    model = bertsmith.load(tmp_path / "gpt")
    with run_server([tmp_path / "gpt"]) as client:
        path, search = "/models/gpt/generate", {"max_new_tokens": 8}
        expected = model.generate("the", max_new_tokens=8)
        answer = client.post(path, {"inputs": "the", "search": search})
        assert answer["generated_text"] == expected["generated_text"]
        status, events, headers = client(path, {"inputs": "the", "search": search, "stream": True})
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        rows = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
        assert rows[-1] == "[DONE]" and "".join(json.loads(row)["piece"] for row in rows[:-1]) == expected["generated_text"]
        assert client(path, {"inputs": ["a", "b"], "stream": True})[0] == 400
        assert client(path, {"inputs": "the", "kind": "sample", "search": {"heat": 1}})[0] == 400


def test_openapi_names_every_route(client):
    _, document, _ = client("/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert {"/models/{name}/predict", "/v1/embeddings", "/rerank", "/v1/rerank", "/embed", "/"} <= document["paths"].keys()
    references = {str(value) for value in _find_references(document)}
    assert references == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def _build_gpt():
    encoder = msgspec.structs.replace(BERT_ENCODER, mixer=Attention(num_attention_heads=2, causal=True))
    return build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads={"lm": LMHeadConfig()}), 0)


def _find_references(value):
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key == "$ref":
            yield item
        yield from _find_references(item)


def test_attribution_is_the_score_that_a_word_adds(client, folders):
    model = bertsmith.load(folders["classify"])
    answer = client.post("/models/classify/attribute", {"inputs": {"text": "Then she was", "text_b": "天地."}})
    assert close(answer["answer"], model("Then she was", "天地."))
    assert (answer["label"], answer["method"]) == (answer["answer"]["label"], "leave-one-word-out")
    assert [(row["field"], row["word"]) for row in answer["words"]] == [
        ("text", "Then"), ("text", "she"), ("text", "was"), ("text_b", "天"), ("text_b", "地"), ("text_b", "."),
    ]  # fmt: skip
    without = [model(*texts)["scores"][answer["label"]] for texts in (("Then was", "天地."), ("Then she was", "天."))]
    scores = [answer["words"][index]["score"] for index in (1, 4)]
    assert scores == pytest.approx([answer["score"] - score for score in without], abs=1e-5)
    other = client.post("/models/classify/attribute", {"inputs": "she was", "label": "bad"})
    score, left = model("she was")["scores"]["bad"], model("was")["scores"]["bad"]
    assert other["words"][0]["score"] == pytest.approx(score - left, abs=1e-5)
    regression = client.post("/models/regress/attribute", {"inputs": "she was"})
    assert regression["label"] is None and regression["score"] == pytest.approx(
        bertsmith.load(folders["regress"])("she was")["score"]
    )
    assert client("/models/classify/attribute", {"inputs": "she", "label": "none"})[0] == 400
    assert client("/models/tag/attribute", {"inputs": "she"})[0] == 404


def test_prompts_of_a_model_are_put_before_queries_and_documents(tmp_path):
    task = msgspec.structs.replace(TASKS["similar"], prompts={"query": "the ", "passage": "king "})
    model = bertsmith.load(save_model(tmp_path / "prompts", task))
    with run_server([tmp_path / "prompts"]) as client:
        expected = model.nearest(TEXT, [OTHER, "the way"])
        results = client.post("/v1/rerank", {"query": TEXT, "documents": [OTHER, "the way"]})["results"]
        assert [(row["index"], row["relevance_score"]) for row in results] == [
            (hit["corpus_id"], pytest.approx(hit["score"], abs=1e-5)) for hit in expected
        ]
        vector = client.post("/models/prompts/embed", {"inputs": TEXT, "prompt_name": "query"})
        assert np.allclose(vector, model.embed(TEXT, prompt_name="query"), atol=1e-5)
        assert np.allclose(
            client.post("/embed", {"inputs": TEXT, "prompt_name": "query", "normalize": False})[0], vector, atol=1e-5
        )
        assert "choose from query, passage" in client("/embed", {"inputs": TEXT, "prompt_name": "none"})[1]["error"]


def test_streams_of_several_requests_take_turns_and_bad_ones_have_a_status(tmp_path):
    checkpoint.save(tmp_path / "gpt", _build_gpt(), TOKENIZER, {}, {})
    with run_server([tmp_path / "gpt"]) as client:
        path, body = "/models/gpt/generate", {"inputs": "the", "search": {"max_new_tokens": 8}, "stream": True}
        assert client(path, body | {"kind": "beam"})[0] == 400
        assert client(path, body | {"search": {"heat": 1}})[0] == 400
        assert client(path, body | {"inputs": "the " * 100})[0] == 400
        with ThreadPoolExecutor(4) as pool:
            events = list(pool.map(lambda _: client(path, body)[1], range(4)))
        assert len(set(events)) == 1 and events[0].endswith("data: [DONE]\n\n")
        assert client.service.scheduler.num_pending == 0
