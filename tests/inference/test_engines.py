"""Engines: graphs answer as torch does, alone, in ragged batches and from several threads; folders, errors and imports.

Graphs of small models are computed by the modules that are exported, without a trace; real ones are those of mini-en.
"""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.config import to_dict
from bertsmith.convert.onnx.outputs import GraphModule, HeadModule, head_graphs
from bertsmith.errors import UserError
from bertsmith.inference.engines.base import ModelFacts
from bertsmith.inference.engines.graph import MODEL_GRAPH, Graph, GraphEngine, pool_rows
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model import checkpoint
from bertsmith.model.adapter import is_adapter
from bertsmith.model.folder import read_arrays
from bertsmith.model.model import ModelConfig
from bertsmith.model.presets import PRESETS
from bertsmith.pretrained.shipped import find_folder
from bertsmith.tasks import TextClassification, TextSimilarity
from bertsmith.tasks.base import BothOrdersPair, CrossAttentionPair
from tests.support.models import TASKS, TOKENIZER, save_model

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
needs_onnxruntime = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
WORDS = ["the", "people", "said", "now", "water"]
TEXTS = ["the people said it", "", "now", "the people said it now " * 5, "she was here and he was not"]
LONG = "she was here " * 50
CROSS, BOTH = (TextClassification(labels=("no", "yes"), pair=pair) for pair in (CrossAttentionPair(), BothOrdersPair()))
MODELS = {
    "classify": (TASKS["classify"], [*TEXTS, LONG]),
    "hierarchical": (TextClassification(labels=("bad", "good"), long_text="hierarchical", doc_stride=8), [*TEXTS, LONG]),
    "cross": (CROSS, [{"text": text, "text_b": other} for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]),
    "both": (BOTH, [{"text": text, "text_b": other} for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]),
    "regress": (TASKS["regress"], TEXTS),
    "tag": (TASKS["tag"], [*TEXTS, LONG]),
    "choose": (TASKS["choose"], [{"context": text, "options": ["she", "they said it", "now"]} for text in TEXTS]),
    "answer": (TASKS["answer"], [{"question": "who", "context": text} for text in [*TEXTS, LONG]]),
    "similar": (TextSimilarity(long_text="hierarchical", doc_stride=8), [{"text": LONG, "text_b": text} for text in TEXTS]),
}


class EagerGraph(Graph):
    """A module that is exported, computed by torch."""

    precision = "fp32"

    def __init__(self, module):
        self.module, self.inputs, self.calls = module.eval(), module.input_names, []
        sizes = (2, module.input_size) if isinstance(module, HeadModule) else (2, 5)
        dtype = np.float32 if isinstance(module, HeadModule) else np.int64
        self.outputs = list(self._compute({name: np.ones(sizes, dtype) for name in self.inputs}))

    def __call__(self, feeds, outputs):
        self.calls.append(feeds)
        computed = self._compute(feeds)
        return [computed[name].numpy() for name in outputs]

    def _compute(self, feeds):
        with torch.inference_mode():
            return self.module(*(torch.from_numpy(feeds[name]) for name in self.inputs))


def load_both(folder, task):
    """A model answered by torch and by its graphs."""
    model = checkpoint.load(save_model(folder, task))[0]
    modules = {
        MODEL_GRAPH: GraphModule(model, task),
        **{name: HeadModule(model, name, task) for name in head_graphs(model, task)},
    }
    torch_engine = TorchEngine(model, "fp32")
    graphs = GraphEngine("onnx", torch_engine.facts, lambda name: EagerGraph(modules[name]))
    return (Predictor(engine, TOKENIZER, {}, task, 48 if task else 0) for engine in (torch_engine, graphs))


@pytest.mark.parametrize("name", MODELS)
def test_graphs_answer_every_task_as_torch(tmp_path, name):
    task, inputs = MODELS[name]
    expected, model = load_both(tmp_path / name, task)
    assert_close(model(inputs), expected(inputs))
    assert_close(model(inputs, batch_tokens=9), expected(inputs))
    assert_close([answer for one in inputs for answer in model([one])], expected(inputs))
    if name != "cross":  # whose graph takes two sequences for each output
        assert_close(model.embed(TEXTS).tolist(), expected.embed(TEXTS).tolist())


def test_graphs_fill_masks_and_score_texts_as_torch(tmp_path):
    expected, model = load_both(tmp_path / "words", None)
    for text in ("the [MASK] said it", "[MASK] [MASK]"):
        assert_close(model.fill(text), expected.fill(text))
        assert_close(model.fill(text, iterative=True), expected.fill(text, iterative=True))
    assert_close(model.fill("the [MASK]", candidates=WORDS), expected.fill("the [MASK]", candidates=WORDS))
    assert_close(model.likelihood(TEXTS), expected.likelihood(TEXTS))
    for pooling in ("mean", "cls"):
        np.testing.assert_allclose(model.embed(TEXTS, pooling), expected.embed(TEXTS, pooling), atol=1e-5)
    for ours, theirs in zip(model.hidden_states(TEXTS), expected.hidden_states(TEXTS), strict=True):
        np.testing.assert_allclose(ours.vectors, theirs.vectors, atol=1e-5)
    assert model.embed([]).shape == (0, 32) and model.embed("now").shape == (32,)


@pytest.fixture(scope="module")
def mini_en():
    """The shipped model in torch, and its answers."""
    model = bertsmith.load("mini-en", backend="torch", precision="fp32", device="cpu")
    return model, model.embed(TEXTS), model.fill("Paris is the [MASK] of France.")


@every_backend
def test_shipped_model_answers_through_its_graph(mini_en, backend):
    _, vectors, filled = mini_en
    model = bertsmith.load("mini-en", backend=backend, precision="fp32", device="cpu")
    assert isinstance(model.engine, GraphEngine) and f"backend={backend}, device=cpu, precision=fp32" in repr(model)
    assert model.num_parameters == mini_en[0].num_parameters
    np.testing.assert_allclose(model.embed(TEXTS), vectors, atol=1e-4)
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: model.fill("Paris is the [MASK] of France."), range(8)):
            assert [row["token_str"] for row in answer] == [row["token_str"] for row in filled]
            assert answer[0]["score"] == pytest.approx(filled[0]["score"], abs=1e-4)


@pytest.mark.parametrize("name", bertsmith.models())
def test_shipped_graphs_take_the_weights_of_their_model(name):
    from bertsmith.inference.engines.onnx_weights import check_weights, insert_weights, read_weight_names

    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install bertsmith[export]")
    folder, names = find_folder(name), set()
    weights, state = read_arrays(folder), checkpoint.load_weights(folder)
    assert weights.keys() == state.keys()
    for path in folder.glob("*.onnx"):
        graph = path.read_bytes()
        check_weights(graph, weights)
        names |= set(read_weight_names(graph))
        proto = onnx.load_from_string(insert_weights(graph, weights))
        onnx.checker.check_model(proto)
        for tensor in proto.graph.initializer:
            if tensor.name in weights:
                np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), state[tensor.name].numpy())
    unread = {"encoder.pooler.weight", "encoder.pooler.bias"} if is_adapter(folder) else set()  # of embeddings
    assert names | unread == weights.keys()


def test_openvino_computes_in_bf16(mini_en):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    model = bertsmith.load("mini-en", backend="openvino", precision="bf16")
    assert model.engine.compute_precision == "bf16" and "precision=bf16" in repr(model)
    cosines = (
        (model.embed(TEXTS) * mini_en[1]).sum(1)
        / np.linalg.norm(mini_en[1], axis=1)
        / np.linalg.norm(model.embed(TEXTS), axis=1)
    )
    assert cosines.min() > 0.999


@needs_onnxruntime
def test_what_needs_torch_loads_it_and_answers_with_it_from_then_on(mini_en):
    model = bertsmith.load("mini-en", backend="onnx", device="cpu")
    assert model.attentions("now").weights.shape == mini_en[0].attentions("now").weights.shape
    assert model.engine.backend == "torch" and model.engine.model is model.model


@pytest.fixture
def exported(tmp_path):
    """A folder with graphs that have their weights, and no other weights."""
    from bertsmith.inference.engines.onnx_weights import insert_weights

    source, folder = find_folder("mini-en"), tmp_path / "exported"
    folder.mkdir()
    for name in ("config.json", "card.json", "tokenizer.json"):
        shutil.copy(source / name, folder / name)
    weights = read_arrays(source)
    for name in ("model.onnx", "lm_head.onnx"):
        (folder / name).write_bytes(insert_weights((source / name).read_bytes(), weights))
    return folder


@every_backend
def test_folder_of_graphs_alone_answers_and_has_no_torch_module(mini_en, exported, backend):
    model = bertsmith.load(exported, backend=backend, precision="fp32")
    np.testing.assert_allclose(model.embed(TEXTS), mini_en[1], atol=1e-4)
    assert model.fill("Paris is the [MASK] of France.")[0]["token_str"] == mini_en[2][0]["token_str"]
    for call in (lambda: model.model, lambda: model.attentions("now"), lambda: model.to("cpu")):
        with pytest.raises(UserError, match="needs torch, and this folder has no weights for it"):
            call()
    with pytest.raises(UserError, match=r"backend=torch: .* has no weights for torch; use backend=onnx or openvino"):
        bertsmith.load(exported, backend="torch")


def test_backend_without_its_graph_names_the_export(tmp_path):
    folder = save_model(tmp_path / "model", TASKS["classify"])
    with pytest.raises(UserError, match=r"has no graph .*; use backend=torch, or `bertsmith export model=.* format=openvino`"):
        bertsmith.load(folder, backend="openvino")
    with pytest.raises(UserError, match="backend=tensorrt is not known; choose from auto, torch, onnx, openvino"):
        bertsmith.load(folder, backend="tensorrt")


@needs_onnxruntime
def test_onnxruntime_refuses_what_it_does_not_compute():
    for options, message in (
        ({"precision": "bf16"}, r"onnxruntime has no bf16 on a CPU; set precision=fp32, or backend=openvino or torch"),
        ({"device": "cuda"}, "backend=onnx computes on the CPU; set device=cpu, or backend=torch for device=cuda"),
    ):
        with pytest.raises(UserError, match=message):
            bertsmith.load("mini-en", backend="onnx", **options)


@needs_onnxruntime
def test_graph_of_another_model_and_damaged_graphs_are_refused(tmp_path):
    folder, (model, tokenizer, card) = tmp_path / "int8", checkpoint.load(save_model(tmp_path / "model"))
    folder.mkdir()
    checkpoint.write_files(folder, model, tokenizer, card, {}, as_int8=True)
    shutil.copy(find_folder("mini-en") / "model.onnx", folder)
    with pytest.raises(UserError, match=r"the graph does not match the weights: .* has shape .* export the model again"):
        bertsmith.load(folder, backend="onnx")
    for damaged in (b"\x3a\xff\xff\x01abc", b"\x80" * 20, b"\x0f"):
        (folder / "model.onnx").write_bytes(damaged)
        with pytest.raises(UserError, match=r"not a whole ONNX file|is not an ONNX file"):
            bertsmith.load(folder, backend="onnx")
    (folder / "model.onnx").write_bytes(b"")
    with pytest.raises(UserError, match=r"model.onnx cannot be loaded by onnxruntime"):
        bertsmith.load(folder, backend="onnx")


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import bertsmith
from bertsmith.errors import UserError
try:
    print(bertsmith.load(sys.argv[1]).fill("now [MASK]")[0]["token_str"])
except UserError as error:
    print("error:", error)
print(*(name for name in ("torch", "onnxruntime", "openvino") if name in sys.modules))
"""


def answer_in_subprocess(folder, *missing):
    command = [sys.executable, "-c", BLOCKED, str(folder), ",".join(missing)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


@needs_onnxruntime
def test_answers_import_neither_torch_nor_another_engine(mini_en):
    expected = mini_en[0].fill("now [MASK]")[0]["token_str"]
    assert answer_in_subprocess("mini-en", "torch", "openvino") == [expected, "onnxruntime"]


def test_missing_packages_are_named_with_their_extras():
    answer = answer_in_subprocess("mini-en", "torch", "openvino", "onnxruntime")[0]
    assert "needs one of onnxruntime, openvino, torch" in answer and "pip install 'bertsmith[onnx]'" in answer


def test_batches_by_length_have_little_padding_and_every_sequence_once(tmp_path):
    engine = next(model for model in load_both(tmp_path / "words", None) if isinstance(model.engine, GraphEngine)).engine
    lengths = np.random.default_rng(0).integers(1, 48, 300)
    batches = engine.batch_by_length(lengths, 256)
    assert sorted(np.concatenate(batches).tolist()) == list(range(300))
    engine.embed([np.ones(5, np.int64), np.ones(3, np.int64)], "mean")
    assert engine._graphs[MODEL_GRAPH].calls[-1]["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.1 * lengths.sum() and max(len(batch) * lengths[batch].max() for batch in batches) <= 256
    assert [batch.tolist() for batch in engine.batch_by_length(np.array([40, 40]), 10)] == [[0], [1]]


def test_pooled_rows_are_those_of_a_causal_model_too():
    hidden, lengths = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.array([1, 3])
    assert pool_rows(hidden, lengths, "cls", True).tolist() == [[0, 1], [10, 11]]
    assert pool_rows(hidden, lengths, "cls", False).tolist() == [[0, 1], [6, 7]]
    assert pool_rows(hidden, lengths, "mean", False).tolist() == [[0, 1], [8, 9]]


@pytest.mark.parametrize("name", PRESETS)
def test_facts_of_a_record_are_those_of_the_model(name):
    config = ModelConfig(PRESETS[name], 100, {})
    expected = TorchEngine.facts.fget(type("Engine", (), {"model": type("Model", (), {"config": config})}))
    assert ModelFacts.from_record(to_dict(config)) == expected


def assert_close(values, expected):
    """Equal but for rounding of the numbers."""
    if isinstance(expected, dict):
        assert values.keys() == expected.keys()
        values, expected = list(values.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(values) == len(expected)
        for value, other in zip(values, expected, strict=True):
            assert_close(value, other)
    elif isinstance(expected, float):
        assert values == pytest.approx(expected, abs=1e-5)
    else:
        assert values == expected
