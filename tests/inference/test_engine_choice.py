"""`backend=auto`: which engines are candidates, and the measurement that is kept in the user's cache folder."""

import msgspec
import pytest

import bertsmith
from bertsmith.errors import UserError
from bertsmith.inference.engines import choice
from bertsmith.inference.engines.choice import Choice, cache_folder
from bertsmith.model.folder import read_config
from bertsmith.pretrained.shipped import find_folder
from tests.support.models import save_model

MINI = find_folder("mini-en")


@pytest.fixture
def installed(monkeypatch):
    """Sets which engines are installed."""

    def install(*backends):
        monkeypatch.setattr(choice, "is_installed", lambda backend: backend in backends)

    return install


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bertsmith"


@pytest.fixture
def timed(monkeypatch):
    """Candidates take these seconds instead of being measured; returns those that were timed."""
    seconds = {("onnx", "fp32"): 2.0, ("openvino", "fp32"): 3.0, ("openvino", "bf16"): 1.0}
    order = []

    def time(folder, candidate):
        import numpy as np

        order.append(tuple(candidate))
        vectors = np.ones((2, 4), np.float32)
        vectors[0, 0] = seconds.get("-".join(candidate), 1.0)
        return seconds[tuple(candidate)], vectors

    monkeypatch.setattr(choice, "_time", time)
    monkeypatch.setattr(choice, "_time_import", lambda backend: 0.0)
    monkeypatch.setattr("bertsmith.inference.engines.openvino.has_bf16", lambda: True)
    return order, seconds


def choose(backends=("onnx", "openvino"), precision="auto"):
    return tuple(choice._choose(MINI, read_config(MINI)["model"], list(backends), precision))


def test_candidates_are_the_installed_engines_that_can_open_the_folder(installed, tmp_path):
    checkpoint = save_model(tmp_path / "model")
    for backends, folder, precision, expected in (
        (("torch", "onnx", "openvino"), MINI, "auto", ["onnx", "openvino"]),
        (("torch", "onnx", "openvino"), MINI, "bf16", ["openvino"]),
        (("torch", "onnx"), MINI, "fp32", ["onnx"]),
        (("torch", "onnx"), MINI, "bf16", ["torch"]),
        (("torch",), MINI, "auto", ["torch"]),
        (("torch", "onnx", "openvino"), checkpoint, "auto", ["torch"]),
        (("onnx",), checkpoint, "auto", ["torch"]),  # whose error names the extra
    ):
        installed(*backends)
        assert choice._list_usable(folder, precision, "cpu") == expected
    installed("torch", "onnx")
    assert choice._list_usable(MINI, "auto", "cuda") == ["torch"]
    installed()
    with pytest.raises(
        UserError, match=r"needs one of onnxruntime, openvino, torch to be computed: pip install 'bertsmith\[onnx\]'"
    ):
        choice._list_usable(MINI, "auto", "cpu")


def test_auto_is_torch_on_a_machine_with_a_gpu(installed, tmp_path, monkeypatch):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(choice, "GPU_DRIVER", tmp_path / "nvidiactl")
    installed("torch", "onnx")
    assert choice._list_usable(MINI, "auto", "auto") == ["torch"]
    assert choice._list_usable(MINI, "auto", "cpu") == ["onnx"]
    installed("onnx")
    assert choice._list_usable(MINI, "auto", "auto") == ["onnx"]


def test_fastest_is_measured_once_and_kept_in_the_cache_of_the_user(cache, timed):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    order, _ = timed
    assert choose() == ("openvino", "bf16") == choose()
    assert order == [("onnx", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")]
    (file,) = cache.iterdir()
    kept = msgspec.json.decode(file.read_bytes(), type=Choice)
    assert kept.seconds == {"onnx-fp32": 2.0, "openvino-fp32": 3.0, "openvino-bf16": 1.0}
    assert choose(precision="fp32") == ("onnx", "fp32") and len(list(cache.iterdir())) == 2
    assert not any("cache" in str(path) for path in MINI.iterdir())


def test_bf16_is_chosen_only_if_its_vectors_are_those_of_fp32(cache, timed):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    timed[1]["openvino-bf16"] = 1.5
    assert choose() == ("onnx", "fp32")
    assert choose(["openvino"]) == ("openvino", "fp32")
    assert choose(["openvino"], "bf16") == ("openvino", "bf16")


def test_engine_that_computes_other_vectors_is_not_chosen(cache, timed):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    timed[1].update({("openvino", "fp32"): 0.5, "openvino-fp32": 1.5, "openvino-bf16": 1.5})
    assert choose() == ("onnx", "fp32")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"backend": "torch", "precision": "fp32", "seconds": {}}', b"\xff" * 9]
)
def test_damaged_cache_is_measured_again(cache, timed, content):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    first = choose()
    (file,) = cache.iterdir()
    good = file.read_bytes()
    file.write_bytes(content)
    assert choose() == first and file.read_bytes() == good


def test_without_a_cache_nothing_is_measured(cache, timed):
    cache.parent.write_text("a file where the folder should be")
    assert choose() == ("onnx", "fp32") and timed[0] == []


def test_one_candidate_is_not_measured(cache, timed):
    assert choose(["onnx"]) == ("onnx", "fp32") and choose(["openvino"], "fp32") == ("openvino", "fp32")
    assert timed[0] == [] and not cache.exists()


def test_cache_is_of_the_shape_of_the_model_and_the_machine(cache, timed, monkeypatch):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    choose()
    monkeypatch.setattr(choice, "count_threads", lambda: 77)
    choose()
    monkeypatch.setattr(choice, "_describe_cpu", lambda: ["another"])
    choose()
    assert len(list(cache.iterdir())) == 3


def test_cache_folder_is_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "bertsmith"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "bertsmith"


def test_real_measurement_answers_as_any_engine(cache):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    model = bertsmith.load("mini-en", device="cpu")
    (file,) = cache.iterdir()
    kept = msgspec.json.decode(file.read_bytes(), type=Choice)
    assert {"onnx-fp32", "openvino-fp32"} <= kept.seconds.keys() and min(kept.seconds.values()) > 0
    assert (model.engine.backend, model.engine.compute_precision) == (kept.backend, kept.precision)
