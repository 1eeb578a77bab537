"""Every mixer and every task: the graph equals the model, or the model is refused with a reason; and the guide's table."""

import re
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from bertsmith.convert.onnx import build_graph, build_head_graph
from bertsmith.convert.onnx.check import check_graph, check_head_graph, onnx_runner, openvino_runner
from bertsmith.convert.onnx.outputs import HeadModule, head_graphs
from bertsmith.convert.onnx.support import find_refusal
from bertsmith.model.heads.features import FeaturesConfig
from bertsmith.model.mixers import (
    AdaptiveSpan,
    Attention,
    Cnn,
    LiteTransformer,
    Longformer,
    Lstm,
    MixerConfig,
    Reformer,
    ReformerChunked,
    TransformerXL,
)
from bertsmith.model.mixers.reformer.chunked import ChunkConfig
from bertsmith.model.position_bias import AlibiConfig, ShawConfig, T5BiasConfig
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TaskConfig, TextClassification, TextSimilarity, TokenClassification
from bertsmith.tasks.base import BothOrdersPair, CrossAttentionPair
from tests.support.models import TASKS
from tests.support.onnx_graphs import build_encoder, build_random_model

pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "onnx.md"
CHUNKS = ChunkConfig(chunk_length=4)
MIXERS = {
    "attention": Attention(num_attention_heads=4),
    "attention causal": Attention(num_attention_heads=4, causal=True),
    "attention rope": Attention(num_attention_heads=4, rope_theta=100.0, bias=False),
    "attention alibi": Attention(num_attention_heads=4, position_bias=AlibiConfig()),
    "attention t5": Attention(num_attention_heads=4, position_bias=T5BiasConfig(num_buckets=8, max_distance=12)),
    "attention shaw": Attention(num_attention_heads=4, position_bias=ShawConfig(clip=5)),
    "attention apart": Attention(num_attention_heads=4, directions="apart", rope_theta=100.0),
    "longformer": Longformer(num_attention_heads=4, attention_window=(8,)),
    "longformer rope": Longformer(num_attention_heads=4, attention_window=(10,), rope_theta=100.0),
    "longformer dilated": Longformer(num_attention_heads=4, attention_window=(6,), dilation=(2,), global_attention=False),
    "transformer-xl": TransformerXL(num_attention_heads=4, causal=False),
    "transformer-xl causal": TransformerXL(num_attention_heads=4, same_length=True, mem_len=9, clamp_len=5, bias=True),
    "adaptive-span": AdaptiveSpan(num_attention_heads=4, max_span=48, span_ramp=8),
    "adaptive-span causal": AdaptiveSpan(num_attention_heads=4, max_span=20, span_ramp=32, causal=True),
    "reformer": Reformer(num_attention_heads=4, num_buckets=1),
    "reformer-chunked": ReformerChunked(num_attention_heads=4, attn_layers=("local",), local=CHUNKS),
    "lite-transformer": LiteTransformer(kernel_sizes=(5,)),
    "lite-transformer dynamic": LiteTransformer(kernel_sizes=(4,), dynamic=True, num_filters=8, rope_theta=100.0),
    "lstm": Lstm(),
    "lstm projected": Lstm(directions="apart", cell_size=40, cell_clip=0.3),
    "gru": Lstm(cell="gru"),
    "rnn forward": Lstm(cell="rnn", directions="forward"),
    "cnn": Cnn(),
    "cnn strided": Cnn(stride=3, dilation=2, causal=True),
}
KINDS = ("attention", "longformer", "transformer-xl", "adaptive-span", "lite-transformer", "lstm", "cnn")
GUIDE_MIXERS = {kind: MIXERS[kind] for kind in KINDS} | {
    "reformer without hashes": MIXERS["reformer"],
    "reformer with hashes": Reformer(num_attention_heads=4, num_buckets=4),
    "reformer-chunked without hashes": MIXERS["reformer-chunked"],
    "reformer-chunked with hashes": ReformerChunked(num_attention_heads=4, attn_layers=("local", "lsh"), num_buckets=4),
}
HEADS = {
    **TASKS,
    "classify hierarchical": TextClassification(labels=("bad", "good"), long_text="hierarchical"),
    "classify both": TextClassification(labels=("bad", "good"), pair=BothOrdersPair()),
    "classify cross": TextClassification(labels=("bad", "good"), pair=CrossAttentionPair(blocks=1)),
    "similar cls": TextSimilarity(pooling="cls", normalize=True),
    "tag crf": TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio", crf=True),
}
FEATURES = FeaturesConfig(layers="concat", last=2, lstm=2, embedding_size=6)


def check_pair(mixer, task, tmp_path, features=None, runners=(onnx_runner,), **options):
    """Largest difference of every output of every graph of a random model with this mixer and head, over the runners."""
    objective = build_task_objective(task, features)
    model = build_random_model(build_encoder(mixer, **options), objective.heads())
    assert find_refusal(model, task) is None
    path, differences = tmp_path / "model.onnx", dict[str, float]()
    path.write_bytes(build_graph(model, task).SerializeToString())
    found = [check_graph(*runner(path), model, task) for runner in runners]
    for head in head_graphs(model, task):
        path.write_bytes(build_head_graph(model, head, task).SerializeToString())
        found += [check_head_graph(runner(path)[0], HeadModule(model, head, task)) for runner in runners]
    for values in found:
        differences |= {name: max(value, differences.get(name, 0.0)) for name, value in values.items()}
    return differences


def test_head_that_averages_sequences_is_a_graph_of_its_own(tmp_path):
    differences = check_pair(MIXERS["attention"], HEADS["classify both"], tmp_path, num_hidden_layers=1)
    assert differences.keys() == {"last_hidden_state", "sentence_embedding", "pooled_tokens", "logits"}


PAIRS = [*product(MIXERS, ("classify", "tag", "answer")), *product(("attention",), HEADS)]


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "head"), dict.fromkeys(PAIRS))
def test_graph_of_mixer_and_head_equals_the_model(mixer, head, tmp_path):
    """Heads of texts, tokens and spans with every mixer; other tasks have one of these heads, or none (similar)."""
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    runners = (onnx_runner, openvino_runner)
    assert max(check_pair(MIXERS[mixer], HEADS[head], tmp_path, runners=runners).values()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("head", ["tag", "classify"])
@pytest.mark.parametrize("pooling", ["mean", "max", "concat"])
def test_graph_of_feature_head_and_pooling_equals_the_model(head, pooling, tmp_path):
    options = {"pooling": pooling} | ({"pooler_act": "none"} if pooling == "concat" else {})
    assert max(check_pair(MIXERS["attention"], HEADS[head], tmp_path, **options).values()) < 1e-4
    assert max(check_pair(MIXERS["attention"], HEADS[head], tmp_path, FEATURES, **options).values()) < 1e-4


def test_refusals_name_a_reason_and_a_way_out():
    model = build_random_model(build_encoder(Reformer(num_attention_heads=4, num_buckets=4)))
    refusal = find_refusal(model, None)
    assert refusal is not None and "hash" in refusal.reason and "torch" in refusal.instead


def test_guide_lists_what_is_exported_and_what_is_refused():
    """Rows: mixers; columns: tasks."""
    table = GUIDE.read_text(encoding="utf-8").split("## What can be exported")[1]
    header, _, *rows = (line.replace("`", "").strip("| ") for line in re.findall(r"^\|.*\|$", table, re.M))
    columns = {config.__struct_config__.tag: config for config in get_args(TaskConfig)}
    expected, names = {}, [name.strip() for name in header.split("|")[1:]]
    for name in GUIDE_MIXERS:
        model = build_random_model(build_encoder(GUIDE_MIXERS[name]))
        refusals = [find_refusal(model, TASKS.get(task) or columns[task]()) for task in names]
        expected[name] = ["yes" if refusal is None else "no" for refusal in refusals]
    assert {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows} == expected
    assert set(names) == columns.keys()
    assert {name.split()[0] for name in GUIDE_MIXERS} == {config.__struct_config__.tag for config in get_args(MixerConfig)}
