"""Folders of `bertsmith export format=onnx` opened by sentence-transformers give our vectors.

Its ONNX backend is optimum-onnx, which wants a transformers below 4.58: the test runs in an environment with both, such as
sentence-transformers 5.2.0, transformers 4.57.3, optimum 2.3.0 and optimum-onnx 0.1.0.
"""

import msgspec
import numpy as np
import pytest

import bertsmith
from tests.support.cli import run_cli
from tests.support.models import TASKS, save_model

sentence_transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed; it wants a transformers below 4.58")

TEXTS = ["the way people were made", "people", "the way of the people"]


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", False), ("cls", True)])
def test_vectors_of_an_onnx_folder_are_ours(tmp_path, pooling, normalize):
    task = msgspec.structs.replace(TASKS["similar"], pooling=pooling, normalize=normalize)
    source, out = save_model(tmp_path / "model", task), tmp_path / "onnx"
    run_cli("export", f"model={source}", "format=onnx", f"out={out}")
    theirs = sentence_transformers.SentenceTransformer(
        str(out), backend="onnx", model_kwargs={"provider": "CPUExecutionProvider"}
    )
    np.testing.assert_allclose(theirs.encode(TEXTS), bertsmith.load(source).embed(TEXTS), atol=1e-5)
