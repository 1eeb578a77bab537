"""Sentence embeddings on a CPU: bertsmith against transformers, sentence-transformers, onnxruntime, OpenVINO, CTranslate2 and
model2vec.

The same weights and texts for all, tokenizing included; every library in a process of its own (`cpu_arms.py`), in turns. The
arms of precision `static` have a table of vectors that was distilled from the model.
"""

import json
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.model import checkpoint

from .cpu_arms import ARMS, MAX_LENGTH, is_installed
from .inputs import BenchmarkInputs
from .weights import import_pretrained

CELLS = ("single", "arrival", "sorted", "busy")
LENGTHS = (16, 128, 384)  # tokens of the single texts
NUM_CHECKED = 64  # texts whose embeddings are compared
MIN_COSINE = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.99, "static": 0.999}  # below it, an arm is no competitor
SINGLE_GOAL, BATCH_GOAL = 0.95, 1.0


class Scenario(NamedTuple):
    """Texts to embed in one call."""

    name: str
    texts: list[str]
    sort: bool = True
    repeats: int = 1


class ArmProcess:
    """A process of `cpu_arms.py`."""

    def __init__(self, name: str, folder: Path, clock: str, cores: int) -> None:
        command = [sys.executable, "-m", "benchmarks.cpu_arms", name, str(folder), clock, str(cores)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL)  # fmt: skip
        self.name, self.version = name, self._read()["version"]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def embed(self, texts: list[str], path: Path) -> np.ndarray:
        self._send({"texts": texts, "save": str(path)})
        vectors: np.ndarray = np.load(path)
        return vectors

    def time(self, scenario: Scenario) -> float:
        """Seconds of one call, the median of `repeats`."""
        answer = self._send({"texts": scenario.texts, "sort": scenario.sort, "repeats": scenario.repeats})
        return statistics.median(answer["seconds"])

    def _send(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    names, kinds = _choose_arms(bench), _choose_cells(bench)
    folder = _prepare(bench, names)
    tokenizer, texts = _load_tokenizer(folder), _read_texts(bench)
    clock, cores = bench.options.get("clock", "wall"), bench.int_option("cores", 0)
    if clock not in ("wall", "cpu"):
        raise UserError(f"clock={clock} is not known; choose wall or cpu")
    count, neighbours = bench.int_option("count", 512), bench.int_option("neighbours", 4)
    bulk = random.Random(0).sample(texts, min(count, len(texts)))
    scenarios = {f"single{n}": Scenario(f"1 text, {n} tokens", [_cut(tokenizer, texts, n)], repeats=15) for n in LENGTHS}
    for order in ("arrival", "sorted"):
        name = f"{len(bulk)} texts, {order}" + (" order" if order == "arrival" else "")
        scenarios[order] = Scenario(name, bulk, order == "sorted")
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(bulk)]
    print(f"{len(bulk)} texts: {np.mean(lengths):.1f} tokens on average, {max(lengths)} at most")
    arms, seconds = list[ArmProcess](), dict[tuple[str, str], float]()
    try:
        for name in names:
            arms.append(ArmProcess(name, folder, clock, cores))
            print(f"{name}: {arms[-1].version}", file=sys.stderr)
        cosines = _compare_vectors(arms, bulk[:NUM_CHECKED], folder / "vectors.npy")
        quiet = [scenario for kind in kinds for key, scenario in scenarios.items() if key.rstrip("0123456789") == kind]
        seconds |= _measure(arms, quiet, bench.int_option("rounds", 3), 0)
        if "busy" in kinds and neighbours:
            busy = [scenarios[f"single{LENGTHS[1]}"], scenarios["sorted"]]
            timed = _measure(arms, busy, bench.int_option("rounds", 3), neighbours)
            seconds |= {(name, f"{cell}, {neighbours} busy neighbours"): value for (name, cell), value in timed.items()}
    finally:
        for arm in arms:
            arm.close()
    columns = list(dict.fromkeys(cell for _, cell in seconds))
    _print_table(names, columns, cosines, seconds)
    if "sorted" in kinds:
        _print_roofline(names, folder, bulk, lengths, seconds, clock, cores)
    return [row for precision in MIN_COSINE for row in _compare(precision, names, columns, cosines, seconds)]


def _choose_cells(bench: BenchmarkInputs) -> list[str]:
    kinds = bench.options.get("cells", ",".join(CELLS)).split(",")
    if unknown := [kind for kind in kinds if kind not in CELLS]:
        raise UserError(f"cells: unknown {unknown[0]!r}; choose from {', '.join(CELLS)}")
    return kinds


def _choose_arms(bench: BenchmarkInputs) -> list[str]:
    """The reference, transformers in fp32, comes first."""
    asked = bench.options["arms"].split(",") if "arms" in bench.options else list(ARMS)
    if unknown := [name for name in asked if name not in ARMS]:
        raise UserError(f"arms: unknown {unknown[0]!r}; choose from {', '.join(ARMS)}")
    for name in asked:
        if not is_installed(name):
            print(f"{name}: left out, since {ARMS[name].package} is not installed")
    if all(ARMS[name].precision == "static" for name in asked):
        return [name for name in asked if is_installed(name)]
    reference = "transformers SDPA fp32"
    return list(dict.fromkeys([reference, *[name for name in asked if is_installed(name)]]))


def _prepare(bench: BenchmarkInputs, names: list[str]) -> Path:
    """A folder with the weights in the form of every arm; kept, and used again, as `prepared=`."""
    folder = Path(bench.options.get("prepared", bench.folder / "cpu"))
    if not (folder / "huggingface").exists():
        weights = import_pretrained(bench)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(weights.ours, folder / "pretrained")
        shutil.copytree(weights.theirs, folder / "huggingface")
    steps: dict[str, Callable[[], object]] = {
        "onnx": lambda: _export(folder, "onnx", format="onnx"),
        "onnx-int8": lambda: _export(folder, "onnx-int8", format="onnx", precision="int8"),
        "openvino-int8": lambda: _export(folder, "openvino-int8", format="openvino", precision="int8"),
        "static": lambda: api.distill(
            teacher=str(folder / "pretrained"), student="static", out=str(folder / "static"), quiet=True
        ),
        "model2vec": lambda: _export(folder, "model2vec", "static", format="model2vec"),
        "peer.onnx": lambda: _export_peer(folder),
        "peer-int8.onnx": lambda: _quantize_onnx(folder),
        "peer-openvino-int8.xml": lambda: _quantize_openvino(folder, _read_texts(bench)[:300]),
        "ctranslate2": lambda: _convert_ctranslate2(folder),
    }
    needed = {file for name in names for file in ARMS[name].files}
    for file, prepare in steps.items():
        if file in needed and not (folder / file).exists():
            prepare()
    return folder


def _export(folder: Path, out: str, source: str = "pretrained", **options: Any) -> None:
    api.export(model=str(folder / source), out=str(folder / out), quiet=True, **options)


def _convert_ctranslate2(folder: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    config = folder / "huggingface" / "config.json"  # the converter wants a key that transformers 5 leaves out
    config.write_text(json.dumps({"position_embedding_type": "absolute", **json.loads(config.read_text())}))
    TransformersConverter(str(folder / "huggingface")).convert(str(folder / "ctranslate2"))


def _quantize_onnx(folder: Path) -> None:
    """Dynamic int8 by onnxruntime's quantizer."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(folder / "peer.onnx", folder / "peer-int8.onnx", weight_type=QuantType.QInt8)


def _export_peer(folder: Path) -> None:
    """transformers' model by torch.onnx."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder / "huggingface", attn_implementation="sdpa").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    shape = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=model.config.max_position_embeddings)}
    torch.onnx.export(
        model, (), kwargs={name: torch.ones(2, 8, dtype=torch.int64) for name in names}, f=str(folder / "peer.onnx"),
        input_names=names, output_names=["last_hidden_state"], dynamic_shapes=dict.fromkeys(names, shape), dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip


def _quantize_openvino(folder: Path, texts: list[str]) -> None:
    """Static int8 by NNCF with its settings for transformers, calibrated on texts."""
    import nncf
    import openvino

    tokenizer = _load_tokenizer(folder)
    batches = [np.array([tokenizer.encode(text).ids]) for text in texts]
    feeds = [{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)} for ids in batches]
    model = openvino.Core().read_model(folder / "peer.onnx")
    model = nncf.quantize(model, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds))
    openvino.save_model(model, folder / "peer-openvino-int8.xml")


def _compare_vectors(arms: list[ArmProcess], texts: list[str], path: Path) -> dict[str, float]:
    """The lowest cosine of each arm's vectors to those of the first arm of its model."""
    references, cosines = dict[bool, np.ndarray](), dict[str, float]()
    for arm in arms:
        vectors = arm.embed(texts, path)
        cosines[arm.name] = _lowest_cosine(vectors, references.setdefault(ARMS[arm.name].precision == "static", vectors))
    return cosines


def _measure(arms: list[ArmProcess], scenarios: list[Scenario], rounds: int, neighbours: int) -> dict[tuple[str, str], float]:
    """Median seconds of each arm and scenario; in every round each arm has its turn."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
    seconds: dict[tuple[str, str], list[float]] = {}
    try:
        for scenario in scenarios:
            for arm in arms:
                arm.time(scenario._replace(texts=scenario.texts[:64], repeats=1))
            for _ in range(rounds):
                for arm in arms:
                    seconds.setdefault((arm.name, scenario.name), []).append(arm.time(scenario))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return {key: statistics.median(values) for key, values in seconds.items()}


def _print_table(
    names: list[str], columns: list[str], cosines: dict[str, float], seconds: dict[tuple[str, str], float]
) -> None:
    """Milliseconds, as Markdown."""
    print(f"\n| ms | lowest cosine | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for name in names:
        cells = [f"{seconds[name, column] * 1000:,.{2 if seconds[name, column] < 0.1 else 0}f}" for column in columns]
        print(f"| {name} | {cosines[name]:.5f} | {' | '.join(cells)} |")


def _print_roofline(
    names: list[str], folder: Path, texts: list[str], lengths: list[int], seconds: dict[tuple[str, str], float],
    clock: str, cores: int,
) -> None:  # fmt: skip
    """The matrix products of the texts at the speed of this machine's fastest product, and what share of it was reached."""
    command = [sys.executable, "-m", "benchmarks.roofline", clock, str(cores)]
    speeds = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    encoder = checkpoint.load(folder / "pretrained")[0].config.encoder
    hidden, inner = encoder.hidden_size, encoder.feedforward.intermediate_size  # type: ignore[union-attr]
    tokens, pairs = sum(lengths), sum(length**2 for length in lengths)
    operations = 2 * encoder.num_hidden_layers * (tokens * (4 * hidden**2 + 2 * hidden * inner) + 2 * pairs * hidden)
    scenario = f"{len(texts)} texts, sorted"
    print(f"\nmatrix products of the {len(texts)} texts: {operations / 1e9:.0f}e9 operations")
    for precision, speed in speeds.items():
        ours = [seconds[name, scenario] for name in names if name.startswith("bertsmith") and ARMS[name].precision == precision]
        if speed and ours:
            ideal = operations / speed / 1e9
            print(f"{precision}: {speed:,.0f} GFLOP/s, so {ideal:.2f} s; bertsmith {min(ours):.2f} s, {ideal / min(ours):.0%}")


def _compare(
    precision: str, names: list[str], columns: list[str], cosines: dict[str, float], seconds: dict[tuple[str, str], float]
) -> list[tuple[str, str, str, str, str]]:
    """Our fastest arm against the fastest other one of a precision, among those that are accurate enough."""
    usable = [name for name in names if ARMS[name].precision == precision and cosines[name] >= MIN_COSINE[precision]]
    ours, theirs = ([name for name in usable if name.startswith("bertsmith") == is_ours] for is_ours in (True, False))
    if not ours or not theirs:
        return []
    rows = []
    for column in columns:
        (our_time, our_name), (their_time, their_name) = (
            min((seconds[name, column], name) for name in group) for group in (ours, theirs)
        )
        goal = SINGLE_GOAL if column.startswith("1 text") else BATCH_GOAL
        cells = (f"{name} {time * 1000:,.1f} ms" for name, time in ((our_name, our_time), (their_name, their_time)))
        rows.append((f"{precision}, {column}", *cells, f"{their_time / our_time:.2f}x", f"{goal}x"))
    return rows


def _lowest_cosine(vectors: np.ndarray, reference: np.ndarray) -> float:
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return float(((vectors * reference).sum(1) / norms).min())


def _read_texts(bench: BenchmarkInputs) -> list[str]:
    """The lines of the texts that are no blanks, each once."""
    lines = (line.strip() for path in bench.texts for line in path.read_text(encoding="utf-8").splitlines())
    return list(dict.fromkeys(line for line in lines if line))


def _load_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "huggingface" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def _cut(tokenizer: Any, texts: list[str], length: int) -> str:
    """The beginning of the texts that has so many tokens, with [CLS] and [SEP]."""
    text = " ".join(texts)[: 40 * length]
    offsets = tokenizer.encode(text).offsets
    cut = text[: offsets[length - 2][1]]
    assert len(tokenizer.encode(cut).ids) == length
    return cut
