"""`python -m benchmarks.cpu_arms ARM FOLDER CLOCK CORES`: one way to embed texts on a CPU, as a process that answers commands.

Each line of standard input is a JSON object, each line of standard output the answer: `{"texts", "order", "repeats"}` gives
seconds per repeat, `{"texts", "save"}` writes the sentence embeddings (mean of the tokens) as .npy. Tokenizing is included.
Processes of their own keep the threads and the memory of the libraries apart.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAX_LENGTH = 384
BATCH_SIZE = 8  # texts, of those that do not choose: the best of 4, 8, 16 and 32 for most
Embed = Callable[[Sequence[str], bool], np.ndarray]  # texts, and whether they may be sorted by length


class Arm(NamedTuple):
    """One library with one precision."""

    precision: str
    package: str
    build: Callable[[Path], Embed]
    files: tuple[str, ...] = ()  # of the prepared folder, besides `huggingface` and `pretrained`


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    clock = time.process_time if sys.argv[3] == "cpu" else time.perf_counter
    if cores := int(sys.argv[4]):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])  # which libraries take for their threads
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    embed = ARMS[name].build(folder)
    print(json.dumps({"version": _version(ARMS[name].package)}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        texts, seconds = command["texts"], []
        for _ in range(command.get("repeats", 1)):
            start = clock()
            vectors = embed(texts, command.get("sort", True))
            seconds.append(clock() - start)
        if "save" in command:
            np.save(command["save"], vectors)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


def is_installed(name: str) -> bool:
    return _version(ARMS[name].package) is not None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _bertsmith(folder: str, backend: str, precision: str) -> Callable[[Path], Embed]:
    def build(root: Path) -> Embed:
        import bertsmith

        model = bertsmith.load(root / folder, backend=backend, precision=precision, device="cpu")  # type: ignore[arg-type]
        model.max_length = MAX_LENGTH  # an imported model may have a shorter one
        return lambda texts, sort: model.embed(texts[0] if len(texts) == 1 else list(texts)).reshape(len(texts), -1)

    return build


def _transformers(attention: str, precision: str) -> Callable[[Path], Embed]:
    def build(root: Path) -> Embed:
        import torch
        from transformers import AutoModel, AutoTokenizer

        folder = root / "huggingface"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        model = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()

        def embed_batch(texts: Sequence[str]) -> np.ndarray:
            batch = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][..., None]
            return ((hidden * mask).sum(1) / mask.sum(1)).numpy()

        return lambda texts, sort: _in_batches(texts, sort, embed_batch)

    return build


def _sentence_transformers(root: Path) -> Embed:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    transformer = Transformer(str(root / "huggingface"), max_seq_length=MAX_LENGTH)
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")], device="cpu"
    )
    return lambda texts, sort: model.encode(list(texts), batch_size=32, show_progress_bar=False)


def _onnxruntime(file: str) -> Callable[[Path], Embed]:
    def build(root: Path) -> Embed:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _count_cores()
        session = onnxruntime.InferenceSession(str(root / file), options, providers=["CPUExecutionProvider"])
        return _graph(root, lambda feeds: session.run(["last_hidden_state"], feeds)[0])

    return build


def _openvino(file: str, precision: str) -> Callable[[Path], Embed]:
    def build(root: Path) -> Embed:
        import openvino

        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
        core = openvino.Core()
        request = core.compile_model(core.read_model(root / file), "CPU", config).create_infer_request()

        def run(feeds: dict[str, np.ndarray]) -> np.ndarray:
            request.infer(feeds, share_inputs=True)
            return request.get_tensor("last_hidden_state").data

        return _graph(root, run)

    return build


def _ctranslate2(compute_type: str) -> Callable[[Path], Embed]:
    def build(root: Path) -> Embed:
        import ctranslate2

        folder = root / "ctranslate2"
        encoder = ctranslate2.Encoder(str(folder), compute_type=compute_type, intra_threads=_count_cores(), inter_threads=1)
        tokenizer = _load_tokenizer(root)

        def embed_batch(texts: Sequence[str]) -> np.ndarray:
            ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
            hidden = np.asarray(encoder.forward_batch(ids).last_hidden_state)
            return _mean(hidden, np.array([len(row) for row in ids]))

        return lambda texts, sort: _in_batches(texts, sort, embed_batch)

    return build


def _model2vec(root: Path) -> Embed:
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(root / "model2vec")
    return lambda texts, sort: model.encode(list(texts), max_length=MAX_LENGTH, use_multiprocessing=False)


def _graph(root: Path, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Embed:
    tokenizer = _load_tokenizer(root)

    def embed_batch(texts: Sequence[str]) -> np.ndarray:
        encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
        lengths = np.array([len(ids) for ids in encoded])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask.astype(bool)] = np.concatenate(encoded)
        hidden = run({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
        return _mean(hidden, lengths)

    return lambda texts, sort: _in_batches(texts, sort, embed_batch)


def _mean(hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    weights = (np.arange(hidden.shape[1]) < lengths[:, None]) / lengths[:, None]
    return (weights[:, None].astype(np.float32) @ hidden)[:, 0]


def _in_batches(texts: Sequence[str], sort: bool, embed_batch: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
    """In the order given, or sorted by number of characters as sentence-transformers does."""
    order = np.argsort([-len(text) for text in texts], kind="stable") if sort else np.arange(len(texts))
    batches = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
    vectors = np.concatenate([embed_batch([texts[i] for i in batch]) for batch in batches])
    return vectors[np.argsort(order)]


def _load_tokenizer(root: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(root / "huggingface" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def _count_cores() -> int:
    return len(os.sched_getaffinity(0))


ARMS = {
    "bertsmith onnx fp32": Arm("fp32", "onnxruntime", _bertsmith("onnx", "onnx", "fp32"), ("onnx",)),
    "bertsmith openvino fp32": Arm("fp32", "openvino", _bertsmith("onnx", "openvino", "fp32"), ("onnx",)),
    "bertsmith torch fp32": Arm("fp32", "bertsmith", _bertsmith("pretrained", "torch", "fp32")),
    "bertsmith openvino bf16": Arm("bf16", "openvino", _bertsmith("onnx", "openvino", "bf16"), ("onnx",)),
    "bertsmith torch bf16": Arm("bf16", "bertsmith", _bertsmith("pretrained", "torch", "bf16")),
    "bertsmith onnx int8": Arm("int8", "onnxruntime", _bertsmith("onnx-int8", "onnx", "fp32"), ("onnx-int8",)),
    "bertsmith openvino int8": Arm("int8", "openvino", _bertsmith("openvino-int8", "openvino", "bf16"), ("openvino-int8",)),
    "transformers eager fp32": Arm("fp32", "transformers", _transformers("eager", "fp32")),
    "transformers SDPA fp32": Arm("fp32", "transformers", _transformers("sdpa", "fp32")),
    "transformers SDPA bf16": Arm("bf16", "transformers", _transformers("sdpa", "bf16")),
    "sentence-transformers fp32": Arm("fp32", "sentence-transformers", _sentence_transformers),
    "onnxruntime fp32": Arm("fp32", "onnxruntime", _onnxruntime("peer.onnx"), ("peer.onnx",)),
    "onnxruntime int8": Arm("int8", "onnxruntime", _onnxruntime("peer-int8.onnx"), ("peer.onnx", "peer-int8.onnx")),
    "openvino fp32": Arm("fp32", "openvino", _openvino("peer.onnx", "f32"), ("peer.onnx",)),
    "openvino bf16": Arm("bf16", "openvino", _openvino("peer.onnx", "bf16"), ("peer.onnx",)),
    "openvino int8": Arm("int8", "nncf", _openvino("peer-openvino-int8.xml", "bf16"), ("peer.onnx", "peer-openvino-int8.xml")),
    "ctranslate2 fp32": Arm("fp32", "ctranslate2", _ctranslate2("float32"), ("ctranslate2",)),
    "ctranslate2 int8": Arm("int8", "ctranslate2", _ctranslate2("int8_float32"), ("ctranslate2",)),
    "bertsmith static": Arm("static", "bertsmith", _bertsmith("static", "torch", "fp32"), ("static",)),
    "model2vec static": Arm("static", "model2vec", _model2vec, ("static", "model2vec")),
}

if __name__ == "__main__":
    main()
