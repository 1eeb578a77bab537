"""Which engine answers for a folder: the one that is asked for, or the fastest on this machine.

Where several engines without torch can open a folder, each is timed once: loading, and the answers to a few texts. The result
is kept in the user's cache folder (`$XDG_CACHE_HOME/bertsmith` or `~/.cache/bertsmith`), for models of this shape, these
versions and this CPU. torch is not timed against them: importing it takes longer than they need for the first answer.
"""

import os
import platform
import time
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from ... import __version__
from ...artifacts import fingerprint
from ...cores import count_threads
from ...errors import UserError
from ...model.folder import read_config
from ...reading import MAX_JSON_BYTES, read_bytes
from ...writing import write_json
from .base import MIN_COSINE, Backend, Floats, Precision, check_choice, lowest_cosine, random_ids
from .folder import PACKAGES, Opened, check_backend, is_installed, list_backends, open_graphs, open_torch

LENGTHS = (7, 12, 16, 16, 21, 24, 27, 30, 33, 36, 40, 44, 48, 52, 57, 60, 66, 72, 80, 90, 100, 120, 150, 200)  # of the texts
GPU_DRIVER = Path("/dev/nvidiactl")  # where NVIDIA's driver runs; asking torch takes more than a second


class Candidate(NamedTuple):
    """An engine and the precision in which it computes."""

    backend: Literal["onnx", "openvino"]
    precision: Literal["fp32", "bf16"]


class Choice(msgspec.Struct, frozen=True):
    """The fastest candidate, and the seconds that each took."""

    backend: Literal["onnx", "openvino"]
    precision: Literal["fp32", "bf16"]
    seconds: dict[str, float]


def open_folder(folder: Path, backend: Backend, precision: Precision, device: str) -> Opened:
    """A checkpoint or exported folder with the engine that is asked for, or with the fastest."""
    check_choice("backend", backend, Backend)
    check_choice("precision", precision, Precision)
    record = read_config(folder)
    if backend == "auto":
        backends = _list_usable(folder, precision, device)
    else:
        check_backend(folder, backend, device, precision)
        backends = [backend]
    if backends == ["torch"]:
        return open_torch(folder, precision, device)
    return open_graphs(folder, *_choose(folder, record["model"], backends, precision))


def cache_folder() -> Path:
    """Of this user, for what can be measured again at any time."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "bertsmith"


def _list_usable(folder: Path, precision: Precision, device: str) -> list[Backend]:
    """The engines among which `auto` chooses; torch only where no other can be used, and on a GPU."""
    backends = list_backends(folder)
    wants_gpu = device not in ("auto", "cpu") or (device == "auto" and GPU_DRIVER.exists() and is_installed("torch"))
    if "torch" in backends and wants_gpu:
        return ["torch"]
    others: list[Backend] = [backend for backend in backends if backend != "torch" and is_installed(backend)]
    if precision == "bf16":  # which onnxruntime has not
        others = [backend for backend in others if backend != "onnx"]
    if others:
        return others
    if "torch" in backends and (is_installed("torch") or backends == ["torch"]):
        return ["torch"]
    if not backends:
        raise UserError(f"{folder} has neither weights nor a graph; give a checkpoint, or a folder of `bertsmith export`")
    ways = " or ".join(f"pip install 'bertsmith[{PACKAGES[name][1]}]'" for name in backends)
    raise UserError(f"{folder} needs one of {', '.join(PACKAGES[name][0] for name in backends)} to be computed: {ways}")


def _choose(folder: Path, model: dict[str, Any], backends: list[Backend], precision: Precision) -> Candidate:
    if backends == ["onnx"]:
        return Candidate("onnx", "fp32")
    if "onnx" not in backends and precision != "auto":
        return Candidate("openvino", precision)
    path = cache_folder() / f"backend-{_key(model, backends, precision)}.json"
    with suppress(OSError, UserError, msgspec.DecodeError):  # not there, or damaged: it is measured again
        choice = msgspec.json.decode(read_bytes(path, MAX_JSON_BYTES), type=Choice)
        return Candidate(choice.backend, choice.precision)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        choice = _measure(folder, backends, precision)
        write_json(path, choice)
    except OSError:  # not to be measured at every start
        return Candidate("onnx", "fp32") if "onnx" in backends else Candidate("openvino", "fp32")
    return Candidate(choice.backend, choice.precision)


def _key(model: dict[str, Any], backends: list[Backend], precision: Precision) -> str:
    """Of all that the speed depends on, but for what else the machine does."""
    installed = [_identify_installation(PACKAGES[backend][0]) for backend in backends]
    return fingerprint([model, backends, precision, __version__, installed, _describe_cpu(), count_threads()])


def _identify_installation(package: str) -> list[Any]:
    """Where a package is, and when it was installed: another version has another time. Its version takes longer to find."""
    spec = find_spec(package)
    origin = spec.origin if spec and spec.origin else ""
    return [origin, os.stat(origin).st_mtime_ns if os.path.exists(origin) else 0]


def _describe_cpu() -> list[str]:
    """Name and instruction sets of the CPU."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        if known := [line for line in lines if line.startswith(("model name", "flags", "Features"))]:
            return known
    return [platform.machine(), platform.processor()]


def _measure(folder: Path, backends: list[Backend], precision: Precision) -> Choice:
    """Loads every candidate, and answers the texts; one whose vectors are not those of the first is not taken."""
    seconds, imports = dict[str, float](), {backend: _time_import(backend) for backend in backends}
    exact: Floats | None = None
    fastest: Candidate | None = None
    for candidate in _list_candidates(backends, precision):
        time_taken, vectors = _time(folder, candidate)
        seconds["-".join(candidate)] = time_taken = imports[candidate.backend] + time_taken
        exact = vectors if exact is None else exact
        if lowest_cosine(exact, vectors) < MIN_COSINE:
            continue
        if fastest is None or time_taken < seconds["-".join(fastest)]:
            fastest = candidate
    assert fastest is not None
    return Choice(*fastest, seconds)


def _list_candidates(backends: list[Backend], precision: Precision) -> list[Candidate]:
    """fp32 first, and of it onnxruntime, with which the others are compared."""
    candidates = [Candidate("onnx", "fp32")] if "onnx" in backends else []
    if "openvino" in backends:
        from .openvino import has_bf16

        if precision != "bf16":
            candidates.append(Candidate("openvino", "fp32"))
        if precision == "bf16" or (precision == "auto" and has_bf16()):
            candidates.append(Candidate("openvino", "bf16"))
    return candidates


def _time_import(backend: Backend) -> float:
    """Seconds to import an engine; 0 if it is imported already."""
    start = time.perf_counter()
    import_module(f".{backend}", __package__)
    return time.perf_counter() - start


def _time(folder: Path, candidate: Candidate) -> tuple[float, Floats]:
    """Seconds to load a candidate and to embed texts of mixed length, and their vectors."""
    start = time.perf_counter()
    engine = open_graphs(folder, *candidate).engine
    limit = engine.facts.max_position_embeddings
    ids = random_ids((min(length, limit) for length in LENGTHS), engine.facts.vocab_size)
    vectors = np.zeros((len(ids), engine.facts.embedding_size), np.float32)
    for batch in engine.batch_by_length(np.array([len(row) for row in ids], np.int64)):
        vectors[batch] = engine.embed([ids[i] for i in batch], "mean")
    return time.perf_counter() - start, vectors
