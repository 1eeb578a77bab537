"""`python -m benchmarks.roofline CLOCK CORES`: the highest speed of a matrix product on this machine.

Prints {"fp32", "bf16", "int8"} -> 1e9 multiplications and additions a second, as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

ROWS, INNER, COLUMNS = 2048, 1536, 1536
SECONDS = 1.0  # of measuring for each library and precision; the fastest product counts


def main() -> None:
    if cores := int(sys.argv[2]):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    measures: dict[str, list[Callable[[], Callable[[], object]]]] = {
        "fp32": [lambda: _torch("float32"), lambda: _onnxruntime("fp32"), lambda: _openvino("f32")],
        "bf16": [lambda: _torch("bfloat16"), lambda: _openvino("bf16")],
        "int8": [_torch_int8, lambda: _onnxruntime("int8")],
    }
    print(json.dumps({precision: max(_measure(build) for build in builds) for precision, builds in measures.items()}))


def _measure(build: Callable[[], Callable[[], object]]) -> float:
    with suppress(ImportError, RuntimeError, AttributeError):  # not installed, or not on this CPU
        multiply, best, end = build(), float("inf"), time.perf_counter() + SECONDS
        multiply()
        clock = time.process_time if sys.argv[1] == "cpu" else time.perf_counter
        while time.perf_counter() < end:
            start = clock()
            multiply()
            best = min(best, clock() - start)
        return 2 * ROWS * INNER * COLUMNS / best / 1e9
    return 0.0


def _torch(dtype: str) -> Callable[[], object]:
    import torch

    linear = torch.nn.Linear(INNER, COLUMNS, bias=False).to(getattr(torch, dtype)).requires_grad_(False)
    x = torch.randn(ROWS, INNER).to(getattr(torch, dtype))
    return lambda: linear(x)


def _torch_int8() -> Callable[[], object]:
    import torch

    a, b = (torch.randint(-127, 127, shape, dtype=torch.int8) for shape in ((ROWS, INNER), (INNER, COLUMNS)))
    return lambda: torch._int_mm(a, b)


def _onnxruntime(precision: str) -> Callable[[], object]:
    import onnxruntime

    session = onnxruntime.InferenceSession(_product(precision), providers=["CPUExecutionProvider"])
    x = np.ones((ROWS, INNER), np.float32) if precision == "fp32" else np.ones((ROWS, INNER), np.uint8)
    return lambda: session.run(None, {"x": x})


def _openvino(precision: str) -> Callable[[], object]:
    import openvino

    core = openvino.Core()
    model = core.compile_model(core.read_model(_product("fp32")), "CPU", {"INFERENCE_PRECISION_HINT": precision})
    request, x = model.create_infer_request(), np.ones((ROWS, INNER), np.float32)
    return lambda: request.infer([x], share_inputs=True)


def _product(precision: str) -> bytes:
    """A graph of one product with a constant matrix."""
    from onnx import TensorProto, helper, numpy_helper

    is_fp32 = precision == "fp32"
    kinds: tuple[Any, Any] = (TensorProto.FLOAT, TensorProto.FLOAT) if is_fp32 else (TensorProto.UINT8, TensorProto.INT32)
    weight = np.ones((INNER, COLUMNS), np.float32 if is_fp32 else np.int8)
    node = helper.make_node("MatMul" if is_fp32 else "MatMulInteger", ["x", "weight"], ["y"])
    values = [helper.make_tensor_value_info(name, kind, [ROWS, size])
              for name, kind, size in zip("xy", kinds, (INNER, COLUMNS), strict=True)]  # fmt: skip
    graph = helper.make_graph([node], "product", values[:1], values[1:], [numpy_helper.from_array(weight, "weight")])
    model: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()
    return model


if __name__ == "__main__":
    main()
