"""The folder of an exported model: a checkpoint folder with its graphs, which engines answer from without torch.

| file | of |
|---|---|
| `config.json` | the checkpoint (architecture, task, labels, thresholds); with the keys that transformers' AutoConfig reads |
| `model.onnx`, and `lm_head.onnx`, `task_head.onnx` or `embedding_head.onnx` where a head is a graph of its own | format=onnx |
| `model.safetensors` | format=onnx: the weights, once, which the graphs read as external data |
| the same with all weights in the graphs, those of linear layers as int8 | format=onnx precision=int8 |
| `openvino_model.xml`, `.bin`; `openvino_lm_head.xml` ... | format=openvino, weights included |
| `tokenizer.json`, `tokenizer_config.json`, `card.json`, `README.md` | both |
| `modules.json`, `1_Pooling/`, `2_Normalize/` | sentence-transformers |
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from torch import Tensor

from ...artifacts import atomic_folder, read_finished_run, read_json
from ...config import from_dict, to_dict
from ...console import Console
from ...errors import UserError
from ...model import checkpoint
from ...model.folder import list_weight_files
from ...model.model import Model
from ...tasks import Task, TaskConfig, TextSimilarity
from ...tokenization.tokenizer import Tokenizer
from ...writing import check_writable, lock_output, write_atomic, write_json
from ..huggingface.folder import fold_temperature
from ..huggingface.names import FAMILIES
from ..huggingface.sentence_transformers import write_modules
from ..huggingface.tokenizer import write_tokenizer
from .check import Runner, check_graph, check_head_graph, check_int8_graph, onnx_runner, openvino_runner
from .external_data import Location, find_weights, set_external_data
from .graph import build_graph, build_head_graph
from .outputs import HeadModule, head_graphs
from .quantize import draw_batches, quantize_graph
from .readme import render_readme
from .support import check_exportable

if TYPE_CHECKING:
    import onnx

GraphFormat = Literal["onnx", "openvino"]
GraphPrecision = Literal["fp32", "int8"]
GRAPH = "model"
PACKAGES = {"onnx": ("torch", "onnx", "onnxscript", "onnxruntime"), "openvino": ("torch", "onnx", "onnxscript", "openvino")}


def export_graphs(
    source: Path, out: Path, kind: GraphFormat, console: Console, identity: str, precision: GraphPrecision = "fp32"
) -> dict[str, Any]:
    """Write the folder; every graph is compared with torch before (see check.py)."""
    extras, packages = ["export", kind], [*PACKAGES[kind]]
    if precision == "int8" and kind == "openvino":  # ranges of the activations are measured with onnxruntime
        extras, packages = [*extras, "onnx"], [*packages, "onnxruntime"]
    if missing := [package for package in packages if find_spec(package) is None]:
        raise UserError(f"format={kind} needs {' and '.join(missing)}: pip install 'bertsmith[{','.join(extras)}]'")
    model, tokenizer, card = checkpoint.load(source)
    record = checkpoint.read_config(source)
    task = from_dict(TaskConfig, record["task"], str(source / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    check_exportable(model, task)
    temperature = 1.0 if task is None else task.logit_temperature
    if task is not None and temperature != 1:
        model, task = fold_temperature(model, temperature), msgspec.structs.replace(task, temperature=1.0)
    record = {name: value for name, value in record.items() if name not in ("model", "weights")}
    record |= {} if task is None else {"task": to_dict(task)}
    record |= {"precision": "int8"} if precision == "int8" else {}
    with lock_output(out):
        if finished := read_finished_run(out, identity):
            console.info(f"{out} already exists, exported from the same model")
            return {"out": str(out), "format": kind, **finished}
        check_writable(out)
        run: dict[str, Any] = {"identity": identity}
        with atomic_folder(out, run) as staging:
            write_checkpoint(staging, model, tokenizer, card, record, task)
            if precision == "int8":
                run["result"] = {"cosine": _write_int8_graphs(staging, model, task, kind, tokenizer, console)}
            else:
                run["result"] = {"differences": _write_graphs(staging, model, task, kind, console)}
            write_atomic(staging / "README.md", render_readme(out.absolute().name, model, task, kind).encode())
            if kind == "openvino" or precision == "int8":  # the graphs have their own
                for path in list_weight_files(staging):
                    path.unlink()
    if temperature != 1:
        console.info(f"temperature = {temperature:.4g}: folded into the last linear layer")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    console.info(f"{out}: {size / 1e6:.1f} MB, with the weights of {source}")
    return {"out": str(out), "format": kind, **run["result"]}


def write_checkpoint(
    folder: Path, model: Model, tokenizer: Tokenizer, card: dict[str, Any], record: dict[str, Any], task: Task | None,
    quantized: dict[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """The files of a checkpoint, and what transformers and sentence-transformers read beside the graph.

    quantized: the weights as `quantize` stores them, in place of the model's
    """
    encoder = model.config.encoder
    checkpoint.write_files(folder, model, tokenizer, card, record, quantized=quantized)
    config = transformers_config(model, tokenizer, task, record.get("family"))
    write_json(folder / "config.json", {**config, **read_json(folder / "config.json")})
    max_length = record.get("max_length") or encoder.max_position_embeddings
    is_language_model = encoder.is_causal and task is None
    write_tokenizer(folder, tokenizer, max_length, encoder.type_vocab_size, is_language_model)
    if encoder.num_hidden_layers:  # the mean of word vectors is over other tokens than sentence-transformers' mean
        sentence_task = task if task is not None and task.head_type == "embedding" else TextSimilarity()
        write_modules(folder, sentence_task, model, max_length)


def transformers_config(model: Model, tokenizer: Tokenizer, task: Task | None, family: str | None = None) -> dict[str, Any]:
    """What engines of others read of config.json: sizes, labels and special tokens, as keys of transformers.

    Engines compute the graph, so a model that no class of transformers has is called a `bert` here.
    """
    encoder = model.config.encoder
    values: dict[str, Any] = {
        "model_type": family if family in FAMILIES else "bert", "vocab_size": model.config.vocab_size,
        "hidden_size": encoder.hidden_size, "num_hidden_layers": encoder.num_hidden_layers,
        "num_attention_heads": getattr(encoder.mixer, "num_attention_heads", 1),
        "intermediate_size": encoder.feedforward.intermediate_size if encoder.feedforward else encoder.hidden_size,
        "max_position_embeddings": encoder.max_position_embeddings, "type_vocab_size": max(encoder.type_vocab_size, 1),
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    if task is not None and task.labels:
        values["id2label"] = {str(number): label for number, label in enumerate(task.labels)}
        values["label2id"] = {label: number for number, label in enumerate(task.labels)}
    return values


def _write_graphs(
    folder: Path, model: Model, task: Task | None, kind: GraphFormat, console: Console
) -> dict[str, dict[str, float]]:
    """Largest difference from torch of each output of each graph."""
    locations, differences = find_weights(folder), dict[str, dict[str, float]]()
    run, input_names = _write_graph(folder, GRAPH, build_graph(model, task, weights=False), locations, kind)
    differences[GRAPH] = check_graph(run, input_names, model, task)
    for head in head_graphs(model, task):
        proto = build_head_graph(model, head, task, weights=False)
        run, _ = _write_graph(folder, f"{head}_head", proto, locations, kind)
        differences[f"{head}_head"] = check_head_graph(run, HeadModule(model, head, task))
    for graph, values in differences.items():
        for name, value in values.items():
            console.info(f"checked: {graph}: {name}: maximum difference from torch {value:.1e}")
    return differences


def _write_int8_graphs(
    folder: Path, model: Model, task: Task | None, kind: GraphFormat, tokenizer: Tokenizer, console: Console
) -> dict[str, float]:
    """Mean and lowest cosine of sentence embeddings to those of torch, on other ids than those of the calibration."""
    longest = model.config.encoder.max_position_embeddings
    proto = build_graph(model, task)
    quantized = quantize_graph(proto, kind, draw_batches(tokenizer, longest))
    if quantized == proto:
        raise UserError(
            "precision=int8: the graph of this model has no linear layers that int8 makes faster; use precision=fp32"
        )
    run, input_names = _write_graph(folder, GRAPH, quantized, {}, kind)
    cosine = check_int8_graph(run, input_names, model, task, draw_batches(tokenizer, longest, seed=1))
    for head in head_graphs(model, task):
        run, _ = _write_graph(folder, f"{head}_head", build_head_graph(model, head, task), {}, kind)
        check_head_graph(run, HeadModule(model, head, task))
    console.info(
        f"checked: sentence embeddings of random ids: cosine to torch {cosine['mean']:.4f}, at least {cosine['lowest']:.4f}"
    )
    return cosine


def _write_graph(
    folder: Path, name: str, proto: "onnx.ModelProto", locations: dict[str, Location], kind: GraphFormat
) -> tuple[Runner, list[str]]:
    """Write a graph; returns what computes it from its file, and the names of its inputs."""
    path = folder / f"{name}.onnx"
    set_external_data(proto, locations)
    write_atomic(path, proto.SerializeToString())
    if kind == "onnx":
        return onnx_runner(path)
    import openvino

    xml = folder / ("openvino_model.xml" if name == GRAPH else f"openvino_{name}.xml")
    try:
        openvino.save_model(openvino.convert_model(path), xml, compress_to_fp16=False)
        runner = openvino_runner(xml)
    except Exception as error:  # the library raises RuntimeError and classes of its own
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"OpenVINO does not take the graph of this model ({reason}); use format=onnx") from None
    path.unlink()
    return runner
